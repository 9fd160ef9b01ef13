//! The results of requests that generate no text, within the deadline of the client's request.

use tern::engine::{Event, Request};

use crate::generation::choice_streams::ChoiceStreams;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::models::model::ServedModel;
use crate::request::clients;
use crate::state::{App, Stop};

/// One result per request, collected from its events by `take`. `group` consecutive requests share the
/// beginning of a prompt, which is computed once.
pub(super) async fn results<T>(
    app: &App,
    served: &ServedModel,
    log: &RequestLog,
    requests: Vec<Request>,
    group: usize,
    take: fn(Option<T>, Event) -> Option<T>,
) -> Result<Vec<T>> {
    log.fields().prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
    let mut requests = requests;
    for request in &mut requests {
        request.client = clients::client(log.sender.number(), request.client);
        request.priority = log.sender.priority(request.priority);
    }
    let work = run(app, served, requests, group, take);
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

async fn run<T>(
    app: &App,
    served: &ServedModel,
    requests: Vec<Request>,
    group: usize,
    take: fn(Option<T>, Event) -> Option<T>,
) -> Result<Vec<T>> {
    let mut results: Vec<Option<T>> = requests.iter().map(|_| None).collect();
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
            Some((at, event)) => results[at] = take(results[at].take(), event),
        }
    }
}
