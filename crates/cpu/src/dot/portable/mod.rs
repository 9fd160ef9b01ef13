//! What is the same on every instruction set: the general kernels, floats over any vector, and packed panels.

pub(crate) mod floats;
pub(crate) mod packed;
pub(crate) mod scalar;
