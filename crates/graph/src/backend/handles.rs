//! What calls of a backend return, by number: buffers, programs and steps.

/// A stored tensor or reserved memory, by number; valid for the backend that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer(pub u32);

/// A compiled graph, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Program(pub u32);

/// A submitted step that has not been collected.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a submitted step must be collected"]
pub struct Ticket(pub u64);
