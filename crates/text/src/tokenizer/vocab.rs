//! The token list: text, bytes and kind of every id, and lookup of an id by text.

use std::collections::BTreeSet;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use tern_formats::Metadata;

use super::{TokenizerError, byte_level};

/// The character that represents a space in SentencePiece tokens.
pub(super) const SPACE_MARK: char = '\u{2581}';

/// The kind of a token; the numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// 1: text.
    Normal,
    /// 2: represents text that the vocabulary cannot encode.
    Unknown,
    /// 3: a control token such as `<|im_start|>`: recognised only if requested, hidden by default.
    Control,
    /// 4: a text that is always one token.
    UserDefined,
    /// 5 (and 0): unused.
    Unused,
    /// 6: one raw byte, written `<0xNN>`.
    Byte,
}

/// How token texts represent bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2: every byte is one printable character (a space is `Ġ`).
    ByteLevel,
    /// SentencePiece: plain text with `▁` for a space.
    SpaceMark,
}

/// All tokens of a model.
pub(super) struct Vocab {
    texts: Blob,
    bytes: Blob,
    kinds: Vec<Kind>,
    /// Characters that precede a space mark inside a token, sorted: few, none in most vocabularies.
    before_marks: Vec<char>,
    by_text: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Vocab {
    /// Reads `tokenizer.ggml.tokens` and `.token_type`; [`Self::spell`] fills in the bytes.
    pub(super) fn read(metadata: &Metadata, warnings: &mut Vec<String>) -> Result<Vocab, TokenizerError> {
        let tokens = metadata.strings("tokenizer.ggml.tokens")?;
        let kinds = match metadata.optional_usizes("tokenizer.ggml.token_type")? {
            None => vec![Kind::Normal; tokens.len()],
            Some(types) => {
                super::want_length("tokenizer.ggml.token_type", types.len(), tokens.len())?;
                let read = |(id, &kind): (usize, &usize)| kind_of(id, kind);
                types.iter().take(tokens.len()).enumerate().map(read).collect::<Result<_, _>>()?
            }
        };
        let mut vocab = Vocab {
            texts: Blob::with_capacity(tokens.len()),
            bytes: Blob::default(),
            kinds,
            before_marks: before_marks(tokens.iter().map(String::as_str)),
            by_text: HashTable::with_capacity(tokens.len()),
            hasher: DefaultHashBuilder::default(),
        };
        let mut doubles = 0;
        for (id, text) in tokens.iter().enumerate() {
            vocab.texts.push(text.as_bytes());
            if text.is_empty() {
                continue;
            }
            if vocab.id_of(text).is_some() {
                doubles += 1;
                continue;
            }
            let Vocab { texts, by_text, hasher, .. } = &mut vocab;
            let hash = hasher.hash_one(text.as_bytes());
            by_text.insert_unique(hash, id as u32, |&id| hasher.hash_one(texts.get(id)));
        }
        if doubles > 0 {
            warnings
                .push(format!("{doubles} tokens repeat the text of an earlier one; the first id is used"));
        }
        Ok(vocab)
    }

    /// Stores the bytes of every token; the kinds must be final.
    pub(super) fn spell(&mut self, spelling: Spelling) {
        let mut bytes = Blob::with_capacity(self.len());
        let mut one = Vec::new();
        for (id, &kind) in self.kinds.iter().enumerate() {
            let text = self.text(id as u32).unwrap_or_default();
            one.clear();
            match (kind, spelling) {
                (Kind::Unused, _) => {}
                (Kind::Control | Kind::Unknown | Kind::UserDefined, _) => {
                    one.extend_from_slice(text.as_bytes())
                }
                (Kind::Byte, _) => match byte_of(text) {
                    Some(byte) => one.push(byte),
                    None => one.extend_from_slice(text.as_bytes()),
                },
                (Kind::Normal, Spelling::ByteLevel) => byte_level::decode(text, &mut one),
                (Kind::Normal, Spelling::SpaceMark) => {
                    one.extend_from_slice(text.replace(SPACE_MARK, " ").as_bytes());
                }
            }
            bytes.push(&one);
        }
        self.bytes = bytes;
    }

    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// The id of a token with exactly this text, of any kind.
    pub(super) fn id_of(&self, text: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(text.as_bytes());
        self.by_text.find(hash, |&id| self.texts.get(id) == text.as_bytes()).copied()
    }

    /// The id that plain text may become: merging never produces a control token.
    pub(super) fn plain_id(&self, text: &str) -> Option<u32> {
        self.id_of(text)
            .filter(|&id| matches!(self.kind(id), Some(Kind::Normal | Kind::UserDefined | Kind::Unused)))
    }

    /// The token of one byte, `<0x0A>`.
    pub(super) fn byte_id(&self, byte: u8) -> Option<u32> {
        self.id_of(&format!("<0x{byte:02X}>"))
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        if id as usize >= self.len() {
            return None;
        }
        std::str::from_utf8(self.texts.get(id)).ok()
    }

    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id)
    }

    pub(super) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    pub(super) fn set_kind(&mut self, id: u32, kind: Kind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    /// All ids of the given kinds.
    pub(super) fn of_kind(&self, kinds: &[Kind]) -> impl Iterator<Item = u32> {
        let ids = self.kinds.iter().enumerate();
        ids.filter(|(_, kind)| kinds.contains(kind)).map(|(id, _)| id as u32)
    }

    /// Splits text before space marks that no token spans: merging short words gives the same tokens as
    /// merging the whole text, and is faster.
    pub(super) fn words<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let mut before = SPACE_MARK;
            let end = rest.char_indices().find(|&(_, c)| {
                let joins = before == SPACE_MARK || self.before_marks.binary_search(&before).is_ok();
                before = c;
                c == SPACE_MARK && !joins
            });
            let word;
            (word, rest) = rest.split_at(end.map_or(rest.len(), |(at, _)| at));
            (!word.is_empty()).then_some(word)
        })
    }

    /// The bytes of text that each token covers. A space mark may also occur in the text itself,
    /// so it has its own length.
    pub(super) fn covered(&self, spelling: Spelling) -> impl Iterator<Item = &[u8]> {
        let blob = if spelling == Spelling::ByteLevel { &self.bytes } else { &self.texts };
        (0..self.len()).map(|id| blob.get(id as u32))
    }

    /// Length in bytes of the longest token text.
    pub(super) fn longest(&self) -> usize {
        (0..self.len()).map(|id| self.texts.get(id as u32).len()).max().unwrap_or(0)
    }
}

/// The characters that some token has before a space mark.
fn before_marks<'t>(texts: impl Iterator<Item = &'t str>) -> Vec<char> {
    let mut found = BTreeSet::new();
    for text in texts.filter(|text| text.contains(SPACE_MARK)) {
        let pairs = text.chars().zip(text.chars().skip(1));
        found.extend(pairs.filter(|&(c, next)| next == SPACE_MARK && c != SPACE_MARK).map(|(c, _)| c));
    }
    found.into_iter().collect()
}

fn kind_of(id: usize, kind: usize) -> Result<Kind, TokenizerError> {
    Ok(match kind {
        1 => Kind::Normal,
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        0 | 5 => Kind::Unused,
        6 => Kind::Byte,
        found => return Err(TokenizerError::TokenType { id, found }),
    })
}

/// The byte of `<0x0A>`.
fn byte_of(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// Many short byte strings in one allocation.
#[derive(Default)]
struct Blob {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Blob {
    fn with_capacity(count: usize) -> Blob {
        Blob { bytes: Vec::with_capacity(8 * count), ends: Vec::with_capacity(count) }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
    }

    /// Empty if there is no such id.
    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_start_where_no_token_spans() {
        let mut metadata = Metadata::default();
        let tokens = ["▁a", "▁▁", ">▁<"].map(String::from);
        metadata.insert("tokenizer.ggml.tokens", tern_formats::Value::Strings(tokens.into()));
        let vocab = Vocab::read(&metadata, &mut Vec::new()).unwrap();
        assert_eq!(vocab.words("▁a▁▁b\nc▁").collect::<Vec<_>>(), ["▁a", "▁▁b\nc", "▁"]);
        assert_eq!(vocab.words("a▁<b>▁c▁d").collect::<Vec<_>>(), ["a", "▁<b>▁c", "▁d"]);
        assert_eq!(vocab.words("").count(), 0);
    }

    #[test]
    fn byte_tokens_are_two_hex_digits() {
        assert_eq!(byte_of("<0x0A>"), Some(10));
        assert_eq!(byte_of("<0xFF>"), Some(255));
        for other in ["<0x>", "<0x1>", "<0x123>", "0x0A", "<0xGG>", "<0x+1>x"] {
            assert_eq!(byte_of(other), None, "{other}");
        }
    }
}
