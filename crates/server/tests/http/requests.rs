//! Requests of any API: bodies, preparation, adapters and refusals.

mod adapters;
mod bodies;
mod fuzz;
mod preparation;
mod refusals;
