//! Where snapshots of the state are taken, and which of them stay.
//!
//! A snapshot that several texts can continue from lies at a page border, because they share full pages only.
//! Whenever a step ends at one, the state there becomes a snapshot, which the next one of the same sequence
//! replaces: what remains in the end is the last border of the answer (and its very end, see
//! `pages/tail.rs`). Prefill makes its steps end at page borders, and at two more positions whose snapshots
//! stay: where the prompt leaves the cached pages (what the prompts before that point have in common is
//! likely to come again), and shortly before the end of the prompt (the next turn may omit the reasoning, and
//! with it everything from the end of this prompt on). Of the other borders at which steps end, a logarithmic
//! number stays: the first ones after 1, 2, 4, 8, ... pages, for other prompts with the same beginning, and
//! the last ones before 1, 2, 4, 8, ... pages from the end, for a message that is edited.

/// Tokens at the end of a prompt that the next turn may not have: what the template
/// adds to ask for an answer.
const ANSWER_PREAMBLE: usize = 16;

/// Pages that a snapshot must save to be worth a step that ends there.
const WORTHWHILE_PAGES: usize = 2;

/// The positions at which the prefill of one prompt stops for a snapshot that stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    page_len: usize,
    /// Where the prompt leaves the cached pages; 0 if that is where its prefix was found.
    branch: usize,
    /// The last page border before the end of the prompt; 0 if there is none.
    end: usize,
}

impl Marks {
    /// For a prompt of `prompt_len` tokens, of which `found` pages are its prefix and
    /// `cached` pages are known.
    pub(crate) fn new(page_len: usize, prompt_len: usize, found: usize, cached: usize) -> Marks {
        let branch = if cached >= found + WORTHWHILE_PAGES { cached * page_len } else { 0 };
        let end = prompt_len.saturating_sub(ANSWER_PREAMBLE) / page_len * page_len;
        Marks { page_len, branch, end }
    }

    /// Where a step from `position` that could go up to `end` stops; `last` is the end of what is known.
    pub(crate) fn stop(&self, position: usize, end: usize, last: usize) -> usize {
        let marks = [self.branch, self.end].into_iter().filter(|mark| (position + 1..end).contains(mark));
        let border = end / self.page_len * self.page_len;
        match marks.min() {
            Some(mark) => mark,
            None if end < last && border > position => border,
            None => end,
        }
    }

    /// Whether the snapshot at `position` stays; the sequence took the one before it at
    /// `before`, or began there.
    pub(crate) fn stays(&self, position: usize, before: usize) -> bool {
        let pages = |position: usize| (position / self.page_len).max(1).ilog2();
        position == self.branch || position == self.end || before == 0 || pages(position) > pages(before)
    }

    /// Whether the snapshot at `before` stays when the next one is taken at `position`.
    pub(crate) fn last_stays(&self, position: usize, before: usize) -> bool {
        let pages = |position: usize| (self.end.saturating_sub(position) / self.page_len).checked_ilog2();
        pages(position) < pages(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefill_stops_at_marks_and_otherwise_at_page_borders() {
        let marks = Marks::new(8, 100, 2, 5); // 40 and 80
        let stop = |position, end| marks.stop(position, end, 100);
        assert_eq!([stop(16, 100), stop(40, 100), stop(80, 100)], [40, 80, 100]);
        assert_eq!([stop(16, 40), stop(16, 39), stop(16, 30)], [40, 32, 24]);
        assert_eq!(
            [stop(16, 20), stop(20, 23), stop(20, 25)],
            [20, 23, 24],
            "less than a page is a step, too"
        );
        let marks = Marks::new(8, 20, 2, 3);
        assert_eq!(marks, Marks { page_len: 8, branch: 0, end: 0 }, "a page is not worth a step");
    }

    #[test]
    fn a_logarithmic_number_of_snapshots_stays() {
        let marks = Marks::new(8, 4, 0, 0);
        let stays = |border: &usize| marks.stays(border * 8, (border - 1) * 8);
        assert_eq!((1..200).filter(stays).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64, 128]);
        // in steps of 7 pages: the first one after each power of two
        let stays = |step: &usize| marks.stays(step * 7 * 8, (step - 1) * 7 * 8);
        assert_eq!((1..20).filter(stays).map(|step| step * 7).collect::<Vec<_>>(), [7, 14, 21, 35, 70, 133]);
        let marks = Marks::new(8, 100, 0, 5);
        assert!(marks.stays(40, 32) && marks.stays(80, 72) && !marks.stays(88, 80));
    }

    #[test]
    fn so_it_does_before_the_end_of_a_prompt() {
        let marks = Marks::new(8, 1016, 0, 0); // 1000
        let stays = |border: &usize| marks.last_stays((border + 1) * 8, border * 8);
        assert_eq!((1..200).filter(stays).collect::<Vec<_>>(), [61, 93, 109, 117, 121, 123, 124]);
        let stays = |step: &usize| marks.last_stays((step + 1) * 40, step * 40);
        assert_eq!((1..40).filter(stays).map(|step| step * 5).collect::<Vec<_>>(), [60, 90, 105, 115, 120]);
    }
}
