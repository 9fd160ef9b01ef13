//! From requests to tokens: which sequences run in a step, on which KV pages, and what comes back.
//!
//! A [`Request`] goes in through a [`Handle`] and comes back as a [`TokenStream`]. Behind the handle one
//! thread repeats four calls: [`Scheduler::plan`], [`Runner::submit`], [`Runner::collect`],
//! [`Scheduler::apply`]. If the runner runs ahead, the next batch is planned and submitted before the one in
//! flight is collected.
//!
//! ```
//! use tern_engine::{Capacity, Engine, Event, Finish, Limits, Request, ScriptedRunner};
//!
//! let runner = ScriptedRunner::new(1000, Capacity { pages: 64, page_len: 16, max_tokens: 64, max_outputs: 8, window: None, state: None });
//! let limits = Limits { max_seqs: 8, max_context: 256, max_waiting: 100, step_millis: 0 };
//! let engine = Engine::start(Box::new(runner), limits)?;
//! let events: Vec<Event> = engine.generate(Request::new(vec![1, 2, 3], 5))?.collect();
//! assert_eq!(events.len(), 7); // started, five tokens, done
//! assert_eq!(events[6], Event::Done(Finish::Length));
//! # Ok::<(), tern_engine::EngineError>(())
//! ```
//!
//! What is deliberately absent: the engine names no device and no file format; the scheduler
//! and the pages hold integers and use no clock, thread or device; nothing is global, so two
//! engines can run in one process.

mod batch;
mod budget;
mod capacity;
mod clients;
mod constraint;
mod decoding;
mod disk;
mod engine;
mod error;
mod fingerprint;
mod handle;
mod limits;
mod made_ahead;
mod pace;
mod pages;
mod pool;
mod request;
mod runner;
mod scheduler;
mod scripted;
mod sequence;
mod slots;
mod snapshots;
mod speculation;
mod stats;
mod step_cost;
mod step_sizes;
mod tower;

pub use batch::{Answer, Batch, Entry, Want};
pub use capacity::{Capacity, StateCapacity, WindowPages};
pub use constraint::{Constraint, SharedConstraint};
pub use disk::{DiskCache, DiskError, DiskLog, DiskUse};
pub use engine::Engine;
pub use error::{EngineError, Fault};
pub use handle::{Handle, InFlight, TokenStream};
pub use limits::Limits;
pub use pages::{Need, PageList, Pages, Text};
pub use request::{Event, Finish, Request, RequestId};
pub use runner::{CacheFormat, GraphRunner, Runner, RunnerConfig};
pub use scheduler::{Scheduler, StepRules};
pub use scripted::ScriptedRunner;
pub use speculation::MOST_DRAFTS;
pub use stats::Stats;
pub use step_sizes::StepSizes;
pub use tern_graph::{
    AdapterScales, AdapterSet, Breakers, CachePart, Dry, ImageRows, Images, Mask, Mirostat, MirostatVersion,
    PageTable, Place, Pooling, Sample, Sampled, Sampling, SamplingError, StateSlots, Xtc,
};
pub use tower::TowerRunner;
