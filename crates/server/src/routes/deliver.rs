//! From a request that is ready to its answer: whole, or streamed as it is made.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;

use crate::access::Record;
use crate::delta::Delta;
use crate::error::Result;
use crate::generation::{Job, Started, Usage};
use crate::model::ServedModel;
use crate::options::Streaming;
use crate::sse::{self, Events};
use crate::state::App;

/// The shape that an API gives its answers.
pub(super) trait Shape: Send + Sync + 'static {
    /// Takes in a piece of a text.
    fn add(&mut self, at: usize, delta: Delta);

    /// The whole answer.
    fn whole(&mut self, usage: Usage) -> impl Serialize;

    /// A piece of a text as it is streamed. Its `usage` is absent, null or there.
    fn chunks(
        &mut self,
        at: usize,
        delta: Delta,
        usage: Option<Option<Usage>>,
    ) -> Vec<impl Serialize + Send + Sync>;

    /// The last chunk, which has nothing but the usage.
    fn usage_chunk(&self, usage: Usage) -> impl Serialize + Send + Sync;
}

/// A request that was read and found good.
pub(super) struct Prepared<S> {
    pub(super) job: Job,
    pub(super) shape: S,
    pub(super) stream: Option<Streaming>,
}

impl<S: Shape> Prepared<S> {
    /// Starts it and answers; what the engine refuses at once is a status, also of a stream.
    pub(super) async fn deliver(
        self,
        app: Arc<App>,
        served: Arc<ServedModel>,
        record: Record,
    ) -> Result<Response> {
        let started = self.job.start(&app, &served, &record)?;
        match self.stream {
            None => whole(&app, &served, &record, started, self.shape).await,
            Some(streaming) => Ok(sse::response(app.config.keep_alive, move |events| async move {
                let site = (&*app, &*served, &record);
                if let Err(error) = pieces(site, started, self.shape, streaming, &events).await {
                    events.error(&error).await;
                }
            })),
        }
    }
}

async fn whole(
    app: &App,
    served: &ServedModel,
    record: &Record,
    started: Started,
    mut shape: impl Shape,
) -> Result<Response> {
    let mut generation = started.generation(app, served, record)?;
    while let Some(next) = generation.next().await {
        let (at, delta) = next?;
        shape.add(at, delta);
    }
    Ok(super::json(&shape.whole(generation.usage())))
}

async fn pieces(
    (app, served, record): (&App, &ServedModel, &Record),
    started: Started,
    mut shape: impl Shape,
    streaming: Streaming,
    events: &Events,
) -> Result<()> {
    let mut generation = started.generation(app, served, record)?;
    while let Some(next) = generation.next().await {
        let (at, delta) = next?;
        let usage = streaming.usage.then(|| streaming.usage_always.then(|| generation.usage()));
        for chunk in shape.chunks(at, delta, usage) {
            events.send(&chunk).await;
        }
    }
    if streaming.usage {
        events.send(&shape.usage_chunk(generation.usage())).await;
    }
    events.done().await;
    Ok(())
}
