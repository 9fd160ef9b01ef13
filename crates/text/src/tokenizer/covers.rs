//! The number of bytes that a token can cover, which gives a lower bound on the number of tokens of a text.

use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, MatchKind};

use super::vocab::{Spelling, Vocab};

/// Longer tokens are rare, and most are runs of one character: the text is searched for them.
const LONG: usize = 32;

/// The tokens of a vocabulary by the number of bytes they cover.
pub(super) struct Covers {
    spelling: Spelling,
    /// Bytes that have no token and are dropped.
    left_out: Vec<u8>,
    /// The maximum number of bytes per token.
    pub(super) longest: usize,
    /// Finds tokens of more than [`LONG`] bytes. Built for the first long word; `None` if there are too many.
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

    /// A lower bound on the number of tokens of a word, at the cost of one search.
    pub(super) fn least(&self, vocab: &Vocab, word: &str) -> usize {
        let build = || {
            let long = vocab.covered(self.spelling).filter(|bytes| bytes.len() > LONG);
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(long).ok()
        };
        let bytes = self.bytes(word);
        let by_longest = bytes.div_ceil(self.longest);
        let Some(long) = self.long.get_or_init(build) else { return by_longest };
        // a long token that the search skips starts inside one that it finds
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
    fn long_tokens_lower_the_bound_only_where_they_occur() {
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
            // the text after a long token may be the end of another
            (&*format!("{}{}", "=".repeat(40), "a".repeat(3300)), 100),
        ] {
            assert_eq!(covers.least(&vocab, word), least, "{} bytes", word.len());
        }
    }
}
