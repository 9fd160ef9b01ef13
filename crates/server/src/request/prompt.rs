//! From a conversation to prompt tokens.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tern::engine::{EngineError, Images};
use tern::text::{Markup, TemplateError};
use tern::{ChatEnd, Error, Message, RenderedChat, ThinkingBudget};

use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::models::model::ServedModel;
use crate::models::refusals::unknown_model;
use crate::request::conversation;
use crate::request::encode::Encoder;
use crate::request::images;
use crate::request::params::Params;
use crate::request::template_variables::{self, TemplateVariables};
use crate::request::tools::Tools;

/// A conversation and the rules for its tools.
pub(crate) struct Chat {
    /// With the offered tools, if they are enabled.
    conversation: tern::Chat,
    pub(crate) tools: Tools,
    variables: TemplateVariables,
}

/// A rendered and tokenized conversation.
pub(crate) struct ChatPrompt {
    pub(crate) tokens: Vec<u32>,
    /// The rows of its images.
    pub(crate) images: Images,
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
    pub(crate) fn take(params: &mut Params, served: &ServedModel, config: &Config) -> Result<Chat> {
        let missing = params.missing("messages");
        let messages = params.array("messages")?.ok_or(missing)?;
        if messages.is_empty() {
            return Err(ApiError::bad("messages", "messages: must not be empty"));
        }
        if messages.len() > config.max_messages {
            return Err(ApiError::too_many("messages", messages.len(), config.max_messages, "messages"));
        }
        let messages = conversation::convert(messages, params)?;
        let (tools, offered) = Tools::take(params, config)?;
        let variables = template_variables::take(params, served, config)?;
        let mut chat = Chat::new(messages, tools, offered, variables);
        chat.conversation.end = end(params)?;
        Ok(chat)
    }

    /// A conversation of any API. `offered` are the tools as a template takes them.
    pub(crate) fn new(
        messages: Vec<Message>,
        tools: Tools,
        offered: Vec<Value>,
        variables: TemplateVariables,
    ) -> Chat {
        let conversation = tern::Chat {
            tools: if tools.enabled() { offered } else { vec![] },
            template_variables: variables.values.clone(),
            ..tern::Chat::new(messages)
        };
        Chat { conversation, tools, variables }
    }

    /// Whether the model continues the last message.
    pub(crate) fn continues(&self) -> bool {
        self.conversation.end == ChatEnd::LastMessage
    }

    /// How long the model may reason after this prompt.
    pub(crate) fn thinking_budget(&self, served: &ServedModel, prompt_tail: &str) -> Option<ThinkingBudget> {
        let has_variable =
            |name: &str| served.model.template().is_some_and(|template| template.has_variable(name));
        let tokens = self.variables.thinking_budget(has_variable)?;
        served.model.thinking_budget(tokens, prompt_tail)
    }

    /// Renders and tokenizes the conversation.
    pub(crate) fn prompt(&self, encoder: &Encoder<'_>) -> Result<ChatPrompt> {
        prompt(&self.conversation, encoder)
    }

    /// The same without the oldest messages if the whole conversation exceeds the context. The system message
    /// is kept, and results of calls that are dropped are dropped too.
    pub(crate) fn newest_prompt(&self, encoder: &Encoder<'_>) -> Result<ChatPrompt> {
        let context = encoder.served.model.context();
        let messages = &self.conversation.messages;
        let first = messages.iter().take_while(|message| message.role == "system").count();
        let attempt = |dropped: usize| {
            let mut chat = self.conversation.clone();
            chat.messages.drain(first..first + dropped);
            while chat.messages.get(first).is_some_and(|message| message.role == "tool") {
                chat.messages.remove(first);
            }
            prompt(&chat, encoder).and_then(|prompt| match prompt.tokens.len() {
                tokens if tokens < context => Ok(prompt),
                prompt => Err(EngineError::Context { prompt, max_tokens: 1, max_context: context }.into()),
            })
        };
        match attempt(0) {
            Err(error) if error.code == Some("context_length_exceeded") => {}
            whole => return whole,
        }
        // the last message is kept; the fewest that must be dropped are between these numbers
        let (mut too_few, mut enough) = (0, messages.len().saturating_sub(first + 1));
        let mut best = attempt(enough)?;
        while too_few + 1 < enough {
            let middle = (too_few + enough) / 2;
            match attempt(middle) {
                Ok(prompt) => (best, enough) = (prompt, middle),
                Err(_) => too_few = middle,
            }
        }
        Ok(best)
    }
}

fn prompt(conversation: &tern::Chat, encoder: &Encoder<'_>) -> Result<ChatPrompt> {
    let mut rendered = render(conversation, encoder)?;
    let (tokens, images) = images::encode(&mut rendered, encoder)?;
    Ok(ChatPrompt { tokens, images, tail: rendered.tail().to_owned(), markup: rendered.markup })
}

/// The text of a conversation.
pub(crate) fn render(conversation: &tern::Chat, encoder: &Encoder<'_>) -> Result<RenderedChat> {
    encoder.cancel.check()?;
    let cancel = encoder.cancel.clone();
    let rendered = encoder.served.model.render(conversation, move || cancel.is_cancelled());
    rendered.map_err(|error| match error {
        Error::NoChatTemplate(_) => {
            let message = "this model has no chat template: use /v1/completions";
            ApiError::bad("messages", message).code("no_chat_template")
        }
        Error::UnknownCallFormat => ApiError::bad("tools", error.to_string()),
        Error::Template(TemplateError::Cancelled) if encoder.cancel.is_cancelled() => encoder.cancel.error(),
        error => ApiError::bad("messages", error.to_string()),
    })
}

/// Where the prompt ends: `add_generation_prompt` and `continue_final_message`.
fn end(params: &mut Params) -> Result<ChatEnd> {
    let generation_prompt = params.bool("add_generation_prompt")?;
    match (params.bool("continue_final_message")?.unwrap_or(false), generation_prompt) {
        (true, Some(true)) => {
            let message =
                "continue_final_message: cannot be combined with add_generation_prompt, set one of them";
            Err(ApiError::bad("continue_final_message", message))
        }
        (true, _) => Ok(ChatEnd::LastMessage),
        (false, Some(false)) => Ok(ChatEnd::Messages),
        (false, _) => Ok(ChatEnd::Answer),
    }
}

/// The requested model name, which must be one of the served model's.
pub(crate) fn model_name(params: &mut Params, served: &ServedModel) -> Result<String> {
    match params.string("model")? {
        None => Ok(served.id().to_owned()),
        Some(name) if served.has_name(&name) => Ok(name),
        Some(name) if served.adapter(&name).is_some() => {
            let message = format!("model: {name:?} is an adapter, which this route does not use");
            Err(ApiError::bad("model", message))
        }
        Some(name) => Err(unknown_model(&name, served.id())),
    }
}

/// The same, or the name of an adapter, for routes that use them.
pub(crate) fn model_or_adapter(params: &mut Params, served: &ServedModel) -> Result<String> {
    match params.string("model")? {
        Some(name) if served.adapter(&name).is_some() => Ok(name),
        Some(name) if !served.has_name(&name) => {
            let adapters = served.model.adapters().iter().map(|file| file.name.as_str());
            let known: Vec<&str> = [served.id()].into_iter().chain(adapters).collect();
            Err(unknown_model(&name, &known.join(", ")))
        }
        name => Ok(name.unwrap_or_else(|| served.id().to_owned())),
    }
}
