//! Each API, and what its requests ask for: text, tools, prompts, vectors, scores.

mod batches;
pub(crate) mod chat;
mod cohere;
mod completions;
mod decisions;
mod images;
mod infill;
mod messages;
mod ollama;
mod prompts;
mod reranking;
mod responses;
mod speculation;
mod styles;
mod tools;
