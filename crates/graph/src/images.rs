//! Images in a sequence: rows that take the place of tokens, and positions with three parts.

use std::sync::Arc;

/// What a tower computed of one image: the rows that take the place of its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageRows {
    /// The number of its content: other contents have other numbers, as long as the model is loaded.
    pub id: u32,
    /// Columns of a row.
    pub width: usize,
    /// `[tokens, width]`; empty if only the grid matters.
    pub values: Vec<f32>,
    /// Tokens.
    pub len: usize,
    /// Rows and columns of the tokens, if the model counts positions in them.
    pub grid: Option<[usize; 2]>,
}

/// One image of a sequence.
#[derive(Clone, Debug)]
pub struct PlacedImage {
    /// Position of its first token in the sequence.
    pub start: usize,
    /// Its rows.
    pub rows: Arc<ImageRows>,
    /// What its rotations count from: less than `start` after an image with a grid.
    turn: usize,
}

impl PlacedImage {
    /// Position after its last token.
    pub fn end(&self) -> usize {
        self.start + self.rows.len
    }

    /// What the rotations of the token after it count from.
    fn next_turn(&self) -> usize {
        self.turn + self.rows.grid.map_or(self.rows.len, |[rows, cols]| rows.max(cols))
    }
}

/// The images of a sequence, in order. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Images(Option<Arc<[PlacedImage]>>);

impl Images {
    /// No image.
    pub const NONE: Images = Images(None);

    /// Images by the position of their first token; they must be in order and not overlap.
    pub fn new(images: impl IntoIterator<Item = (usize, Arc<ImageRows>)>) -> Images {
        let mut placed: Vec<PlacedImage> = vec![];
        for (start, rows) in images {
            let turn =
                placed.last().map_or(start, |before| before.next_turn() + start.saturating_sub(before.end()));
            placed.push(PlacedImage { start, rows, turn });
        }
        Images((!placed.is_empty()).then(|| placed.into()))
    }

    /// A sequence whose tokens are the cells of a grid, row after row, with positions in it.
    pub fn grid(rows: usize, cols: usize) -> Images {
        let grid = ImageRows { len: rows * cols, grid: Some([rows, cols]), ..ImageRows::default() };
        Images::new([(0, Arc::new(grid))])
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &PlacedImage> {
        self.0.iter().flat_map(|images| images.iter())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The last image that begins at a position or before it.
    fn before(&self, position: usize) -> Option<&PlacedImage> {
        let images = self.0.as_deref()?;
        images[..images.partition_point(|image| image.start <= position)].last()
    }

    /// The image whose token is at a position.
    pub fn at(&self, position: usize) -> Option<&PlacedImage> {
        self.before(position).filter(|image| position < image.end())
    }

    /// The row of the token at a position, if it is one of an image.
    pub fn row(&self, position: usize) -> Option<&[f32]> {
        let image = self.at(position)?;
        let width = image.rows.width;
        image.rows.values.get((position - image.start) * width..(position - image.start + 1) * width)
    }

    /// What rotations count at a position: along the sequence, and the row and column in a grid.
    pub fn turns(&self, position: usize) -> [usize; 3] {
        let Some(image) = self.before(position) else { return [position; 3] };
        let cell = position - image.start;
        match image.rows.grid {
            _ if position >= image.end() => [image.next_turn() + position - image.end(); 3],
            Some([_, cols]) => [image.turn, image.turn + cell / cols, image.turn + cell % cols],
            None => [image.turn + cell; 3],
        }
    }
}

/// The same contents at the same places.
impl PartialEq for Images {
    fn eq(&self, other: &Images) -> bool {
        self.iter().map(|i| (i.start, i.rows.id)).eq(other.iter().map(|i| (i.start, i.rows.id)))
    }
}

impl Eq for Images {}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(id: u32, grid: [usize; 2]) -> Arc<ImageRows> {
        let len = grid[0] * grid[1];
        let values = (0..len * 2).map(|i| i as f32).collect();
        Arc::new(ImageRows { id, width: 2, values, len, grid: Some(grid) })
    }

    #[test]
    fn positions_count_the_longer_side_of_a_grid() {
        let images = Images::new([(2, rows(1, [2, 3])), (9, rows(2, [1, 2]))]);
        let turns: Vec<_> = (0..13).map(|p| images.turns(p)).collect();
        let image = [[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]];
        assert_eq!(turns[..2], [[0; 3], [1; 3]]);
        assert_eq!(turns[2..8], image);
        assert_eq!(turns[8], [5; 3]); // 2 + max(2, 3)
        assert_eq!(turns[9..11], [[6, 6, 6], [6, 6, 7]]);
        assert_eq!(turns[11..], [[8; 3], [9; 3]]);
    }

    #[test]
    fn rows_are_those_of_the_image_at_a_position() {
        let images = Images::new([(2, rows(1, [2, 3])), (8, rows(2, [1, 2]))]);
        assert_eq!(images.row(1), None);
        assert_eq!(images.row(3), Some(&[2.0, 3.0][..]));
        assert_eq!(images.row(8), Some(&[0.0, 1.0][..]));
        assert_eq!(images.row(10), None);
        assert_eq!(Images::NONE.turns(7), [7; 3]);
    }

    #[test]
    fn rows_without_a_grid_count_as_tokens() {
        let rows = Arc::new(ImageRows { len: 4, ..ImageRows::default() });
        let images = Images::new([(1, rows)]);
        assert_eq!([0, 2, 5].map(|p| images.turns(p)), [[0; 3], [2; 3], [5; 3]]);
    }
}
