//! The engine from outside: scheduling, batching, a real graph, and the thread behind a handle.

#[cfg(test)]
mod batching;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod failing;
mod fairness;
#[cfg(test)]
mod graph;
#[cfg(test)]
mod handle;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod hybrid;
#[cfg(test)]
mod scheduler;
#[cfg(test)]
mod state;
#[cfg(test)]
mod windows;
