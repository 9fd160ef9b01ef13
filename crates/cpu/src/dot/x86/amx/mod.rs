//! Products of many tokens in the matrix unit of AMX.

pub(crate) mod floats;
pub(crate) mod ints;
pub(crate) mod probe;
