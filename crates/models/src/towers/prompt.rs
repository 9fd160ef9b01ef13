//! How images are written in a prompt: markers of chat templates become the tokens of rows and what separates
//! them.

/// How an image is written in a prompt.
#[derive(Debug)]
pub struct ImagePrompt {
    /// What chat templates write for an image.
    pub marker: &'static str,
    /// The token of a row.
    pub row: &'static str,
    /// What takes the place of the marker.
    pub write: fn(&Layout<'_>) -> String,
    /// Whether each line of rows of a picture is written by itself.
    pub lines: bool,
    /// The token whose other embeddings the rows have, if not the one of a row.
    pub stand_in: Option<u32>,
}

/// The rows of an image.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// The token of a row.
    pub row: &'static str,
    /// Rows and columns of tokens of each picture that the tower has read.
    pub grids: &'a [[usize; 2]],
    /// Rows and columns of the pictures that are tiles; after them comes the whole picture.
    pub tiles: Option<[usize; 2]>,
}

impl ImagePrompt {
    /// A prompt whose template writes what is around the rows.
    pub(super) const fn plain(marker: &'static str, row: &'static str) -> ImagePrompt {
        ImagePrompt { marker, row, write: all_rows, lines: false, stand_in: None }
    }

    /// What takes the place of the marker of an image.
    pub fn text(&self, grids: &[[usize; 2]], tiles: Option<[usize; 2]>) -> String {
        (self.write)(&Layout { row: self.row, grids, tiles })
    }
}

impl Layout<'_> {
    /// The rows of a picture.
    pub(super) fn picture(&self, at: usize) -> String {
        self.row.repeat(self.grids.get(at).map_or(0, |[rows, cols]| rows * cols))
    }

    /// The rows of the whole picture, which is the last one.
    pub(super) fn whole(&self) -> String {
        self.picture(self.grids.len().saturating_sub(1))
    }

    /// Tiles, row after row: each after what `before` writes for its row and column, and each row of tiles
    /// followed by `after`.
    pub(super) fn tiles(&self, before: fn(usize, usize) -> String, after: &str) -> String {
        let [rows, cols] = self.tiles.unwrap_or([0, 0]);
        let tile = |row: usize, col: usize| before(row + 1, col + 1) + &self.picture(row * cols + col);
        (0..rows).map(|row| (0..cols).map(|col| tile(row, col)).collect::<String>() + after).collect()
    }
}

/// The rows of all pictures.
pub(super) fn all_rows(layout: &Layout<'_>) -> String {
    (0..layout.grids.len()).map(|at| layout.picture(at)).collect()
}
