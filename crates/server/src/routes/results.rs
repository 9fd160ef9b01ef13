//! The results of requests that generate no text, within the deadline of the client's request.

use tern::engine::{Event, Request};

use crate::generation::choice_streams::ChoiceStreams;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::models::model::ServedModel;
use crate::request::clients;
use crate::state::{App, Stop};

/// One result per request, taken from its events by `of`. `group` consecutive requests share a prompt.
pub(super) async fn results<T: Clone>(
    app: &App,
    served: &ServedModel,
    log: &RequestLog,
    requests: Vec<Request>,
    group: usize,
    of: fn(Event) -> Option<T>,
) -> Result<Vec<T>> {
    log.fields().prompt_tokens =
        requests.iter().step_by(group.max(1)).map(|request| request.prompt.len()).sum();
    let mut requests = requests;
    for request in &mut requests {
        request.client = clients::client(log.sender.number(), request.client);
        request.priority = log.sender.priority(request.priority);
    }
    let work = run(app, served, requests, group, of);
    let results = match log.deadline(app.config.request_timeout) {
        None => work.await?,
        Some(at) => match tokio::time::timeout_at(at.into(), work).await {
            Ok(results) => results?,
            Err(_) => return Err(ApiError::timeout(app.timeout())),
        },
    };
    log.fields().finish = Some("stop");
    Ok(results)
}

async fn run<T: Clone>(
    app: &App,
    served: &ServedModel,
    requests: Vec<Request>,
    group: usize,
    of: fn(Event) -> Option<T>,
) -> Result<Vec<T>> {
    let mut results = vec![None; requests.len()];
    let streams = ChoiceStreams::start(served.model.handle(), requests, group);
    let mut streams = streams.map_err(|error| app.refusal(error))?;
    let mut stop = std::pin::pin!(app.stopped(Stop::Now));
    loop {
        let event = tokio::select! {
            event = streams.next() => event,
            () = stop.as_mut() => return Err(ApiError::shutting_down()),
        };
        match event {
            // without a result of each, the engine was stopped
            None => {
                return results.into_iter().collect::<Option<_>>().ok_or_else(ApiError::shutting_down);
            }
            Some((_, Event::Failed(error))) => return Err(error.into()),
            Some((at, event)) => results[at] = of(event).or(results[at].take()),
        }
    }
}
