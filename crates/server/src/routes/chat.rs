//! `/v1/chat/completions`: a conversation in, the assistant's next message out.

mod reply;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use tern::engine::Request;
use tern::grammar::Grammar;
use tern::text::CallStyle;
use tern::{ChatReading, ChatStart, CompiledConstraint, Reading, call_token};

use self::reply::Reply;
use super::deliver::Prepared;
use crate::Config;
use crate::access::RequestLog;
use crate::constraint::{self, RequestedGrammar};
use crate::encode::Encoder;
use crate::error::{ApiError, Result};
use crate::generation::Job;
use crate::ignored::Object;
use crate::model::ServedModel;
use crate::options::{Options, unparsed};
use crate::params::Params;
use crate::prepare::Cancel;
use crate::prompt::{Chat, model_name};
use crate::state::App;
use crate::tools::ToolChoice;

/// Parameters that are not supported, and why.
const REFUSED: &[(&str, &str)] = &[
    ("audio", "audio output is not supported"),
    ("function_call", "no longer part of the API, use tool_choice"),
    ("functions", "no longer part of the API, use tools"),
    ("suffix", "fill-in-the-middle is not supported"),
    ("web_search_options", "web search is not supported"),
];

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let (served, prepared) = app.prepare(&log, body, prepare).await?;
    prepared.deliver(app, served, log).await
}

/// Validates a request and does all its work that precedes the engine.
fn prepare(body: &[u8], served: &ServedModel, config: &Config, cancel: &Cancel) -> Result<Prepared<Reply>> {
    let mut params = Params::parse(body, unparsed(config))?;
    let model = model_name(&mut params, served)?;
    let chat = Chat::take(&mut params, config)?;
    let mut options = Options::take(&mut params, served, config)?;
    options.sampling.logprobs = logprobs(&mut params, config)?;
    let requested = constraint::take(&mut params)?;
    modalities(&mut params)?;
    params.finish(Object::Body, REFUSED)?;

    let prompt = chat.prompt(&Encoder::new(served, cancel, "messages"))?;
    let max_tokens = served.model.max_tokens(prompt.tokens.len(), options.max_tokens)?;
    let requested = match chat.tools.forced() {
        None => requested,
        Some(tools) => {
            if let Some(requested) = requested {
                let message = format!("tool_choice: cannot be combined with {}", requested.param);
                return Err(ApiError::bad("tool_choice", message));
            }
            let style = prompt.markup.calls.unwrap_or(CallStyle::GENERIC);
            let grammar = Grammar::Calls { texts: style.texts(), tools, many: chat.tools.many() };
            Some(RequestedGrammar { grammar, param: "tools" })
        }
    };
    // a tool call may replace a constrained answer if its start token distinguishes the two
    let calls = prompt.markup.calls.filter(|_| chat.tools.choice == ToolChoice::Auto);
    if let (Some(requested), Some(style)) = (&requested, &calls)
        && call_token(served.model.tokenizer(), style).is_none()
    {
        let param = requested.param;
        let message = "cannot be combined with tools: this model's tool calls have no start token";
        return Err(ApiError::bad(param, format!("{param}: {message}")));
    }
    let start = || Some(ChatStart { prompt_tail: &prompt.tail, calls });
    cancel.check()?;
    let constraint = requested.map(|requested| requested.compile(served, start())).transpose()?;
    let request = |text| Request {
        prompt: prompt.tokens.clone(),
        max_tokens,
        sampling: options.sampling(text),
        end_tokens: Arc::clone(&options.end_tokens),
        priority: options.priority,
        constraint: constraint.as_ref().map(CompiledConstraint::shared),
        pooling: None,
    };
    let requests = (0..options.n).map(request).collect();
    let reading = ChatReading {
        markup: prompt.markup,
        tools: chat.tools.schemas(),
        many_calls: chat.tools.many(),
        prompt_tail: prompt.tail,
    };
    let reading = Reading { stops: options.stops, is_answer: true, chat: Some(reading) };
    let job = Job { requests, n: options.n, reading, token_ids: options.token_ids };
    let prompt_ids = options.token_ids.then_some(prompt.tokens);
    let shape = Reply::new(model, options.sampling.logprobs.is_some(), prompt_ids);
    Ok(Prepared { job, shape, stream: options.stream })
}

fn logprobs(params: &mut Params, config: &Config) -> Result<Option<usize>> {
    let top = params.integer("top_logprobs", 0, config.max_top_logprobs as i64)?;
    match (params.bool("logprobs")?.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::bad("top_logprobs", "top_logprobs: requires logprobs to be true")),
    }
}

fn modalities(params: &mut Params) -> Result<()> {
    match params.array("modalities")? {
        Some(kinds) if kinds.iter().any(|kind| kind != "text") => {
            Err(ApiError::bad("modalities", "modalities: only \"text\" is supported"))
        }
        _ => Ok(()),
    }
}
