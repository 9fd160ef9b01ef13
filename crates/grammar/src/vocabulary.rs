//! Our vocabulary as the parser sees it: the bytes of each token, and how text is cut into them.

use std::sync::Arc;

use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use tern_text::Tokenizer;

/// The parser's tree of tokens holds no longer ones.
const LONGEST_TOKEN: usize = 1000;
/// A character that no token joins to its neighbours.
const GUARD: &str = "\u{2}";
/// Bytes of a forced text that are cut into tokens: the parser asks again after each token, and uses the first.
const AHEAD: usize = 1024;

pub(crate) struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl Vocabulary {
    /// Panics where the tree of tokens cannot hold the vocabulary.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>) -> Result<Vocabulary, String> {
        let size = u32::try_from(tokenizer.vocab_size()).map_err(|error| error.to_string())?;
        let ends: Vec<TokenId> = tokenizer.eog().iter().copied().filter(|&id| id < size).collect();
        let &first = ends.first().ok_or("the vocabulary has no token that ends a text")?;
        let words: Vec<Vec<u8>> = (0..size).map(|id| word(&tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, first), &words).with_eos_tokens(&ends);
        Ok(Vocabulary { tokenizer, trie })
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens of a text that stands within a text.
    fn encode(&self, text: &str) -> Vec<TokenId> {
        let ids = if self.tokenizer.strips_space() {
            // such a tokenizer puts a space before what it takes for the beginning of a text
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

/// A token's bytes. Those of a control token begin with a byte that no text has; an empty word is never allowed.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let bytes = if tokenizer.is_control(id) || tokenizer.eog().contains(&id) {
        let spelling = tokenizer.token_text(id).unwrap_or_default().as_bytes();
        [&[TokTrie::SPECIAL_TOKEN_MARKER], spelling].concat()
    } else {
        let bytes = tokenizer.token_bytes(id, false);
        // the marker inside text could spell a control token, and is never part of UTF-8
        if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) { Vec::new() } else { bytes.to_vec() }
    };
    if bytes.len() > LONGEST_TOKEN { Vec::new() } else { bytes }
}
