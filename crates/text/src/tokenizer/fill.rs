//! Fill-in-the-middle tokens: they mark the text before and after a gap, and where the gap's text begins.

use tern_formats::Metadata;

use super::TokenizerError;
use super::vocab::Vocab;

/// A marker: its keys in files, and the texts to search for without them.
struct Marker {
    keys: [&'static str; 2],
    texts: &'static [&'static str],
}

const PREFIX: Marker = Marker {
    keys: ["fim_pre", "prefix"],
    texts: &[
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<｜fim▁begin｜>",
    ],
};
const SUFFIX: Marker = Marker {
    keys: ["fim_suf", "suffix"],
    texts: &[
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<｜fim▁hole｜>",
    ],
};
const MIDDLE: Marker = Marker {
    keys: ["fim_mid", "middle"],
    texts: &[
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<｜fim▁end｜>",
    ],
};

/// The tokens with which a model fills a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillTokens {
    /// Before the text that precedes the gap.
    pub prefix: u32,
    /// Before the text that follows it.
    pub suffix: u32,
    /// Before the text of the gap, which the model generates.
    pub middle: u32,
}

impl FillTokens {
    pub(super) fn read(metadata: &Metadata, vocab: &Vocab) -> Result<Option<FillTokens>, TokenizerError> {
        let find = |marker: &Marker| -> Result<Option<u32>, TokenizerError> {
            for key in marker.keys {
                let id = metadata.optional_usize(&format!("tokenizer.ggml.{key}_token_id"))?;
                if let Some(id) = id.filter(|id| *id < vocab.len()) {
                    return Ok(Some(id as u32));
                }
            }
            Ok(marker.texts.iter().find_map(|text| vocab.id_of(text)))
        };
        let (prefix, suffix, middle) = (find(&PREFIX)?, find(&SUFFIX)?, find(&MIDDLE)?);
        Ok(prefix.zip(suffix).zip(middle).map(|((prefix, suffix), middle)| FillTokens {
            prefix,
            suffix,
            middle,
        }))
    }

    /// The prompt of a gap between two texts; `first` is BOS if the model expects it.
    pub fn prompt(&self, first: Option<u32>, before: &[u32], after: &[u32]) -> Vec<u32> {
        let mut prompt: Vec<u32> = first.into_iter().collect();
        prompt.push(self.prefix);
        prompt.extend_from_slice(before);
        prompt.push(self.suffix);
        prompt.extend_from_slice(after);
        prompt.push(self.middle);
        prompt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_markers_surround_both_texts() {
        let tokens = FillTokens { prefix: 1, suffix: 2, middle: 3 };
        assert_eq!(tokens.prompt(Some(0), &[7, 8], &[9]), [0, 1, 7, 8, 2, 9, 3]);
        assert_eq!(tokens.prompt(None, &[], &[]), [1, 2, 3]);
    }
}
