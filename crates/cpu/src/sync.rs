//! Synchronization primitives of the thread pool. Tests build the pool on other modules of this shape: one
//! that checks all orders in which threads may run, and one that delays threads (`tests/pool`).

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(crate) use std::thread::{Builder, JoinHandle};

/// Spins before a waiting thread sleeps: about 50 microseconds.
pub(crate) const SPINS: usize = 1_000;
