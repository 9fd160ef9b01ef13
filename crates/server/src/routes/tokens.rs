//! `/tokenize` and `/detokenize`, in vLLM's shapes.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use crate::Config;
use crate::error::{ApiError, Result};
use crate::model::Served;
use crate::params::{Params, tokens};
use crate::prompt::{Chat, model_name};
use crate::state::App;

pub(super) async fn tokenize(State(app): State<Arc<App>>, body: Body) -> Result<Response> {
    answer(app, body, tokens_of).await
}

pub(super) async fn detokenize(State(app): State<Arc<App>>, body: Body) -> Result<Response> {
    answer(app, body, text_of).await
}

async fn answer(
    app: Arc<App>,
    body: Body,
    make: fn(&[u8], &Served, &Config) -> Result<serde_json::Value>,
) -> Result<Response> {
    let (_, value) = app.prepare(body, make).await?;
    Ok(super::json(&value))
}

fn tokens_of(body: &[u8], served: &Served, config: &Config) -> Result<serde_json::Value> {
    let mut params = Params::parse(body)?;
    model_name(&mut params, served)?;
    let tokenizer = &served.model.tokenizer;
    let add_special = params.bool("add_special_tokens")?;
    let strings = params.bool("return_token_strs")?.unwrap_or(false);
    let prompt = params.string("prompt")?;
    let text = match params.string("content")? {
        Some(_) if prompt.is_some() => return Err(ApiError::bad("content", "content: prompt is given too")),
        content => prompt.or(content),
    };
    let tokens = match text {
        Some(text) => {
            params.finish(&[], &[])?;
            tokenizer.encode(&text, add_special.unwrap_or(true), true)
        }
        None => {
            let speaks = params.bool("add_generation_prompt")?.unwrap_or(true);
            let chat = Chat::take(&mut params, config)?.with_generation_prompt(speaks);
            params.finish(&[], &[])?;
            chat.prompt(served)?.tokens
        }
    };
    let string = |&id: &u32| tokenizer.token_text(id).unwrap_or_default();
    Ok(json!({
        "count": tokens.len(),
        "max_model_len": served.context(),
        "token_strs": strings.then(|| tokens.iter().map(string).collect::<Vec<_>>()),
        "tokens": tokens,
    }))
}

fn text_of(body: &[u8], served: &Served, _config: &Config) -> Result<serde_json::Value> {
    let mut params = Params::parse(body)?;
    model_name(&mut params, served)?;
    let missing = params.missing("tokens");
    let ids = tokens(&params.array("tokens")?.ok_or(missing)?, "tokens")?;
    params.finish(&[], &[])?;
    let tokenizer = &served.model.tokenizer;
    if let Some(id) = ids.iter().find(|id| **id as usize >= tokenizer.vocab_size()) {
        let words = format!("tokens: token id {id} is outside the vocabulary of {}", tokenizer.vocab_size());
        return Err(ApiError::bad("tokens", words));
    }
    Ok(json!({"prompt": tokenizer.decode(&ids, true)}))
}
