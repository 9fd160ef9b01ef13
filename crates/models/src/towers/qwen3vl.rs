//! The tower of Qwen 3.5, 3.6 and 3.8: learned and rotary positions, squares of patches joined.

use tern_graph::{Function, NormKind};

use super::blocks::BlockStyle;
use super::positions::Resampling;
use super::{ImagePrompt, Join, KEYS, Sizing, TowerBuild, TowerKind};
use crate::ModelError;

pub(super) static QWEN3VL: TowerKind = TowerKind {
    name: "qwen3vl_merger",
    archs: &["qwen35", "qwen35moe"],
    prompt: ImagePrompt { marker: "<|image_pad|>", row: "<|image_pad|>", around: ["", ""] },
    build,
};

/// Pixels of files without bounds: those of 8 to 4096 tokens with the patches of real models.
const PIXELS: [usize; 2] = [8 << 10, 4096 << 10];

/// The base of its rotations.
const BASE: f32 = 1e4;

fn build(t: &mut TowerBuild<'_>) -> Result<(), ModelError> {
    t.refuse_deepstack()?;
    let keys = t.b.keys();
    let merge = keys.optional_usize("spatial_merge_size")?.unwrap_or(2);
    let bound = |name: &str, default: usize| keys.optional_usize(name).map(|bound| bound.unwrap_or(default));
    let (least, most) = (bound("image_min_pixels", PIXELS[0])?, bound("image_max_pixels", PIXELS[1])?);
    if !(1..=8).contains(&merge) {
        return Err(ModelError::value(keys.key("spatial_merge_size"), merge, "1 to 8"));
    }
    if least > most || most == 0 {
        return Err(ModelError::value(keys.key("image_max_pixels"), most, format!("{least} or more")));
    }
    t.sizing = Some(Sizing::Area { factor: t.patch * merge, least, most });
    t.has_grid = true;
    let rope = Some(t.grid_rope(BASE)?);
    let x = t.patches(Some(Resampling::Corners))?;
    let x = t.blocks(x, &BlockStyle { norm: NormKind::Layer, function: Function::GeluTanh, rope })?;
    let x = t.norm(x, "v.post_ln", t.b.config.width, NormKind::Layer)?;
    let x = t.projector(x, Join::Cells(merge));
    let width = t.b.graph.width(x);
    let x = t.b.linear(x, "mm.0", width)?;
    let x = t.b.graph.apply(x, Function::Gelu);
    let rows = t.b.rows("mm.2.weight").ok_or_else(|| ModelError::MissingTensor("mm.2.weight".into()))?;
    let x = t.b.linear(x, "mm.2", rows)?;
    t.rows(x);
    Ok(())
}

impl TowerBuild<'_> {
    /// Features of inner layers, which the first layers of Qwen 3 VL's language model read.
    fn refuse_deepstack(&self) -> Result<(), ModelError> {
        let layers = self.b.keys().bool_per_layer("is_deepstack_layers", self.b.config.layers)?;
        if layers.is_some_and(|layers| layers.contains(&true)) {
            return Err(ModelError::value(format!("{KEYS}.is_deepstack_layers"), "true", "no such layer"));
        }
        Ok(())
    }
}
