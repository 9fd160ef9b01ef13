//! Speculative decoding: tokens that are guessed, computed together with the last known one in one step, and
//! kept while they equal what is sampled.
//!
//! Every row of a step with drafts is sampled as it would be alone: with the random numbers of its position,
//! its penalties, its mask. The first row whose sample differs from the draft after it ends the step's tokens,
//! so a text with drafts is the text without them wherever a row's bits do not depend on its batch.
//!
//! Drafts come from the text itself and from finished ones ([`SuffixIndex`], [`FinishedTexts`]), or from a
//! constraint that allows only one continuation. How often they were right is counted ([`Acceptance`]), also
//! of drafts that no step computed, and [`depths`] chooses as many as shorten the text's time.

mod acceptance;
mod depths;
mod finished;
mod row_cost;
mod suffix;

pub(crate) use acceptance::{Acceptance, Source};
pub(crate) use depths::depths;
pub(crate) use finished::FinishedTexts;
pub(crate) use row_cost::RowCost;
use suffix::SuffixIndex;

/// Drafts of a sequence in one step at most, whatever its request asks for.
pub const MOST_DRAFTS: usize = 16;

/// A guessed token, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    pub(crate) token: u32,
    pub(crate) source: Source,
}

/// The drafts of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct Drafter {
    index: SuffixIndex,
    /// What may come after the last known token.
    proposed: Vec<Draft>,
    acceptance: Acceptance,
}

impl Drafter {
    pub(crate) fn new() -> Drafter {
        Drafter { index: SuffixIndex::default(), proposed: vec![], acceptance: Acceptance::default() }
    }

    /// Proposes up to `most` tokens after `tokens`: `forced` ones, or what followed the longest match of the
    /// text's end.
    pub(crate) fn propose(&mut self, tokens: &[u32], forced: &[u32], finished: &FinishedTexts, most: usize) {
        self.index.extend(tokens);
        self.proposed.clear();
        if !forced.is_empty() {
            let forced = forced.iter().map(|&token| Draft { token, source: Source::Forced });
            self.proposed.extend(forced.take(most));
            return;
        }
        let own = self.index.longest(tokens, tokens);
        let own_len = own.as_ref().map_or(0, |found| found.len);
        let found = finished.longest(tokens).filter(|found| found.len > own_len).or(own);
        if let Some(found) = found {
            let lens = found.len..;
            let drafts =
                found.next.iter().zip(lens).map(|(&token, len)| Draft { token, source: Source::Match(len) });
            self.proposed.extend(drafts.take(most));
        }
    }

    /// The probabilities that the first one, the first two, ... of the proposed tokens are right.
    pub(crate) fn survival(&self, all: &Acceptance) -> Vec<f64> {
        let mut survival = 1.0;
        let each = self.proposed.iter().map(|draft| {
            survival *= self.acceptance.of(draft.source, all);
            survival
        });
        each.collect()
    }

    /// The first `count` proposed tokens.
    pub(crate) fn drafts(&self, count: usize) -> impl Iterator<Item = u32> {
        self.proposed.iter().take(count).map(|draft| draft.token)
    }

    /// Counts what was right of the proposal, whether or not a step computed it.
    pub(crate) fn learn(&mut self, sampled: &[u32], all: &mut Acceptance) {
        for (draft, token) in self.proposed.drain(..).zip(sampled) {
            let right = draft.token == *token;
            self.acceptance.count(draft.source, right);
            all.count(draft.source, right);
            if !right {
                break;
            }
        }
    }
}
