//! Tokens as they are collected, and the limit at which collecting them ends.

/// Bytes of text between two calls of [`EncodeLimit::cancelled`].
const CHECK_EVERY: usize = 16 << 10;

/// When [`super::Tokenizer::encode_within`] ends before its text does.
pub struct EncodeLimit<'a> {
    /// A text of more tokens is refused.
    pub tokens: usize,
    /// Called every few thousand bytes; true ends the encoding.
    pub cancelled: &'a dyn Fn() -> bool,
}

impl EncodeLimit<'_> {
    /// No limit.
    pub(super) const NONE: EncodeLimit<'static> = EncodeLimit { tokens: usize::MAX, cancelled: &|| false };
}

/// Why an encoding ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The text has more tokens than allowed; how many is not known.
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
    /// The most bytes of text that one token stands for.
    longest: usize,
    unchecked: usize,
}

impl<'a> Encoding<'a> {
    pub(super) fn new(limit: &'a EncodeLimit<'a>, longest: Option<usize>, text: &str) -> Encoding<'a> {
        let ids = Vec::with_capacity((text.len() / 3).min(limit.tokens).saturating_add(2));
        Encoding { ids, limit, longest: longest.unwrap_or(usize::MAX).max(1), unchecked: 0 }
    }

    /// Whether `bytes` more of text may be encoded. Called before each word.
    pub(super) fn check(&mut self, bytes: usize) -> Result<(), EncodeError> {
        let at_least = self.ids.len().saturating_add(bytes.div_ceil(self.longest));
        if at_least > self.limit.tokens {
            return Err(EncodeError::Tokens(self.limit.tokens));
        }
        self.unchecked += bytes;
        if self.unchecked >= CHECK_EVERY {
            self.unchecked = 0;
            return self.check_cancelled();
        }
        Ok(())
    }

    pub(super) fn check_cancelled(&self) -> Result<(), EncodeError> {
        if (self.limit.cancelled)() { Err(EncodeError::Cancelled) } else { Ok(()) }
    }
}
