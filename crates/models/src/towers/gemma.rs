//! The towers of Gemma 3, a SigLIP whose patches are pooled, and of Gemma 4.

use tern_graph::NormKind;
use tern_images::{Filter, Sizing};

use super::blocks::{BlockStyle, Mlp};
use super::positions::Resampling;
use super::{ImagePrompt, Join, TRANSPOSED, TowerBuild, TowerKind};
use crate::ModelError;

pub(super) static GEMMA3: TowerKind = TowerKind {
    name: "gemma3",
    archs: &["gemma3"],
    prompt: ImagePrompt {
        marker: "<start_of_image>",
        row: "<image_soft_token>",
        write: |layout| format!("\n\n<start_of_image>{}<end_of_image>\n\n", layout.whole()),
        lines: false,
        stand_in: None,
    },
    build: gemma3,
};

/// Rows of images have the embeddings per layer of the token 0, which pads texts.
const GEMMA4_PROMPT: ImagePrompt = ImagePrompt {
    marker: "<|image|>",
    row: "<|image|>",
    write: |layout| format!("<|image>{}<image|>", layout.whole()),
    lines: false,
    stand_in: Some(0),
};

pub(super) static GEMMA4: TowerKind =
    TowerKind { name: "gemma4v", archs: &["gemma4"], prompt: GEMMA4_PROMPT, build: gemma4 };

/// Tokens of an image of Gemma 4.
const TOKENS: usize = 280;

fn gemma3(t: &mut TowerBuild<'_>) -> Result<Sizing, ModelError> {
    let pool = t.side("projector.scale_factor", 4)?;
    let size = t.tile(pool)?;
    t.filter = Filter::Bilinear;
    let x = t.patches(Some(Resampling::Nearest))?;
    let x = t.blocks(x, &BlockStyle::SIGLIP)?;
    let x = t.norm(x, "v.post_ln", t.b.config.width, NormKind::Layer)?;
    let x = t.projector(x, Join::Mean(pool));
    let width = t.b.config.width;
    let x = t.norm(x, "mm.soft_emb_norm", width, NormKind::Rms)?;
    let name = "mm.input_projection.weight";
    let table = t.checkpoint.tensors.get(name).ok_or_else(|| ModelError::MissingTensor(name.into()))?;
    let projection = t.b.graph.matrix(format!("{name}{TRANSPOSED}"), table.cols(), width)?;
    let x = t.b.graph.linear(x, projection)?;
    t.rows(x);
    Ok(Sizing::Square(size))
}

fn gemma4(t: &mut TowerBuild<'_>) -> Result<Sizing, ModelError> {
    let pool = t.side("projector.scale_factor", 3)?;
    // pixels from -1 to 1
    let [mean, deviation] = t.pixels;
    t.pixels = [[0, 1, 2].map(|c| mean[c] + deviation[c] / 2.0), deviation.map(|d| d / 2.0)];
    let style = BlockStyle {
        norm: NormKind::Rms,
        function: Mlp::GeluTanh,
        rotation: t.halves_rope(100.0)?,
        scale: Some(1.0),
        norms_values: true,
        ..BlockStyle::SIGLIP
    };
    let x = t.patches(Some(Resampling::Axes))?;
    let x = t.blocks(x, &style)?;
    let (width, eps) = (t.b.config.width, t.b.config.eps);
    let x = t.projector(x, Join::Mean(pool));
    let x = t.b.graph.scale(x, (width as f32).sqrt());
    let x = t.standardized(x)?;
    let x = t.b.graph.plain_norm(x, width, eps)?;
    let x = t.last_linear(x, "mm.input_projection")?;
    t.rows(x);
    t.budget(pool)
}

impl TowerBuild<'_> {
    /// As many tokens as the file allows, each of a square of patches.
    fn budget(&self, pool: usize) -> Result<Sizing, ModelError> {
        let (keys, factor) = (self.b.keys(), self.patch * pool);
        let squares =
            keys.optional_usize("image_max_pixels")?.map_or(TOKENS, |most| most / (factor * factor));
        if squares == 0 {
            let (key, want) = (keys.key("image_max_pixels"), format!("{} or more", factor * factor));
            return Err(ModelError::value(key, 0, want));
        }
        // all of them in one line have positions
        let places = self.positions.as_ref().map_or(usize::MAX, |positions| positions.most() / pool);
        Ok(Sizing::Budget { factor, squares: squares.min(places) })
    }
}
