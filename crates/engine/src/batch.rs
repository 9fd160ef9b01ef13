//! What one step computes: which tokens of which sequences, on which pages.

use tern_graph::{Carried, Output, PageTable, Sample, Sampled, Slice, Step};

use crate::{Guide, Pooling, RequestId};

/// The work of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// At most one a sequence, the first in line first.
    pub entries: Vec<Entry>,
    /// Sequences that are in a step for the first time, and how many of their tokens need not be computed.
    pub started: Vec<(RequestId, usize)>,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// The sequence.
    pub id: RequestId,
    /// Its next tokens.
    pub tokens: Vec<u32>,
    /// Its only token is not known yet: the batch before samples it, as this one of its samples. `tokens` then holds
    /// a stand-in, which counts only if no token could be chosen.
    pub carried: Option<usize>,
    /// Position of the first one.
    pub position: usize,
    /// The sequence's KV pages.
    pub pages: PageTable,
    /// What is to come of it.
    pub want: Want,
}

/// What a runner gives back for an entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Want {
    /// Nothing: more of the prompt follows.
    #[default]
    Nothing,
    /// A token after the last one. Its mask, if there is one, is promised and made by the guide.
    Token(Sample, Option<Guide>),
    /// The sum of the hidden states of all tokens.
    Sum,
    /// The hidden state of the last token.
    Last,
}

/// What a runner gave for an entry; `Nothing` also where something was not finite.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Answer {
    /// Nothing.
    #[default]
    Nothing,
    /// For [`Want::Token`].
    Token(Sampled),
    /// For [`Want::Sum`] and [`Want::Last`].
    Hidden(Vec<f32>),
}

impl Entry {
    /// Of the hidden states and not of the vocabulary.
    pub fn wants_hidden(&self) -> bool {
        matches!(self.want, Want::Sum | Want::Last)
    }

    /// How a token is to be sampled, where one is.
    pub fn sample(&self) -> Option<&Sample> {
        match &self.want {
            Want::Token(sample, _) => Some(sample),
            _ => None,
        }
    }

    /// Makes the mask that the sample was promised, where it was.
    pub fn make_mask(&self) {
        if let Want::Token(Sample { mask: Some(mask), .. }, Some(guide)) = &self.want {
            guide.make(mask);
        }
    }

    /// What is wanted when the last of these tokens is the last known one.
    pub(crate) fn pooled(pooling: Pooling, last: bool) -> Want {
        match pooling {
            Pooling::Mean => Want::Sum,
            Pooling::Last if last => Want::Last,
            Pooling::Last => Want::Nothing,
        }
    }
}

impl Batch {
    /// Tokens in all.
    pub fn tokens(&self) -> usize {
        self.entries.iter().map(|e| e.tokens.len()).sum()
    }

    /// The work of some entries in a backend's words: one slice an entry, one output a wanted row.
    ///
    /// Of the entries that do not want hidden states, samples are the only outputs: a carried token counts them.
    pub fn to_step(&self, which: impl Fn(&Entry) -> bool) -> Step {
        let mut step = Step::default();
        for e in self.entries.iter().filter(|e| which(e)) {
            let first = step.tokens.len();
            step.tokens.extend(&e.tokens);
            step.carried.extend(e.carried.map(|output| Carried { token: first, output }));
            let last = step.tokens.len() - 1;
            step.slices.push(Slice { len: e.tokens.len(), position: e.position, pages: e.pages.clone() });
            let hidden = |row| Output { row, sample: None, logits: true };
            match &e.want {
                Want::Nothing => {}
                Want::Token(sample, _) => {
                    step.outputs.push(Output { row: last, sample: Some(sample.clone()), logits: false });
                }
                Want::Sum => step.outputs.extend((first..=last).map(hidden)),
                Want::Last => step.outputs.push(hidden(last)),
            }
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_become_slices_and_wanted_rows_become_outputs() {
        let entry = |id, tokens: &[u32], position, pages: &[u32], want| Entry {
            id,
            tokens: tokens.to_vec(),
            position,
            pages: pages.to_vec().into(),
            want,
            carried: None,
        };
        let sample = || Want::Token(Sample::default(), None);
        let batch = Batch {
            entries: vec![
                entry(1, &[7], 4, &[2, 0], sample()),
                entry(2, &[1, 2, 3], 0, &[1], Want::Nothing),
                entry(3, &[5, 6], 0, &[3], sample()),
                entry(4, &[4, 4], 0, &[4], Want::Sum),
                entry(5, &[3, 3], 0, &[5], Want::Last),
            ],
            started: vec![],
        };
        let rows = |step: &Step| step.outputs.iter().map(|o| o.row).collect::<Vec<_>>();
        let step = batch.to_step(|e| !e.wants_hidden());
        assert_eq!(step.tokens, [7, 1, 2, 3, 5, 6]);
        assert_eq!(step.positions().collect::<Vec<_>>(), [4, 0, 1, 2, 0, 1]);
        assert_eq!(*step.slices[0].pages, [2, 0]);
        assert_eq!(rows(&step), [0, 5]);
        step.check(8, 4, 4).unwrap();
        let step = batch.to_step(Entry::wants_hidden);
        assert_eq!((rows(&step), step.tokens.len()), (vec![0, 1, 3], 4));
        // the third entry's token was the second sample
        let next = Entry { carried: Some(1), ..entry(3, &[0], 2, &[3], sample()) };
        let batch = Batch { entries: vec![batch.entries[1].clone(), next], started: vec![] };
        assert_eq!(batch.to_step(|_| true).carried, [Carried { token: 3, output: 1 }]);
    }
}
