//! How much text a token can stand for, and so how many tokens a text has at least.

use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, MatchKind};

use super::vocab::{Spelling, Vocab};

/// Longer tokens are few, and most are runs of one character: they are looked for in the text.
const LONG: usize = 32;

/// The tokens of a vocabulary by the bytes of text that they stand for.
pub(super) struct Covers {
    spelling: Spelling,
    /// Bytes that have no token and are left out of a text.
    left_out: Vec<u8>,
    /// The most bytes that a token stands for.
    pub(super) longest: usize,
    /// Finds tokens of more than [`LONG`] bytes. Made for the first long word; `None` if they are too many.
    long: OnceLock<Option<AhoCorasick>>,
}

impl Covers {
    pub(super) fn new(vocab: &Vocab, spelling: Spelling, left_out: Vec<u8>) -> Covers {
        let longest = vocab.covered(spelling).map(<[u8]>::len).max().unwrap_or(0);
        Covers { spelling, left_out, longest: longest.max(1), long: OnceLock::new() }
    }

    /// Bytes of a text that become tokens.
    pub(super) fn bytes(&self, text: &str) -> usize {
        match self.left_out.is_empty() {
            true => text.len(),
            false => text.bytes().filter(|byte| !self.left_out.contains(byte)).count(),
        }
    }

    /// A number of tokens that a word has at the least, at the cost of a search in it.
    pub(super) fn least(&self, vocab: &Vocab, word: &str) -> usize {
        let build = || {
            let long = vocab.covered(self.spelling).filter(|bytes| bytes.len() > LONG);
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(long).ok()
        };
        let bytes = self.bytes(word);
        let by_longest = bytes.div_ceil(self.longest);
        let Some(long) = self.long.get_or_init(build) else { return by_longest };
        // a long token that the search passes over begins inside of one that it finds
        let (mut covered, mut end) = (0, 0);
        for found in long.find_iter(word) {
            let until = word.len().min(found.end() + self.longest);
            covered += until - end.max(found.start());
            end = until;
        }
        bytes.saturating_sub(covered).div_ceil(LONG).max(by_longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tern_formats::{Metadata, Value};

    #[test]
    fn only_where_long_tokens_stand_may_tokens_be_long() {
        let mut metadata = Metadata::default();
        let tokens = vec!["a".into(), "-".repeat(100), "=".repeat(40), "x".repeat(32)];
        metadata.insert("tokenizer.ggml.tokens", Value::Strings(tokens));
        let mut vocab = Vocab::read(&metadata, &mut Vec::new()).unwrap();
        vocab.spell(Spelling::ByteLevel);
        let covers = Covers::new(&vocab, Spelling::ByteLevel, vec![b'?']);
        assert_eq!(covers.longest, 100);
        for (word, least) in [
            ("", 0),
            ("a", 1),
            (&*"x".repeat(6400), 200),
            (&*"-".repeat(10_000), 100),
            (&*"?".repeat(10_000), 0),
            (&*"x?".repeat(6400), 200),
            (&*format!("{}{}", "a".repeat(3200), "=".repeat(40)), 100),
            // what follows a long token may be the end of another one
            (&*format!("{}{}", "=".repeat(40), "a".repeat(3300)), 100),
        ] {
            assert_eq!(covers.least(&vocab, word), least, "{} bytes", word.len());
        }
    }
}
