//! Language models at the speed of memory, in your own program: load a model, generate, chat, stream, embed.
//!
//! ```
//! use tern::{Model, Request};
//!
//! let model = Model::load("stories")?; // a small model inside the library; any GGUF file or hub name works
//! let answer = model.generate("Once upon a time")?;
//! println!("{}", answer.text);
//!
//! for delta in model.stream(Request::text("The little dog").max_tokens(20).seed(7))? {
//!     print!("{}", delta?.text());
//! }
//! # Ok::<(), tern::Error>(())
//! ```
//!
//! A [`Model`] is a handle on an engine with continuous batching: clone it, share it between threads and
//! tasks, and send it many requests at once. Dropping a [`TextStream`] or the future of
//! [`Model::generate_async`] cancels its request.
//!
//! | to | use |
//! |---|---|
//! | choose a device, a context, the memory of the KV cache, where experts are | [`LoadOptions`] |
//! | continue a text, answer a conversation | [`Model::generate`], [`Model::chat`], [`Model::stream`] |
//! | keep prefixes of prompts on disk | [`LoadOptions::cache_folder`] |
//! | constrain an answer to a JSON schema, a regex, choices | [`Request::constraint`], [`Grammar`] |
//! | get log-probabilities | [`Request::logprobs`] |
//! | use adapters (LoRA), one or several per request | [`LoadOptions::adapters`], [`Model::with_adapters`] |
//! | embed texts | [`Model::embed`], [`Model::embed_all`] |
//! | work with token ids, statistics, shutdown | [`Model::handle`] and [`engine`] |
//! | bring a backend of one's own | [`Model::start`] and [`graph::Backend`] |
//!
//! This crate is the only one that composes the others; the command `tern` and its server are built on it.

mod adapters;
mod answer;
mod breakers;
mod cache_folder;
mod chat;
mod checked;
mod claims;
mod constraint;
mod decisions;
mod device;
pub mod environment;
mod error;
mod experts;
mod gpu_layers;
mod images;
mod machine;
mod memory;
mod model;
mod opened;
mod opened_tower;
mod opening;
mod options;
mod placement;
mod preamble;
mod progress;
mod request;
mod rerank;
mod sampling;
mod speculation;
mod stream;
mod template_traits;
mod thinking_budget;
mod token_mask;
mod token_rules;
pub mod units;

pub use adapters::{AdapterFile, OpenedAdapters};
pub use answer::{Answer, AnswerReader, ChatReading, Delta, FinishReason, Reading};
pub use cache_folder::CacheFolder;
pub use chat::{Chat, ChatEnd, Message, RenderedChat, ToolCall};
pub use checked::CheckedModel;
pub use claims::MemoryClaims;
pub use constraint::CompiledConstraint;
pub use decisions::{
    AfterQuestion, Decision, LabelError, Labels, PlaceError, Question, QuestionKind, QuestionOption,
    QuestionPlace, Read,
};
pub use device::{Device, DeviceOptions};
pub use error::Error;
pub use experts::ExpertPlacement;
pub use gpu_layers::GpuLayers;
pub use images::{EncodedImage, Image, ImageEncoder, ImageOptions, MAX_IMAGES};
pub use machine::threads;
pub use memory::{HostMemory, MemoryPlan};
pub use model::{Model, ModelFacts, ModelParts};
pub use opened::OpenedModel;
pub use opened_tower::{OpenedTower, TowerFile};
pub use opening::{STORIES, download, inspect_checkpoint, open_checkpoint, pull};
pub use options::{Context, DRAFT_MAX, KvMemory, LoadOptions, PAGE_LEN};
pub use placement::OnHost;
pub use preamble::{ChatStart, call_token};
pub use progress::{Progress, Silent};
pub use request::{Input, Request, normalized};
pub use rerank::{Pair, RerankTemplate, Reranker, ScoreResult};
pub use sampling::PartialSampling;
pub use speculation::Speculation;
pub use stream::TextStream;
pub use tern_cuda::Activations;
pub use tern_engine::{AdapterScales, Pooling, Sampled, Sampling};
pub use tern_grammar::Grammar;
pub use tern_graph::KvCells;
pub use tern_text::Part;
pub use thinking_budget::ThinkingBudget;
pub use token_rules::TokenRules;

// The crates below, for programs that need more than a `Model`.
pub use tern_cpu as cpu;
pub use tern_cuda as cuda;
pub use tern_engine as engine;
pub use tern_formats as formats;
pub use tern_grammar as grammar;
pub use tern_graph as graph;
pub use tern_hub as hub;
pub use tern_images as pictures;
pub use tern_models as models;
pub use tern_quant as quant;
pub use tern_text as text;

/// The first page for Rust, whose examples run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/start/rust.md")]
pub struct FirstPage;
