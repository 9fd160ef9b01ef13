//! Collecting tokens up to a limit.

use super::covers::Covers;
use super::vocab::Vocab;

/// Longer words are checked against the limit before merging, which needs sixty times their memory.
const LONG_WORD: usize = 4 << 10;

/// Bytes of text between two calls of [`EncodeLimit::cancelled`].
const CHECK_EVERY: usize = 16 << 10;

/// When [`super::Tokenizer::encode_within`] stops early.
pub struct EncodeLimit<'a> {
    /// Maximum number of tokens.
    pub tokens: usize,
    /// Called every few thousand bytes; returning true cancels the encoding.
    pub cancelled: &'a dyn Fn() -> bool,
}

impl EncodeLimit<'_> {
    /// No limit.
    pub(super) const NONE: EncodeLimit<'static> = EncodeLimit { tokens: usize::MAX, cancelled: &|| false };
}

/// Why an encoding stopped early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The text has more tokens than this limit.
    #[error("the text has more than {0} tokens")]
    Tokens(usize),
    /// [`EncodeLimit::cancelled`] returned true.
    #[error("encoding was cancelled")]
    Cancelled,
}

/// The tokens so far.
pub(super) struct Encoding<'a> {
    pub(super) ids: Vec<u32>,
    limit: &'a EncodeLimit<'a>,
    /// The bytes that tokens cover, if every text has tokens.
    covers: Option<&'a Covers>,
    unchecked: usize,
}

impl<'a> Encoding<'a> {
    pub(super) fn new(limit: &'a EncodeLimit<'a>, covers: Option<&'a Covers>, text: &str) -> Encoding<'a> {
        let ids = Vec::with_capacity((text.len() / 3).min(limit.tokens).saturating_add(2));
        Encoding { ids, limit, covers, unchecked: 0 }
    }

    /// Checks the limits before the next `bytes` of text are encoded.
    pub(super) fn check(&mut self, bytes: usize) -> Result<(), EncodeError> {
        self.check_tokens(0)?;
        self.unchecked += bytes;
        if self.unchecked >= CHECK_EVERY {
            self.unchecked = 0;
            return self.check_cancelled();
        }
        Ok(())
    }

    /// The same for a word before it is merged.
    pub(super) fn check_word(&mut self, vocab: &Vocab, word: &str) -> Result<(), EncodeError> {
        if word.len() > LONG_WORD {
            self.check_long(vocab, word)?;
        }
        self.check(word.len())
    }

    #[cold] // most words are short
    fn check_long(&self, vocab: &Vocab, word: &str) -> Result<(), EncodeError> {
        match self.covers {
            Some(covers) if self.limit.tokens < usize::MAX => self.check_tokens(covers.least(vocab, word)),
            _ => Ok(()),
        }
    }

    /// Fails if `more` tokens exceed the limit.
    fn check_tokens(&self, more: usize) -> Result<(), EncodeError> {
        match self.ids.len().saturating_add(more) {
            tokens if tokens > self.limit.tokens => Err(EncodeError::Tokens(self.limit.tokens)),
            _ => Ok(()),
        }
    }

    #[cold]
    pub(super) fn check_cancelled(&self) -> Result<(), EncodeError> {
        if (self.limit.cancelled)() { Err(EncodeError::Cancelled) } else { Ok(()) }
    }
}
