//! Encoding text to tokens and decoding, with the vocabulary of a checkpoint.
//!
//! Implemented here instead of with a tokenizer library: GGUF vocabularies have five models with their own
//! exact rules (which bytes merge first, what a marker is), and each is a page of code.

mod bpe;
mod byte_level;
mod char_map;
mod covers;
mod encoding;
mod error;
mod fill;
mod load;
mod merge;
mod pre;
mod special;
mod split;
mod spm;
mod unigram;
mod vocab;
mod wordpiece;

use std::collections::BTreeSet;

use crate::ChatText;

use self::bpe::Bpe;
use self::covers::Covers;
use self::encoding::Encoding;
use self::special::{Markers, Part, Read, Roles};
use self::spm::Spm;
use self::unigram::Unigram;
use self::vocab::{Kind, Vocab};
use self::wordpiece::WordPiece;

pub use self::encoding::{EncodeError, EncodeLimit};
pub use self::error::TokenizerError;
pub use self::fill::{FillOrder, FillTokens};

/// A vocabulary with its encoding rules.
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    roles: Roles,
    markers: Markers,
    add: Add,
    /// `None` if text of any length may have no tokens.
    covers: Option<Covers>,
    template: Option<String>,
    named_templates: Vec<(String, String)>,
    fill: Option<FillTokens>,
    warnings: Vec<String>,
}

enum Model {
    Bpe(Bpe),
    Spm(Spm),
    Unigram(Unigram),
    WordPiece(WordPiece),
}

/// The tokens around a text.
#[derive(Clone, Copy, Debug)]
struct Add {
    bos: bool,
    eos: bool,
    sep: bool,
    /// A space before the text and after each marker (SentencePiece).
    space: bool,
    /// The space after markers is omitted.
    space_first: bool,
}

impl Tokenizer {
    /// The tokens of a text.
    ///
    /// `add_special` adds BOS, EOS or a separator as the checkpoint specifies. `parse_special` recognises
    /// control tokens such as `<|im_start|>` in the text; without it the result has no control tokens.
    /// User-defined tokens are always recognised.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        let mut out = Encoding::new(&EncodeLimit::NONE, None, text);
        let done = self.encode_into(text, add_special, Read::with_control_tokens(parse_special), &mut out);
        debug_assert!(done.is_ok(), "nothing limits this encoding");
        out.ids
    }

    /// The same tokens as [`Self::encode`], or an error: encoding stops as soon as the text
    /// is too long or cancelled.
    pub fn encode_within(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
        limit: &EncodeLimit<'_>,
    ) -> Result<Vec<u32>, EncodeError> {
        self.encode_reading(text, add_special, Read::with_control_tokens(parse_special), limit)
    }

    fn encode_reading(
        &self,
        text: &str,
        add_special: bool,
        read: Read<'_>,
        limit: &EncodeLimit<'_>,
    ) -> Result<Vec<u32>, EncodeError> {
        let mut out = Encoding::new(limit, self.covers.as_ref(), text);
        self.encode_into(text, add_special, read, &mut out)?;
        out.check(0)?;
        Ok(out.ids)
    }

    fn encode_into(
        &self,
        text: &str,
        add_special: bool,
        read: Read<'_>,
        out: &mut Encoding<'_>,
    ) -> Result<(), EncodeError> {
        if add_special && self.add.bos {
            out.ids.extend(self.roles.bos);
        }
        let mut after_marker = true;
        for part in self.markers.parts(text, read) {
            match (part, &self.model) {
                (Part::Token(id), _) => {
                    out.check(1)?;
                    out.ids.push(id);
                }
                (Part::Text(text), Model::Bpe(bpe)) => bpe.encode(&self.vocab, text, out)?,
                (Part::Text(text), Model::WordPiece(pieces)) => pieces.encode(&self.vocab, text, out)?,
                (Part::Text(text), Model::Unigram(unigram)) => {
                    unigram.encode(&self.vocab, text, self.add.space, out)?;
                }
                (Part::Text(text), Model::Spm(spm)) => {
                    spm.encode(&self.vocab, text, self.add.space && after_marker, out)?;
                }
            }
            after_marker = matches!(part, Part::Token(_)) && !self.add.space_first;
        }
        if add_special && self.add.eos {
            out.ids.extend(self.roles.eos);
        }
        // in other models the separator is between two texts only
        if add_special && self.add.sep && matches!(self.model, Model::WordPiece(_)) {
            out.ids.extend(self.roles.sep);
        }
        Ok(())
    }

    /// The tokens of two texts that are read together, with the tokens between them and at the end that the
    /// model was trained with: `[CLS] first [SEP] second [SEP]`, or `<s> first </s></s> second </s>`. Control
    /// tokens are not recognised.
    pub fn encode_pair(&self, first: &str, second: &str) -> Vec<u32> {
        let end = self.roles.eos.filter(|_| self.add.eos);
        let between = self.roles.sep.filter(|_| self.add.sep);
        let mut ids: Vec<u32> = self.roles.bos.filter(|_| self.add.bos).into_iter().collect();
        ids.extend(self.encode(first, false, false));
        ids.extend(end.into_iter().chain(between));
        ids.extend(self.encode(second, false, false));
        ids.extend(end.or(between));
        ids
    }

    /// Where the second text of a pair begins, for models that tell the tokens of both apart: those of
    /// WordPiece, whose tokens after the first separator have another type.
    pub fn second_text(&self, pair: &[u32]) -> Option<usize> {
        let separator = self.roles.sep.filter(|_| matches!(self.model, Model::WordPiece(_)))?;
        let second = pair.iter().position(|id| *id == separator)? + 1;
        (second < pair.len()).then_some(second)
    }

    /// The tokens of a conversation that a chat template rendered.
    ///
    /// Control tokens are recognised only in the template's own text; the strings of a request are always
    /// plain text. BOS is not added if the template writes it: a second one would degrade the output.
    pub fn encode_chat(&self, chat: &ChatText) -> Vec<u32> {
        let mut out = Encoding::new(&EncodeLimit::NONE, None, &chat.text);
        let read = Read::ControlOutside(&chat.user);
        let done = self.encode_into(&chat.text, !self.begins_with_bos(chat), read, &mut out);
        debug_assert!(done.is_ok(), "nothing limits this encoding");
        out.ids
    }

    /// The same tokens as [`Self::encode_chat`], or an error.
    pub fn encode_chat_within(
        &self,
        chat: &ChatText,
        limit: &EncodeLimit<'_>,
    ) -> Result<Vec<u32>, EncodeError> {
        let read = Read::ControlOutside(&chat.user);
        self.encode_reading(&chat.text, !self.begins_with_bos(chat), read, limit)
    }

    fn begins_with_bos(&self, chat: &ChatText) -> bool {
        let bos = self.bos().and_then(|id| self.token_text(id)).unwrap_or("");
        let users = chat.user.first().is_some_and(|range| range.start < bos.len());
        !bos.is_empty() && chat.text.starts_with(bos) && !users
    }

    /// The text of tokens, with control tokens if `special` is set. Invalid UTF-8 becomes U+FFFD.
    ///
    /// A space that [`Self::encode`] adds before the text is removed.
    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let mut bytes = Vec::with_capacity(4 * ids.len());
        for &id in ids {
            bytes.extend_from_slice(self.token_bytes(id, special));
        }
        if self.strips_space() && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// Whether a decoded text starts with the space that [`Self::encode`] adds.
    pub fn strips_space(&self) -> bool {
        match self.model {
            Model::Spm(_) | Model::Unigram(_) => self.add.space,
            Model::WordPiece(_) => true,
            Model::Bpe(_) => false,
        }
    }

    /// The bytes of a token in text, not always complete characters.
    ///
    /// Control and unknown tokens have bytes only if `special` is set; an id outside the vocabulary has none.
    pub fn token_bytes(&self, id: u32, special: bool) -> &[u8] {
        match self.vocab.kind(id) {
            Some(Kind::Control | Kind::Unknown) if !special => &[],
            _ => self.vocab.bytes(id),
        }
    }

    /// The text of the token in the checkpoint.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocab.text(id)
    }

    /// The token with this text in the checkpoint.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocab.id_of(text)
    }

    /// The number of tokens; a model's embedding may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The token at the beginning of a text.
    pub fn bos(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The token at the end of a text.
    pub fn eos(&self) -> Option<u32> {
        self.roles.eos
    }

    /// The tokens that end a generation.
    pub fn eog(&self) -> &BTreeSet<u32> {
        &self.roles.ends
    }

    /// Whether the token is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(Kind::Control)
    }

    /// Whether `encode` with `add_special` adds BOS.
    pub fn add_bos(&self) -> bool {
        self.add.bos && self.roles.bos.is_some()
    }

    /// The tokens with which the model fills a gap, if it has them.
    pub fn fill_tokens(&self) -> Option<FillTokens> {
        self.fill
    }

    /// The chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// The other chat templates, by name (`tool_use`, `rag`).
    pub fn named_chat_templates(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named_templates.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// Anomalies of the vocabulary that are not errors.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// The vocabulary and the template are too long to print.
impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Tokenizer");
        out.field("tokens", &self.vocab_size()).field("roles", &self.roles).field("add", &self.add);
        out.field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

fn want_length(key: &'static str, found: usize, want: usize) -> Result<(), TokenizerError> {
    if found < want { Err(TokenizerError::Length { key, want, found }) } else { Ok(()) }
}
