//! The generated part of texts that are finished, in which later ones look for their continuation.

use super::suffix::{Match, SuffixIndex};

/// Tokens of a half: the older half is dropped as a whole when the newer one is full.
const HALF: usize = 1 << 17;
/// Between two texts: no vocabulary has this id.
const END: u32 = u32::MAX;

/// A bounded number of tokens of the latest finished texts.
#[derive(Clone, Debug, Default)]
pub(crate) struct FinishedTexts {
    newer: Texts,
    older: Texts,
}

#[derive(Clone, Debug, Default)]
struct Texts {
    tokens: Vec<u32>,
    index: SuffixIndex,
}

impl FinishedTexts {
    /// Adds a text; of one that is too long the end.
    pub(crate) fn add(&mut self, text: &[u32]) {
        let text = &text[text.len().saturating_sub(HALF)..];
        if self.newer.tokens.len() + text.len() > HALF {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.tokens.extend(text);
        self.newer.tokens.push(END);
        self.newer.index.extend(&self.newer.tokens);
    }

    /// The longest match of the end of `tokens`.
    pub(super) fn longest(&self, tokens: &[u32]) -> Option<Match<'_>> {
        let halves = [&self.older, &self.newer]; // the newer one wins between equals
        let found = halves.into_iter().filter_map(|texts| texts.index.longest(&texts.tokens, tokens));
        let longest = found.max_by_key(|found| found.len)?;
        let text = longest.next.iter().position(|&token| token == END).unwrap_or(longest.next.len());
        Some(Match { next: &longest.next[..text], ..longest }).filter(|found| !found.next.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_text_continues_as_an_earlier_one_did_and_never_into_the_next() {
        let mut finished = FinishedTexts::default();
        finished.add(&[1, 2, 3, 4, 5]);
        finished.add(&[6, 7, 8, 9]);
        let next = |tokens: &[u32]| finished.longest(tokens).map(|found| found.next.to_vec());
        assert_eq!(next(&[0, 1, 2, 3]), Some(vec![4, 5]));
        assert_eq!(next(&[3, 4, 5]), None, "it ended there");
        assert_eq!(next(&[6, 7, 8]), Some(vec![9]));
        assert_eq!(next(&[4, 5, 6]), None);
    }

    #[test]
    fn the_oldest_texts_are_dropped() {
        let mut finished = FinishedTexts::default();
        finished.add(&[1, 2, 3, 4]);
        for text in 0..4 {
            assert_eq!(finished.longest(&[1, 2, 3]).is_some(), text < 2, "{text}");
            finished.add(&vec![9; HALF - 2]);
            assert!(finished.newer.tokens.len() + finished.older.tokens.len() <= 2 * HALF + 2);
        }
    }
}
