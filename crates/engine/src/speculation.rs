//! Speculative decoding: tokens that are guessed, computed together with the last known one in one step, and
//! kept while they equal what is sampled.
//!
//! Every row of a step with drafts is sampled as it would be alone: with the random numbers of its
//! position, its penalties, its mask. The first row whose sample differs from the draft after it ends the
//! step's tokens, so a text with drafts is the text without them wherever a row's bits do not depend on its
//! batch.
//!
//! Drafts come from the text itself and from finished ones ([`SuffixIndex`], [`FinishedTexts`]), or from a
//! constraint that allows only one continuation. How often they were right is counted ([`Acceptance`]), also
//! of drafts that no step computed, and [`depths`] chooses as many as shorten the text's time.

mod acceptance;
mod depths;
mod finished;
mod row_cost;
mod suffix;

use std::sync::Arc;

pub(crate) use acceptance::{Acceptance, Source};
pub(crate) use depths::depths;
pub(crate) use finished::FinishedTexts;
pub(crate) use row_cost::RowCost;
use suffix::{Match, SuffixIndex};

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
    /// A text that the request expects the answer to repeat, and its index.
    predicted: Arc<[u32]>,
    predicted_index: SuffixIndex,
    /// What may come after the last known token.
    proposed: Vec<Draft>,
    acceptance: Acceptance,
}

impl Drafter {
    pub(crate) fn new(predicted: Arc<[u32]>) -> Drafter {
        let mut predicted_index = SuffixIndex::default();
        predicted_index.extend(&predicted);
        let (index, acceptance) = (SuffixIndex::default(), Acceptance::default());
        Drafter { index, predicted, predicted_index, proposed: vec![], acceptance }
    }

    /// Proposes up to `most` tokens after `tokens`, of which those from `prompt` on were generated: `forced`
    /// ones, or what followed the longest match of the text's end.
    pub(crate) fn propose(
        &mut self,
        (tokens, prompt): (&[u32], usize),
        forced: &[u32],
        finished: &FinishedTexts,
        most: usize,
    ) {
        self.index.extend(tokens);
        self.proposed.clear();
        if !forced.is_empty() {
            let forced = forced.iter().map(|&token| Draft { token, source: Source::Forced });
            self.proposed.extend(forced.take(most));
            return;
        }
        let generated = &tokens[prompt..];
        let start = self.predicted.strip_prefix(generated).filter(|next| !next.is_empty());
        let found = [
            finished.longest(tokens),
            self.index.longest(tokens, tokens),
            self.predicted_index.longest(&self.predicted, tokens),
            start.map(|next| Match { len: generated.len(), next }),
        ];
        // the last of equally long ones
        if let Some(found) = found.into_iter().flatten().max_by_key(|found| found.len) {
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
