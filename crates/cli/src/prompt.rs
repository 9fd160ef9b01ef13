//! From what a person wrote to the tokens a model reads.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tern_text::{Cancelled, ChatInput, ChatTemplate, Tokenizer};

use crate::error::CliResult;

/// The longest that a chat template may take; real ones take milliseconds.
const RENDERING: Duration = Duration::from_secs(10);

/// Seconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64
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
    let start = Instant::now();
    let input = ChatInput {
        messages: json!(messages),
        add_generation_prompt: true,
        now: now(),
        cancelled: Cancelled::when(move || start.elapsed() > RENDERING),
        ..ChatInput::default()
    };
    Ok(tokenizer.encode_chat(&template.render(&input)?))
}
