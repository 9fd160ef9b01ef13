//! Encoders: models whose rows become vectors or scores instead of logits.

pub(crate) mod bert;
pub(crate) mod eurobert;
pub(crate) mod gemma_embedding;
pub(crate) mod modern_bert;
