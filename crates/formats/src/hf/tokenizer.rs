//! `tokenizer.json` and the files beside it as the `tokenizer.*` keys of GGUF files. One that our tokenizers
//! cannot reproduce is refused by name.

mod pre;
mod spm;
mod unigram;
mod wordpiece;

pub(in crate::hf) use self::pre::json as pre_tokenizer;

use std::path::Path;

use indexmap::IndexSet;
use serde_json::Value as Json;

use super::config::{Config, read_text};
use super::import::Import;
use crate::{FolderError, FormatError, Metadata, Value};

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
        return Err(FolderError::NoTokenizer.into());
    };
    let json: Json = serde_json::from_str(&text)
        .map_err(|e| FolderError::NotJson { file: file.into(), why: e.to_string() })?;
    let settings = Config::read(folder, "tokenizer_config.json")?.unwrap_or_default();
    let generation = Config::read(folder, "generation_config.json")?.unwrap_or_default();
    let refused = |what: String| FolderError::NotSupported { file: file.into(), what };
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

/// The models of a `tokenizer.json`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Model {
    /// BPE of bytes.
    Bytes,
    /// BPE of SentencePiece.
    Spm,
    Unigram,
    WordPiece,
}

/// The tokens of a model and their kinds.
struct Vocabulary {
    model: Model,
    tokens: Vec<String>,
    kinds: Vec<i64>,
}

impl Vocabulary {
    fn read(json: &Json, rows: usize) -> Result<Vocabulary, String> {
        let model = json.get("model").ok_or("no model")?;
        let kind = match model.get("type").and_then(Json::as_str) {
            Some("BPE") | None if spm::is_spm(json) => Model::Spm,
            Some("BPE") | None => Model::Bytes,
            Some("Unigram") => Model::Unigram,
            Some("WordPiece") => Model::WordPiece,
            Some(other) => return Err(format!("a model of type {}", crate::shown(other))),
        };
        let vocab: Vec<(&str, u64)> = match kind {
            Model::Unigram => unigram::tokens(model)?.iter().map(|(token, _)| *token).zip(0..).collect(),
            _ => numbered(model.get("vocab").and_then(Json::as_object).ok_or("no vocabulary")?)?,
        };
        let added = json.get("added_tokens").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
        let id_of = |token: &Json| token.get("id").and_then(Json::as_u64);
        let ids = vocab.iter().map(|(_, id)| *id).chain(added.iter().filter_map(id_of));
        let most = ids.max().ok_or("an empty vocabulary")?;
        if most >= MAX_TOKENS {
            return Err(format!("the token id {most}: want less than {MAX_TOKENS}"));
        }
        let size = (most as usize + 1).max(rows.min(MAX_TOKENS as usize));
        let mut tokens: Vec<String> = (0..size).map(|id| format!("[PAD{id}]")).collect();
        let mut kinds = vec![UNUSED; size];
        let unknown = model.get("unk_token").and_then(Json::as_str);
        let unknown_id = model.get("unk_id").and_then(Json::as_u64);
        for (token, id) in vocab {
            kinds[id as usize] = match unknown == Some(token) || unknown_id == Some(id) {
                true => UNKNOWN,
                false if kind == Model::Spm && is_byte(token) => BYTE,
                false => NORMAL,
            };
            tokens[id as usize] = token.into();
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
        Ok(Vocabulary { model: kind, tokens, kinds })
    }

    /// The id of the token for what has no other, if the model has one.
    fn unknown(&self) -> Option<u64> {
        self.kinds.iter().position(|kind| *kind == UNKNOWN).map(|id| id as u64)
    }

    /// The id of a token.
    fn id_of(&self, text: &str) -> Option<u64> {
        self.tokens.iter().position(|token| token == text).map(|id| id as u64)
    }

    /// The keys of the model: tokens, merges or scores, and how text is split.
    fn describe(&self, json: &Json, metadata: &mut Metadata) -> Result<(), String> {
        let model = &json["model"];
        metadata.insert("tokenizer.ggml.tokens", Value::Strings(self.tokens.clone()));
        metadata.insert("tokenizer.ggml.token_type", Value::Ints(self.kinds.clone()));
        match self.model {
            Model::Bytes => self.describe_bytes(json, &merges(model)?, metadata),
            Model::Spm => spm::describe(json, &self.tokens, &merges(model)?, metadata),
            Model::Unigram => unigram::describe(self, json, metadata),
            Model::WordPiece => wordpiece::describe(self, json, metadata),
        }
    }

    fn describe_bytes(
        &self,
        json: &Json,
        merges: &[[&str; 2]],
        metadata: &mut Metadata,
    ) -> Result<(), String> {
        let model = &json["model"];
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

/// The tokens of a vocabulary with their ids.
fn numbered(vocab: &serde_json::Map<String, Json>) -> Result<Vec<(&str, u64)>, String> {
    let id = |token: &str, id: &Json| {
        id.as_u64().ok_or_else(|| format!("a token `{}` without an id", crate::shown(token)))
    };
    vocab.iter().map(|(token, of)| Ok((token.as_str(), id(token, of)?))).collect()
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
        let mut ends: IndexSet<u64> = self.named("eos_token").into_iter().collect();
        ends.extend(others.iter().flat_map(|config| listed(config, "eos_token_id")));
        ends.retain(|id| (*id as usize) < self.vocabulary.tokens.len());
        let of_config = |key: &str| others.iter().find_map(|config| listed(config, key).first().copied());
        let roles = [
            ("bos", self.named("bos_token").or_else(|| of_config("bos_token_id"))),
            ("eos", ends.first().copied()),
            ("unknown", self.vocabulary.unknown().or_else(|| self.named("unk_token"))),
            ("padding", self.named("pad_token")),
            ("cls", self.named("cls_token")),
            ("seperator", self.named("sep_token")), // as GGUF spells it
            ("mask", self.named("mask_token")),
        ];
        for (role, id) in roles {
            if let Some(id) = id {
                metadata.insert(format!("tokenizer.ggml.{role}_token_id"), Value::Uint(id));
            }
        }
        let more: Vec<u64> = ends.iter().skip(1).copied().collect();
        for (role, id) in ["eot", "eom"].iter().zip(&more) {
            metadata.insert(format!("tokenizer.ggml.{role}_token_id"), Value::Uint(*id));
        }
        if more.len() > 2 {
            metadata.insert("tokenizer.eog_token_ids", Value::Uints(more));
        }
        Ok(())
    }

    /// Whether texts begin with BOS and end with EOS, and which tokens these are if the
    /// template of a text has others.
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
        let first = template.as_ref().and_then(|parts| parts.first()?.as_deref());
        let last =
            template.as_ref().filter(|parts| parts.len() > 1).and_then(|parts| parts.last()?.as_deref());
        let bos =
            own("add_bos_token")?.unwrap_or(if template.is_some() { first.is_some() } else { is_llama });
        let eos = own("add_eos_token")?.unwrap_or(last.is_some());
        let is_wordpiece = self.vocabulary.model == Model::WordPiece;
        metadata.insert("tokenizer.ggml.add_bos_token", Value::Bool(bos));
        metadata.insert("tokenizer.ggml.add_eos_token", Value::Bool(eos && !is_wordpiece));
        // two tokens between the texts of a pair: the second one is a separator
        let separated = between(self.json.get("post_processor"));
        let separator =
            separated.filter(|_| eos && !is_wordpiece).and_then(|token| self.vocabulary.id_of(&token));
        if let Some(id) = separator {
            metadata.insert("tokenizer.ggml.seperator_token_id", Value::Uint(id));
        }
        if is_wordpiece || separator.is_some() {
            metadata.insert("tokenizer.ggml.add_sep_token", Value::Bool(eos));
        }
        let ends = [(bos, first, "bos"), (eos, last, if is_wordpiece { "seperator" } else { "eos" })];
        for (is_added, token, role) in ends {
            if let Some(id) = token.filter(|_| is_added && !is_llama).and_then(|t| self.vocabulary.id_of(t)) {
                metadata.insert(format!("tokenizer.ggml.{role}_token_id"), Value::Uint(id));
            }
        }
        Ok(())
    }
}

/// The template of one text: the special token of each part, or none for the text.
fn single_template(post: Option<&Json>) -> Option<Vec<Option<String>>> {
    let post = post?;
    let text = |json: &Json| json.as_str().map(String::from);
    match post.get("type").and_then(Json::as_str)? {
        "TemplateProcessing" => {
            let parts = post.get("single")?.as_array()?;
            Some(parts.iter().map(|part| text(part.get("SpecialToken")?.get("id")?)).collect())
        }
        "BertProcessing" | "RobertaProcessing" => {
            Some(vec![text(&post["cls"][0]), None, text(&post["sep"][0])])
        }
        "Sequence" => post.get("processors")?.as_array()?.iter().find_map(|step| single_template(Some(step))),
        _ => None,
    }
}

/// The second token between the two texts of a pair, if there are two.
fn between(post: Option<&Json>) -> Option<String> {
    let post = post?;
    match post.get("type").and_then(Json::as_str)? {
        "TemplateProcessing" => {
            let token = |part: &Json| part.get("SpecialToken")?.get("id")?.as_str().map(String::from);
            let parts = post.get("pair")?.as_array()?.iter().map(token);
            let mut inside = parts.skip_while(Option::is_some).skip(1).map_while(|token| token);
            inside.nth(1).filter(|_| inside.next().is_none())
        }
        "RobertaProcessing" => post["sep"][0].as_str().map(String::from),
        "Sequence" => post.get("processors")?.as_array()?.iter().find_map(|step| between(Some(step))),
        _ => None,
    }
}

/// The chat templates: a separate file, or a key; the first is the one without a name.
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
