//! `tokenizer.json` and the files beside it as the `tokenizer.*` keys of GGUF files. One that our tokenizers cannot reproduce is
//! refused by name.

mod pre;
mod spm;

pub(in crate::hf) use self::pre::json as pre_tokenizer;

use std::path::Path;

use serde_json::Value as Json;

use super::config::{Config, read_text};
use super::import::Import;
use crate::{FormatError, Metadata, Value};

/// More tokens than any vocabulary has.
const MAX_TOKENS: u64 = 1 << 21;

/// The kinds of tokens, as GGUF numbers them.
pub(super) const NORMAL: i64 = 1;
pub(super) const UNKNOWN: i64 = 2;
pub(super) const CONTROL: i64 = 3;
pub(super) const USER_DEFINED: i64 = 4;
pub(super) const UNUSED: i64 = 5;
const BYTE: i64 = 6;

/// Sets the keys of the folder's tokenizer; there are `rows` rows of embeddings.
pub(crate) fn import(folder: &Path, import: &mut Import, rows: usize) -> Result<(), FormatError> {
    let file = "tokenizer.json";
    let Some(text) = read_text(&folder.join(file))? else {
        return Err(FormatError::Config(
            "the folder has no tokenizer.json: save the tokenizer with `transformers` to make one".into(),
        ));
    };
    let json: Json = serde_json::from_str(&text)
        .map_err(|e| FormatError::Config(format!("{file} is not a JSON object: {e}")))?;
    let settings = Config::read(folder, "tokenizer_config.json")?.unwrap_or_default();
    let generation = Config::read(folder, "generation_config.json")?.unwrap_or_default();
    let refused = |what: String| FormatError::Config(format!("{file} has {what}, which is not supported"));
    let vocabulary = Vocabulary::read(&json, rows).map_err(refused)?;
    let metadata = &mut import.metadata;
    vocabulary.describe(&json, metadata).map_err(refused)?;
    let ends = Ends { vocabulary: &vocabulary, json: &json, settings: &settings };
    ends.roles(metadata, [&generation, &import.config])?;
    ends.added(metadata)?;
    for (key, template) in templates(folder, &settings)? {
        metadata.insert(key, Value::String(template));
    }
    Ok(())
}

/// The tokens of a model and their kinds.
struct Vocabulary {
    tokens: Vec<String>,
    kinds: Vec<i64>,
    is_spm: bool,
}

impl Vocabulary {
    fn read(json: &Json, rows: usize) -> Result<Vocabulary, String> {
        let model = json.get("model").ok_or("no model")?;
        match model.get("type").and_then(Json::as_str) {
            Some("BPE") | None => {}
            Some(other) => return Err(format!("a model of type {}", crate::shown(other))),
        }
        let vocab = model.get("vocab").and_then(Json::as_object).ok_or("no vocabulary")?;
        let is_spm = spm::is_spm(json);
        let added = json.get("added_tokens").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
        let id_of = |token: &Json| token.get("id").and_then(Json::as_u64);
        let ids = vocab.values().filter_map(Json::as_u64).chain(added.iter().filter_map(id_of));
        let most = ids.max().ok_or("an empty vocabulary")?;
        if most >= MAX_TOKENS {
            return Err(format!("the token id {most}: want less than {MAX_TOKENS}"));
        }
        let size = (most as usize + 1).max(rows.min(MAX_TOKENS as usize));
        let mut tokens: Vec<String> = (0..size).map(|id| format!("[PAD{id}]")).collect();
        let mut kinds = vec![UNUSED; size];
        let unknown = model.get("unk_token").and_then(Json::as_str);
        for (token, id) in vocab {
            let id = id.as_u64().ok_or_else(|| format!("a token `{}` without an id", crate::shown(token)))?
                as usize;
            kinds[id] = match unknown == Some(token) {
                true => UNKNOWN,
                false if is_spm && is_byte(token) => BYTE,
                false => NORMAL,
            };
            tokens[id] = token.clone();
        }
        for token in added {
            let content = token.get("content").and_then(Json::as_str);
            let (Some(id), Some(content)) = (id_of(token), content) else {
                return Err(format!("the added token {token}"));
            };
            let flag = |key: &str| token.get(key).and_then(Json::as_bool) == Some(true);
            if flag("single_word") {
                return Err(format!("the added token {token}"));
            }
            let id = id as usize;
            tokens[id] = content.into();
            if kinds[id] != UNKNOWN {
                kinds[id] = if flag("special") { CONTROL } else { USER_DEFINED };
            }
        }
        Ok(Vocabulary { tokens, kinds, is_spm })
    }

    /// The id of a token.
    fn id_of(&self, text: &str) -> Option<u64> {
        self.tokens.iter().position(|token| token == text).map(|id| id as u64)
    }

    /// The keys of the model: tokens, merges or scores, and how text is split.
    fn describe(&self, json: &Json, metadata: &mut Metadata) -> Result<(), String> {
        let model = &json["model"];
        let merges = merges(model)?;
        metadata.insert("tokenizer.ggml.tokens", Value::Strings(self.tokens.clone()));
        metadata.insert("tokenizer.ggml.token_type", Value::Ints(self.kinds.clone()));
        if self.is_spm {
            return spm::describe(json, &self.tokens, &merges, metadata);
        }
        let is_byte_level =
            |of: Option<&Json>| of.is_some_and(|of| of.to_string().contains(r#""ByteLevel""#));
        if !is_byte_level(json.get("pre_tokenizer")) && !is_byte_level(json.get("decoder")) {
            return Err("BPE that is neither of bytes nor of SentencePiece".into());
        }
        let flag = |key: &str| model.get(key).and_then(Json::as_bool).unwrap_or(false);
        let pre = pre::name(json.get("pre_tokenizer").filter(|pre| !pre.is_null()), flag("ignore_merges"))?;
        if normalizes(json.get("normalizer"))? {
            metadata.insert("tokenizer.normalizer.nfc", Value::Bool(true));
        }
        metadata.insert("tokenizer.ggml.model", Value::String("gpt2".into()));
        metadata.insert("tokenizer.ggml.pre", Value::String(pre.into()));
        let lines = merges.iter().map(|[left, right]| format!("{left} {right}")).collect();
        metadata.insert("tokenizer.ggml.merges", Value::Strings(lines));
        Ok(())
    }
}

/// The pairs of `model.merges`, which are lists or, in older files, texts with a space between.
fn merges(model: &Json) -> Result<Vec<[&str; 2]>, String> {
    let list = model.get("merges").and_then(Json::as_array).ok_or("no merges")?;
    list.iter().map(|merge| pair(merge).ok_or_else(|| format!("the merge {merge}"))).collect()
}

fn pair(merge: &Json) -> Option<[&str; 2]> {
    match merge {
        Json::String(text) => text.split_once(' ').map(|(left, right)| [left, right]),
        Json::Array(pair) => match pair.as_slice() {
            [Json::String(left), Json::String(right)] => Some([left, right]),
            _ => None,
        },
        _ => None,
    }
}

/// Whether text is composed (NFC); other normalizers are refused.
fn normalizes(normalizer: Option<&Json>) -> Result<bool, String> {
    let Some(normalizer) = normalizer.filter(|n| !n.is_null()) else { return Ok(false) };
    match normalizer.get("type").and_then(Json::as_str) {
        Some("NFC") => Ok(true),
        Some("Sequence") => {
            let list = normalizer.get("normalizers").and_then(Json::as_array);
            list.into_iter().flatten().try_fold(false, |any, step| Ok(normalizes(Some(step))? || any))
        }
        _ => Err(format!("the normalizer {normalizer}")),
    }
}

/// Whether a token is one byte, `<0x0A>`.
fn is_byte(token: &str) -> bool {
    token.len() == 6 && token.starts_with("<0x") && token.ends_with('>')
}

/// Tokens at the ends of texts.
struct Ends<'a> {
    vocabulary: &'a Vocabulary,
    json: &'a Json,
    settings: &'a Config,
}

impl Ends<'_> {
    /// The id of a token that `tokenizer_config.json` names by its text, or by an object with it.
    fn named(&self, key: &str) -> Option<u64> {
        let value = self.settings.get(key)?;
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        self.vocabulary.id_of(text)
    }

    /// The ids of tokens with a role; `others` may have further tokens that end a text.
    fn roles(&self, metadata: &mut Metadata, others: [&Config; 2]) -> Result<(), FormatError> {
        let listed = |config: &Config, key: &str| -> Vec<u64> {
            match config.get(key) {
                Some(Json::Array(ids)) => ids.iter().filter_map(Json::as_u64).collect(),
                Some(id) => id.as_u64().into_iter().collect(),
                None => vec![],
            }
        };
        let mut ends: Vec<u64> = self.named("eos_token").into_iter().collect();
        ends.extend(others.iter().flat_map(|config| listed(config, "eos_token_id")));
        ends.retain(|id| (*id as usize) < self.vocabulary.tokens.len());
        let of_config = |key: &str| others.iter().find_map(|config| listed(config, key).first().copied());
        let roles = [
            ("bos", self.named("bos_token").or_else(|| of_config("bos_token_id"))),
            ("eos", ends.first().copied()),
            ("unknown", self.named("unk_token")),
            ("padding", self.named("pad_token")),
        ];
        for (role, id) in roles {
            if let Some(id) = id {
                metadata.insert(format!("tokenizer.ggml.{role}_token_id"), Value::Uint(id));
            }
        }
        let mut more: Vec<u64> = vec![];
        for id in ends.iter().skip(1) {
            if ends.first() != Some(id) && !more.contains(id) {
                more.push(*id);
            }
        }
        for (role, id) in ["eot", "eom"].iter().zip(&more) {
            metadata.insert(format!("tokenizer.ggml.{role}_token_id"), Value::Uint(*id));
        }
        if more.len() > 2 {
            metadata.insert("tokenizer.eog_token_ids", Value::Uints(more));
        }
        Ok(())
    }

    /// Whether texts begin with BOS and end with EOS.
    fn added(&self, metadata: &mut Metadata) -> Result<(), FormatError> {
        let class = self.settings.optional_str("tokenizer_class")?.unwrap_or_default();
        let is_llama = ["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"]
            .iter()
            .any(|own| class.starts_with(own));
        let template = single_template(self.json.get("post_processor"));
        // the class of Llama replaces the template by its own two flags
        let own = |key: &str| -> Result<Option<bool>, FormatError> {
            Ok(self.settings.optional_bool(key)?.filter(|_| is_llama))
        };
        let bos = own("add_bos_token")?.unwrap_or_else(|| match &template {
            Some(template) => template.first() == Some(&true),
            None => is_llama,
        });
        let eos = own("add_eos_token")?
            .unwrap_or_else(|| template.is_some_and(|t| t.len() > 1 && t.last() == Some(&true)));
        metadata.insert("tokenizer.ggml.add_bos_token", Value::Bool(bos));
        metadata.insert("tokenizer.ggml.add_eos_token", Value::Bool(eos));
        Ok(())
    }
}

/// The template of one text: whether each of its parts is a special token.
fn single_template(post: Option<&Json>) -> Option<Vec<bool>> {
    let post = post?;
    match post.get("type").and_then(Json::as_str)? {
        "TemplateProcessing" => {
            let parts = post.get("single")?.as_array()?;
            Some(parts.iter().map(|part| part.get("SpecialToken").is_some()).collect())
        }
        "Sequence" => post.get("processors")?.as_array()?.iter().find_map(|step| single_template(Some(step))),
        _ => None,
    }
}

/// The chat templates: a file of their own, or a key; the first is the one without a name.
fn templates(folder: &Path, settings: &Config) -> Result<Vec<(String, String)>, FormatError> {
    let plain = "tokenizer.chat_template";
    if let Some(text) = read_text(&folder.join("chat_template.jinja"))? {
        return Ok(vec![(plain.into(), text)]);
    }
    let beside = Config::read(folder, "chat_template.json")?.unwrap_or_default();
    let found = settings.get("chat_template").or_else(|| beside.get("chat_template"));
    Ok(match found {
        Some(Json::String(text)) => vec![(plain.into(), text.clone())],
        Some(Json::Array(list)) => {
            let text = |one: &Json, key: &str| one.get(key).and_then(Json::as_str).map(String::from);
            let named = |one| Some((text(one, "name")?, text(one, "template")?));
            let key = |name: String| if name == "default" { plain.into() } else { format!("{plain}.{name}") };
            list.iter().filter_map(named).map(|(name, template)| (key(name), template)).collect()
        }
        _ => vec![],
    })
}
