//! Why the bytes of a weight cannot be used, each in one sentence with the weight's name.

/// Why the bytes of a weight cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// Rows that end inside a block.
    #[error("{name}: rows of {cols} weights are not whole {format} blocks of {block}")]
    PartialBlocks {
        /// The weight.
        name: String,
        /// Weights of a row.
        cols: usize,
        /// The format.
        format: &'static str,
        /// Weights of a block.
        block: usize,
    },
    /// Another number of bytes than the shape needs.
    #[error(
        "{name}: want {} bytes for [{rows}, {cols}] in {format}, got {got}",
        .want.map_or("too many".into(), |bytes| bytes.to_string())
    )]
    Bytes {
        /// The weight.
        name: String,
        /// Bytes that the shape needs; none if they cannot be counted.
        want: Option<usize>,
        /// Rows.
        rows: usize,
        /// Weights of a row.
        cols: usize,
        /// The format.
        format: &'static str,
        /// Bytes that there are.
        got: usize,
    },
    /// More bytes than can be counted.
    #[error("{name}: a tensor of [{rows}, {cols}] in {format} is too large")]
    TooLarge {
        /// The weight.
        name: String,
        /// Rows.
        rows: usize,
        /// Weights of a row.
        cols: usize,
        /// The format.
        format: &'static str,
    },
    /// The system refused the memory for its bytes.
    #[error("{name}: the system refuses the {bytes} bytes that it takes")]
    NoMemory {
        /// The weight.
        name: String,
        /// Its bytes.
        bytes: u64,
    },
    /// Its bytes could not be made from those of the file.
    #[error("{name}: cannot be made: {reason}")]
    NotMade {
        /// The weight.
        name: String,
        /// Why not.
        reason: String,
    },
}
