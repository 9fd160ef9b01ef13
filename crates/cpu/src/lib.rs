//! The CPU backend: threads that run a compiled graph phase by phase, and kernels for
//! each SIMD instruction set.

#![cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only x86 kernels pack weights and read tiles of tokens")
)]

mod activations;
mod attention;
mod backend;
mod bandwidth;
mod dot;
mod experts;
mod instruction_sets;
mod kernels;
mod linear;
mod math;
mod memory;
mod phases;
mod product;
mod program;
mod recurrent;
mod rotation;
mod rowwise;
mod run;
mod state;
mod sync;
mod threads;
mod vectors;
mod weight;

pub use backend::{Cpu, MAX_THREADS};
pub use instruction_sets::available;
pub use kernels::Kernels;
pub use memory::free::FreeMemory;
