//! From what a person wrote to the tokens a model reads.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use tern_engine::Sampling;
use tern_text::{ChatInput, ChatTemplate, Tokenizer};

use crate::args::SamplingArgs;
use crate::error::CliResult;

impl SamplingArgs {
    /// The flags as the engine takes them.
    pub(crate) fn sampling(&self, default_temperature: f32, logprobs: Option<usize>) -> Sampling {
        Sampling {
            temperature: self.temp.unwrap_or(default_temperature),
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition: self.repeat_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
            bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(|| now().1),
            logprobs,
        }
    }
}

/// Seconds since 1970, and a number that is different every time.
fn now() -> (i64, u64) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() as i64, since.as_nanos() as u64)
}

/// The model's own chat template, if it has one.
pub(crate) fn template(tokenizer: &Tokenizer) -> CliResult<Option<ChatTemplate>> {
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or("");
    let Some(source) = tokenizer.chat_template() else { return Ok(None) };
    Ok(Some(ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos()))?))
}

/// One message of a conversation.
pub(crate) fn message(role: &str, content: &str) -> serde_json::Value {
    json!({ "role": role, "content": content })
}

/// A conversation, up to where the assistant begins to speak.
pub(crate) fn chat_tokens(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[serde_json::Value],
) -> CliResult<Vec<u32>> {
    let input = ChatInput {
        messages: json!(messages),
        add_generation_prompt: true,
        now: now().0,
        ..ChatInput::default()
    };
    Ok(tokenizer.encode_chat(&template.render(&input)?))
}
