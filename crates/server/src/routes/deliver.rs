//! From a validated request to its response: whole, or streamed during generation.

use std::pin::Pin;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use crate::generation::delta::Delta;
use crate::generation::usage::Usage;
use crate::generation::{Job, RequestScope, Started};
use crate::http::error::{ApiError, Result};
use crate::http::frames::{Frames, Framing};
use crate::http::request_log::RequestLog;
use crate::http::response_stream::{self, FrameSender, StreamFormat};
use crate::models::model::ServedModel;
use crate::request::prepare::Prepare;
use crate::state::App;

/// The shape of a route's replies. Every API has its own; the generation is the same.
pub(super) trait Shape: Send + 'static {
    /// How a streamed reply is framed.
    const FRAMING: Framing = Framing::Events;

    /// Adds a piece of a choice to the whole reply.
    fn add(&mut self, at: usize, delta: Delta);

    /// The whole reply.
    fn whole(&mut self, usage: Usage) -> impl Serialize;

    /// What is sent before the first piece.
    fn begin(&mut self, _usage: Usage, _out: &mut Frames) {}

    /// Streams a piece of a choice.
    fn piece(&mut self, at: usize, delta: Delta, usage: Usage, out: &mut Frames);

    /// Ends the stream.
    fn end(&mut self, usage: Usage, out: &mut Frames);

    /// Ends the stream with an error.
    fn fail(&mut self, error: &ApiError, out: &mut Frames) {
        Self::error(error, out);
    }

    /// An error of a stream whose state is lost.
    fn error(error: &ApiError, out: &mut Frames) {
        out.data(&error.json());
    }
}

/// A validated request.
pub(super) struct Prepared<S> {
    pub(super) job: Job,
    pub(super) shape: S,
    pub(super) stream: bool,
}

/// A response that is computed.
type Responding = Pin<Box<dyn Future<Output = Result<Response>> + Send>>;

/// The handler of a route that generates text: `prepare` validates a request and does all its work that
/// precedes the engine.
pub(super) fn generating<S: Shape>(
    prepare: Prepare<Prepared<S>>,
) -> impl Fn(State<Arc<App>>, Extension<RequestLog>, Body) -> Responding + Clone + Send + Sync + 'static {
    move |State(app), Extension(log), body| {
        Box::pin(async move {
            let (served, prepared) = app.prepare(&log, body, prepare).await?;
            prepared.deliver(app, served, log).await
        })
    }
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
        if !self.stream {
            return whole(&scope, started, self.shape).await;
        }
        let mut on_panic = Frames::default();
        S::error(&ApiError::internal(), &mut on_panic);
        let format = StreamFormat { framing: S::FRAMING, keep_alive: app.config.keep_alive, on_panic };
        let mut shape = self.shape;
        Ok(response_stream::response(format, move |sender| async move {
            let scope = RequestScope { app: &app, served: &served, log: &log };
            if let Err(error) = stream(&scope, started, &mut shape, &sender).await {
                let mut frames = Frames::default();
                shape.fail(&error, &mut frames);
                sender.send(frames).await;
            }
        }))
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
    shape: &mut impl Shape,
    sender: &FrameSender,
) -> Result<()> {
    let mut generation = started.generation(scope)?;
    let mut frames = Frames::default();
    shape.begin(generation.usage(), &mut frames);
    sender.send(frames).await;
    while let Some(next) = generation.next().await {
        let (at, delta) = next?;
        let mut frames = Frames::default();
        shape.piece(at, delta, generation.usage(), &mut frames);
        sender.send(frames).await;
    }
    let mut frames = Frames::default();
    shape.end(generation.usage(), &mut frames);
    sender.send(frames).await;
    Ok(())
}
