//! The vocabulary for the parser: the bytes of each token, and tokenization of text.

use std::sync::Arc;

use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use tern_text::Tokenizer;

/// Longest token in bytes that the parser's token tree can hold.
const LONGEST_TOKEN: usize = 1000;
/// A character that is never merged with its neighbours.
const GUARD: &str = "\u{2}";
/// Bytes of a forced text that are tokenized: the parser uses only the first token and asks again.
const AHEAD: usize = 1024;

pub(crate) struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl Vocabulary {
    /// Panics if the token tree cannot hold the vocabulary.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>) -> Result<Vocabulary, String> {
        let size = u32::try_from(tokenizer.vocab_size()).map_err(|error| error.to_string())?;
        let ends: Vec<TokenId> = tokenizer.eog().iter().copied().filter(|&id| id < size).collect();
        let &first = ends.first().ok_or("the vocabulary has no end token")?;
        let words: Vec<Vec<u8>> = (0..size).map(|id| word(&tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, first), &words).with_eos_tokens(&ends);
        Ok(Vocabulary { tokenizer, trie })
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens of a text in the middle of another text.
    fn encode(&self, text: &str) -> Vec<TokenId> {
        let ids = if self.tokenizer.strips_space() {
            // such a tokenizer inserts a space at the beginning of a text
            let ids = self.tokenizer.encode(&format!("{GUARD}{text}"), false, false);
            let guard = ids.iter().position(|&id| self.tokenizer.token_bytes(id, false) == GUARD.as_bytes());
            guard.map(|guard| ids[guard + 1..].to_vec()).unwrap_or_default()
        } else {
            self.tokenizer.encode(text, false, false)
        };
        let bytes = ids.iter().flat_map(|&id| self.tokenizer.token_bytes(id, false));
        if bytes.eq(text.as_bytes()) { ids } else { self.trie.greedy_tokenize(text.as_bytes()) }
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let bytes = &bytes[..bytes.len().min(AHEAD)];
        self.trie.tokenize_with_greedy_fallback(bytes, |text| self.encode(text))
    }
}

/// A token's bytes. Control tokens start with a byte that does not occur in text; an
/// empty word is never allowed.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let bytes = if tokenizer.is_control(id) || tokenizer.eog().contains(&id) {
        let spelling = tokenizer.token_text(id).unwrap_or_default().as_bytes();
        [&[TokTrie::SPECIAL_TOKEN_MARKER], spelling].concat()
    } else {
        let bytes = tokenizer.token_bytes(id, false);
        // with the marker, which is never part of UTF-8, text could spell a control token
        if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) { Vec::new() } else { bytes.to_vec() }
    };
    if bytes.len() > LONGEST_TOKEN { Vec::new() } else { bytes }
}
