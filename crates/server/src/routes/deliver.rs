//! From a validated request to its response: whole, or streamed during generation.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;

use crate::access::RequestLog;
use crate::delta::Delta;
use crate::error::Result;
use crate::generation::{Job, RequestScope, Started, Usage};
use crate::model::ServedModel;
use crate::options::Streaming;
use crate::sse::{self, Events};
use crate::state::App;

/// The JSON shape of a route's replies.
pub(super) trait Shape: Send + Sync + 'static {
    /// Adds a piece of a choice to the whole reply.
    fn add(&mut self, at: usize, delta: Delta);

    /// The whole reply.
    fn whole(&mut self, usage: Usage) -> impl Serialize;

    /// The chunks that stream a piece of a choice. `usage` is absent, null or set.
    fn chunks(
        &mut self,
        at: usize,
        delta: Delta,
        usage: Option<Option<Usage>>,
    ) -> Vec<impl Serialize + Send + Sync>;

    /// The last chunk, which contains only the usage.
    fn usage_chunk(&self, usage: Usage) -> impl Serialize + Send + Sync;
}

/// A validated request.
pub(super) struct Prepared<S> {
    pub(super) job: Job,
    pub(super) shape: S,
    pub(super) stream: Option<Streaming>,
}

impl<S: Shape> Prepared<S> {
    /// Starts the job and responds. A refusal by the engine sets the status, also for a stream.
    pub(super) async fn deliver(
        self,
        app: Arc<App>,
        served: Arc<ServedModel>,
        log: RequestLog,
    ) -> Result<Response> {
        let scope = RequestScope { app: &app, served: &served, log: &log };
        let started = self.job.start(&scope)?;
        match self.stream {
            None => whole(&scope, started, self.shape).await,
            Some(streaming) => Ok(sse::response(app.config.keep_alive, move |events| async move {
                let scope = RequestScope { app: &app, served: &served, log: &log };
                if let Err(error) = stream(&scope, started, self.shape, streaming, &events).await {
                    events.error(&error).await;
                }
            })),
        }
    }
}

async fn whole(scope: &RequestScope<'_>, started: Started, mut shape: impl Shape) -> Result<Response> {
    let mut generation = started.generation(scope)?;
    while let Some(next) = generation.next().await {
        let (at, delta) = next?;
        shape.add(at, delta);
    }
    Ok(super::json(&shape.whole(generation.usage())))
}

async fn stream(
    scope: &RequestScope<'_>,
    started: Started,
    mut shape: impl Shape,
    streaming: Streaming,
    events: &Events,
) -> Result<()> {
    let mut generation = started.generation(scope)?;
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
