//! Tokens to text as they come: whole characters, and nothing of a stop string.

use crate::{Detokenizer, Passed, StopError, StopStrings, Tokenizer};

/// The text of one answer in the making.
pub struct Decoder<'a> {
    tokenizer: &'a Tokenizer,
    bytes: Detokenizer,
    stops: StopStrings,
    /// The next text begins with a space that belongs to no one.
    strip_space: bool,
    /// Control tokens whose text is given out like any other's.
    shown: Vec<u32>,
}

impl<'a> Decoder<'a> {
    /// An answer that ends before any of `stops`.
    pub fn new(tokenizer: &'a Tokenizer, stops: Vec<String>) -> Result<Decoder<'a>, StopError> {
        Ok(Decoder {
            tokenizer,
            bytes: Detokenizer::new(),
            stops: StopStrings::new(stops)?,
            strip_space: false,
            shown: Vec::new(),
        })
    }

    /// A text of its own, and not the continuation of another: SentencePiece's first space is dropped.
    pub fn at_start_of_text(mut self) -> Decoder<'a> {
        self.strip_space = self.tokenizer.strips_space();
        self
    }

    /// Gives out the control tokens in these texts, of which there would be nothing to see: see `Markup::texts`.
    pub fn showing<'t>(mut self, texts: impl IntoIterator<Item = &'t str>) -> Decoder<'a> {
        let tokenizer = self.tokenizer;
        let tokens = texts.into_iter().flat_map(|text| tokenizer.encode(text, false, true));
        self.shown.extend(tokens.filter(|&id| tokenizer.is_control(id)));
        self
    }

    /// The text that this token lets through, and whether a stop string is complete.
    pub fn push(&mut self, id: u32) -> Passed {
        let mut bytes = self.tokenizer.token_bytes(id, self.shown.contains(&id));
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        let text = self.bytes.push(bytes);
        self.stops.push(&text)
    }

    /// What was still withheld when the answer ended by itself.
    pub fn finish(&mut self) -> String {
        let last = self.bytes.finish();
        let mut passed = self.stops.push(&last);
        if passed.stop.is_none() {
            passed.text.push_str(&self.stops.finish());
        }
        passed.text
    }
}
