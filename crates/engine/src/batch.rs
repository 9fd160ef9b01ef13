//! What one step computes: which tokens of which sequences, on which pages.

use tern_graph::{Output, Sample, Slice, Step};

use crate::RequestId;

/// The work of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// At most one a sequence, in order of arrival.
    pub entries: Vec<Entry>,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// The sequence.
    pub id: RequestId,
    /// Its next tokens.
    pub tokens: Vec<u32>,
    /// Position of the first one.
    pub position: usize,
    /// The sequence's pages: position `p` lives in `pages[p / page_len]`.
    pub pages: Vec<u32>,
    /// Sample a token after the last one.
    pub sample: Option<Sample>,
}

impl Batch {
    /// Tokens in all.
    pub fn tokens(&self) -> usize {
        self.entries.iter().map(|e| e.tokens.len()).sum()
    }

    /// The same work in a backend's words: one slice an entry, one output an entry that samples.
    pub fn to_step(&self) -> Step {
        let mut step = Step::default();
        for e in &self.entries {
            step.tokens.extend(&e.tokens);
            step.slices.push(Slice { len: e.tokens.len(), position: e.position, pages: e.pages.clone() });
            if e.sample.is_some() {
                let row = step.tokens.len() - 1;
                step.outputs.push(Output { row, sample: e.sample.clone(), logits: false });
            }
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_become_slices_and_samples_become_outputs() {
        let sample = Some(Sample::default());
        let batch = Batch {
            entries: vec![
                Entry { id: 1, tokens: vec![7], position: 4, pages: vec![2, 0], sample: sample.clone() },
                Entry { id: 2, tokens: vec![1, 2, 3], position: 0, pages: vec![1], sample: None },
                Entry { id: 3, tokens: vec![5, 6], position: 0, pages: vec![3], sample: sample.clone() },
            ],
        };
        let step = batch.to_step();
        assert_eq!(step.tokens, [7, 1, 2, 3, 5, 6]);
        assert_eq!(step.positions().collect::<Vec<_>>(), [4, 0, 1, 2, 0, 1]);
        assert_eq!(step.slices[0].pages, [2, 0]);
        assert_eq!(step.outputs.iter().map(|o| o.row).collect::<Vec<_>>(), [0, 5]);
        step.check(8, 4, 4).unwrap();
    }
}
