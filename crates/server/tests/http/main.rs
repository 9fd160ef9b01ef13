//! Tests of the server over TCP, with a scripted engine.

#[cfg(test)]
mod apis;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod support;
