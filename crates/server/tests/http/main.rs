//! The server as its clients see it: over TCP, with a scripted engine behind it.

#[cfg(test)]
mod bodies;
#[cfg(test)]
mod chat;
#[cfg(test)]
mod completions;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod failing;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod hosts;
#[cfg(test)]
mod life;
#[cfg(test)]
mod log;
#[cfg(test)]
mod preparation;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod support;
#[cfg(test)]
mod watch;
