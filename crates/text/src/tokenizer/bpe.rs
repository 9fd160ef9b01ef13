//! Byte-pair encoding by ranked merges: GPT-2's byte level, and Gemma 4's plain text with byte tokens.

use std::borrow::Cow;

use hashbrown::HashMap;
use tern_formats::Metadata;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::encoding::{EncodeError, Encoding};
use super::merge::{Join, NO_TOKEN, Word};
use super::pre::Pre;
use super::split::Splitter;
use super::vocab::{SPACE_MARK, Spelling, Vocab};
use super::{TokenizerError, byte_level};

/// The merges and the vocabulary's bytes.
pub(super) struct Bpe {
    pre: &'static Pre,
    splitter: Splitter,
    merges: HashMap<(u32, u32), Join>,
    /// The token of each byte: the initial symbols at byte level, the fallback for plain text.
    bytes: [u32; 256],
    longest: usize,
    /// Text is composed (NFC) first.
    composes: bool,
}

impl Bpe {
    pub(super) fn read(
        metadata: &Metadata,
        vocab: &Vocab,
        pre: &'static Pre,
        warnings: &mut Vec<String>,
    ) -> Result<Bpe, TokenizerError> {
        let lines = metadata.strings("tokenizer.ggml.merges")?;
        let mut merges = HashMap::with_capacity(lines.len());
        let mut unusable = 0;
        let mut joined = String::new();
        for (order, line) in (0..).zip(lines) {
            let found = parts(line).and_then(|(left, right)| {
                joined.clear();
                joined.push_str(left);
                joined.push_str(right);
                Some(((vocab.plain_id(left)?, vocab.plain_id(right)?), vocab.plain_id(&joined)?))
            });
            match found {
                Some((pair, id)) => {
                    merges.entry(pair).or_insert(Join { order, id });
                }
                None => unusable += 1,
            }
        }
        if unusable > 0 {
            warnings.push(format!(
                "{unusable} of {} merges refer to tokens that are not in the vocabulary",
                lines.len()
            ));
        }
        let bytes = std::array::from_fn(|byte| {
            let byte = byte as u8;
            let id = match pre.spelling {
                Spelling::ByteLevel => vocab.plain_id(byte_level::char_of(byte).encode_utf8(&mut [0; 4])),
                Spelling::SpaceMark => vocab.byte_id(byte),
            };
            id.unwrap_or(NO_TOKEN)
        });
        let splitter = Splitter::new(pre.steps);
        let composes = metadata.optional_bool("tokenizer.normalizer.nfc")?.unwrap_or(false);
        Ok(Bpe { pre, splitter, merges, bytes, longest: vocab.longest(), composes })
    }

    /// The bytes that have no token and are dropped.
    pub(super) fn left_out(&self) -> Vec<u8> {
        (0..=255).filter(|&byte| self.bytes[usize::from(byte)] == NO_TOKEN).collect()
    }

    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        out: &mut Encoding<'_>,
    ) -> Result<(), EncodeError> {
        let composed: String;
        let text = match self.composes && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            true => {
                composed = text.nfc().collect();
                &composed
            }
            false => text,
        };
        let text = match self.pre.spelling {
            Spelling::ByteLevel => Cow::Borrowed(text),
            Spelling::SpaceMark => Cow::Owned(text.replace(' ', SPACE_MARK.encode_utf8(&mut [0; 4]))),
        };
        let mut word = Word::default();
        self.splitter.split(&text, &mut |piece| {
            if let Some(id) = self.whole(vocab, piece) {
                out.check(1)?;
                out.ids.push(id);
                Ok(())
            } else if self.pre.spelling == Spelling::SpaceMark {
                vocab.words(piece).try_for_each(|piece| self.merge(vocab, piece, &mut word, out))
            } else {
                self.merge(vocab, piece, &mut word, out)
            }
        })
    }

    fn merge(
        &self,
        vocab: &Vocab,
        piece: &str,
        word: &mut Word,
        out: &mut Encoding<'_>,
    ) -> Result<(), EncodeError> {
        out.check_word(vocab, piece)?;
        word.clear();
        match self.pre.spelling {
            Spelling::ByteLevel => {
                piece.bytes().for_each(|byte| word.push(self.bytes[usize::from(byte)], 1));
            }
            Spelling::SpaceMark => {
                for (at, c) in piece.char_indices() {
                    let one = &piece[at..at + c.len_utf8()];
                    word.push(vocab.plain_id(one).unwrap_or(NO_TOKEN), one.len());
                }
            }
        }
        word.merge(out, |left, right| self.merges.get(&(left.id, right.id)).copied())?;
        for symbol in word.symbols() {
            if symbol.id != NO_TOKEN {
                out.ids.push(symbol.id);
            } else if self.pre.spelling == Spelling::SpaceMark {
                let bytes = piece.as_bytes()[symbol.start..symbol.end].iter();
                out.ids.extend(bytes.map(|&b| self.bytes[usize::from(b)]).filter(|&id| id != NO_TOKEN));
            }
            // at byte level a byte without a token is dropped
        }
        Ok(())
    }

    /// The token of the whole word, if the model uses it without merging.
    fn whole(&self, vocab: &Vocab, piece: &str) -> Option<u32> {
        if piece.len() > self.longest {
            return None;
        }
        match self.pre.spelling {
            Spelling::ByteLevel if self.pre.ignore_merges => vocab.plain_id(&byte_level::encode(piece)),
            // runs of newlines are tokens that no merge produces
            Spelling::SpaceMark if piece.bytes().all(|b| b == b'\n') => vocab.plain_id(piece),
            _ => None,
        }
    }
}

/// The two tokens of a merge line; the first may start with a space.
fn parts(line: &str) -> Option<(&str, &str)> {
    let first = line.chars().next()?.len_utf8();
    let space = first + line[first..].find(' ')?;
    Some((&line[..space], &line[space + 1..])).filter(|(_, right)| !right.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_line_is_split_at_the_first_space_after_the_first_character() {
        assert_eq!(parts("Ġ t"), Some(("Ġ", "t")));
        assert_eq!(parts("  a"), Some((" ", "a")));
        for bad in ["", "a", " ", "a ", "ab"] {
            assert_eq!(parts(bad), None, "{bad:?}");
        }
    }
}
