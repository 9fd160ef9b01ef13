//! A chat in the terms of no API: what every chat route makes of its body, and the job that follows from it.

use std::sync::Arc;

use tern::grammar::Grammar;
use tern::text::CallStyle;
use tern::{ChatReading, ChatStart, Reading, call_token};

use crate::generation::Job;
use crate::http::error::{ApiError, Result};
use crate::request::constraint::RequestedGrammar;
use crate::request::encode::Encoder;
use crate::request::engine_requests::PromptRequests;
use crate::request::options::Options;
use crate::request::prompt::Chat;
use crate::request::tools::ToolChoice;

/// A validated chat.
pub(crate) struct ChatRequest {
    pub(crate) chat: Chat,
    pub(crate) options: Options,
    /// What the answer must follow.
    pub(crate) grammar: Option<RequestedGrammar>,
    /// Drop the oldest messages of a conversation that exceeds the context.
    pub(crate) truncate: bool,
}

/// A chat that is ready for the engine.
pub(crate) struct ChatJob {
    pub(crate) job: Job,
    /// The tokens of the prompt.
    pub(crate) prompt: Vec<u32>,
}

impl ChatRequest {
    /// Does all the work that precedes the engine: renders, tokenizes, compiles the constraint.
    pub(crate) fn job(self, encoder: &Encoder<'_>) -> Result<ChatJob> {
        let ChatRequest { chat, mut options, grammar, truncate } = self;
        let served = encoder.served;
        let prompt = if truncate { chat.newest_prompt(encoder)? } else { chat.prompt(encoder)? };
        served.model.max_tokens(prompt.tokens.len(), options.max_tokens)?; // before a constraint is compiled
        let grammar = match chat.tools.forced() {
            None => grammar,
            Some(tools) => {
                // a format is that of a text, and a forced call has none
                if let Some(requested) = grammar.filter(|requested| !requested.is_format()) {
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
        if let (Some(requested), Some(style)) = (&grammar, &calls)
            && call_token(served.model.tokenizer(), style).is_none()
        {
            let param = requested.param;
            let message = "cannot be combined with tools: this model's tool calls have no start token";
            return Err(ApiError::bad(param, format!("{param}: {message}")));
        }
        let start = || Some(ChatStart { prompt_tail: &prompt.tail, calls });
        encoder.cancel.check()?;
        let constraint = grammar.map(|requested| requested.compile(served, start())).transpose()?;
        if options.scoring.is_on() && !prompt.images.is_empty() {
            let message = "prompt_logprobs: not supported for conversations with images";
            return Err(ApiError::bad("prompt_logprobs", message));
        }
        options.rules.thinking = chat.thinking_budget(served, &prompt.tail).map(Arc::new);
        let PromptRequests { mut requests, scored } =
            options.requests(served, &prompt.tokens, constraint.as_ref())?;
        requests.iter_mut().for_each(|request| request.images = prompt.images.clone());
        let reading = ChatReading {
            markup: prompt.markup,
            tools: chat.tools.schemas(),
            many_calls: chat.tools.many(),
            prompt_tail: prompt.tail,
        };
        let reading =
            Reading { stops: options.stops.clone(), is_answer: !chat.continues(), chat: Some(reading) };
        let job = Job { scored: vec![scored; requests.len()], requests, ..Job::new(options, reading) };
        Ok(ChatJob { job, prompt: prompt.tokens })
    }
}
