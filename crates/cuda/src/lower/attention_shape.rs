//! What attention is compiled for, and the memory that follows from it.

use tern_graph::Attention;

use crate::shared::{HEAD_CELLS, KEYS, MOST_NEW, MOST_QUERIES, MOST_VALUE_COLS, ROWS_PADDING, WARPS};

/// Bytes of the sums of all warps that share keys, unless fewer than half of the warps had them.
const SUMS: usize = 24 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionShape {
    /// Columns of a key head.
    pub(crate) head_dim: usize,
    /// Columns of a value head.
    pub(crate) v_dim: usize,
    /// Query heads of a unit, which share a key head.
    pub(crate) queries: usize,
    /// Scores have a soft cap.
    pub(crate) capped: bool,
}

impl AttentionShape {
    pub(crate) fn of(args: &Attention) -> AttentionShape {
        let per_kv_head = args.heads / args.kv_heads;
        let queries = (1..=MOST_QUERIES).rev().find(|n| per_kv_head.is_multiple_of(*n)).unwrap_or(1);
        let capped = args.softcap.is_some_and(|cap| cap > 0.0);
        AttentionShape { head_dim: args.head_dim, v_dim: args.v_dim, queries, capped }
    }

    /// The fused step has whole heads in registers, and reads those in pages as if nothing followed them.
    pub(crate) fn fits_fused_step(&self) -> bool {
        [self.head_dim, self.v_dim].iter().all(|n| n.is_multiple_of(HEAD_CELLS) && *n <= MOST_VALUE_COLS)
    }

    /// Warps that share older keys at most, or pairs of them if values are wide.
    pub(crate) fn takers(&self) -> usize {
        let sharers = if self.v_dim > 128 { 2 } else { 1 };
        let fit = (SUMS / (self.queries * self.v_dim * 4)).max(WARPS / 2 / sharers);
        fit.min((WARPS - MOST_NEW) / sharers)
    }

    /// Bytes of shared memory that a block needs at most; `kernels/attention/attend.cuh`
    /// asserts that they suffice.
    pub(crate) fn workspace(&self) -> usize {
        let (d, v, g) = (self.head_dim, self.v_dim, self.queries);
        let takers = self.takers();
        let floats = (MOST_QUERIES + MOST_NEW) * d + (takers + MOST_NEW) * g * 2 + takers * (g * v + 8) + g;
        floats * 4 + (g * (d + 8) + MOST_NEW * (d + v)) * 2 + 80
    }

    /// Floats of one split of a unit: sums, largest scores and weights, written four at a time.
    pub(crate) fn partial(&self) -> usize {
        (self.queries * (self.v_dim + 2)).next_multiple_of(4)
    }

    /// Bytes of the keys and values that come through the ring together.
    pub(crate) fn slot(&self) -> usize {
        KEYS * (self.head_dim + self.v_dim) * 2 + 2 * (KEYS / 4) * ROWS_PADDING
    }

    /// Its entry of ATTENTIONS; `takers` warps share older keys.
    pub(crate) fn c_text(&self, index: usize, takers: usize) -> String {
        let AttentionShape { head_dim, v_dim, queries, capped } = self;
        let (partial, workspace) = (self.partial(), self.workspace());
        format!("X({index}, {head_dim}, {v_dim}, {queries}, {capped}, {partial}, {takers}, {workspace})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(head_dim: usize, queries: usize) -> AttentionShape {
        AttentionShape { head_dim, v_dim: head_dim, queries, capped: false }
    }

    #[test]
    fn warps_share_keys_as_far_as_their_sums_fit() {
        assert_eq!(shape(128, 4).takers(), 12); // the other warps have the keys of the step
        assert_eq!(shape(128, 8).takers(), 8); // half of the warps, whatever their sums take
        assert_eq!(shape(256, 1).takers(), 6); // pairs of warps
        assert_eq!(shape(256, 6).takers(), 4);
    }

    /// Launches write zeros after them, which the fused step would take for the next key.
    #[test]
    fn heads_that_are_followed_by_zeros_have_no_fused_step() {
        assert_eq!(
            [16, 24, 64, 72, 256].map(|dim| shape(dim, 1).fits_fused_step()),
            [true, false, true, false, true]
        );
    }

    #[test]
    fn a_slot_has_space_for_padding() {
        assert_eq!(shape(128, 4).slot(), 16 * 128 * 2 * 2 + 8 * 32);
    }
}
