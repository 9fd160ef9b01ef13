//! Commands that read texts and generate none: tokens, vectors and scores, and what a
//! model predicts of a text.

mod chunks;
pub(crate) mod embed;
pub(crate) mod imatrix;
pub(crate) mod perplexity;
pub(crate) mod rerank;
pub(crate) mod tokenize;
