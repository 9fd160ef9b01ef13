//! Building a tokenizer from the metadata of a checkpoint.

use tern_formats::{Metadata, Value};

use super::bpe::Bpe;
use super::covers::Covers;
use super::fill::FillTokens;
use super::special::{Markers, Roles};
use super::spm::Spm;
use super::unigram::Unigram;
use super::vocab::{Spelling, Vocab};
use super::wordpiece::WordPiece;
use super::{Add, Model, Tokenizer, TokenizerError, pre};

impl Tokenizer {
    /// Reads the `tokenizer.*` keys of a checkpoint.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        let mut warnings = Vec::new();
        let model = metadata.str("tokenizer.ggml.model")?;
        let pre = match (model, metadata.optional_str("tokenizer.ggml.pre")?) {
            ("gpt2", Some(name)) if !name.is_empty() => name,
            ("gpt2", _) => {
                warnings.push(
                    "tokenizer.ggml.pre is missing: text is split by the `default` rules, \
                     which may not be those the model was trained with"
                        .into(),
                );
                "default"
            }
            ("gemma4", _) => "gemma4",
            ("llama" | "bert" | "t5", _) => "default",
            (other, _) => return Err(TokenizerError::Model(other.into())),
        };
        let pre = pre::find(pre).ok_or_else(|| TokenizerError::Pre(pre.into()))?;

        let mut vocab = Vocab::read(metadata, &mut warnings)?;
        let defaults = match model {
            "llama" => Roles { bos: Some(1), eos: Some(2), unknown: Some(0), ..Roles::default() },
            "t5" => Roles { eos: Some(1), unknown: Some(2), ..Roles::default() },
            "bert" => Roles { bos: Some(101), sep: Some(102), unknown: Some(100), ..Roles::default() },
            _ => Roles::default(),
        };
        let roles = Roles::read(metadata, &mut vocab, defaults, &mut warnings)?;
        let (spelling, mut add) = match model {
            "llama" => (
                Spelling::SpaceMark,
                Add { bos: true, eos: false, sep: false, space: true, space_first: false },
            ),
            "t5" => (
                Spelling::SpaceMark,
                Add { bos: false, eos: true, sep: false, space: true, space_first: false },
            ),
            "bert" => (
                Spelling::SpaceMark,
                Add { bos: true, eos: false, sep: true, space: false, space_first: false },
            ),
            _ => (
                pre.spelling,
                Add { bos: pre.add_bos, eos: false, sep: false, space: false, space_first: false },
            ),
        };
        for (slot, key) in [
            (&mut add.bos, "tokenizer.ggml.add_bos_token"),
            (&mut add.eos, "tokenizer.ggml.add_eos_token"),
            (&mut add.sep, "tokenizer.ggml.add_sep_token"),
            (&mut add.space, "tokenizer.ggml.add_space_prefix"),
            (&mut add.space_first, "tokenizer.add_space_prefix_first"),
        ] {
            *slot = metadata.optional_bool(key)?.unwrap_or(*slot);
        }
        // early Gemma 4 files disable this, but the model needs it
        add.bos |= model == "gemma4";

        vocab.spell(spelling);
        let markers = Markers::new(metadata, &vocab)?;
        let model = match model {
            "llama" => Model::Spm(Spm::read(metadata, &vocab, roles.unknown)?),
            "t5" => Model::Unigram(Unigram::read(metadata, &vocab, roles.unknown)?),
            "bert" => Model::WordPiece(WordPiece::read(metadata, &vocab, roles.unknown)?),
            _ => Model::Bpe(Bpe::read(metadata, &vocab, pre, &mut warnings)?),
        };
        let named = |(key, value): (&str, &Value)| match value {
            Value::String(text) => Some((key.strip_prefix("tokenizer.chat_template.")?.into(), text.clone())),
            _ => None,
        };
        let left_out = match &model {
            Model::Bpe(bpe) => Some(bpe.left_out()),
            Model::Spm(spm) => spm.covers_all().then(Vec::new),
            // spaces are merged, and unknown characters of any number are one token
            Model::Unigram(_) => None,
            // spaces are dropped, and a word of any length may be one unknown token
            Model::WordPiece(_) => None,
        };
        // characters whose bytes have no tokens are dropped
        let left_out = left_out.filter(|bytes| spelling == Spelling::ByteLevel || bytes.is_empty());
        let left_out = left_out.filter(|_| !markers.take_spaces());
        let fill = FillTokens::read(metadata, &vocab)?;
        Ok(Tokenizer {
            covers: left_out.map(|left_out| Covers::new(&vocab, spelling, left_out)),
            vocab,
            model,
            roles,
            markers,
            add,
            template: metadata.optional_str("tokenizer.chat_template")?.map(str::to_owned),
            fill,
            named_templates: metadata.iter().filter_map(named).collect(),
            warnings,
        })
    }
}
