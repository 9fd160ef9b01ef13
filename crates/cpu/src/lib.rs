//! The CPU backend: threads that run a graph in lockstep, and kernels for the widest SIMD the machine has.

mod attend;
mod backend;
mod bandwidth;
mod dot;
mod free_memory;
mod ints;
mod kernels;
mod kv;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "no other instruction set has tiles of tokens")
)]
mod lanes;
mod linear;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no other instruction set packs weights"))]
mod memory;
mod phases;
mod places;
mod products;
mod program;
mod rowwise;
mod run;
mod shared;
mod softmax;
mod sync;
mod threads;
mod vectors;

pub use backend::{Cpu, MAX_THREADS};
pub use kernels::{Kernels, available};
