//! Memory: how much is free, lines in large pages, and buffers that threads share.

pub(crate) mod free;
pub(crate) mod lines;
pub(crate) mod shared;
pub(crate) mod value_memory;
