//! The merge loop of both kinds of BPE: merge the best adjacent pair until none is left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::encoding::{EncodeError, Encoding};

/// The id of a symbol that is not a token.
pub(super) const NO_TOKEN: u32 = u32::MAX;

/// Merges between two checks for cancellation.
const CHECK_EVERY: u32 = 1 << 14;

const NONE: usize = usize::MAX;

/// A part of the word that is one token so far, in a linked list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    pub(super) id: u32,
    pub(super) start: usize,
    pub(super) end: usize,
    prev: usize,
    next: usize,
}

/// The result of merging a pair; the lowest `order` is merged first, the leftmost among equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) order: u32,
    pub(super) id: u32,
}

/// A candidate pair: order, index of the left symbol, end of the right one, new id.
type Waiting = Reverse<(u32, usize, usize, u32)>;

/// The state of merging one word; reused for the next word.
#[derive(Default)]
pub(super) struct Word {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Waiting>,
}

impl Word {
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
    }

    /// Appends the next `len` bytes of the word as one symbol.
    pub(super) fn push(&mut self, id: u32, len: usize) {
        let index = self.symbols.len();
        let (start, prev) = match self.symbols.last_mut() {
            Some(last) => {
                last.next = index;
                (last.end, index - 1)
            }
            None => (0, NONE),
        };
        self.symbols.push(Symbol { id, start, end: start + len, prev, next: NONE });
    }

    /// Merges pairs while `join` returns one.
    pub(super) fn merge(
        &mut self,
        out: &Encoding<'_>,
        join: impl Fn(&Symbol, &Symbol) -> Option<Join>,
    ) -> Result<(), EncodeError> {
        let symbols = &mut self.symbols;
        let waiting = |symbols: &[Symbol], left: usize| -> Option<Waiting> {
            let right = symbols.get(symbols[left].next)?;
            let join = join(&symbols[left], right)?;
            Some(Reverse((join.order, left, right.end, join.id)))
        };
        let mut entries = std::mem::take(&mut self.queue).into_vec();
        entries.clear();
        entries.extend((0..symbols.len()).filter_map(|left| waiting(symbols, left)));
        self.queue = BinaryHeap::from(entries);

        let mut joins = 0_u32;
        while let Some(Reverse((_, left, end, id))) = self.queue.pop() {
            joins = joins.wrapping_add(1);
            if joins.is_multiple_of(CHECK_EVERY) {
                out.check_cancelled()?; // one word may be the whole text
            }
            let right = symbols[left].next;
            // a symbol only grows to the right, so a pair with the same end is unchanged
            if symbols.get(right).is_none_or(|right| right.end != end) {
                continue;
            }
            let next = symbols[right].next;
            symbols[right].next = NONE; // merged: no pair starts here any more
            let joined = &mut symbols[left];
            (joined.id, joined.end, joined.next) = (id, end, next);
            let prev = joined.prev;
            if let Some(next) = symbols.get_mut(next) {
                next.prev = left;
            }
            if prev != NONE {
                self.queue.extend(waiting(symbols, prev));
            }
            self.queue.extend(waiting(symbols, left));
        }
        Ok(())
    }

    /// The remaining symbols, in order.
    pub(super) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        std::iter::successors(self.symbols.first(), |symbol| self.symbols.get(symbol.next))
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoding::EncodeLimit;
    use super::*;

    /// Merges by ids: `(left, right, order, id)`.
    fn merged(start: &[u32], rules: &[(u32, u32, u32, u32)]) -> Vec<u32> {
        let mut word = Word::default();
        for &id in start {
            word.push(id, 1);
        }
        word.merge(&Encoding::new(&EncodeLimit::NONE, None, ""), |l, r| {
            let rule = rules.iter().find(|rule| (rule.0, rule.1) == (l.id, r.id))?;
            Some(Join { order: rule.2, id: rule.3 })
        })
        .unwrap();
        word.symbols().map(|s| s.id).collect()
    }

    #[test]
    fn the_lowest_order_is_merged_first_and_the_leftmost_among_equals() {
        assert_eq!(merged(&[1, 2, 3], &[(1, 2, 5, 12), (2, 3, 4, 23)]), [1, 23]);
        assert_eq!(merged(&[1, 1, 1], &[(1, 1, 0, 11)]), [11, 1]);
        assert_eq!(merged(&[1, 1, 1, 1], &[(1, 1, 0, 11), (11, 11, 1, 1111)]), [1111]);
    }

    #[test]
    fn a_pair_whose_part_was_merged_is_dropped() {
        // 2-3 is merged first; 1-2 and 3-4 are dropped, 23-4 is new
        let rules = [(2, 3, 0, 23), (1, 2, 1, 12), (3, 4, 2, 34), (23, 4, 3, 234)];
        assert_eq!(merged(&[1, 2, 3, 4], &rules), [1, 234]);
    }

    #[test]
    fn an_empty_word_has_no_tokens() {
        assert!(merged(&[], &[]).is_empty());
    }
}
