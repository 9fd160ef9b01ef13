//! The parts of graphs that architectures share: layers and their rotary tables, and the end of a model.

mod attention_style;
mod blocks;
mod delta_net;
mod experts;
mod latent;
mod pooling;
mod rope;
mod sections;

pub(crate) use attention_style::{AttentionStyle, Gate, HeadShape, Latent, QkNorm};
pub(crate) use blocks::{LayerStyle, Ungated, ends_run};
pub(crate) use experts::ExpertStyle;
pub use pooling::{VectorKind, Vectors};
pub(crate) use sections::Leftover;
