//! The thread pool: as it is, with threads that are delayed at its locks or refused, and in all orders that they may run in.
//! `src/threads.rs` is compiled once for each, beside another `sync`.

#![expect(clippy::duplicate_mod, reason = "each time with another `sync`")]

mod delayed;
mod modelled;
mod real;
mod refused;
