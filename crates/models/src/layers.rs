//! The parts of graphs that architectures share: layers and their rotary tables, and the end of a model.

mod blocks;
mod delta_net;
mod experts;
mod latent;
mod pooling;
mod rope;

pub(crate) use blocks::{AttentionStyle, HeadShape, LayerStyle, QkNorm, ends_run};
pub(crate) use experts::ExpertStyle;
pub(crate) use latent::Latent;
pub(crate) use pooling::Pooling;
pub use pooling::{VectorKind, VectorRows, Vectors};
