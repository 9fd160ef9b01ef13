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
use tern::{ChatReading, ChatStart, Constraint, Reading, call_token};

use self::reply::Reply;
use super::deliver::Prepared;
use crate::Config;
use crate::access::Record;
use crate::constraint::{self, Wanted};
use crate::encode::Encoder;
use crate::error::{ApiError, Result};
use crate::generation::Job;
use crate::model::ServedModel;
use crate::options::{Options, UNPARSED};
use crate::params::Params;
use crate::prepare::Cancel;
use crate::prompt::{Chat, model_name};
use crate::state::App;
use crate::tools::ToolChoice;

/// Parameters that the model cannot honour, and why.
const REFUSED: &[(&str, &str)] = &[
    ("audio", "audio output is not supported"),
    ("function_call", "no longer part of the API, use tool_choice"),
    ("functions", "no longer part of the API, use tools"),
    ("suffix", "fill-in-the-middle is not supported"),
    ("web_search_options", "web search is not supported"),
];

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    Extension(record): Extension<Record>,
    body: Body,
) -> Result<Response> {
    let (served, prepared) = app.prepare(&record, body, prepare).await?;
    prepared.deliver(app, served, record).await
}

/// Everything that a request must have right, and everything that it costs before the engine.
fn prepare(body: &[u8], served: &ServedModel, config: &Config, cancel: &Cancel) -> Result<Prepared<Reply>> {
    let mut params = Params::parse(body, UNPARSED)?;
    let model = model_name(&mut params, served)?;
    let chat = Chat::take(&mut params, config)?;
    let mut options = Options::take(&mut params, served, config)?;
    options.sampling.logprobs = logprobs(&mut params, config)?;
    let wanted = constraint::take(&mut params)?;
    modalities(&mut params)?;
    params.finish(&[], REFUSED)?;

    let prompt = chat.prompt(&Encoder::new(served, cancel, "messages"))?;
    let max_tokens = served.model.max_tokens(prompt.tokens.len(), options.max_tokens)?;
    let wanted = match chat.tools.forced() {
        None => wanted,
        Some(tools) => {
            if let Some(wanted) = wanted {
                let message = format!("tool_choice: cannot be combined with {}", wanted.param);
                return Err(ApiError::bad("tool_choice", message));
            }
            let style = prompt.markup.calls.unwrap_or(CallStyle::GENERIC);
            let grammar = Grammar::Calls { texts: style.texts(), tools, many: chat.tools.many() };
            Some(Wanted { grammar, param: "tools" })
        }
    };
    // a tool may be called instead of an answer that follows the rules, where the two can be told apart
    let calls = prompt.markup.calls.filter(|_| chat.tools.choice == ToolChoice::Auto);
    if let (Some(wanted), Some(style)) = (&wanted, &calls)
        && call_token(served.model.tokenizer(), style).is_none()
    {
        let param = wanted.param;
        let message = "cannot be combined with tools: this model's tool calls have no start token";
        return Err(ApiError::bad(param, format!("{param}: {message}")));
    }
    let start = || Some(ChatStart { prompt_tail: &prompt.tail, calls });
    cancel.check()?;
    let constraint = wanted.map(|wanted| wanted.compile(served, start())).transpose()?;
    let request = |text| Request {
        prompt: prompt.tokens.clone(),
        max_tokens,
        sampling: options.sampling(text),
        end_tokens: Arc::clone(&options.end_tokens),
        priority: options.priority,
        constraint: constraint.as_ref().map(Constraint::shared),
        pooling: None,
    };
    let requests = (0..options.n).map(request).collect();
    let reading = ChatReading {
        markup: prompt.markup,
        tools: chat.tools.wanted(),
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
