//! Tokenization of request texts, bounded by the context and by the request's cancellation.

use tern::text::{ChatText, EncodeError, EncodeLimit};

use crate::http::error::{ApiError, Result, TooLong};
use crate::models::model::ServedModel;
use crate::request::prepare::Cancel;

/// Encodes the texts of one parameter.
pub(crate) struct Encoder<'a> {
    pub(crate) served: &'a ServedModel,
    pub(crate) cancel: &'a Cancel,
    pub(crate) param: &'static str,
    /// A text of more tokens is refused.
    pub(crate) max_tokens: usize,
}

impl<'a> Encoder<'a> {
    /// For prompts: the context is the limit.
    pub(crate) fn new(served: &'a ServedModel, cancel: &'a Cancel, param: &'static str) -> Encoder<'a> {
        Encoder { served, cancel, param, max_tokens: served.model.context() }
    }

    /// For texts to embed or score: what the model reads at most.
    pub(crate) fn of_texts(served: &'a ServedModel, cancel: &'a Cancel, param: &'static str) -> Encoder<'a> {
        Encoder { max_tokens: served.model.longest_text(), ..Encoder::new(served, cancel, param) }
    }

    /// The tokens of a plain text.
    pub(crate) fn text(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.within(|limit| self.served.model.tokenizer().encode_within(text, add_special, true, limit))
    }

    /// The tokens of a text to embed; with `truncate`, those that do not fit the context are omitted, except
    /// the ones that end every text.
    pub(crate) fn fitting(&self, text: &str, add_special: bool, truncate: bool) -> Result<Vec<u32>> {
        if !truncate {
            return self.text(text, add_special);
        }
        let whole = Encoder { max_tokens: usize::MAX, ..*self }.text(text, add_special)?;
        Ok(self.shortened(whole))
    }

    /// Tokens without those that do not fit the context.
    pub(crate) fn shortened(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        let most = self.max_tokens;
        if tokens.len() <= most || most == 0 {
            return tokens;
        }
        let ends = self.served.model.tokenizer().encode("", true, false);
        let last = ends.last().copied().filter(|last| tokens.last() == Some(last));
        tokens.truncate(most);
        if let Some(last) = last {
            tokens[most - 1] = last;
        }
        tokens
    }

    /// The tokens of a text without control tokens.
    pub(crate) fn plain(&self, text: &str) -> Result<Vec<u32>> {
        self.within(|limit| self.served.model.tokenizer().encode_within(text, false, false, limit))
    }

    /// The tokens of a rendered conversation.
    pub(crate) fn chat(&self, chat: &ChatText) -> Result<Vec<u32>> {
        self.within(|limit| self.served.model.tokenizer().encode_chat_within(chat, limit))
    }

    /// Checks the number of tokens that a client sent.
    pub(crate) fn tokens(&self, tokens: Vec<u32>) -> Result<Vec<u32>> {
        if tokens.len() > self.max_tokens {
            return Err(self.too_long(tokens.len()));
        }
        Ok(tokens)
    }

    fn within(
        &self,
        encode: impl Fn(&EncodeLimit<'_>) -> std::result::Result<Vec<u32>, EncodeError>,
    ) -> Result<Vec<u32>> {
        let cancelled = || self.cancel.is_cancelled();
        let encode = |tokens| match encode(&EncodeLimit { tokens, cancelled: &cancelled }) {
            Err(EncodeError::Cancelled) => Err(self.cancel.error()),
            encoded => Ok(encoded.ok()),
        };
        match encode(self.max_tokens)? {
            Some(tokens) => Ok(tokens),
            // read to its end, because clients shorten a conversation by the number
            None => Err(self.too_long(encode(usize::MAX)?.map_or(usize::MAX, |tokens| tokens.len()))),
        }
    }

    fn too_long(&self, tokens: usize) -> ApiError {
        ApiError::too_long(self.param, TooLong { tokens, max_tokens: self.max_tokens })
    }
}
