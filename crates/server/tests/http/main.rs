//! Tests of the server over TCP, with a scripted engine.

#[cfg(test)]
mod about;
#[cfg(test)]
mod adapters;
#[cfg(test)]
mod bodies;
#[cfg(test)]
mod chat;
#[cfg(test)]
mod cohere;
#[cfg(test)]
mod completions;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod fairness;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod hosts;
#[cfg(test)]
mod infill;
#[cfg(test)]
mod library;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod log;
#[cfg(test)]
mod messages;
#[cfg(test)]
mod monitoring;
#[cfg(test)]
mod ollama;
#[cfg(test)]
mod preparation;
#[cfg(test)]
mod prompts;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod reply;
#[cfg(test)]
mod reranking;
#[cfg(test)]
mod responses;
#[cfg(test)]
mod styles;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tools;
