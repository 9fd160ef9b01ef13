//! `/api/chat` and `/api/generate`: conversations and texts.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tern::Message;

use super::super::deliver::Prepared;
use super::parameters::{self, KeepAlive};
use super::reply::{Form, Reply, created_at};
use super::take_name;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::models::model::ServedModel;
use crate::models::names::shortened;
use crate::models::refusals::not_found;
use crate::models::registry::Registry;
use crate::request::chat_request::ChatRequest;
use crate::request::conversation;
use crate::request::encode::Encoder;
use crate::request::gap::Gap;
use crate::request::ignored::Object;
use crate::request::images;
use crate::request::named_images::NamedImages;
use crate::request::params::Params;
use crate::request::prepare::{Preparation, Prepare};
use crate::request::prompt::{Chat, model_or_adapter};
use crate::request::template_variables;
use crate::request::text_request::TextRequest;
use crate::request::tools::Tools;
use crate::state::App;

/// Parameters that are not supported, and why.
const REFUSED: &[(&str, &str)] = &[
    ("context", "send the conversation to /api/chat instead of the context of an earlier reply"),
    ("height", "image generation is not supported"),
    ("steps", "image generation is not supported"),
    ("template", "the model's own template is used"),
    ("width", "image generation is not supported"),
];

/// Bytes of a request that only unloads a model, at most.
const MAX_UNLOAD: usize = 4096;

/// A prepared request. Without a prompt or messages it only loads or unloads the model.
struct OllamaRequest {
    prepared: Option<Prepared<Reply>>,
    keep_alive: KeepAlive,
    model: String,
}

pub(in super::super) async fn chat(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    respond(app, log, body, Form::Chat, prepare_chat).await
}

pub(in super::super) async fn generate(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    respond(app, log, body, Form::Generate, prepare_text).await
}

async fn respond(
    app: Arc<App>,
    log: RequestLog,
    body: Body,
    form: Form,
    prepare: Prepare<OllamaRequest>,
) -> Result<Response> {
    let body = match &app.registry {
        Registry::Many(_) => {
            let body = crate::http::body::read(body, &app.config, &app.bodies).await?;
            if let Some(name) = unloads(&body) {
                return unload(&app, name, form).await;
            }
            Body::from(body.to_vec())
        }
        Registry::One(_) => body,
    };
    let (served, request) = app.prepare(&log, body, prepare).await?;
    match request.keep_alive {
        KeepAlive::Default => {}
        KeepAlive::For(time) => app.registry.keep(&served, Some(time)),
        KeepAlive::Forever => app.registry.keep(&served, None),
    }
    match request.prepared {
        Some(prepared) => prepared.deliver(app, served, log).await,
        None => {
            let reason = if request.keep_alive.is_zero() { "unload" } else { "load" };
            Ok(super::super::json(&without_prompt(&request.model, form, reason)))
        }
    }
}

/// The model of a request that only unloads it: `keep_alive` of 0, and neither a prompt nor messages.
fn unloads(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        #[serde(alias = "name")]
        model: String,
        keep_alive: Value,
        #[serde(flatten)]
        others: Map<String, Value>,
    }
    let small = Some(body).filter(|body| body.len() <= MAX_UNLOAD)?;
    let named: Named = serde_json::from_slice(small).ok()?;
    let is_empty = |value: &Value| {
        value.is_null()
            || value.as_str().is_some_and(str::is_empty)
            || value.as_array().is_some_and(Vec::is_empty)
    };
    let asks = ["prompt", "messages", "system", "suffix"];
    let only = asks.iter().all(|name| named.others.get(*name).is_none_or(is_empty));
    let keep_alive = parameters::keep_alive_of(Some(&named.keep_alive)).ok()?;
    (only && keep_alive.is_zero()).then_some(named.model)
}

/// Unloads a model, and loads none for it.
async fn unload(app: &App, name: String, form: Form) -> Result<Response> {
    if let Registry::Many(many) = &app.registry
        && many.find(&name).await.is_none()
    {
        return Err(not_found(format!("model {:?} not found", shortened(&name))));
    }
    app.registry.unload(&name).await;
    Ok(super::super::json(&without_prompt(&name, form, "unload")))
}

/// The reply to a request without a prompt.
fn without_prompt(model: &str, form: Form, done_reason: &str) -> Value {
    let mut reply =
        json!({"model": model, "created_at": created_at(), "done": true, "done_reason": done_reason});
    match form {
        Form::Chat => reply["message"] = json!({"role": "assistant", "content": ""}),
        Form::Generate => reply["response"] = "".into(),
    }
    reply
}

/// The parameters that both routes have.
struct Common {
    params: Params,
    model: String,
    stream: bool,
    keep_alive: KeepAlive,
}

fn common(preparation: &Preparation<'_>) -> Result<Common> {
    let mut params = Params::parse(preparation.body, parameters::unparsed(preparation.config))?;
    take_name(&mut params);
    let model = model_or_adapter(&mut params, preparation.served)?;
    let stream = params.bool("stream")?.unwrap_or(true);
    let keep_alive = parameters::keep_alive(&mut params)?;
    for name in ["truncate", "shift"] {
        params.bool(name)?; // how Ollama shortens a conversation; here it must fit
    }
    Ok(Common { params, model, stream, keep_alive })
}

fn prepare_chat(preparation: &Preparation<'_>) -> Result<OllamaRequest> {
    let Preparation { served, config, cancel, .. } = *preparation;
    let Common { mut params, model, stream, keep_alive } = common(preparation)?;
    let messages = params.array("messages")?.unwrap_or_default();
    let options = parameters::options(&mut params, served, config, &model)?;
    let grammar = parameters::format(&mut params)?;
    let variables = template_variables::take(&mut params, served, config)?;
    let (tools, offered) = Tools::take(&mut params, config)?;
    if messages.len() > config.max_messages {
        return Err(ApiError::too_many("messages", messages.len(), config.max_messages, "messages"));
    }
    let (messages, images): (Vec<Value>, Vec<Vec<Value>>) = messages.into_iter().map(adapted).unzip();
    let mut messages = conversation::convert(messages, &params)?;
    for (at, (message, images)) in messages.iter_mut().zip(images).enumerate() {
        add_images(message, &images, preparation.images, &format!("messages[{at}].images"))?;
    }
    params.finish(Object::Body, REFUSED)?;
    if messages.is_empty() {
        return Ok(OllamaRequest { prepared: None, keep_alive, model });
    }
    let logprobs = options.sampling.logprobs.is_some();
    let chat = Chat::new(messages, tools, offered, variables);
    let request = ChatRequest { chat, options, grammar, truncate: false };
    let job = request.job(&Encoder::new(served, cancel, "messages"))?.job;
    let shape = Reply::new(Form::Chat, model.clone(), logprobs);
    Ok(OllamaRequest { prepared: Some(Prepared { job, shape, stream }), keep_alive, model })
}

/// A message with the names that the OpenAI API has for its members, and its images.
fn adapted(mut message: Value) -> (Value, Vec<Value>) {
    let Value::Object(members) = &mut message else { return (message, vec![]) };
    for (from, to) in [("thinking", "reasoning_content"), ("tool_name", "name")] {
        if let Some(value) = members.swap_remove(from) {
            members.insert(to.into(), value);
        }
    }
    let images = match members.swap_remove("images") {
        Some(Value::Array(images)) => images,
        Some(Value::Null) | None => vec![],
        Some(other) => vec![other],
    };
    (message, images)
}

/// Puts images before the text of a message.
fn add_images(message: &mut Message, images: &[Value], named: &NamedImages, path: &str) -> Result<()> {
    for (at, image) in images.iter().enumerate().rev() {
        let image = images::of_ollama(image, &format!("{path}[{at}]"), named)?;
        *message = std::mem::take(message).image(image);
    }
    Ok(())
}

fn prepare_text(preparation: &Preparation<'_>) -> Result<OllamaRequest> {
    let Preparation { served, config, cancel, .. } = *preparation;
    let Common { mut params, model, stream, keep_alive } = common(preparation)?;
    let prompt = params.string("prompt")?.unwrap_or_default();
    let system = params.string("system")?.filter(|text| !text.is_empty());
    let suffix = params.string("suffix")?.filter(|text| !text.is_empty());
    let raw = params.bool("raw")?.unwrap_or(false);
    let images = params.array("images")?.unwrap_or_default();
    // an empty template is the model's own
    if params.peek("template").is_some_and(|template| template == "") {
        params.take("template");
    }
    let options = parameters::options(&mut params, served, config, &model)?;
    let grammar = parameters::format(&mut params)?;
    let variables = template_variables::take(&mut params, served, config)?;
    params.finish(Object::Body, REFUSED)?;
    if prompt.is_empty() && system.is_none() && suffix.is_none() {
        return Ok(OllamaRequest { prepared: None, keep_alive, model });
    }
    let logprobs = options.sampling.logprobs.is_some();
    let encoder = Encoder::new(served, cancel, "prompt");
    if !images.is_empty() && (raw || suffix.is_some() || !has_template(served)) {
        let message = "images: need the model's chat template, which raw and suffix do not use";
        return Err(ApiError::bad("images", message));
    }
    let job = if raw || suffix.is_some() || !has_template(served) {
        let tokens = match suffix {
            Some(after) => {
                encoder.fill(&Gap { before: prompt, after, ..Gap::default() }, config.fill_order)?
            }
            None => encoder.text(&prompt, true)?,
        };
        TextRequest { prompts: vec![&tokens], options, grammar }.job(&encoder)?
    } else {
        let mut user = Message::user(prompt);
        add_images(&mut user, &images, preparation.images, "images")?;
        let messages = system.map(Message::system).into_iter().chain([user]).collect();
        let chat = Chat::new(messages, Tools::default(), vec![], variables);
        ChatRequest { chat, options, grammar, truncate: false }.job(&encoder)?.job
    };
    let shape = Reply::new(Form::Generate, model.clone(), logprobs);
    Ok(OllamaRequest { prepared: Some(Prepared { job, shape, stream }), keep_alive, model })
}

fn has_template(served: &ServedModel) -> bool {
    served.model.template().is_some()
}
