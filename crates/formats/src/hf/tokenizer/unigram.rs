//! SentencePiece's Unigram in a `tokenizer.json`: a score per token, the table of its normalizer,
//! and what happens to spaces.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::Vocabulary;
use crate::{Metadata, Value};

/// The character for a space.
const MARK: &str = "\u{2581}";

/// The pairs of a token and its score, in the order of ids.
pub(super) fn tokens(model: &Json) -> Result<Vec<(&str, f64)>, String> {
    let list = model.get("vocab").and_then(Json::as_array).ok_or("no vocabulary")?;
    let one = |entry| scored(entry).ok_or_else(|| format!("the entry {entry} of the vocabulary"));
    list.iter().map(one).collect()
}

fn scored(entry: &Json) -> Option<(&str, f64)> {
    match entry.as_array()?.as_slice() {
        [token, score] => Some((token.as_str()?, score.as_f64()?)),
        _ => None,
    }
}

/// What the steps before the model do.
#[derive(Default)]
struct Steps {
    map: Vec<u8>,
    /// Runs of spaces become one.
    merges: bool,
    /// Spaces at the end are removed.
    strips: bool,
    /// Words are searched one by one.
    splits: bool,
    /// Spaces become marks, and a text begins with one.
    marks: bool,
}

pub(super) fn describe(vocabulary: &Vocabulary, json: &Json, metadata: &mut Metadata) -> Result<(), String> {
    let model = &json["model"];
    if model.get("byte_fallback").and_then(Json::as_bool) == Some(true) {
        return Err("a Unigram model with byte_fallback".into());
    }
    let mut steps = Steps::default();
    steps.normalizer(json.get("normalizer").unwrap_or(&Json::Null))?;
    steps.pre_tokenizer(json.get("pre_tokenizer").unwrap_or(&Json::Null))?;
    if !steps.marks || !(steps.merges || steps.splits) {
        return Err("a Unigram model whose spaces are neither merged nor split at".into());
    }
    let spans = |token: &&String| {
        token.chars().skip(1).any(|c| MARK.contains(c)) && !token.trim_start_matches(MARK).is_empty()
    };
    if let Some(token) = vocabulary.tokens.iter().find(spans).filter(|_| steps.splits) {
        return Err(format!("the token `{}`, which spans words,", crate::shown(token)));
    }
    let mut scores: Vec<f32> = tokens(model)?.iter().map(|(_, score)| *score as f32).collect();
    scores.resize(vocabulary.tokens.len(), 0.0);
    metadata.insert("tokenizer.ggml.model", Value::String("t5".into()));
    metadata.insert("tokenizer.ggml.pre", Value::String("default".into()));
    metadata.insert("tokenizer.ggml.scores", Value::Floats(scores));
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(true));
    metadata.insert("tokenizer.ggml.remove_extra_whitespaces", Value::Bool(true));
    if !steps.strips && !steps.splits {
        metadata.insert("tokenizer.keeps_last_space", Value::Bool(true));
    }
    if !steps.map.is_empty() {
        let bytes = steps.map.iter().map(|byte| u64::from(*byte)).collect();
        metadata.insert("tokenizer.ggml.precompiled_charsmap", Value::Uints(bytes));
    }
    Ok(())
}

impl Steps {
    fn normalizer(&mut self, step: &Json) -> Result<(), String> {
        let text = |key: &str| step.get(key).and_then(Json::as_str);
        let flag = |key: &str| step.get(key).and_then(Json::as_bool);
        match text("type") {
            None => Ok(()),
            Some("Sequence") => {
                let list = step.get("normalizers").and_then(Json::as_array);
                list.into_iter().flatten().try_for_each(|step| self.normalizer(step))
            }
            Some("Precompiled") if self.map.is_empty() => {
                let text = text("precompiled_charsmap").unwrap_or_default();
                self.map = STANDARD.decode(text).map_err(|e| format!("a precompiled_charsmap ({e})"))?;
                Ok(())
            }
            Some("Strip") if flag("strip_left") == Some(false) && flag("strip_right") == Some(true) => {
                self.strips = true;
                Ok(())
            }
            Some("Replace")
                if step["pattern"]["Regex"] == " {2,}" && matches!(text("content"), Some(" " | MARK)) =>
            {
                self.merges = true;
                Ok(())
            }
            _ => Err(format!("the normalizer {}", crate::shown(&step.to_string()))),
        }
    }

    fn pre_tokenizer(&mut self, step: &Json) -> Result<(), String> {
        let text = |key: &str| step.get(key).and_then(Json::as_str);
        match text("type") {
            Some("Sequence") => {
                let list = step.get("pretokenizers").and_then(Json::as_array);
                list.into_iter().flatten().try_for_each(|step| self.pre_tokenizer(step))
            }
            Some("WhitespaceSplit") => {
                self.splits = true;
                Ok(())
            }
            Some("Metaspace")
                if text("replacement").is_none_or(|mark| mark == MARK)
                    && text("prepend_scheme").is_none_or(|scheme| scheme == "always")
                    && step.get("add_prefix_space").and_then(Json::as_bool) != Some(false) =>
            {
                self.marks = true;
                Ok(())
            }
            _ => Err(format!("the pre_tokenizer {step}")),
        }
    }
}
