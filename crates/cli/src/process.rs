//! The process and the system around it: its limits and signals, stdin, and the terminal.

pub(crate) mod bus_error;
pub(crate) mod folders;
pub(crate) mod limits;
pub(crate) mod out_of_memory;
pub(crate) mod signals;
pub(crate) mod stdin;
pub(crate) mod terminal;
