//! What one step computes: which tokens of which sequences, on which KV pages.

use tern_graph::{Carried, Mask, Output, Sample, Sampled, Slice, Step};

use crate::{Pooling, RequestId, SharedConstraint};

/// The work of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// At most one per sequence, in scheduling order.
    pub entries: Vec<Entry>,
    /// Sequences that are in a step for the first time, and how many of their tokens
    /// were in the prefix cache.
    pub started: Vec<(RequestId, usize)>,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// The sequence.
    pub id: RequestId,
    /// Its next tokens.
    pub tokens: Vec<u32>,
    /// The only token is not known yet: it is this sample of the batch before. `tokens` then holds a
    /// placeholder, which is used only if no token could be sampled.
    pub carried: Option<usize>,
    /// Where they are in the sequence and in memory, as the backend gets it; its length is that of `tokens`.
    pub slice: Slice,
    /// What the runner returns for it.
    pub want: Want,
}

/// What is requested for an entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Want {
    /// Nothing: more of the prompt follows.
    #[default]
    Nothing,
    /// A token after each of the last ones, one per sample: after the last known token and after every draft.
    /// If the request has a constraint, it computes the samples' masks.
    Tokens(Vec<Sample>, Option<SharedConstraint>),
    /// The hidden states of the entry's tokens that this pooling reads, one after the other;
    /// for a mean their sum.
    Pooled(Pooling),
}

/// What a runner returned for an entry; `Nothing` also if a value was not finite or no token was allowed.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Answer {
    /// Nothing.
    #[default]
    Nothing,
    /// For [`Want::Tokens`]: one per sample, up to the first for which none could be sampled.
    Tokens(Vec<Sampled>),
    /// For [`Want::Pooled`].
    Hidden(Vec<f32>),
}

impl Entry {
    /// Whether hidden states are requested instead of a token.
    pub fn needs_hidden(&self) -> bool {
        matches!(self.want, Want::Pooled(_))
    }

    /// How the requested tokens are sampled: after the last known token and after every draft.
    pub fn samples(&self) -> &[Sample] {
        match &self.want {
            Want::Tokens(samples, _) => samples,
            _ => &[],
        }
    }

    /// The last tokens, which are drafts.
    pub fn drafts(&self) -> &[u32] {
        let drafts = self.samples().len().saturating_sub(1);
        &self.tokens[self.tokens.len().saturating_sub(drafts)..]
    }

    /// The masks of its samples and the constraint that computes them, if there is one.
    pub(crate) fn masks(&self) -> Option<(Vec<Mask>, &SharedConstraint)> {
        let Want::Tokens(samples, Some(constraint)) = &self.want else { return None };
        Some((samples.iter().filter_map(|sample| sample.mask.clone()).collect(), constraint))
    }

    /// Computes the masks of its samples, if it has a constraint.
    pub fn make_masks(&self) {
        if let Some((masks, constraint)) = self.masks() {
            constraint.make(&masks, self.drafts());
        }
    }
}

impl Batch {
    /// Whether a token is sampled after each of its tokens.
    pub(crate) fn only_decodes(&self) -> bool {
        self.entries.iter().all(|e| e.samples().len() == e.tokens.len())
    }

    /// Tokens in total.
    pub fn tokens(&self) -> usize {
        self.entries.iter().map(|e| e.tokens.len()).sum()
    }

    /// Some entries as a backend's step: one slice per entry, one output per requested row.
    ///
    /// For entries without hidden states the samples are the only outputs: a carried
    /// token is an index into them.
    pub fn to_step(&self, which: impl Fn(&Entry) -> bool) -> Step {
        let mut step = Step::default();
        for e in self.entries.iter().filter(|e| which(e)) {
            let first = step.tokens.len();
            step.tokens.extend(&e.tokens);
            step.carried.extend(e.carried.map(|output| Carried { token: first, output }));
            let last = step.tokens.len() - 1;
            step.slices.push(e.slice.clone());
            let hidden = |row| Output { row, sample: None, logits: true };
            match &e.want {
                Want::Nothing => {}
                Want::Tokens(samples, _) => {
                    let rows = last + 1 - samples.len()..;
                    let output = |(row, sample): (usize, &Sample)| Output {
                        row,
                        sample: Some(sample.clone()),
                        logits: false,
                    };
                    step.outputs.extend(rows.zip(samples).map(output));
                }
                Want::Pooled(pooling) => step.outputs.extend(pooling.rows(first..last + 1).map(hidden)),
            }
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use tern_graph::KvSize;

    use super::*;

    #[test]
    fn entries_become_slices_and_wanted_rows_become_outputs() {
        let entry = |id, tokens: &[u32], position, pages: &[u32], want| Entry {
            id,
            tokens: tokens.to_vec(),
            slice: Slice::new(tokens.len(), position, pages.to_vec()),
            want,
            ..Entry::default()
        };
        let sample = || Want::Tokens(vec![Sample::default()], None);
        let batch = Batch {
            entries: vec![
                entry(1, &[7], 4, &[2, 0], sample()),
                entry(2, &[1, 2, 3], 0, &[1], Want::Nothing),
                entry(3, &[5, 6], 0, &[3], sample()),
                entry(4, &[4, 4], 0, &[4], Want::Pooled(Pooling::Mean)),
                entry(5, &[3, 3], 0, &[5], Want::Pooled(Pooling::Last)),
            ],
            started: vec![],
        };
        let rows = |step: &Step| step.outputs.iter().map(|o| o.row).collect::<Vec<_>>();
        let step = batch.to_step(|e| !e.needs_hidden());
        assert_eq!(step.tokens, [7, 1, 2, 3, 5, 6]);
        assert_eq!(step.positions().collect::<Vec<_>>(), [4, 0, 1, 2, 0, 1]);
        assert_eq!(*step.slices[0].pages, [2, 0]);
        assert_eq!(rows(&step), [0, 5]);
        step.check(8, KvSize { page_len: 4, pages: 4, window_pages: None }, None).unwrap();
        let step = batch.to_step(Entry::needs_hidden);
        assert_eq!((rows(&step), step.tokens.len()), (vec![0, 1, 3], 4));
        // the third entry's token was the second sample
        let next = Entry { carried: Some(1), ..entry(3, &[0], 2, &[3], sample()) };
        let batch = Batch { entries: vec![batch.entries[1].clone(), next], started: vec![] };
        assert_eq!(batch.to_step(|_| true).carried, [Carried { token: 3, output: 1 }]);
    }
}
