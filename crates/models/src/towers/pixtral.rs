//! The tower of Pixtral and Mistral 3: images in their own size, whose lines of rows end with a token.

use tern_graph::NormKind;
use tern_images::Sizing;

use super::blocks::{BlockStyle, Mlp};
use super::{ImagePrompt, Join, TowerBuild, TowerKind};
use crate::ModelError;

pub(super) static PIXTRAL: TowerKind = TowerKind {
    name: "pixtral",
    archs: &["llama", "mistral3"],
    prompt: ImagePrompt {
        marker: "[IMG]",
        row: "[IMG]",
        write: |layout| {
            let [rows, cols] = layout.grids.last().copied().unwrap_or([0, 0]);
            vec![layout.row.repeat(cols); rows].join("[IMG_BREAK]") + "[IMG_END]"
        },
        lines: true,
        stand_in: None,
    },
    build,
};

/// The base of its rotations.
const BASE: f32 = 1e4;

fn build(t: &mut TowerBuild<'_>) -> Result<Sizing, ModelError> {
    let merge = t.side("spatial_merge_size", 1)?;
    let keys = t.b.keys();
    let longest = keys.usize("image_size")?;
    if longest < t.patch * merge || longest > 1 << 14 {
        let want = format!("{} to {}", t.patch * merge, 1 << 14);
        return Err(ModelError::value(keys.key("image_size"), longest, want));
    }
    let style = BlockStyle {
        norm: NormKind::Rms,
        function: Mlp::of_keys(t, Mlp::Gelu)?,
        rotation: t.alternating_rope(BASE)?,
        ..BlockStyle::SIGLIP
    };
    let x = t.patches(None)?;
    let x = t.norm(x, "v.pre_ln", t.b.config.width, NormKind::Rms)?;
    let x = t.blocks(x, &style)?;
    let merges = t.b.has("mm.patch_merger.weight");
    // of the eps of the language model
    let x = if merges { t.norm_with(x, "mm.input_norm", t.b.config.width, NormKind::Rms, 1e-5)? } else { x };
    let mut x = t.projector(x, if merges { Join::Columns(merge) } else { Join::Alone });
    if merges {
        x = t.last_linear(x, "mm.patch_merger")?;
    }
    let x = t.two_linears(x, ["mm.1", "mm.2"])?;
    t.rows(x);
    Ok(Sizing::Longest { longest, factor: t.patch * merge })
}
