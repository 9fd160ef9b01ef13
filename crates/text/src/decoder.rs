//! Incremental decoding of tokens into text: complete characters, and no part of a stop string.

use std::sync::Arc;

use crate::{Detokenizer, Passed, StopError, StopStrings, Tokenizer};

/// The incremental text of one answer.
pub struct Decoder {
    tokenizer: Arc<Tokenizer>,
    bytes: Detokenizer,
    stops: StopStrings,
    /// The next text starts with a space that the tokenizer added.
    strip_space: bool,
    /// Control tokens whose text is part of the output.
    shown: Vec<u32>,
}

impl Decoder {
    /// An answer that ends before any of the stop strings.
    pub fn new(tokenizer: Arc<Tokenizer>, stops: Vec<String>) -> Result<Decoder, StopError> {
        Ok(Decoder {
            tokenizer,
            bytes: Detokenizer::new(),
            stops: StopStrings::new(stops)?,
            strip_space: false,
            shown: Vec::new(),
        })
    }

    /// Decodes a new text, not the continuation of another: SentencePiece's first space is dropped.
    pub fn at_start_of_text(mut self) -> Decoder {
        self.strip_space = self.tokenizer.strips_space();
        self
    }

    /// Includes the control tokens that occur in these texts, which are hidden by
    /// default: see `Markup::texts`.
    pub fn showing<'t>(mut self, texts: impl IntoIterator<Item = &'t str>) -> Decoder {
        let tokenizer = &self.tokenizer;
        let tokens = texts.into_iter().flat_map(|text| tokenizer.encode(text, false, true));
        self.shown.extend(tokens.filter(|&id| tokenizer.is_control(id)));
        self
    }

    /// The text that is certain after this token, and whether a stop string is complete.
    pub fn push(&mut self, id: u32) -> Passed {
        let mut bytes = self.tokenizer.token_bytes(id, self.shown.contains(&id));
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        let text = self.bytes.push(bytes);
        self.stops.push(&text)
    }

    /// The text still held back at the end of the answer.
    pub fn finish(&mut self) -> String {
        let last = self.bytes.finish();
        let mut passed = self.stops.push(&last);
        if passed.stop.is_none() {
            passed.text.push_str(&self.stops.finish());
        }
        passed.text
    }
}
