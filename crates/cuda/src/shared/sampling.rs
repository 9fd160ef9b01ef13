//! The arguments of sampling, and one row's parameters.

use super::c_text::{shared_constants, shared_structs};

/// Constants and structs in C.
pub(super) fn c_text() -> String {
    [constants(), structs()].concat()
}

shared_constants! {
    /// Threads of a block of both kernels.
    SAMPLE_THREADS: usize = 1024;
    /// Token ids that share a peak and a sum.
    RUN: usize = 128;
    /// Runs of a block: one per warp.
    BLOCK_RUNS: usize = SAMPLE_THREADS / 32;
    /// Token ids of a block.
    BLOCK_IDS: usize = BLOCK_RUNS * RUN;

    /// Bits of a row: a token is sampled, ...
    CHOOSE: u32 = 1;
    /// ... the best one, ...
    GREEDY: u32 = 2;
    /// ... among those of a mask, ...
    MASKED: u32 = 4;
    /// ... after biases or penalties.
    ADJUSTED: u32 = 8;
}

shared_structs! {
    /// One row's parameters. `seen`, `bias` and `mask` are indices into the words after the rows. Pairs are
    /// sorted by id; those of one id keep their order.
    SampleRow {
        what: u32,
        top_k: u32,
        floor: u32,
        temperature: f32,
        top_p: f32,
        draw: f32,
        repetition: f32,
        frequency: f32,
        presence: f32,
        /// (id, times generated) pairs
        seen: u32,
        seen_count: u32,
        /// (id, float) pairs
        bias: u32,
        bias_count: u32,
        mask: u32,
        mask_words: u32,
        pad: u32,
    }

    /// The arguments of `sample_best` and `sample_draw`. From `arrivals` to `weights` it is scratch for the
    /// rows of one launch; a run is `RUN` ids.
    SampleArgs {
        /// Row r of the step at r * stride.
        logits: *const f32,
        /// `SampleRow` for each row of the step, then what they point at.
        words: *const u32,
        /// One per row of the step, -1 for none.
        chosen: *mut i32,
        /// `[rows]`, 0 between launches
        arrivals: *mut u32,
        /// `[rows][blocks]` of `sample_best`; in each row's first element what `sample_draw` starts from
        best: *mut u64,
        /// `[rows][runs]` weight of what is kept
        sums: *mut u64,
        /// `[rows][runs]` the highest weight
        peaks: *mut u32,
        /// `[rows][runs]` how many weigh exactly as the cut
        ties: *mut u32,
        /// `[rows][blocks * BLOCK_IDS]`; before `sample_draw` the logits of rows that were changed
        weights: *mut u32,
        stride: i64,
        width: i32,
        first: i32,
    }
}
