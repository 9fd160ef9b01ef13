//! SentencePiece BPE: the pair whose token has the highest score is merged first; unknown
//! characters become bytes.

use tern_formats::Metadata;

use super::encoding::{EncodeError, Encoding};
use super::merge::{Join, NO_TOKEN, Word};
use super::vocab::{SPACE_MARK, Vocab};
use super::{TokenizerError, want_length};

/// Scores as an order, and the byte tokens.
pub(super) struct Spm {
    orders: Vec<u32>,
    bytes: [u32; 256],
    longest: usize,
    unknown: Option<u32>,
}

impl Spm {
    pub(super) fn read(
        metadata: &Metadata,
        vocab: &Vocab,
        unknown: Option<u32>,
    ) -> Result<Spm, TokenizerError> {
        let orders = match metadata.optional_floats("tokenizer.ggml.scores")? {
            None => vec![0; vocab.len()],
            Some(scores) => {
                want_length("tokenizer.ggml.scores", scores.len(), vocab.len())?;
                scores.iter().map(|&score| order(score)).collect()
            }
        };
        let bytes = std::array::from_fn(|byte| {
            let byte = byte as u8;
            let as_text =
                || byte.is_ascii().then(|| vocab.plain_id(char::from(byte).encode_utf8(&mut [0; 4])));
            vocab.byte_id(byte).or_else(|| as_text().flatten()).unwrap_or(NO_TOKEN)
        });
        Ok(Spm { orders, bytes, longest: vocab.longest(), unknown })
    }

    /// Whether no byte of a text is dropped.
    pub(super) fn covers_all(&self) -> bool {
        self.unknown.is_some() || self.bytes.iter().all(|&id| id != NO_TOKEN)
    }

    /// Encodes a text, with a space before it if `prefix` is set.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        prefix: bool,
        out: &mut Encoding<'_>,
    ) -> Result<(), EncodeError> {
        let mut marked = String::with_capacity(text.len() + text.len() / 4 + 3);
        marked.extend(prefix.then_some(SPACE_MARK));
        marked.extend(text.chars().map(|c| if c == ' ' { SPACE_MARK } else { c }));

        let mut word = Word::default();
        vocab.words(&marked).try_for_each(|piece| self.merge(vocab, piece, &mut word, out))
    }

    fn merge(
        &self,
        vocab: &Vocab,
        text: &str,
        word: &mut Word,
        out: &mut Encoding<'_>,
    ) -> Result<(), EncodeError> {
        out.check_word(vocab, text)?;
        word.clear();
        for (at, c) in text.char_indices() {
            let one = &text[at..at + c.len_utf8()];
            word.push(vocab.plain_id(one).unwrap_or(NO_TOKEN), one.len());
        }
        word.merge(out, |left, right| {
            if right.end - left.start > self.longest {
                return None;
            }
            let id = vocab.plain_id(&text[left.start..right.end])?;
            Some(Join { order: self.orders[id as usize], id })
        })?;
        for symbol in word.symbols() {
            if symbol.id != NO_TOKEN {
                out.ids.push(symbol.id);
                continue;
            }
            for &byte in &text.as_bytes()[symbol.start..symbol.end] {
                let id = self.bytes[usize::from(byte)];
                out.ids.extend(if id == NO_TOKEN { self.unknown } else { Some(id) });
            }
        }
        Ok(())
    }
}

/// An integer that is lower for a higher score.
fn order(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits(); // -0.0 becomes 0.0
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_come_first() {
        let scores = [f32::INFINITY, 3.5, 1e-9, 0.0, -1e-9, -2.0, -31741.0, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| order(pair[0]) < order(pair[1])));
        assert_eq!(order(0.0), order(-0.0));
    }
}
