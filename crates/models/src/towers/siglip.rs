//! Towers of SigLIP for small models: SmolVLM and Idefics 3, and LFM2-VL. Large images are tiles and the
//! whole.

use tern_graph::NormKind;
use tern_images::{Filter, Sizing};

use super::blocks::BlockStyle;
use super::positions::Resampling;
use super::prompt::Layout;
use super::{ImagePrompt, Join, TowerBuild, TowerKind};
use crate::ModelError;

pub(super) static IDEFICS3: TowerKind = TowerKind {
    name: "idefics3",
    archs: &["llama"],
    prompt: ImagePrompt {
        marker: "<image>",
        row: "<image>",
        write: |layout| {
            let (around, whole) = ("<fake_token_around_image>", layout.whole());
            let tile = |row, col| format!("<fake_token_around_image><row_{row}_col_{col}>");
            let mut text = layout.tiles(tile, "\n");
            if !text.is_empty() {
                text.push('\n');
            }
            text + around + "<global-img>" + &whole + around
        },
        lines: false,
        stand_in: None,
    },
    build: idefics3,
};

pub(super) static LFM2: TowerKind = TowerKind {
    name: "lfm2",
    archs: &["lfm2", "lfm2moe"],
    prompt: ImagePrompt { marker: "<image>", row: "<image>", write: lfm2_text, lines: false, stand_in: None },
    build: lfm2,
};

fn idefics3(t: &mut TowerBuild<'_>) -> Result<Sizing, ModelError> {
    let factor = t.side("projector.scale_factor", 4)?;
    let tile = t.tile(factor)?;
    let keys = t.b.keys();
    let longest = keys.optional_usize("preproc_image_size")?.unwrap_or(4 * tile);
    if longest == 0 || longest > 1 << 14 {
        return Err(ModelError::value(keys.key("preproc_image_size"), longest, format!("1 to {}", 1 << 14)));
    }
    t.filter = Filter::Lanczos;
    let x = t.patches(Some(Resampling::Nearest))?;
    let x = t.blocks(x, &BlockStyle::SIGLIP)?;
    let x = t.norm(x, "v.post_ln", t.b.config.width, NormKind::Layer)?;
    let x = t.projector(x, Join::Cells(factor));
    let x = t.last_linear(x, "mm.model.fc")?;
    t.rows(x);
    Ok(Sizing::Rows { longest, tile, splits: true })
}

/// Tokens of a picture.
const LFM2_TOKENS: [usize; 2] = [64, 256];

fn lfm2(t: &mut TowerBuild<'_>) -> Result<Sizing, ModelError> {
    let factor = t.side("projector.scale_factor", 2)?;
    let area = t.area(t.patch * factor, LFM2_TOKENS)?;
    let keys = t.b.keys();
    let tile = keys.optional_usize("preproc_tile_size")?.unwrap_or(512);
    let tiles = [("preproc_min_tiles", 2), ("preproc_max_tiles", 10)]
        .map(|(key, default)| keys.optional_usize(key).map(|tiles| tiles.unwrap_or(default)));
    let [least, most] = tiles;
    let tiles = t.tile_numbers([least?, most?])?;
    if tile == 0 || !tile.is_multiple_of(t.patch * factor) || tile > 1 << 12 {
        let want = format!("a multiple of {}", t.patch * factor);
        return Err(ModelError::value(t.b.keys().key("preproc_tile_size"), tile, want));
    }
    t.filter = Filter::Bilinear;
    let x = t.patches(Some(Resampling::Borders))?;
    let x = t.blocks(x, &BlockStyle::SIGLIP)?;
    let x = t.norm(x, "v.post_ln", t.b.config.width, NormKind::Layer)?;
    let mut x = t.projector(x, Join::Cells(factor));
    if t.b.has("mm.input_norm.weight") {
        x = t.norm_with(x, "mm.input_norm", t.b.graph.width(x), NormKind::Layer, 1e-5)?;
    }
    let x = t.two_linears(x, ["mm.1", "mm.2"])?;
    t.rows(x);
    Ok(match tiles {
        [_, 1] => Sizing::Area(area),
        tiles => Sizing::Tiles { tile, tiles, whole: Some(area) },
    })
}

fn lfm2_text(layout: &Layout<'_>) -> String {
    let tiles = layout.tiles(|row, col| format!("<|img_row_{row}_col_{col}|>"), "");
    let thumbnail = if tiles.is_empty() { "" } else { "<|img_thumbnail|>" };
    ["<|image_start|>", &tiles, thumbnail, &layout.whole(), "<|image_end|>"].concat()
}

impl TowerBuild<'_> {
    /// Pixels of the side of the square that the tower reads; a multiple of what one token is of.
    pub(super) fn tile(&self, factor: usize) -> Result<usize, ModelError> {
        let keys = self.b.keys();
        let (tile, unit) = (keys.usize("image_size")?, self.patch * factor);
        if tile == 0 || !tile.is_multiple_of(unit) || tile > 1 << 12 {
            let want = format!("a multiple of {unit} up to {}", 1 << 12);
            return Err(ModelError::value(keys.key("image_size"), tile, want));
        }
        Ok(tile)
    }

    /// Numbers of tiles that are in order and not too large.
    pub(super) fn tile_numbers(&self, tiles: [usize; 2]) -> Result<[usize; 2], ModelError> {
        if tiles[0] == 0 || tiles[0] > tiles[1] || tiles[1] > 256 {
            let found = format!("{} with at least {}", tiles[1], tiles[0]);
            let key = self.b.keys().key("preproc_max_tiles");
            return Err(ModelError::value(key, found, "1 to 256, and no less than the least"));
        }
        Ok(tiles)
    }
}
