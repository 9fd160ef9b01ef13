//! SentencePiece Unigram: the split of a text whose tokens have the highest total score.

use tern_formats::Metadata;

use super::char_map::CharMap;
use super::encoding::{EncodeError, Encoding};
use super::vocab::{Kind, SPACE_MARK, Vocab};
use super::{TokenizerError, want_length};

/// What an unknown character costs beyond the least likely token, as in SentencePiece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Scores, the normaliser and its options.
pub(super) struct Unigram {
    scores: Vec<f32>,
    unknown_score: f32,
    unknown: Option<u32>,
    longest: usize,
    map: CharMap,
    /// Runs of spaces become one, and those at the ends are removed.
    merge_spaces: bool,
    /// One of those at the end stays.
    keep_last_space: bool,
}

impl Unigram {
    pub(super) fn read(
        metadata: &Metadata,
        vocab: &Vocab,
        unknown: Option<u32>,
    ) -> Result<Unigram, TokenizerError> {
        let key = "tokenizer.ggml.scores";
        let scores = metadata.optional_floats(key)?.unwrap_or_default().to_vec();
        want_length(key, scores.len(), vocab.len())?;
        let normal = |(id, _): &(usize, &f32)| vocab.kind(*id as u32) == Some(Kind::Normal);
        let least = scores.iter().enumerate().filter(normal).map(|(_, score)| *score).fold(0.0, f32::min);
        let merge = metadata.optional_bool("tokenizer.ggml.remove_extra_whitespaces")?;
        Ok(Unigram {
            scores,
            unknown_score: least - UNKNOWN_PENALTY,
            unknown,
            longest: vocab.longest(),
            map: CharMap::read(metadata)?,
            merge_spaces: merge.unwrap_or(false),
            keep_last_space: metadata.optional_bool("tokenizer.keeps_last_space")?.unwrap_or(false),
        })
    }

    /// Encodes a text, with a space before it if `prefix` is set.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        prefix: bool,
        out: &mut Encoding<'_>,
    ) -> Result<(), EncodeError> {
        let text = self.normalise(text, prefix);
        let mut best = vec![Best { score: f32::NEG_INFINITY, start: 0, id: None }; text.len() + 1];
        best[0].score = 0.0;
        let mut checked = 0;
        for (start, c) in text.char_indices() {
            if start >= checked + 4096 {
                out.check(4096)?; // a text of any length is one search
                checked = start;
            }
            let before = best[start].score;
            let one = start + c.len_utf8();
            let mut has_character = false;
            let ends = text[start..].char_indices().map(|(at, c)| start + at + c.len_utf8());
            for end in ends.take_while(|end| end - start <= self.longest) {
                let Some(id) = vocab.plain_id(&text[start..end]) else { continue };
                has_character |= end == one;
                // a text that is always one token wins over any split
                let user = vocab.kind(id) == Some(Kind::UserDefined);
                let score = before + if user { 0.0 } else { self.scores[id as usize] };
                best[end].improve(Best { score, start, id: Some(id) });
            }
            if !has_character {
                best[one].improve(Best { score: before + self.unknown_score, start, id: None });
            }
        }
        let (mut ids, mut at) = (vec![], text.len());
        while at > 0 {
            let Best { start, id, .. } = best[at];
            // unknown characters in a row are one token
            if id.is_some() || ids.last() != Some(&None) {
                ids.push(id);
            }
            at = start;
        }
        for id in ids.into_iter().rev() {
            out.check(1)?;
            out.ids.extend(id.or(self.unknown));
        }
        Ok(())
    }

    /// Replaces characters by the map, and spaces by marks.
    fn normalise(&self, text: &str, prefix: bool) -> String {
        let mapped = self.map.apply(text);
        let (mut marked, mut inside, mut prefixed) =
            (String::with_capacity(mapped.len() + 3), false, !prefix);
        for c in mapped.chars() {
            if c != ' ' {
                if !inside && (self.merge_spaces && !marked.is_empty() || !prefixed) {
                    marked.push(SPACE_MARK);
                }
                (inside, prefixed) = (true, true);
                marked.push(c);
            } else {
                inside = false;
                if !self.merge_spaces {
                    marked.push(SPACE_MARK);
                }
            }
        }
        if self.merge_spaces && self.keep_last_space && mapped.ends_with(' ') {
            marked.push(SPACE_MARK);
        }
        marked
    }
}

/// The best split of a text up to some byte.
#[derive(Clone, Copy)]
struct Best {
    score: f32,
    /// Where its last token begins.
    start: usize,
    /// Its last token; `None` is unknown.
    id: Option<u32>,
}

impl Best {
    fn improve(&mut self, other: Best) {
        if other.score > self.score {
            *self = other;
        }
    }
}
