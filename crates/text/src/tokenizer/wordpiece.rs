//! BERT's WordPiece: normalised words, each split greedily into the longest matching tokens.

use regex_automata::meta::Regex;
use tern_formats::Metadata;
use unicode_normalization::UnicodeNormalization;

use super::TokenizerError;
use super::encoding::{EncodeError, Encoding};
use super::vocab::{SPACE_MARK, Vocab};

/// Words are runs of other characters; each punctuation mark and each CJK ideograph is a separate word.
/// (`\p{P}` and the ASCII symbols; the ideograph blocks are those of BERT's `_is_chinese_char`.)
const WORDS: &str = concat!(
    r"[\p{P}$+<=>^`|~\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}",
    r"\x{2B740}-\x{2B81F}\x{2B920}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]",
    r"|[^\s\p{P}$+<=>^`|~\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}",
    r"\x{2B740}-\x{2B81F}\x{2B920}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]+"
);

/// Control and private characters are dropped, except the three that count as spaces.
const DROPPED: &str = r"[[\p{Cc}\p{Cf}\p{Co}\x{FFFD}]&&[^\t\r\n]]";
const ACCENTS: &str = r"\p{Mn}";

/// The word splitter and the normaliser's options.
pub(super) struct WordPiece {
    words: Regex,
    dropped: Regex,
    accents: Regex,
    lowercase: bool,
    strip_accents: bool,
    longest: usize,
    /// Characters of a word that is not unknown.
    max_word: usize,
    unknown: Option<u32>,
}

impl WordPiece {
    pub(super) fn read(
        metadata: &Metadata,
        vocab: &Vocab,
        unknown: Option<u32>,
    ) -> Result<WordPiece, TokenizerError> {
        let lowercase = metadata.optional_bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
        let strip_accents = metadata.optional_bool("tokenizer.ggml.normalizer.strip_accents")?;
        let compile =
            |pattern| Regex::new(pattern).expect("the patterns are fixed, and a test compiles each");
        Ok(WordPiece {
            words: compile(WORDS),
            dropped: compile(DROPPED),
            accents: compile(ACCENTS),
            lowercase,
            strip_accents: strip_accents.unwrap_or(lowercase),
            longest: vocab.longest(),
            max_word: metadata.optional_usize("tokenizer.max_word_characters")?.unwrap_or(usize::MAX),
            unknown,
        })
    }

    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        out: &mut Encoding<'_>,
    ) -> Result<(), EncodeError> {
        let text = self.normalise(text);
        let mut marked = String::new();
        for found in self.words.find_iter(&text) {
            out.check(found.len())?;
            marked.clear();
            marked.push(SPACE_MARK); // only the first piece of a word has a space mark
            marked.push_str(&text[found.range()]);
            let before = out.ids.len();
            let fits = found.len() <= self.max_word || text[found.range()].chars().count() <= self.max_word;
            if !fits || !self.pieces(vocab, &marked, &mut out.ids) {
                out.ids.truncate(before);
                out.ids.extend(self.unknown);
            }
        }
        Ok(())
    }

    /// Appends the longest matching tokens one by one; false if none matches.
    fn pieces(&self, vocab: &Vocab, word: &str, out: &mut Vec<u32>) -> bool {
        let mut rest = word;
        while !rest.is_empty() {
            let most = rest.floor_char_boundary(self.longest.min(rest.len()));
            let ends = rest[..most].char_indices().rev().map(|(at, c)| at + c.len_utf8());
            let Some((end, id)) = ends.filter_map(|end| Some((end, vocab.plain_id(&rest[..end])?))).next()
            else {
                return false;
            };
            out.push(id);
            rest = &rest[end..];
        }
        true
    }

    fn normalise(&self, text: &str) -> String {
        let mut text = without(&self.dropped, text);
        if self.strip_accents {
            text = without(&self.accents, &text.nfd().collect::<String>());
        }
        if self.lowercase {
            // one character at a time, as BERT does: a final sigma stays a sigma
            text = text.chars().flat_map(char::to_lowercase).collect();
        }
        text
    }
}

fn without(regex: &Regex, text: &str) -> String {
    let (mut kept, mut at) = (String::with_capacity(text.len()), 0);
    for found in regex.find_iter(text) {
        kept.push_str(&text[at..found.start()]);
        at = found.end();
    }
    kept.push_str(&text[at..]);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalising_and_splitting() {
        let metadata = Metadata::default();
        let mut list = Metadata::default();
        list.insert("tokenizer.ggml.tokens", tern_formats::Value::Strings(vec!["▁a".into()]));
        let vocab = Vocab::read(&list, &mut Vec::new()).unwrap();
        let wordpiece = WordPiece::read(&metadata, &vocab, None).unwrap();
        assert_eq!(wordpiece.normalise("É\u{0}\u{200B}t\u{FFFD}À \tΣ"), "eta \tσ");
        let text = "don't 中文ok ½";
        let words: Vec<&str> = wordpiece.words.find_iter(text).map(|found| &text[found.range()]).collect();
        assert_eq!(words, ["don", "'", "t", "中", "文", "ok", "½"]);
    }

    #[test]
    fn the_second_text_of_a_pair_begins_after_the_first_separator() {
        let tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁a", "▁b"].map(String::from).to_vec();
        let mut metadata = Metadata::default();
        metadata.insert("tokenizer.ggml.model", tern_formats::Value::String("bert".into()));
        metadata.insert("tokenizer.ggml.tokens", tern_formats::Value::Strings(tokens));
        for (role, id) in [("unknown", 1), ("bos", 2), ("seperator", 3)] {
            metadata.insert(format!("tokenizer.ggml.{role}_token_id"), tern_formats::Value::Uint(id));
        }
        let tokenizer = crate::Tokenizer::from_metadata(&metadata).unwrap();
        let pair = tokenizer.encode_pair("a a", "b [SEP]");
        assert_eq!((&pair[..5], tokenizer.second_text(&pair)), (&[2, 4, 4, 3, 5][..], Some(4)));
        assert_eq!(tokenizer.second_text(&tokenizer.encode("a", true, false)), None);
    }
}
