//! The server around its requests: connections, loading, failures, models, monitoring and the log.

mod about;
mod connections;
mod failures;
mod fairness;
mod hosts;
mod in_process;
mod library;
mod lifecycle;
mod log;
mod monitoring;
