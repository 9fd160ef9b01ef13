//! Code for every instruction set: the general kernels, floats over any vector type, and packed panels.

pub(crate) mod floats;
pub(crate) mod packed;
pub(crate) mod scalar;
