//! Server-sent events of a streamed completion: bytes to lines, and of each line only what is measured.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use serde_json::Value;

/// Maximum bytes of a line.
const MAX_LINE: usize = 16 << 20;

/// Splits a stream of bytes into the data of its events, however the bytes are divided into reads.
#[derive(Default)]
pub(crate) struct Lines {
    /// The beginning of a line whose end has not been read.
    partial: Vec<u8>,
}

impl Lines {
    /// Calls `event` with the data of every event that `bytes` completes. OpenAI's events are one line each;
    /// comments and other fields are skipped.
    pub(crate) fn read<E>(
        &mut self,
        mut bytes: &[u8],
        mut event: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.partial.is_empty() {
                data(line).map_or(Ok(()), &mut event)?;
            } else {
                self.partial.extend_from_slice(line);
                let result = data(&self.partial).map_or(Ok(()), &mut event);
                self.partial.clear();
                result?;
            }
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn is_too_long(&self) -> bool {
        self.partial.len() > MAX_LINE
    }
}

/// The value of a `data` field.
fn data(line: &[u8]) -> Option<&[u8]> {
    let value = line.strip_suffix(b"\r").unwrap_or(line).strip_prefix(b"data:")?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

/// Tokens as the server counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
}

/// An event of a chat or a text completion.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Chunk {
    choices: Option<Vec<Choice>>,
    pub(crate) usage: Option<Usage>,
    pub(crate) error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice {
    text: Text,
    delta: Option<Delta>,
    finish_reason: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Delta {
    role: Text,
    content: Text,
    reasoning_content: Text,
    reasoning: Text,
}

impl Chunk {
    /// Whether the event has tokens. Tokens may have no text (a part of a character), but an event without
    /// text is not a token if it begins or ends the answer.
    pub(crate) fn has_token(&self) -> bool {
        self.choices.iter().flatten().any(|choice| {
            let none = Delta::default();
            let delta = choice.delta.as_ref().unwrap_or(&none);
            let text =
                [choice.text, delta.content, delta.reasoning_content, delta.reasoning].into_iter().max();
            match text {
                Some(Text::Filled) => true,
                Some(Text::Empty) => choice.finish_reason == Text::Absent && delta.role == Text::Absent,
                _ => false,
            }
        })
    }

    pub(crate) fn is_finish(&self) -> bool {
        self.choices.iter().flatten().any(|choice| choice.finish_reason != Text::Absent)
    }
}

/// Whether a string exists and has characters, without a copy of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Text {
    #[default]
    Absent,
    Empty,
    Filled,
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct Measure;

        impl<'de> Visitor<'de> for Measure {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or null")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(if text.is_empty() { Text::Empty } else { Text::Filled })
            }

            fn visit_unit<E>(self) -> Result<Text, E> {
                Ok(Text::Absent)
            }
        }

        deserializer.deserialize_any(Measure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parts: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut events) = (Lines::default(), vec![]);
        for part in parts {
            let pushed = lines.read::<()>(part, |data| {
                events.push(String::from_utf8(data.to_vec()).unwrap());
                Ok(())
            });
            pushed.unwrap();
        }
        events
    }

    #[test]
    fn events_do_not_depend_on_how_bytes_are_divided() {
        let stream =
            ": keep-alive\r\n\r\ndata: {\"a\": \"\u{e9}\"}\n\nevent: x\ndata:b\r\n\r\ndata: [DONE]\n\n";
        let (bytes, want) = (stream.as_bytes(), ["{\"a\": \"\u{e9}\"}", "b", "[DONE]"]);
        assert_eq!(read(&[bytes]), want);
        for at in 0..bytes.len() {
            for to in at..bytes.len() {
                assert_eq!(read(&[&bytes[..at], &bytes[at..to], &bytes[to..]]), want, "{at} {to}");
            }
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(&single), want);
    }

    #[test]
    fn events_with_tokens_are_recognised_in_the_formats_of_servers() {
        for (event, token, finish) in [
            (r#"{"choices":[{"index":0,"text":" a","finish_reason":null,"logprobs":null}]}"#, true, false),
            (r#"{"choices":[{"text":"","finish_reason":null}]}"#, true, false), // a part of a character
            (r#"{"choices":[{"text":"","finish_reason":"length"}]}"#, false, true),
            (r#"{"choices":[{"text":"b","finish_reason":"length"}],"usage":null}"#, true, true),
            (r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#, false, false),
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#,
                false,
                false,
            ),
            (r#"{"choices":[{"delta":{"content":"\u00e9"}}]}"#, true, false),
            (r#"{"choices":[{"delta":{"content":null,"reasoning_content":"c"}}]}"#, true, false),
            (r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#, false, true),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#,
                false,
                false,
            ),
            (r#"{"choices":null,"timings":{"x":[1,{"y":2}]}}"#, false, false),
        ] {
            let chunk: Chunk = serde_json::from_str(event).unwrap();
            assert_eq!((chunk.has_token(), chunk.is_finish()), (token, finish), "{event}");
        }
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#;
        let usage = serde_json::from_str::<Chunk>(usage).unwrap().usage;
        assert_eq!(usage, Some(Usage { prompt_tokens: 3, completion_tokens: 4 }));
        assert!(serde_json::from_str::<Chunk>("[1").is_err());
    }
}
