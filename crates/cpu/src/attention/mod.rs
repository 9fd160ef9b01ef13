//! Attention over KV pages: which tokens are computed together, their scores, softmax and sums.

pub(crate) mod attend;
pub(crate) mod attend_plan;
mod gemm;
pub(crate) mod kv;
pub(crate) mod softmax;
