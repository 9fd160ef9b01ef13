//! `/tokenize` and `/detokenize`, in vLLM's shapes.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::request::encode::Encoder;
use crate::request::ignored::Object;
use crate::request::options::unparsed;
use crate::request::params::{Params, Unparsed};
use crate::request::prepare::{Preparation, Prepare};
use crate::request::prompt::{Chat, model_name};
use crate::state::App;

#[derive(Serialize)]
struct Tokens<'a> {
    count: usize,
    max_model_len: usize,
    token_strs: Option<Vec<&'a str>>,
    tokens: Vec<u32>,
}

#[derive(Serialize)]
struct Text {
    prompt: String,
}

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    answer(&app, &log, body, tokens_of).await
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    answer(&app, &log, body, text_of).await
}

/// The response is serialized on a blocking thread too: it may be larger than the body.
async fn answer(app: &App, log: &RequestLog, body: Body, make: Prepare<Vec<u8>>) -> Result<Response> {
    let (_, text) = app.prepare(log, body, make).await?;
    Ok(super::json_text(text))
}

fn tokens_of(preparation: &Preparation<'_>) -> Result<Vec<u8>> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let mut params = Params::parse(body, unparsed(config))?.naming(preparation.images);
    model_name(&mut params, served)?;
    let tokenizer = served.model.tokenizer();
    let add_special = params.bool("add_special_tokens")?;
    let strings = params.bool("return_token_strs")?.unwrap_or(false);
    let prompt = params.string("prompt")?;
    let text = match params.string("content")? {
        Some(_) if prompt.is_some() => {
            return Err(ApiError::bad("content", "content: cannot be combined with prompt"));
        }
        content => prompt.or(content),
    };
    // of any length: clients use it to find out whether a text fits
    let encoder = Encoder { max_tokens: usize::MAX, ..Encoder::new(served, cancel, "prompt") };
    let tokens = match text {
        Some(text) => {
            params.finish(Object::Body, &[])?;
            encoder.text(&text, add_special.unwrap_or(true))?
        }
        None => {
            let chat = Chat::take(&mut params, served, config)?;
            params.finish(Object::Body, &[])?;
            chat.prompt(&encoder)?.tokens
        }
    };
    let string = |&id: &u32| tokenizer.token_text(id).unwrap_or_default();
    to_json(&Tokens {
        count: tokens.len(),
        max_model_len: served.model.context(),
        token_strs: strings.then(|| tokens.iter().map(string).collect()),
        tokens,
    })
}

fn text_of(preparation: &Preparation<'_>) -> Result<Vec<u8>> {
    let Preparation { body, served, config, .. } = *preparation;
    let mut params = Params::parse(body, Unparsed { listed: &["tokens"], ..unparsed(config) })?;
    model_name(&mut params, served)?;
    let ids = params.listed("tokens")?.tokens("tokens")?;
    params.finish(Object::Body, &[])?;
    let tokenizer = served.model.tokenizer();
    if let Some(id) = ids.iter().find(|id| **id as usize >= tokenizer.vocab_size()) {
        let vocab = tokenizer.vocab_size();
        let message = format!("tokens: token id {id} is outside the vocabulary of {vocab}");
        return Err(ApiError::bad("tokens", message));
    }
    to_json(&Text { prompt: tokenizer.decode(&ids, true) })
}

fn to_json(answer: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(answer).map_err(|_| ApiError::internal())
}
