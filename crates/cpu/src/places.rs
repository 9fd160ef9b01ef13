//! Where the tokens of a step stand: in which slice, at which position, and beside whom they attend.

use std::ops::Range;

use tern_graph::Step;

/// Tokens of a slice that share what they read of its keys and values.
const ATTEND_TOKENS: usize = 16;
/// Scores of one head that these tokens may have together.
const ATTEND_SCORES: usize = 64 * 1024;

/// The places of one step after the other, in memory that stays.
#[derive(Default)]
pub(crate) struct Places {
    /// Slice and position of every token.
    pub(crate) tokens: Vec<(usize, usize)>,
    /// Slice and rows that attend together.
    pub(crate) blocks: Vec<(usize, Range<usize>)>,
}

impl Places {
    /// Room for steps of so many tokens.
    pub(crate) fn reserve(&mut self, tokens: usize) {
        self.tokens.reserve(tokens.saturating_sub(self.tokens.len()));
        self.blocks.reserve(tokens.saturating_sub(self.blocks.len()));
    }

    /// Those of this step.
    pub(crate) fn set(&mut self, step: &Step) {
        self.tokens.clear();
        self.blocks.clear();
        for (i, slice) in step.slices.iter().enumerate() {
            let (row, end) = (self.tokens.len(), self.tokens.len() + slice.len);
            self.tokens.extend((slice.position..slice.position + slice.len).map(|p| (i, p)));
            // fewer where their scores would not stay in a cache
            let tokens = (ATTEND_SCORES / (slice.position + slice.len).max(1)).clamp(1, ATTEND_TOKENS);
            self.blocks.extend((row..end).step_by(tokens).map(|first| (i, first..end.min(first + tokens))));
        }
    }
}
