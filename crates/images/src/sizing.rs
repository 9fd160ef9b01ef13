//! From a picture to the pictures that a tower reads: sizes, and tiles of large pictures.

use crate::size::{ceil_to, check_aspect, scaled_to_longest, within_area, within_budget, within_longest};
use crate::{Filter, ImageError, Picture};

/// How the size of a picture becomes those of the pictures that a tower reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizing {
    /// One picture, with sides that are multiples of `factor`, of an area within these.
    Area(Area),
    /// One square.
    Square(usize),
    /// One picture, as large as this number of squares of `factor` pixels allows.
    Budget {
        /// Pixels of the side of a square.
        factor: usize,
        /// Squares at most.
        squares: usize,
    },
    /// One picture, smaller if a side is longer than this, with sides rounded up to multiples of `factor`.
    Longest {
        /// Pixels of a side at most.
        longest: usize,
        /// Multiple.
        factor: usize,
    },
    /// The longer side has `longest` pixels; square tiles of that, and then the whole picture as one tile.
    Rows {
        /// Pixels of the longer side.
        longest: usize,
        /// Pixels of the side of a tile.
        tile: usize,
        /// Whether there are tiles; otherwise only the whole picture.
        splits: bool,
    },
    /// The grid of square tiles whose aspect is closest, and then the whole picture if there are several.
    Tiles {
        /// Pixels of the side of a tile.
        tile: usize,
        /// The least and the largest number of tiles.
        tiles: [usize; 2],
        /// The size of the whole picture, if it is not that of a tile; there are tiles only if the picture is
        /// much larger.
        whole: Option<Area>,
    },
}

/// Sides that are multiples of `factor`, of an area from `least` to `most` pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Multiple.
    pub factor: usize,
    /// Least number of pixels.
    pub least: usize,
    /// Largest number of pixels.
    pub most: usize,
}

/// How much larger than the largest area a picture must be to be cut into tiles.
const TOLERANCE: f64 = 2.0;

/// The pictures that a tower reads of one picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Tiles, row after row, and then the whole picture.
    pub pictures: Vec<Picture>,
    /// Rows and columns of the tiles; `None` if there is the whole picture only.
    pub tiles: Option<[usize; 2]>,
}

impl Sizing {
    /// The same with at most about `tokens` tokens per picture of `side` times `side` pixels each.
    #[must_use]
    pub fn at_most(self, tokens: usize, side: usize) -> Sizing {
        let pixels = tokens.max(1).saturating_mul(side * side);
        let edge = |longest: usize, unit: usize| longest.min(pixels.isqrt() / unit * unit).max(unit);
        let least = |area: Area| Area { least: area.least.min(pixels), most: area.most.min(pixels), ..area };
        match self {
            Sizing::Area(area) => Sizing::Area(least(area)),
            Sizing::Square(_) => self,
            Sizing::Budget { factor, squares } => {
                Sizing::Budget { factor, squares: squares.min((pixels / (factor * factor).max(1)).max(1)) }
            }
            Sizing::Longest { longest, factor } => Sizing::Longest { longest: edge(longest, factor), factor },
            Sizing::Rows { longest, tile, splits } => {
                let each = (tile / side.max(1)).pow(2).max(1);
                // the picture as a whole is one more tile
                let tiles = (tokens / each).saturating_sub(1).isqrt();
                Sizing::Rows {
                    longest: longest.min((tiles * tile).max(tile)),
                    tile,
                    splits: splits && tiles > 1,
                }
            }
            Sizing::Tiles { tile, tiles: [few, many], whole } => {
                let each = (tile / side.max(1)).pow(2).max(1);
                let many = many.min((tokens / each).saturating_sub(1)).max(1);
                Sizing::Tiles { tile, tiles: [few.min(many), many], whole: whole.map(least) }
            }
        }
    }
}

impl Picture {
    /// The pictures that a tower reads.
    pub fn cut(&self, sizing: Sizing, filter: Filter) -> Result<Cut, ImageError> {
        let size = [self.width(), self.height()];
        check_aspect(size)?;
        let one = |[width, height]: [usize; 2]| Cut {
            pictures: vec![self.resized(width, height, filter)],
            tiles: None,
        };
        Ok(match sizing {
            Sizing::Area(area) => one(within_area(size, area)),
            Sizing::Square(side) => one([side; 2]),
            Sizing::Budget { factor, squares } => one(within_budget(size, factor, squares)),
            Sizing::Longest { longest, factor } => one(within_longest(size, longest, factor)),
            Sizing::Rows { longest, tile, splits } => {
                let scaled = scaled_to_longest(size, longest);
                let scaled = self.resized(scaled[0], scaled[1], filter);
                let [width, height] = ceil_to([scaled.width(), scaled.height()], tile);
                if !splits || (width <= tile && height <= tile) {
                    return Ok(Cut { pictures: vec![scaled.resized(tile, tile, filter)], tiles: None });
                }
                let large = scaled.resized(width, height, filter);
                let (mut pictures, tiles) = large.tiles(tile);
                pictures.push(large.resized(tile, tile, filter));
                Cut { pictures, tiles: Some(tiles) }
            }
            Sizing::Tiles { tile, tiles, whole } => {
                let whole_size = whole.map_or([tile; 2], |area| within_area(size, area));
                let [cols, rows] = closest_grid(size, tile, tiles);
                if rows * cols == 1 || whole.is_some_and(|area| !is_much_larger(size, area)) {
                    return Ok(one(whole_size));
                }
                let (mut pictures, tiles) = self.resized(cols * tile, rows * tile, filter).tiles(tile);
                pictures.push(self.resized(whole_size[0], whole_size[1], filter));
                Cut { pictures, tiles: Some(tiles) }
            }
        })
    }

    /// All whole tiles, row after row, and rows and columns of them.
    fn tiles(&self, tile: usize) -> (Vec<Picture>, [usize; 2]) {
        let [rows, cols] = self.grid(tile);
        let tiles = (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))).map(|(row, col)| {
            let mut pixels = Vec::with_capacity(tile * tile * 3);
            for y in row * tile..(row + 1) * tile {
                let at = (y * self.width() + col * tile) * 3;
                pixels.extend_from_slice(&self.pixels()[at..at + tile * 3]);
            }
            Picture::of(tile, tile, pixels)
        });
        (tiles.collect(), [rows, cols])
    }
}

/// Whether a picture, rounded to multiples, has far more pixels than an area allows.
fn is_much_larger(size: [usize; 2], area: Area) -> bool {
    let unit = area.factor as f64;
    let [width, height] = size.map(|side| ((side as f64 / unit).round_ties_even() * unit).max(unit / 2.0));
    width * height > area.most as f64 * TOLERANCE
}

/// Columns and rows of tiles whose aspect is closest to that of a picture; of equals the larger grid, if the
/// picture fills half of it.
fn closest_grid([width, height]: [usize; 2], tile: usize, [least, most]: [usize; 2]) -> [usize; 2] {
    let (aspect, area) = (width as f64 / height as f64, (width * height) as f64);
    let mut grids: Vec<[usize; 2]> = (1..=most)
        .flat_map(|cols| (1..=most / cols).map(move |rows| [cols, rows]))
        .filter(|[cols, rows]| cols * rows >= least)
        .collect();
    grids.sort_by_key(|[cols, rows]| cols * rows);
    let (mut best, mut off) = ([1, 1], f64::INFINITY);
    for [cols, rows] in grids {
        let own = (aspect - cols as f64 / rows as f64).abs();
        let fills = || area > 0.5 * (tile * tile * cols * rows) as f64;
        if own < off || own == off && fills() {
            (best, off) = ([cols, rows], own);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes([width, height]: [usize; 2], sizing: Sizing) -> (Vec<[usize; 2]>, Option<[usize; 2]>) {
        let picture = Picture::new(width, height, vec![7; width * height * 3]).unwrap();
        let cut = picture.cut(sizing, Filter::Bilinear).unwrap();
        (cut.pictures.iter().map(|p| [p.width(), p.height()]).collect(), cut.tiles)
    }

    #[test]
    fn only_large_pictures_have_tiles() {
        // llama.cpp's own test of LFM2-VL
        let area = Area { factor: 32, least: 64 * 1024, most: 256 * 1024 };
        let sizing = Sizing::Tiles { tile: 512, tiles: [2, 10], whole: Some(area) };
        for (size, tiles) in [
            ([704, 704], None),
            ([720, 720], None),
            ([736, 736], Some([2, 2])),
            ([1024, 977], Some([2, 2])),
            ([1056, 384], None),
        ] {
            assert_eq!(sizes(size, sizing).1, tiles, "{size:?}");
        }
    }

    #[test]
    fn tokens_are_limited_by_fewer_and_smaller_tiles() {
        let area = Sizing::Area(Area { factor: 4, least: 160, most: 3200 });
        assert_eq!(area.at_most(9, 4), Sizing::Area(Area { factor: 4, least: 144, most: 144 }));
        let rows = Sizing::Rows { longest: 40, tile: 8, splits: true };
        assert_eq!(rows.at_most(20, 4), Sizing::Rows { longest: 16, tile: 8, splits: true });
        assert_eq!(rows.at_most(4, 4), Sizing::Rows { longest: 8, tile: 8, splits: false });
        let tiles = Sizing::Tiles { tile: 8, tiles: [1, 12], whole: None };
        assert_eq!(tiles.at_most(20, 4), Sizing::Tiles { tile: 8, tiles: [1, 4], whole: None });
        let longest = Sizing::Longest { longest: 64, factor: 8 };
        assert_eq!(longest.at_most(10, 8), Sizing::Longest { longest: 24, factor: 8 });
        let budget = Sizing::Budget { factor: 48, squares: 280 };
        assert_eq!(budget.at_most(70, 48), Sizing::Budget { factor: 48, squares: 70 });
    }
}
