//! SentencePiece's BPE in a `tokenizer.json`: merges instead of scores, `▁` for spaces.

use std::collections::HashMap;

use serde_json::Value as Json;

use crate::{Metadata, Value};

/// The character for a space.
const MARK: &str = "\u{2581}";

/// Whether a vocabulary has bytes as tokens and marks for spaces.
pub(super) fn is_spm(json: &Json) -> bool {
    json["model"]["byte_fallback"].as_bool() == Some(true)
}

/// How spaces are marked.
#[derive(Default)]
struct Marks {
    /// Spaces become marks.
    replaces: bool,
    /// A mark before each text between markers.
    prefix: bool,
    /// The same, but only at the beginning.
    first: bool,
}

pub(super) fn describe(
    json: &Json,
    tokens: &[String],
    merges: &[[&str; 2]],
    metadata: &mut Metadata,
) -> Result<(), String> {
    let mut marks = Marks::default();
    marks.normalizer(json.get("normalizer").unwrap_or(&Json::Null))?;
    marks.pre_tokenizer(json.get("pre_tokenizer").unwrap_or(&Json::Null))?;
    if !marks.replaces {
        return Err("tokens of bytes, but no marks for spaces".into());
    }
    metadata.insert("tokenizer.ggml.model", Value::String("llama".into()));
    metadata.insert("tokenizer.ggml.pre", Value::String("default".into()));
    metadata.insert("tokenizer.ggml.scores", Value::Floats(scores(tokens, merges)?));
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(marks.prefix || marks.first));
    if marks.first && !marks.prefix {
        metadata.insert("tokenizer.add_space_prefix_first", Value::Bool(true));
    }
    Ok(())
}

/// The score of each token: the earlier its merges, the higher. All merges of a token must follow each other,
/// as they do if they were made from scores.
fn scores(tokens: &[String], merges: &[[&str; 2]]) -> Result<Vec<f32>, String> {
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    let mut last = String::new();
    for [left, right] in merges {
        let joined = format!("{left}{right}");
        if joined == last {
            continue;
        }
        let rank = ranks.len();
        if ranks.insert(joined.clone(), rank).is_some() {
            return Err(format!("merges of `{}` in several places", crate::shown(&joined)));
        }
        last = joined;
    }
    let none = ranks.len();
    Ok(tokens.iter().map(|token| -(ranks.get(token).copied().unwrap_or(none) as f32)).collect())
}

impl Marks {
    fn normalizer(&mut self, step: &Json) -> Result<(), String> {
        let text = |key: &str| step.get(key).and_then(Json::as_str);
        match text("type") {
            None => Ok(()),
            Some("Sequence") => {
                let list = step.get("normalizers").and_then(Json::as_array);
                list.into_iter().flatten().try_for_each(|step| self.normalizer(step))
            }
            Some("Prepend") if text("prepend") == Some(MARK) => {
                self.prefix = true;
                Ok(())
            }
            Some("Replace") if step["pattern"]["String"] == " " && text("content") == Some(MARK) => {
                self.replaces = true;
                Ok(())
            }
            _ => Err(format!("the normalizer {step}")),
        }
    }

    fn pre_tokenizer(&mut self, step: &Json) -> Result<(), String> {
        let text = |key: &str| step.get(key).and_then(Json::as_str);
        match text("type") {
            None => Ok(()),
            Some("Metaspace") if text("replacement").is_none_or(|mark| mark == MARK) => {
                self.replaces = true;
                match text("prepend_scheme").unwrap_or("always") {
                    "always" => self.prefix = true,
                    "first" => self.first = true,
                    "never" => {}
                    _ => return Err(format!("the pre_tokenizer {step}")),
                }
                Ok(())
            }
            // spaces are marks before this step: it does nothing
            Some("Split") if step["pattern"]["String"] == " " && self.replaces => Ok(()),
            _ => Err(format!("the pre_tokenizer {step}")),
        }
    }
}
