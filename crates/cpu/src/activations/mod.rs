//! Quantized activations: rows of few tokens, and tiles of many.

pub(crate) mod gathered_rows;
pub(crate) mod quantized_rows;
pub(crate) mod token_tiles;
