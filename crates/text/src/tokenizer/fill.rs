//! Fill-in-the-middle tokens: they mark the text before and after a gap, and where the gap's text begins.

use tern_formats::Metadata;

use super::TokenizerError;
use super::vocab::Vocab;

/// A marker: its keys in files, and the texts to search for without them.
pub(super) struct Marker {
    keys: &'static [&'static str],
    texts: &'static [&'static str],
}

impl Marker {
    /// The token of this marker.
    pub(super) fn find(&self, metadata: &Metadata, vocab: &Vocab) -> Result<Option<u32>, TokenizerError> {
        for key in self.keys {
            let id = metadata.optional_usize(&format!("tokenizer.ggml.{key}_token_id"))?;
            if let Some(id) = id.filter(|id| *id < vocab.len()) {
                return Ok(Some(id as u32));
            }
        }
        Ok(self.texts.iter().find_map(|text| vocab.id_of(text)))
    }
}

const PREFIX: Marker = Marker {
    keys: &["fim_pre", "prefix"],
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
    keys: &["fim_suf", "suffix"],
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
    keys: &["fim_mid", "middle"],
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

const PAD: Marker =
    Marker { keys: &["fim_pad"], texts: &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"] };
const REPOSITORY: Marker = Marker {
    keys: &["fim_rep"],
    texts: &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
};
const FILE: Marker = Marker { keys: &["fim_sep"], texts: &["<|file_sep|>"] };

/// Markers that are also end tokens: a model that writes one has left the gap.
pub(super) const ENDS: [&Marker; 3] = [&PAD, &REPOSITORY, &FILE];

/// The tokens with which a model fills a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillTokens {
    /// Before the text that precedes the gap.
    pub prefix: u32,
    /// Before the text that follows it.
    pub suffix: u32,
    /// Before the text of the gap, which the model generates.
    pub middle: u32,
    /// Before the name of a repository, if the model has it.
    pub repository: Option<u32>,
    /// Before the name of a file, if the model has it.
    pub file: Option<u32>,
}

/// Which side of a gap is first in the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FillOrder {
    /// The text before the gap.
    #[default]
    PrefixFirst,
    /// The text after the gap, as some models prefer.
    SuffixFirst,
}

impl FillTokens {
    pub(super) fn read(metadata: &Metadata, vocab: &Vocab) -> Result<Option<FillTokens>, TokenizerError> {
        let find = |marker: &Marker| marker.find(metadata, vocab);
        let (prefix, suffix, middle) = (find(&PREFIX)?, find(&SUFFIX)?, find(&MIDDLE)?);
        let (repository, file) = (find(&REPOSITORY)?, find(&FILE)?);
        Ok(prefix.zip(suffix).zip(middle).map(|((prefix, suffix), middle)| FillTokens {
            prefix,
            suffix,
            middle,
            repository,
            file,
        }))
    }

    /// The prompt of a gap between two texts.
    ///
    /// ```
    /// use tern_text::{FillOrder, FillTokens};
    /// let tokens = FillTokens { prefix: 1, suffix: 2, middle: 3, repository: None, file: None };
    /// assert_eq!(tokens.prompt(&[7, 8], &[9], FillOrder::PrefixFirst), [1, 7, 8, 2, 9, 3]);
    /// assert_eq!(tokens.prompt(&[7, 8], &[9], FillOrder::SuffixFirst), [2, 9, 1, 7, 8, 3]);
    /// ```
    pub fn prompt(&self, before: &[u32], after: &[u32], order: FillOrder) -> Vec<u32> {
        let before = [&[self.prefix], before].concat();
        let after = [&[self.suffix], after].concat();
        let sides = match order {
            FillOrder::PrefixFirst => [before, after],
            FillOrder::SuffixFirst => [after, before],
        };
        [sides.concat(), vec![self.middle]].concat()
    }
}
