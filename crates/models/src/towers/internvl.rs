//! The tower of InternVL: a row for the class, factors of layers, and tiles by the closest aspect.

use tern_graph::NormKind;
use tern_images::Sizing;

use super::blocks::{BlockStyle, Mlp};
use super::positions::Resampling;
use super::prompt::all_rows;
use super::{ImagePrompt, Join, TowerBuild, TowerKind};
use crate::ModelError;

pub(super) static INTERNVL: TowerKind = TowerKind {
    name: "internvl",
    archs: &["qwen2", "qwen3", "qwen3moe", "llama"],
    prompt: ImagePrompt {
        marker: "<IMG_CONTEXT>",
        row: "<IMG_CONTEXT>",
        write: |layout| format!("<img>{}</img>", all_rows(layout)),
        lines: false,
        stand_in: None,
    },
    build,
};

fn build(t: &mut TowerBuild<'_>) -> Result<Sizing, ModelError> {
    let factor = t.side("projector.scale_factor", 2)?;
    let tile = t.tile(factor)?;
    let keys = t.b.keys();
    let least = keys.optional_usize("preproc_min_tiles")?.unwrap_or(1);
    let most = keys.optional_usize("preproc_max_tiles")?.unwrap_or(12);
    let tiles = t.tile_numbers([least, most])?;
    // those with six billion weights have norms without means
    let norm = if t.b.has("v.blk.0.ln1.bias") { NormKind::Layer } else { NormKind::Rms };
    let style = BlockStyle { norm, function: Mlp::of_keys(t, Mlp::Gelu)?, ..BlockStyle::SIGLIP };
    let x = t.patches(Some(Resampling::Cubic))?;
    let x = t.blocks(x, &style)?;
    let x = t.optional_norm(x, "v.post_ln", norm)?;
    let x = t.projector(x, Join::Cells(factor));
    let x = t.norm_with(x, "mm.model.mlp.0", t.b.graph.width(x), NormKind::Layer, 1e-5)?;
    let x = t.two_linears(x, ["mm.model.mlp.1", "mm.model.mlp.3"])?;
    t.rows(x);
    Ok(Sizing::Tiles { tile, tiles, whole: None })
}
