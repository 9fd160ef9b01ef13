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

impl ImageRows {
    /// The same without its values.
    pub fn bare(&self) -> ImageRows {
        ImageRows { values: vec![], ..*self }
    }
}

/// One image of a sequence.
#[derive(Clone, Debug)]
pub struct PlacedImage {
    /// Position of its first token in the sequence.
    pub start: usize,
    /// Its rows.
    pub rows: Arc<ImageRows>,
    /// What its rotations count from, along the sequence and by row and column: less than `start` after an
    /// image with a grid.
    turn: [usize; 3],
}

impl PlacedImage {
    /// Position after its last token.
    pub fn end(&self) -> usize {
        self.start + self.rows.len
    }

    /// What the rotations of the token after it count from.
    fn next_turn(&self) -> usize {
        self.turn[0] + self.rows.grid.map_or(self.rows.len, |[rows, cols]| rows.max(cols))
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
            placed.push(PlacedImage { start, rows, turn: [turn; 3] });
        }
        Images((!placed.is_empty()).then(|| placed.into()))
    }

    /// A sequence whose tokens are the cells of a grid, row after row, with positions in it.
    pub fn grid(rows: usize, cols: usize) -> Images {
        let grid = ImageRows { len: rows * cols, grid: Some([rows, cols]), ..ImageRows::default() };
        Images::new([(0, Arc::new(grid))])
    }

    /// The same with the cells of one window of `side` rows and columns after the other, each window row
    /// after row. Those at the right and at the bottom may be smaller.
    pub fn windows([rows, cols]: [usize; 2], side: usize) -> Images {
        let (mut placed, mut start) = (vec![], 0);
        for (row, col) in window_corners([rows, cols], side) {
            let size = [side.min(rows - row), side.min(cols - col)];
            let len = size[0] * size[1];
            let window = ImageRows { len, grid: Some(size), ..ImageRows::default() };
            placed.push(PlacedImage { start, rows: Arc::new(window), turn: [0, row, col] });
            start += len;
        }
        Images((!placed.is_empty()).then(|| placed.into()))
    }

    /// The cells of a grid, numbered row after row, in the order of [`Images::windows`].
    pub fn window_order(grid: [usize; 2], side: usize) -> Vec<usize> {
        let mut order = Vec::with_capacity(grid[0] * grid[1]);
        for (row, col) in window_corners(grid, side) {
            for y in row..(row + side).min(grid[0]) {
                order.extend((col..(col + side).min(grid[1])).map(|x| y * grid[1] + x));
            }
        }
        order
    }

    /// The same images at the same places without values, for graphs that do not read them.
    pub(crate) fn without_rows(&self) -> Images {
        let bare = |image: &PlacedImage| PlacedImage {
            rows: Arc::new(ImageRows { width: 0, values: vec![], ..*image.rows }),
            ..*image
        };
        Images(self.0.as_deref().map(|images| images.iter().map(bare).collect()))
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

    /// The end of a step from `from` to `end` that cuts no image: before the image at the end, or after it if
    /// the step has nothing before it.
    pub fn uncut(&self, from: usize, end: usize) -> usize {
        match self.at(end) {
            Some(image) if image.start < end && image.start > from => image.start,
            Some(image) if image.start < end => image.end(),
            _ => end,
        }
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
            Some([_, cols]) => {
                let [turn, row, col] = image.turn;
                [turn, row + cell / cols, col + cell % cols]
            }
            None => [image.turn[0] + cell; 3],
        }
    }
}

/// The first row and column of each window of a grid.
fn window_corners([rows, cols]: [usize; 2], side: usize) -> impl Iterator<Item = (usize, usize)> {
    let side = side.max(1);
    (0..rows).step_by(side).flat_map(move |row| (0..cols).step_by(side).map(move |col| (row, col)))
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
    fn steps_end_before_an_image_or_after_it() {
        let images = Images::new([(2, rows(1, [2, 3])), (8, rows(2, [1, 2]))]);
        for ((from, end), want) in [
            ((0, 2), 2),
            ((0, 3), 2),
            ((0, 7), 2),
            ((0, 8), 8),
            ((2, 4), 8),
            ((3, 4), 8),
            ((5, 9), 8),
            ((8, 9), 10),
        ] {
            assert_eq!(images.uncut(from, end), want, "{from} {end}");
        }
        assert_eq!(Images::NONE.uncut(3, 9), 9);
    }

    #[test]
    fn windows_have_the_places_of_their_cells() {
        let images = Images::windows([3, 5], 2);
        let order = Images::window_order([3, 5], 2);
        assert_eq!(order, [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]);
        let cells: Vec<usize> = (0..15).map(|p| images.turns(p)).map(|[_, row, col]| row * 5 + col).collect();
        assert_eq!(cells, order);
        assert_eq!(images.at(9).map(|window| window.start..window.end()), Some(8..10));
    }

    #[test]
    fn rows_without_a_grid_count_as_tokens() {
        let rows = Arc::new(ImageRows { len: 4, ..ImageRows::default() });
        let images = Images::new([(1, rows)]);
        assert_eq!([0, 2, 5].map(|p| images.turns(p)), [[0; 3], [2; 3], [5; 3]]);
    }
}
