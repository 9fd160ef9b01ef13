//! The server as its clients see it: over TCP, with a scripted engine behind it.

#[cfg(test)]
mod chat;
#[cfg(test)]
mod completions;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod life;
#[cfg(test)]
mod log;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod support;
#[cfg(test)]
mod watch;
