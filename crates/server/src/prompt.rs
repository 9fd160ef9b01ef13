//! From a conversation to prompt tokens.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use serde_json::{Map, Value};
use tern::Error;
use tern::text::{Markup, TemplateError};

use crate::Config;
use crate::encode::Encoder;
use crate::error::{ApiError, Result};
use crate::ignored::Object;
use crate::messages;
use crate::model::ServedModel;
use crate::params::Params;
use crate::tools::Tools;

/// A conversation and the rules for its tools.
pub(crate) struct Chat {
    /// With the offered tools, if they are enabled.
    conversation: tern::Chat,
    pub(crate) tools: Tools,
}

/// A rendered and tokenized conversation.
pub(crate) struct ChatPrompt {
    pub(crate) tokens: Vec<u32>,
    /// The end of the rendered text.
    pub(crate) tail: String,
    /// The markup of answers.
    pub(crate) markup: Markup,
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Chat {
    pub(crate) fn take(params: &mut Params, config: &Config) -> Result<Chat> {
        let missing = params.missing("messages");
        let messages = params.array("messages")?.ok_or(missing)?;
        if messages.is_empty() {
            return Err(ApiError::bad("messages", "messages: must not be empty"));
        }
        if messages.len() > config.max_messages {
            return Err(ApiError::too_many("messages", messages.len(), config.max_messages, "messages"));
        }
        let messages = messages::convert(messages, params)?;
        let (tools, offered) = Tools::take(params, config)?;
        let conversation = tern::Chat {
            tools: if tools.enabled() { offered } else { vec![] },
            template_variables: template_variables(params, config)?,
            ..tern::Chat::new(messages)
        };
        Ok(Chat { conversation, tools })
    }

    /// Sets whether the prompt ends with the start of an assistant message.
    pub(crate) fn with_generation_prompt(mut self, add_generation_prompt: bool) -> Chat {
        self.conversation.add_generation_prompt = add_generation_prompt;
        self
    }

    /// Renders and tokenizes the conversation.
    pub(crate) fn prompt(&self, encoder: &Encoder<'_>) -> Result<ChatPrompt> {
        encoder.cancel.check()?;
        let cancel = encoder.cancel.clone();
        let rendered = encoder.served.model.render(&self.conversation, move || cancel.is_cancelled());
        let rendered = rendered.map_err(|error| match error {
            Error::NoChatTemplate(_) => {
                let message = "this model has no chat template: use /v1/completions";
                ApiError::bad("messages", message).code("no_chat_template")
            }
            Error::UnknownCallFormat => ApiError::bad("tools", error.to_string()),
            Error::Template(TemplateError::Cancelled) if encoder.cancel.is_cancelled() => {
                encoder.cancel.error()
            }
            error => ApiError::bad("messages", error.to_string()),
        })?;
        let tokens = encoder.chat(&rendered.text)?;
        Ok(ChatPrompt { tokens, tail: rendered.tail().to_owned(), markup: rendered.markup })
    }
}

/// Extra variables of the template.
fn template_variables(params: &mut Params, config: &Config) -> Result<Map<String, Value>> {
    let mut kwargs = params.object("chat_template_kwargs")?.map(Params::into_map).unwrap_or_default();
    let bytes = Value::from(kwargs.clone()).to_string().len();
    if bytes > config.max_template_kwargs {
        return Err(ApiError::too_many("chat_template_kwargs", bytes, config.max_template_kwargs, "bytes"));
    }
    let mut effort = params.string("reasoning_effort")?;
    // OpenRouter's form
    if let Some(mut reasoning) = params.object("reasoning")? {
        effort = effort.or(reasoning.string("effort")?);
        if reasoning.bool("enabled")? == Some(false) {
            effort.get_or_insert_with(|| "none".into());
        }
        reasoning.integer("max_tokens", 1, i64::MAX)?;
        reasoning.bool("exclude")?;
        reasoning.finish(Object::Reasoning, &[])?;
    }
    if let Some(effort) = effort {
        if effort.len() > 32 {
            return Err(ApiError::expected("reasoning_effort", "at most 32 bytes", &effort.into()));
        }
        // the variable that most templates of reasoning models have
        if effort == "none" {
            kwargs.entry("enable_thinking").or_insert(false.into());
        }
        kwargs.entry("reasoning_effort").or_insert(effort.into());
    }
    Ok(kwargs)
}

/// The requested model name, which must be one of the served model's.
pub(crate) fn model_name(params: &mut Params, served: &ServedModel) -> Result<String> {
    match params.string("model")? {
        None => Ok(served.id().to_owned()),
        Some(name) if served.names.contains(&name) => Ok(name),
        Some(name) => Err(unknown_model(&name, served)),
    }
}

pub(crate) fn unknown_model(name: &str, served: &ServedModel) -> ApiError {
    let name: String = name.chars().take(100).collect();
    let message = format!("the model {name:?} does not exist; this server has {:?}", served.id());
    let error = ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found");
    ApiError { param: Some("model".into()), ..error }
}
