//! Why a picture cannot be used, in one sentence each.

/// Why a picture cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// There are no bytes.
    #[error("the image is empty")]
    Empty,
    /// The bytes are of no known format.
    #[error("the image is in no known format: want JPEG, PNG, WebP, GIF or BMP")]
    Format,
    /// The file is damaged, or uses what its decoder does not have.
    #[error("the {format} image cannot be decoded: {why}")]
    Damaged {
        /// The format.
        format: &'static str,
        /// The decoder's reason.
        why: String,
    },
    /// More pixels than a server decodes.
    #[error("the image has {width} x {height} pixels: want at most {most} pixels")]
    TooLarge {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// The limit.
        most: u64,
    },
    /// A side of no pixels.
    #[error("the image has {width} x {height} pixels: want at least one")]
    NoPixels {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// Longer than models accept.
    #[error("the image has {width} x {height} pixels: want a side at most {most} times as long as the other")]
    Aspect {
        /// Columns.
        width: usize,
        /// Rows.
        height: usize,
        /// The limit.
        most: usize,
    },
}
