//! The thread pool on real threads, with threads that are delayed or cannot be started, and in all orders of
//! execution. `src/threads.rs` is compiled once for each, with another `sync`.

#![expect(clippy::duplicate_mod, reason = "each time with another `sync`")]

mod delayed;
mod modelled;
mod real;
mod refused;
