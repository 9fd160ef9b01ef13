//! Finds where the end of a text occurred before, and what followed there.

use std::collections::HashMap;

/// Tokens that must match at least.
const LEAST: usize = 3;
/// Matches are not compared further back than this.
const LONGEST: usize = 64;
/// Earlier places that are compared, the latest first.
const PLACES: usize = 32;
/// Stands for no place in `before`.
const NONE: u32 = u32::MAX;

/// The places of a text by the tokens before them.
#[derive(Clone, Debug, Default)]
pub(super) struct SuffixIndex {
    /// The last place after each sequence of [`LEAST`] tokens.
    last: HashMap<[u32; LEAST], u32>,
    /// By place, from the first one that has as many tokens before it: the place before it with the same
    /// tokens before it.
    before: Vec<u32>,
}

/// An earlier place where the same tokens came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match<'a> {
    /// How many tokens before the place are the same, at most [`LONGEST`].
    pub(super) len: usize,
    /// What follows there.
    pub(super) next: &'a [u32],
}

impl SuffixIndex {
    /// Adds the places of a text that has grown. The last place, which nothing follows, is not among them.
    pub(super) fn extend(&mut self, text: &[u32]) {
        for place in LEAST + self.before.len()..text.len().min(NONE as usize) {
            let Some((_, key)) = text[..place].split_last_chunk() else { return };
            let before = self.last.insert(*key, place as u32);
            self.before.push(before.unwrap_or(NONE));
        }
    }

    /// Where in the indexed `text` the longest end of `tokens` occurred, the latest of equally long ones.
    pub(super) fn longest<'a>(&self, text: &'a [u32], tokens: &[u32]) -> Option<Match<'a>> {
        let (_, key) = tokens.split_last_chunk()?;
        let mut best: Option<Match<'a>> = None;
        let first = self.last.get(key).copied();
        let earlier = |place: &u32| {
            let before = self.before.get(*place as usize - LEAST).copied();
            before.filter(|place| *place != NONE)
        };
        for place in std::iter::successors(first, earlier).take(PLACES) {
            let (head, next) = text.split_at(place as usize);
            let pairs = head.iter().rev().zip(tokens.iter().rev());
            let len = pairs.take(LONGEST).take_while(|(a, b)| a == b).count();
            if best.is_none_or(|best| len > best.len) {
                best = Some(Match { len, next });
            }
            if len == LONGEST {
                break;
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(text: &[u32]) -> Option<(usize, &[u32])> {
        let mut index = SuffixIndex::default();
        index.extend(text);
        index.longest(text, text).map(|found| (found.len, found.next))
    }

    #[test]
    fn the_longest_and_latest_match_is_found() {
        assert_eq!(longest(&[]), None);
        assert_eq!(longest(&[1, 2, 3]), None);
        assert_eq!(longest(&[1, 2, 3, 4, 1, 2]), None, "two tokens are too few");
        assert_eq!(longest(&[1, 2, 3, 4, 1, 2, 3]), Some((3, &[4, 1, 2, 3][..])));
        assert_eq!(longest(&[7, 7, 7, 7]), Some((3, &[7][..])), "a text may match itself");
        let text = [9, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3];
        assert_eq!(longest(&text), Some((4, &text[4..])), "longer, not later");
        let text = [9, 1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3];
        assert_eq!(longest(&text), Some((4, &text[9..])), "the later of two");
    }

    #[test]
    fn an_index_that_grows_equals_one_that_is_made_at_once() {
        let text: Vec<u32> = (0..500).map(|i| (i * i / 7) % 5).collect();
        let mut grown = SuffixIndex::default();
        for len in 0..=text.len() {
            grown.extend(&text[..len]);
            let mut whole = SuffixIndex::default();
            whole.extend(&text[..len]);
            assert_eq!(grown.longest(&text[..len], &text[..len]), whole.longest(&text[..len], &text[..len]));
        }
    }

    #[test]
    fn another_text_is_searched_for_the_end_of_this_one() {
        let (text, mut index) = ([5, 1, 2, 3, 4, 6], SuffixIndex::default());
        index.extend(&text);
        let found = index.longest(&text, &[8, 1, 2, 3]);
        assert_eq!(found, Some(Match { len: 3, next: &[4, 6] }));
        assert_eq!(index.longest(&text, &[3, 4, 6]), None, "nothing follows the last token");
    }
}
