//! `tokenizer.json` and the files beside it from the `tokenizer.*` keys of a GGUF file.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::super::tokenizer::{CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, pre_tokenizer};
use super::{write_json, write_text};
use crate::{ExportError, FormatError, Metadata, Value};

/// The character for a space.
const MARK: &str = "\u{2581}";

pub(super) fn write(metadata: &Metadata, folder: &Path) -> Result<(), FormatError> {
    let vocabulary = Vocabulary::of(metadata)?;
    let kind = metadata.optional_str("tokenizer.ggml.model").ok().flatten().unwrap_or("");
    let mut file = match kind {
        "gpt2" => vocabulary.bytes(metadata)?,
        "llama" => vocabulary.sentence_pieces(metadata)?,
        other => return Err(ExportError::Tokenizer(other.into()).into()),
    };
    file["version"] = json!("1.0");
    file["added_tokens"] = Json::Array(vocabulary.added());
    let flag = |key: &str| metadata.optional_bool(key).ok().flatten();
    let id = |role: &str| metadata.optional_usize(&format!("tokenizer.ggml.{role}_token_id")).ok().flatten();
    let text = |role: &str| id(role).and_then(|id| vocabulary.tokens.get(id)).map(String::as_str);
    let bos = flag("tokenizer.ggml.add_bos_token").unwrap_or(kind == "llama");
    let eos = flag("tokenizer.ggml.add_eos_token").unwrap_or(false);
    let ends = [text("bos").filter(|_| bos).zip(id("bos")), text("eos").filter(|_| eos).zip(id("eos"))];
    if ends.iter().any(Option::is_some) {
        file["post_processor"] = template(ends);
    }
    write_json(folder, "tokenizer.json", &file)?;
    let mut settings = Map::new();
    settings.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
    settings.insert("clean_up_tokenization_spaces".into(), json!(false));
    for (role, key) in
        [("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")]
    {
        if let Some(token) = text(role) {
            settings.insert(key.into(), json!(token));
        }
    }
    write_json(folder, "tokenizer_config.json", &Json::Object(settings))?;
    let ends: Vec<usize> = ["eos", "eot", "eom"].into_iter().filter_map(id).collect();
    if !ends.is_empty() {
        write_json(
            folder,
            "generation_config.json",
            &json!({ "bos_token_id": id("bos"), "eos_token_id": ends }),
        )?;
    }
    match metadata.optional_str("tokenizer.chat_template").ok().flatten() {
        Some(template) => write_text(folder, "chat_template.jinja", template),
        None => Ok(()),
    }
}

struct Vocabulary<'a> {
    tokens: &'a [String],
    kinds: Vec<i64>,
}

impl Vocabulary<'_> {
    fn of(metadata: &Metadata) -> Result<Vocabulary<'_>, FormatError> {
        let tokens = metadata.strings("tokenizer.ggml.tokens")?;
        let kinds = match metadata.get("tokenizer.ggml.token_type") {
            Some(Value::Ints(kinds)) => kinds.clone(),
            Some(Value::Uints(kinds)) => kinds.iter().map(|kind| *kind as i64).collect(),
            _ => vec![NORMAL; tokens.len()],
        };
        match kinds.len() == tokens.len() {
            true => Ok(Vocabulary { tokens, kinds }),
            false => Err(ExportError::Kinds { tokens: tokens.len(), kinds: kinds.len() }.into()),
        }
    }

    /// Tokens with their ids, of these kinds.
    fn of_kinds(&self, kinds: &[i64]) -> impl Iterator<Item = (usize, &str)> {
        let all = self.tokens.iter().zip(&self.kinds).enumerate();
        all.filter(move |(_, (_, kind))| kinds.contains(kind)).map(|(id, (token, _))| (id, token.as_str()))
    }

    /// Tokens that are found before text is split.
    fn added(&self) -> Vec<Json> {
        let added = self.of_kinds(&[CONTROL, USER_DEFINED, UNKNOWN]);
        let object = |(id, token): (usize, &str)| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": self.kinds[id] != USER_DEFINED,
            })
        };
        added.map(object).collect()
    }

    /// The ids of tokens, added ones too: `tokenizers` gives those that are missing here other ids. Rows of
    /// the embedding without a token have none.
    fn vocab(&self) -> Map<String, Json> {
        let padding = |id: usize, token: &str| self.kinds[id] == UNUSED && token == format!("[PAD{id}]");
        let all = self.tokens.iter().enumerate().filter(|(id, token)| !padding(*id, token));
        all.map(|(id, token)| (token.clone(), json!(id))).collect()
    }

    /// BPE of bytes.
    fn bytes(&self, metadata: &Metadata) -> Result<Json, FormatError> {
        let pre = metadata.optional_str("tokenizer.ggml.pre").ok().flatten().unwrap_or("default");
        let Some((pre_tokenizer, ignore_merges)) = pre_tokenizer(pre) else {
            return Err(ExportError::Splitting(pre.into()).into());
        };
        let merges = metadata.strings("tokenizer.ggml.merges")?;
        let pairs: Vec<Json> = merges
            .iter()
            .map(|merge| merge.split_once(' ').map_or(json!(merge), |(a, b)| json!([a, b])))
            .collect();
        let nfc = metadata.optional_bool("tokenizer.normalizer.nfc").ok().flatten() == Some(true);
        Ok(json!({
            "normalizer": nfc.then(|| json!({ "type": "NFC" })),
            "pre_tokenizer": pre_tokenizer,
            "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "model": {
                "type": "BPE", "ignore_merges": ignore_merges, "byte_fallback": false, "fuse_unk": false,
                "vocab": self.vocab(), "merges": pairs,
            },
        }))
    }

    /// BPE of SentencePiece: its scores become merges.
    fn sentence_pieces(&self, metadata: &Metadata) -> Result<Json, FormatError> {
        let prefix = metadata.optional_bool("tokenizer.ggml.add_space_prefix").ok().flatten().unwrap_or(true);
        let unknown = self.of_kinds(&[UNKNOWN]).next().map(|(_, token)| token);
        let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": MARK });
        let normalizer = match prefix {
            true => {
                json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": MARK }, replace] })
            }
            false => replace,
        };
        let mut decoders = vec![
            json!({ "type": "Replace", "pattern": { "String": MARK }, "content": " " }),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
        ];
        if prefix {
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        Ok(json!({
            "normalizer": normalizer,
            "pre_tokenizer": null,
            "decoder": { "type": "Sequence", "decoders": decoders },
            "model": {
                "type": "BPE", "unk_token": unknown, "byte_fallback": true, "fuse_unk": true, "ignore_merges": false,
                "vocab": self.vocab(),
                "merges": self.merges(metadata)?,
            },
        }))
    }

    /// All pairs of tokens that are one token, the best token first.
    fn merges(&self, metadata: &Metadata) -> Result<Vec<Json>, FormatError> {
        let scores = metadata.optional_floats("tokenizer.ggml.scores").ok().flatten().unwrap_or_default();
        if scores.len() != self.tokens.len() {
            let (tokens, scores) = (self.tokens.len(), scores.len());
            return Err(ExportError::Scores { tokens, scores }.into());
        }
        let ids: HashMap<&str, usize> =
            self.of_kinds(&[NORMAL, USER_DEFINED, UNUSED]).map(|(id, token)| (token, id)).collect();
        let mut order: Vec<usize> = self.of_kinds(&[NORMAL]).map(|(id, _)| id).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let mut merges = vec![];
        for id in order {
            let token = self.tokens[id].as_str();
            let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
            let mut pairs: Vec<_> = cuts.filter_map(|(a, b)| Some((*ids.get(a)?, *ids.get(b)?))).collect();
            pairs.sort_unstable();
            merges.extend(pairs.into_iter().map(|(a, b)| json!([self.tokens[a], self.tokens[b]])));
        }
        Ok(merges)
    }
}

/// A text between the tokens at its ends.
fn template(ends: [Option<(&str, usize)>; 2]) -> Json {
    let special = |token: &str| json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let text = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let [bos, eos] = ends;
    let around = |id: &str| -> Vec<Json> {
        let before = bos.map(|(token, _)| special(token)).into_iter();
        before.chain([text(id)]).chain(eos.map(|(token, _)| special(token))).collect()
    };
    let tokens: Map<String, Json> = ends
        .into_iter()
        .flatten()
        .map(|(token, id)| (token.to_string(), json!({ "id": token, "ids": [id], "tokens": [token] })))
        .collect();
    let pair: Vec<Json> = around("A").into_iter().chain(around("B")).collect();
    json!({ "type": "TemplateProcessing", "single": around("A"), "pair": pair, "special_tokens": tokens })
}
