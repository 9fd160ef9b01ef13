//! The towers of Qwen: rotary positions, and squares of patches joined. Those since Qwen 3 VL have learned
//! positions too; those of Qwen 3 VL give the first layers of the language model features of inner layers.

use tern_graph::{Function, NormKind, Val};
use tern_images::{Area, Sizing};

use super::blocks::{BlockStyle, Mlp};
use super::positions::Resampling;
use super::{ImagePrompt, Join, TowerBuild, TowerKind};
use crate::ModelError;

pub(super) static QWEN3VL: TowerKind = TowerKind {
    name: "qwen3vl_merger",
    archs: &["qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe"],
    prompt: ImagePrompt::plain("<|image_pad|>", "<|image_pad|>"),
    build: qwen3vl,
};

pub(super) static QWEN2_5VL: TowerKind = TowerKind {
    name: "qwen2.5vl_merger",
    archs: &["qwen2vl"],
    prompt: ImagePrompt::plain("<|image_pad|>", "<|image_pad|>"),
    build: qwen2_5vl,
};

/// Tokens of files without bounds.
const TOKENS: [usize; 2] = [8, 4096];

/// The base of their rotations.
const BASE: f32 = 1e4;

fn qwen3vl(t: &mut TowerBuild<'_>) -> Result<Sizing, ModelError> {
    let (merge, sizing) = t.merged()?;
    let layers = t.b.config.layers;
    let deep = t.b.keys().bool_per_layer("is_deepstack_layers", layers)?.unwrap_or_default();
    let deep: Vec<usize> = (0..layers).filter(|layer| deep.get(*layer) == Some(&true)).collect();
    let style = BlockStyle { rotation: t.grid_rope(BASE)?, ..BlockStyle::SIGLIP };
    let x = t.patches(Some(Resampling::Corners))?;
    let (x, features) = t.blocks_with(x, &style, &deep)?;
    let width = t.b.config.width;
    let mut all = t.norm(x, "v.post_ln", width, NormKind::Layer)?;
    for feature in features {
        all = t.b.graph.join_heads(all, feature, 1)?;
    }
    let joined = t.projector(all, Join::Cells(merge));
    let parts = 1 + deep.len();
    let part = |t: &mut TowerBuild<'_>, at: usize| -> Result<Val, ModelError> {
        Ok(t.b.graph.head_columns(joined, parts * width, at * width, width)?)
    };
    let first = if deep.is_empty() { joined } else { part(t, 0)? };
    let mut rows = t.two_linears(first, ["mm.0", "mm.2"])?;
    for (at, layer) in (1..).zip(deep) {
        let name = |of: &str| format!("v.deepstack.{layer}.{of}");
        let x = part(t, at)?;
        let x = t.norm(x, &name("norm"), merge * merge * width, NormKind::Layer)?;
        let x = t.two_linears(x, [&name("fc1"), &name("fc2")])?;
        rows = t.b.graph.join_heads(rows, x, 1)?;
    }
    t.rows(rows);
    Ok(sizing)
}

/// Layers from one that sees the whole picture to the next.
const RUN: usize = 8;

fn qwen2_5vl(t: &mut TowerBuild<'_>) -> Result<Sizing, ModelError> {
    let (merge, sizing) = t.merged()?;
    let keys = t.b.keys();
    let run = keys.optional_usize("n_wa_pattern")?.unwrap_or(RUN);
    let side = keys.optional_usize("window_size")?.unwrap_or(8 * t.patch) / merge / t.patch * merge;
    if side == 0 {
        return Err(ModelError::value(keys.key("window_size"), 0, "several patches"));
    }
    t.window = (run > 1).then_some(side);
    let style = BlockStyle {
        norm: NormKind::Rms,
        function: Mlp::Silu,
        rotation: t.grid_rope(BASE)?,
        run: (run > 1).then_some(run),
        ..BlockStyle::SIGLIP
    };
    let x = t.patches(None)?;
    let x = t.blocks(x, &style)?;
    let x = t.norm(x, "v.post_ln", t.b.config.width, NormKind::Rms)?;
    let x = t.projector(x, Join::Cells(merge));
    let x = t.last_linear(x, "mm.0")?;
    let x = t.b.graph.apply(x, Function::Gelu);
    let x = t.last_linear(x, "mm.2")?;
    t.rows(x);
    Ok(sizing)
}

impl TowerBuild<'_> {
    /// Patches of a side of a token, and the sizes that follow.
    fn merged(&mut self) -> Result<(usize, Sizing), ModelError> {
        let merge = self.side("spatial_merge_size", 2)?;
        self.has_grid = true;
        Ok((merge, Sizing::Area(self.area(self.patch * merge, TOKENS)?)))
    }

    /// The number of patches of a side of a token under a key.
    pub(super) fn side(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        let keys = self.b.keys();
        let side = keys.optional_usize(key)?.unwrap_or(default);
        if !(1..=8).contains(&side) {
            return Err(ModelError::value(keys.key(key), side, "1 to 8"));
        }
        Ok(side)
    }

    /// The bounds of an area, which are numbers of tokens if the file has none.
    pub(super) fn area(&self, factor: usize, tokens: [usize; 2]) -> Result<Area, ModelError> {
        let keys = self.b.keys();
        let bound = |name: &str, tokens: usize| {
            keys.optional_usize(name).map(|bound| bound.unwrap_or(tokens * factor * factor))
        };
        let (least, most) = (bound("image_min_pixels", tokens[0])?, bound("image_max_pixels", tokens[1])?);
        if least > most || most == 0 {
            return Err(ModelError::value(keys.key("image_max_pixels"), most, format!("{least} or more")));
        }
        Ok(Area { factor, least, most })
    }
}
