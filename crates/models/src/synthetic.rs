//! Models of random weights: the shapes of well-known ones, and how they are filled.

mod shapes;
mod synth;

pub use shapes::{SHAPES, Shape, ShapeExperts};
pub use synth::{Synth, plain_tokenizer};
