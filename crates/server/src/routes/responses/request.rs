//! The parameters of a response.

use serde_json::{Map, Value, json};
use tern::grammar::Grammar;

use super::reply::{Conversation, Reply, ReplyOptions};
use super::{input, tools};
use crate::http::error::{ApiError, Result};
use crate::request::chat_request::ChatRequest;
use crate::request::constraint::{self, RequestedGrammar};
use crate::request::ignored::Object;
use crate::request::json::decimal;
use crate::request::options::{Options, unparsed};
use crate::request::params::{Params, Unparsed};
use crate::request::prepare::Preparation;
use crate::request::prompt::{Chat, model_or_adapter};
use crate::request::template_variables;

/// Parameters that are not supported, and why.
const REFUSED: &[(&str, &str)] = &[
    ("conversation", "conversations are not supported: use previous_response_id"),
    ("messages", "use input, or /v1/chat/completions"),
    ("prompt", "prompt templates are not supported"),
];

/// Parameters that other APIs ignore and that a response repeats.
const KEPT: &[&str] = &["metadata", "store", "prompt_cache_key", "safety_identifier", "user"];

/// A validated request.
pub(super) struct ResponseRequest {
    pub(super) chat: ChatRequest,
    pub(super) reply: Reply,
    pub(super) stream: bool,
}

pub(super) fn take(preparation: &Preparation<'_>) -> Result<ResponseRequest> {
    let Preparation { served, config, .. } = *preparation;
    let unparsed = Unparsed { kept: KEPT, ..unparsed(config) };
    let mut params = Params::parse(preparation.body, unparsed)?.naming(preparation.images);
    params.rename("max_output_tokens", "max_tokens");
    let mut fields = Map::new();
    let mut echo = |params: &Params, name: &str| {
        fields.insert(name.to_owned(), params.peek(name).cloned().unwrap_or(Value::Null));
    };
    for name in ["instructions", "previous_response_id", "tools", "tool_choice", "reasoning", "text"] {
        echo(&params, name);
    }
    for name in ["prompt_cache_key", "safety_identifier", "user", "metadata"] {
        echo(&params, name);
        params.take(name);
    }
    let model = model_or_adapter(&mut params, served)?;
    let stream = params.bool("stream")?.unwrap_or(false);
    params.take("stream_options");
    let store = params.bool("store")?.unwrap_or(true);
    if params.bool("background")?.unwrap_or(false) {
        return Err(ApiError::bad("background", "background: only false is supported"));
    }
    params.integer("max_tool_calls", 1, i64::MAX)?; // limits tools that OpenAI runs
    let truncate = truncation(&mut params)?;

    let (items, inputs, messages) = conversation(&mut params, preparation)?;
    let tools = tools::take(&mut params, config)?;
    let variables = template_variables::take(&mut params, served, config)?;
    let (logprobs, encrypted) = included(&mut params, config.max_top_logprobs)?;
    let format = text_format(&mut params)?;
    let grammar = match (format, constraint::take(&mut params)?) {
        (Some(format), Some(other)) => {
            let message = format!("{}: cannot be combined with {}", other.param, format.param);
            return Err(ApiError::bad(other.param, message));
        }
        (format, other) => format.or(other),
    };
    let mut options = Options::take(&mut params, served, config, &model)?;
    options.sampling.logprobs = logprobs;
    if options.n > 1 {
        return Err(ApiError::bad("n", "n: a response has one answer"));
    }
    params.finish(Object::Body, REFUSED)?;

    let max_output_tokens = options.max_tokens;
    defaults(&mut fields);
    fields.extend([
        ("model".into(), model.into()),
        ("parallel_tool_calls".into(), tools.tools.many.into()),
        ("max_output_tokens".into(), json!(max_output_tokens)),
        ("temperature".into(), decimal(options.sampling.temperature)),
        ("top_p".into(), decimal(options.sampling.top_p)),
        ("top_logprobs".into(), json!(logprobs.unwrap_or(0))),
        ("truncation".into(), if truncate { "auto" } else { "disabled" }.into()),
    ]);
    let conversation = Conversation { items, inputs };
    let store = store.then(|| (preparation.responses.clone(), conversation));
    let options_of_reply =
        ReplyOptions { logprobs: logprobs.is_some(), encrypted, custom: tools.custom, store };
    let reply = Reply::new(fields, options_of_reply);
    let chat = Chat::new(messages, tools.tools, tools.offered, variables);
    Ok(ResponseRequest { chat: ChatRequest { chat, options, grammar, truncate }, reply, stream })
}

/// The items of the conversation, how many of them are input, and its messages.
fn conversation(
    params: &mut Params,
    preparation: &Preparation<'_>,
) -> Result<(Vec<Value>, usize, Vec<tern::Message>)> {
    let mut items = match params.string("previous_response_id")? {
        None => vec![],
        Some(id) => {
            let unknown = || {
                let error = super::unknown(&id);
                ApiError { param: Some("previous_response_id".into()), ..error }
            };
            preparation.responses.get(&id).ok_or_else(unknown)?.items
        }
    };
    let instructions = params.string("instructions")?;
    match params.take("input") {
        Some(given) => items.extend(input::items(given, preparation.responses)?),
        None if items.is_empty() && instructions.is_none() => return Err(params.missing("input")),
        None => {}
    }
    let limit = preparation.config.max_messages;
    if items.len() > limit {
        return Err(ApiError::too_many("input", items.len(), limit, "items"));
    }
    let messages = input::messages(instructions.as_deref(), &items, params)?;
    if messages.is_empty() {
        return Err(ApiError::bad("input", "input: must not be empty"));
    }
    let inputs = items.len();
    Ok((items, inputs, messages))
}

fn truncation(params: &mut Params) -> Result<bool> {
    match params.string("truncation")?.as_deref() {
        None | Some("disabled") => Ok(false),
        Some("auto") => Ok(true),
        Some(other) => Err(ApiError::expected("truncation", "\"auto\" or \"disabled\"", &other.into())),
    }
}

/// The number of log-probabilities, and whether reasoning is encoded for the client; from
/// `include` and `top_logprobs`.
fn included(params: &mut Params, most: usize) -> Result<(Option<usize>, bool)> {
    let include = params.array("include")?.unwrap_or_default();
    if let Some(other) = include.iter().find(|name| !name.is_string()) {
        return Err(ApiError::expected("include", "an array of strings", other));
    }
    let has = |name: &str| include.iter().any(|included| included == name);
    let top = params.integer("top_logprobs", 0, most as i64)?.map(|top| top as usize);
    let logprobs = match has("message.output_text.logprobs") {
        true => Some(top.unwrap_or(0)),
        false => top.filter(|top| *top > 0),
    };
    Ok((logprobs, has("reasoning.encrypted_content")))
}

/// `text.format`
fn text_format(params: &mut Params) -> Result<Option<RequestedGrammar>> {
    let Some(mut text) = params.object("text")? else { return Ok(None) };
    text.string("verbosity")?;
    let format = text.object("format")?;
    text.finish(Object::Format, &[])?;
    let Some(mut format) = format else { return Ok(None) };
    let kind = format.required_string("type")?;
    let grammar = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Grammar::JsonObject),
        "json_schema" => {
            format.string("name")?;
            format.string("description")?;
            format.bool("strict")?; // always strict
            let schema = format.take("schema").ok_or_else(|| format.missing("schema"))?;
            Some(Grammar::JsonSchema(schema))
        }
        _ => {
            let expected = "\"text\", \"json_object\" or \"json_schema\"";
            return Err(ApiError::expected("text.format.type", expected, &kind.into()));
        }
    };
    format.finish(Object::Format, &[])?;
    Ok(grammar.map(|grammar| RequestedGrammar { grammar, param: "text.format" }))
}

/// What a response says about parameters that the request omits.
fn defaults(fields: &mut Map<String, Value>) {
    let has_tools = fields["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    let defaults = [
        ("tools", json!([])),
        ("tool_choice", if has_tools { "auto".into() } else { "none".into() }),
        ("metadata", json!({})),
        ("reasoning", json!({"effort": null, "summary": null})),
    ];
    for (name, default) in defaults {
        if fields[name].is_null() {
            fields.insert(name.into(), default);
        }
    }
    if fields["text"]["format"].is_null() {
        let verbosity = fields["text"]["verbosity"].clone();
        let mut text = json!({"format": {"type": "text"}});
        if !verbosity.is_null() {
            text["verbosity"] = verbosity;
        }
        fields.insert("text".into(), text);
    }
}
