//! `/api/pull`: downloads a model and reports the progress.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::spawn_blocking;

use super::{one_model_only, take_name};
use crate::http::error::{ApiError, Result};
use crate::http::error_shape::ErrorShape;
use crate::http::frames::{Frames, Framing};
use crate::http::response_stream::{self, StreamFormat};
use crate::models::library::Library;
use crate::models::registry::Registry;
use crate::request::ignored::Object;
use crate::request::options::unparsed;
use crate::request::params::Params;
use crate::state::App;

/// Minimum time between two reports of the same download.
const INTERVAL: Duration = Duration::from_millis(100);

pub(in super::super) async fn pull(State(app): State<Arc<App>>, body: Body) -> Result<Response> {
    let body = crate::http::body::read(body, &app.config, &app.bodies).await?;
    let mut params = Params::parse(&body, unparsed(&app.config))?;
    take_name(&mut params);
    let name = params.required_string("model")?;
    let stream = params.bool("stream")?.unwrap_or(true);
    params.bool("insecure")?;
    params.finish(Object::Body, &[])?;
    let library = match &app.registry {
        Registry::Many(many) => Arc::clone(&many.library),
        Registry::One(_) => return Err(one_model_only("download")),
    };
    let mut reports = start(library, name);
    if !stream {
        let mut last = Ok(json!({"status": "success"}));
        while let Some(report) = reports.recv().await {
            last = report;
        }
        return last.map(|report| super::super::json(&report));
    }
    let mut on_panic = Frames::default();
    on_panic.line(&ErrorShape::Ollama.json(&ApiError::internal()));
    let format = StreamFormat { framing: Framing::Lines, keep_alive: app.config.keep_alive, on_panic };
    Ok(response_stream::response(format, move |sender| async move {
        while let Some(report) = reports.recv().await {
            let mut frames = Frames::default();
            match report {
                Ok(report) => frames.line(&report),
                Err(error) => frames.line(&ErrorShape::Ollama.json(&error)),
            }
            sender.send(frames).await;
        }
    }))
}

/// Downloads on a blocking thread. A download continues if its client disconnects: the next request finds it done.
fn start(library: Arc<dyn Library>, name: String) -> UnboundedReceiver<Result<Value>> {
    let (sender, reports) = unbounded_channel();
    drop(spawn_blocking(move || {
        let _ = sender.send(Ok(json!({"status": "pulling manifest"})));
        let progress = Reports { sender: sender.clone(), state: Mutex::default() };
        let last = match library.pull(&name, &progress) {
            Ok(()) => Ok(json!({"status": "success"})),
            Err(why) => Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why)),
        };
        let _ = sender.send(last);
    }));
    reports
}

/// Sends the progress of a download.
struct Reports {
    sender: UnboundedSender<Result<Value>>,
    state: Mutex<Download>,
}

#[derive(Default)]
struct Download {
    label: String,
    total: Option<u64>,
    reported: Option<Instant>,
}

impl Reports {
    fn send(&self, state: &Download, completed: Option<u64>) {
        let mut report = json!({"status": format!("pulling {}", state.label), "digest": state.label});
        if let Some(total) = state.total {
            report["total"] = total.into();
            report["completed"] = completed.unwrap_or(0).into();
        }
        let _ = self.sender.send(Ok(report));
    }
}

impl tern::Progress for Reports {
    fn begin(&self, label: &str, total: Option<u64>) {
        let Ok(mut state) = self.state.lock() else { return };
        *state = Download { label: label.to_owned(), total, reported: Some(Instant::now()) };
        self.send(&state, None);
    }

    fn at(&self, done: u64) {
        let Ok(mut state) = self.state.lock() else { return };
        let complete = state.total == Some(done);
        if complete || state.reported.is_none_or(|at| at.elapsed() >= INTERVAL) {
            state.reported = Some(Instant::now());
            self.send(&state, Some(done));
        }
    }

    fn warn(&self, message: &str) {
        let _ = self.sender.send(Ok(json!({"status": message})));
    }
}
