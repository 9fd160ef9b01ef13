//! Tests of the server over TCP, with a scripted engine.

#[cfg(test)]
mod bodies;
#[cfg(test)]
mod chat;
#[cfg(test)]
mod completions;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod hosts;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod log;
#[cfg(test)]
mod monitoring;
#[cfg(test)]
mod preparation;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod reply;
#[cfg(test)]
mod styles;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tools;
