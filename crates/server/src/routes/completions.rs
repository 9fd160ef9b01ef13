//! `/v1/completions`: text or tokens in, their continuation out.

mod reply;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use tern::engine::Request;
use tern::{Constraint, Reading};

use self::reply::Reply;
use super::deliver::Prepared;
use crate::Config;
use crate::access::Record;
use crate::constraint;
use crate::encode::Encoder;
use crate::error::{ApiError, Result};
use crate::generation::Job;
use crate::model::ServedModel;
use crate::options::{Options, UNPARSED};
use crate::params::{Params, Unparsed};
use crate::prepare::Cancel;
use crate::prompt::model_name;
use crate::state::App;
use crate::text_lists::{Listed, Text};

/// What OpenAI documents for a request that does not say.
const MAX_TOKENS: usize = 16;

/// Parameters that the model cannot honour, and why.
const REFUSED: &[(&str, &str)] = &[
    ("messages", "use /v1/chat/completions for conversations"),
    ("suffix", "fill-in-the-middle is not supported"),
    ("tools", "use /v1/chat/completions for tools"),
];

/// A prompt and its own text, for `echo`.
struct Prompt {
    tokens: Vec<u32>,
    text: Option<String>,
}

pub(super) async fn completions(
    State(app): State<Arc<App>>,
    Extension(record): Extension<Record>,
    body: Body,
) -> Result<Response> {
    let (served, prepared) = app.prepare(&record, body, prepare).await?;
    prepared.deliver(app, served, record).await
}

fn prepare(body: &[u8], served: &ServedModel, config: &Config, cancel: &Cancel) -> Result<Prepared<Reply>> {
    let unparsed = Unparsed { listed: Some("prompt"), keep: config.max_choices, ..UNPARSED };
    let mut params = Params::parse(body, unparsed)?;
    let model = model_name(&mut params, served)?;
    let mut options = Options::take(&mut params, served, config)?;
    let logprobs = params.integer("logprobs", 0, config.max_top_logprobs as i64)?;
    options.sampling.logprobs = logprobs.map(|top| top as usize);
    let wanted = constraint::take(&mut params)?;
    let echo = params.bool("echo")?.unwrap_or(false);
    if echo && logprobs.is_some() {
        return Err(ApiError::bad("echo", "echo: cannot be combined with logprobs"));
    }
    let add_special = params.bool("add_special_tokens")?.unwrap_or(true);
    let prompt = params.listed("prompt")?;
    params.finish(&[], REFUSED)?;

    let encoder = Encoder::new(served, cancel, "prompt");
    let prompts = prompts(prompt, &encoder, config, (options.n, echo, add_special))?;
    cancel.check()?;
    let constraint = wanted.map(|wanted| wanted.compile(served, None)).transpose()?;
    let mut requests = Vec::with_capacity(prompts.len() * options.n);
    for prompt in &prompts {
        let left = served.model.max_tokens(prompt.tokens.len(), options.max_tokens)?;
        let max_tokens = options.max_tokens.unwrap_or(left.min(MAX_TOKENS));
        requests.extend((0..options.n).map(|text| Request {
            prompt: prompt.tokens.clone(),
            max_tokens,
            sampling: options.sampling(text),
            end_tokens: Arc::clone(&options.end_tokens),
            priority: options.priority,
            constraint: constraint.as_ref().map(Constraint::shared),
            pooling: None,
        }));
    }
    let begin = |prompt: Prompt| {
        let tokens = options.token_ids.then_some(prompt.tokens);
        std::iter::repeat_n((prompt.text.unwrap_or_default(), tokens), options.n)
    };
    let shape = Reply::new(model, logprobs.is_some(), prompts.into_iter().flat_map(begin).collect());
    let reading = Reading { stops: options.stops, ..Reading::default() };
    let job = Job { requests, n: options.n, reading, token_ids: options.token_ids };
    Ok(Prepared { job, shape, stream: options.stream })
}

fn prompts(
    given: Listed,
    encoder: &Encoder<'_>,
    config: &Config,
    (n, echo, add_special): (usize, bool, bool),
) -> Result<Vec<Prompt>> {
    let check = |prompts: usize| match prompts.saturating_mul(n) {
        texts if texts > config.max_choices => {
            Err(ApiError::too_many("prompt", texts, config.max_choices, "choices (prompts times n)"))
        }
        _ => Ok(()),
    };
    let prompt = |text| match text {
        Text::Words(text) => {
            Ok(Prompt { tokens: encoder.text(&text, add_special)?, text: echo.then_some(text) })
        }
        Text::Tokens(ids) => {
            let tokens = encoder.tokens(ids)?;
            let text = echo.then(|| encoder.served.model.tokenizer().decode(&tokens, false));
            Ok(Prompt { tokens, text })
        }
    };
    given.texts("prompt", check)?.into_iter().map(prompt).collect()
}
