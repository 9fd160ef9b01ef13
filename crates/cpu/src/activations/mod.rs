//! Activations as integers: rows of a few tokens, and tiles of many.

pub(crate) mod quantized_rows;
pub(crate) mod token_tiles;
