//! From a conversation to the tokens a model reads.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use tern_engine::EngineError;
use tern_text::{CallStyle, Cancelled, ChatInput, ChatTemplate, ChatText, Markup, TemplateError};

use crate::Config;
use crate::encode::Encoder;
use crate::error::{ApiError, Result};
use crate::messages::{self, Arguments};
use crate::model::Served;
use crate::params::Params;
use crate::tools::Tools;

/// Bytes of a prompt's end that can say whether it opens reasoning.
const TAIL: usize = 200;

/// The longest that a chat template may take; real ones take milliseconds.
const RENDERING: Duration = Duration::from_secs(10);

/// What a conversation is rendered with.
pub(crate) struct Chat {
    messages: Vec<Value>,
    pub(crate) tools: Tools,
    kwargs: Map<String, Value>,
    add_generation_prompt: bool,
}

/// A conversation in the model's own words.
pub(crate) struct ChatPrompt {
    pub(crate) tokens: Vec<u32>,
    /// The end of its text.
    pub(crate) tail: String,
    /// How the answer is marked.
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
            return Err(ApiError::bad("messages", "messages: there are none"));
        }
        if messages.len() > config.max_messages {
            return Err(ApiError::too_many("messages", messages.len(), config.max_messages, "messages"));
        }
        let tools = Tools::take(params, config)?;
        Ok(Chat { messages, tools, kwargs: kwargs(params, config)?, add_generation_prompt: true })
    }

    /// With or without the words that let the assistant speak.
    pub(crate) fn with_generation_prompt(self, add_generation_prompt: bool) -> Chat {
        Chat { add_generation_prompt, ..self }
    }

    /// Renders and tokenises.
    pub(crate) fn prompt(&self, encoder: &Encoder<'_>) -> Result<ChatPrompt> {
        let served = encoder.served;
        let (Some(template), Some(mut markup)) = (&served.model.template, served.markup) else {
            let words = "this model has no chat template: use /v1/completions";
            return Err(ApiError::bad("messages", words).code("no_chat_template"));
        };
        let wanted = self.tools.wanted();
        if wanted && served.takes_tools && markup.calls.is_none() {
            let words = "tools: the way this model writes calls is not known";
            return Err(ApiError::bad("tools", words));
        }
        if wanted && !served.takes_tools {
            markup.calls = Some(CallStyle::GENERIC);
        }
        encoder.cancel.check()?;
        let chat = match self.render(encoder, template, Arguments::Object) {
            // some templates write the arguments of earlier calls as they stand
            Err(error) if error.param.as_deref() == Some("messages") && self.calls() => {
                self.render(encoder, template, Arguments::Text).map_err(|_| error)?
            }
            rendered => rendered?,
        };
        let tokens = encoder.chat(&chat)?;
        let text = &chat.text;
        let from = (text.len().saturating_sub(TAIL)..).find(|&at| text.is_char_boundary(at));
        Ok(ChatPrompt { tokens, tail: text[from.unwrap_or(text.len())..].to_owned(), markup })
    }

    /// Whether an earlier message calls a tool.
    fn calls(&self) -> bool {
        self.messages.iter().any(|message| message["tool_calls"].is_array())
    }

    fn render(
        &self,
        encoder: &Encoder<'_>,
        template: &ChatTemplate,
        arguments: Arguments,
    ) -> Result<ChatText> {
        let served = encoder.served;
        let mut messages = messages::convert(self.messages.clone(), served.content, arguments)?;
        let mut tools = None;
        match (served.takes_tools, self.tools.wanted()) {
            (true, true) => tools = Some(json!(self.tools.offered)),
            (false, true) => messages = messages::in_words(messages, Some(&self.tools.instructions())),
            (true, false) => {}
            // calls of earlier turns are part of the conversation, whatever this turn offers
            (false, false) => messages = messages::in_words(messages, None),
        }
        let (start, cancel) = (Instant::now(), encoder.cancel.clone());
        let input = ChatInput {
            messages: messages.into(),
            tools,
            add_generation_prompt: self.add_generation_prompt,
            now: now() as i64,
            kwargs: self.kwargs.clone(),
            cancelled: Cancelled::when(move || cancel.is_cancelled() || start.elapsed() > RENDERING),
        };
        template.render(&input).map_err(|error| match error {
            TemplateError::Cancelled if encoder.cancel.is_cancelled() => encoder.cancel.error(),
            error => ApiError::bad("messages", error.to_string()),
        })
    }
}

/// Variables for the template.
fn kwargs(params: &mut Params, config: &Config) -> Result<Map<String, Value>> {
    let mut kwargs = params.object("chat_template_kwargs")?.map(Params::into_map).unwrap_or_default();
    let bytes = Value::from(kwargs.clone()).to_string().len();
    if bytes > config.max_template_kwargs {
        return Err(ApiError::too_many("chat_template_kwargs", bytes, config.max_template_kwargs, "bytes"));
    }
    if let Some(effort) = params.string("reasoning_effort")? {
        if effort.len() > 32 {
            return Err(ApiError::want("reasoning_effort", "a word", &effort.into()));
        }
        // the switch that most templates of reasoning models have
        if effort == "none" {
            kwargs.entry("enable_thinking").or_insert(false.into());
        }
        kwargs.entry("reasoning_effort").or_insert(effort.into());
    }
    Ok(kwargs)
}

/// How many tokens may be generated: what was asked for, or what the context leaves.
pub(crate) fn room(served: &Served, prompt: usize, asked: Option<usize>) -> Result<usize> {
    let left = served.context().saturating_sub(prompt);
    match asked {
        Some(tokens) => Ok(tokens), // the engine refuses what is too much
        None if left == 0 => {
            let max_context = served.context();
            Err(EngineError::Context { prompt, max_tokens: 1, max_context }.into())
        }
        None => Ok(left),
    }
}

/// The name a client used for the model, if it is one of its names.
pub(crate) fn model_name(params: &mut Params, served: &Served) -> Result<String> {
    match params.string("model")? {
        None => Ok(served.id().to_owned()),
        Some(name) if served.model.names.contains(&name) => Ok(name),
        Some(name) => Err(unknown_model(&name, served)),
    }
}

pub(crate) fn unknown_model(name: &str, served: &Served) -> ApiError {
    let name: String = name.chars().take(100).collect();
    let words = format!("the model {name:?} is not served here: {:?} is", served.id());
    let error = ApiError::new(StatusCode::NOT_FOUND, words).code("model_not_found");
    ApiError { param: Some("model".into()), ..error }
}
