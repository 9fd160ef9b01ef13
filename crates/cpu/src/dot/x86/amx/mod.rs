//! Products of many tokens in the matrix unit of AMX.

pub(crate) mod float_panels;
pub(crate) mod floats;
pub(crate) mod ints;
pub(crate) mod probe;
