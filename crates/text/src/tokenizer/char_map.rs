//! SentencePiece's normaliser: the longest prefix of the text that has a replacement is replaced.
//!
//! The prefixes are in a double array of 32-bit words, whose leaves are offsets of
//! replacements that end with a zero.

use tern_formats::Metadata;

use super::TokenizerError;

/// Replacements; without any, texts stay as they are.
#[derive(Default)]
pub(super) struct CharMap {
    words: Vec<u32>,
    texts: Vec<u8>,
}

impl CharMap {
    pub(super) fn read(metadata: &Metadata) -> Result<CharMap, TokenizerError> {
        let key = "tokenizer.ggml.precompiled_charsmap";
        let Some(bytes) = metadata.optional_usizes(key)? else { return Ok(CharMap::default()) };
        let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
        let Some((size, rest)) = bytes.split_first_chunk::<4>() else { return Ok(CharMap::default()) };
        let size = u32::from_le_bytes(*size) as usize;
        if size > rest.len() || !size.is_multiple_of(4) {
            return Err(TokenizerError::Length {
                key: "tokenizer.ggml.precompiled_charsmap",
                want: size,
                found: rest.len(),
            });
        }
        let (words, texts) = rest.split_at(size);
        let words = words.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        Ok(CharMap { words, texts: texts.to_vec() })
    }

    /// The text with its replacements.
    pub(super) fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let (len, replacement) = self.longest(rest.as_bytes()).unwrap_or((0, None));
            // a map of parts of characters is damaged: the character stays
            match replacement.filter(|_| rest.is_char_boundary(len)) {
                Some(replacement) => {
                    out.push_str(replacement);
                    rest = &rest[len..];
                }
                None => {
                    out.push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        out
    }

    /// Length and replacement of the longest prefix that has one.
    fn longest(&self, bytes: &[u8]) -> Option<(usize, Option<&str>)> {
        let base = |word: u32| (word >> 10) << ((word & 1 << 9) >> 6);
        let mut at = base(*self.words.first()?);
        let mut found = None;
        for (i, &byte) in bytes.iter().enumerate() {
            at ^= u32::from(byte);
            let Some(&word) = self.words.get(at as usize) else { break };
            if byte == 0 || word & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            at ^= base(word);
            if word >> 8 & 1 == 1
                && let Some(&leaf) = self.words.get(at as usize)
            {
                found = Some((i + 1, self.text(leaf & 0x7fff_ffff)));
            }
        }
        found
    }

    fn text(&self, at: u32) -> Option<&str> {
        let rest = self.texts.get(at as usize..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }
}
