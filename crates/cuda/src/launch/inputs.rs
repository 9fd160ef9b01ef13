//! The inputs of a step as the kernels read them: a header, then arrays.

use tern_graph::Step;

use super::strategy::StepSize;
use crate::shared::{
    CARRIED_BIT, IDS_AT, INPUTS_HEADER, OUTPUT_ROWS_AT, OUTPUTS, PAGES_AT, POSITIONS_AT, SLICES_AT,
    TABLE_STRIDE, TOKENS,
};

/// Words that the inputs of a step of this size need at most, with page tables of up to `pages`.
pub(super) fn most_words(size: StepSize, pages: usize) -> usize {
    INPUTS_HEADER + 3 * size.tokens + size.outputs + size.tokens * pages
}

/// The words of a step's inputs.
pub(super) fn pack(step: &Step) -> Vec<u32> {
    let (tokens, outputs) = (step.tokens.len(), step.outputs.len());
    let stride = step.slices.iter().map(|s| s.pages.len()).max().unwrap_or(0);
    let ids = INPUTS_HEADER;
    let mut words = vec![0; INPUTS_HEADER];
    words[IDS_AT] = ids as u32;
    words[POSITIONS_AT] = (ids + tokens) as u32;
    words[SLICES_AT] = (ids + 2 * tokens) as u32;
    words[OUTPUT_ROWS_AT] = (ids + 3 * tokens) as u32;
    words[PAGES_AT] = (ids + 3 * tokens + outputs) as u32;
    (words[TABLE_STRIDE], words[TOKENS], words[OUTPUTS]) = (stride as u32, tokens as u32, outputs as u32);
    words.extend(&step.tokens);
    for carried in &step.carried {
        words[ids + carried.token] = 1 << CARRIED_BIT | carried.output as u32;
    }
    words.extend(step.positions().map(|p| p as u32));
    words.extend((0..).zip(&step.slices).flat_map(|(i, s)| std::iter::repeat_n(i, s.len)));
    words.extend(step.outputs.iter().map(|o| o.row as u32));
    for slice in &step.slices {
        words.extend(&*slice.pages);
        words.extend(std::iter::repeat_n(0, stride - slice.pages.len()));
    }
    words
}
