//! What a linear is compiled for in the fused step: everything but its addresses
//! (`kernels/linear/linear_shape.cuh`).

use crate::shared::{
    ADD_TAGGED, ADDED, BIASED, CONVOLVED, GATHERED, HALF_ROUNDS, LinearArgs, MIXED, MOST_PARTS, NORMED,
    OUTPUTS_ONLY, SCALED, WARPS, X_TAGGED,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinearShape {
    /// The columns of one matrix.
    pub(crate) cols: i32,
    /// Bits from `NORMED` on.
    pub(crate) flags: i32,
    pub(crate) gated: i32,
    /// Rounds of records in a slot of the ring, or one half of one (`HALF_ROUNDS`); in a
    /// round every warp has one.
    pub(crate) per_slot: usize,
    /// The experts of a token; 0 if there are none.
    pub(crate) used: i32,
    /// Unused parts have no rows.
    pub(crate) parts: [PartShape; MOST_PARTS],
}

/// A matrix of a linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartShape {
    pub(crate) format: i32,
    pub(crate) rows: i32,
}

impl LinearShape {
    /// One to three parts, without flags.
    pub(crate) fn new(cols: i32, per_slot: usize, parts: &[PartShape]) -> LinearShape {
        let mut all = [PartShape { rows: 0, ..parts[0] }; MOST_PARTS];
        all[..parts.len()].copy_from_slice(parts);
        LinearShape { cols, flags: 0, gated: 0, per_slot, used: 0, parts: all }
    }

    /// The shape of a linear whose records come in slots of `slot` bytes. `more` are flags that
    /// are not in its arguments.
    pub(crate) fn of(l: &LinearArgs, slot: usize, more: i32) -> LinearShape {
        let (parts, record, chunks) = (l.used_parts(), l.record_bytes().max(1), l.step_chunks());
        let rounds = chunks.div_ceil(WARPS);
        let fit = if chunks * record <= slot { rounds } else { (slot / (WARPS * record)).max(1) };
        let flags = [
            (NORMED, l.norm.kind != 0),
            (ADDED, l.add.at != 0),
            (GATHERED, l.gather != 0),
            (OUTPUTS_ONLY, l.outputs_only != 0),
            (X_TAGGED, l.x.mask != 0),
            (ADD_TAGGED, l.add.mask != 0),
            (BIASED, parts.iter().any(|p| p.bias != 0)),
            (SCALED, parts.iter().any(|p| p.scale != 0)),
            (MIXED, l.experts.mixed != 0),
            (CONVOLVED, l.conv.width != 0),
            (HALF_ROUNDS, slot < l.round_bytes()),
        ];
        let shapes: Vec<_> = parts.iter().map(|p| PartShape { format: p.format, rows: p.rows }).collect();
        LinearShape {
            flags: more + flags.iter().filter(|flag| flag.1).map(|flag| flag.0).sum::<i32>(),
            gated: l.gated,
            used: l.experts.used,
            ..LinearShape::new(l.cols, rounds.div_ceil(rounds.div_ceil(fit)), &shapes)
        }
    }

    fn c_text(&self) -> String {
        let parts = self.parts.map(|p| format!("PartShape<{}, {}>", p.format, p.rows)).join(", ");
        let LinearShape { cols, flags, gated, per_slot, used, .. } = self;
        format!("LinearShape<{cols}, {flags}, {gated}, {per_slot}, {used}, {parts}>")
    }
}

/// The definitions of shapes, and of the number of blocks that share them.
pub(crate) fn linear_defines(shapes: &[LinearShape], blocks: usize) -> Vec<(&'static str, String)> {
    let shapes = shapes.iter().enumerate().map(|(i, s)| format!("X({i}, {})", s.c_text()));
    vec![("LINEARS(X)", shapes.collect::<Vec<_>>().join(" ")), ("BLOCKS", blocks.to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{ExpertArgs, Part};

    #[test]
    fn rounds_are_spread_evenly_over_slots() {
        let part = Part { bytes: 288, rows: 100, format: 3, ..Part::default() };
        let linear = |cols: i32| {
            let mut l = LinearArgs { cols, chunks: cols / 128, parts: 1, ..LinearArgs::default() };
            l.part[0] = part;
            l
        };
        let per_slot = |cols, slot| LinearShape::of(&linear(cols), slot, 0).per_slot;
        assert_eq!(per_slot(4096, 9216), 2); // a tile a slot
        assert_eq!(per_slot(12288, 9216), 2); // six rounds, of which two fit
        // five would fit, but then the second slot is nearly empty
        assert_eq!(per_slot(12288, 5 * 16 * 288), 3);
        assert_eq!(per_slot(4096, 100), 1);
        assert_eq!(per_slot(5120, 40 * 288), 3); // a tile has 40 chunks, two rounds and a half
        let halves = LinearShape::of(&linear(4096), 8 * 288, 0);
        assert_eq!((halves.per_slot, halves.flags), (1, HALF_ROUNDS));
        assert_eq!(
            LinearShape::of(&linear(4096), 9216, 0).c_text(),
            "LinearShape<4096, 0, 0, 2, 0, PartShape<3, 100>, PartShape<3, 0>, PartShape<3, 0>>"
        );
    }

    #[test]
    fn the_chunks_of_added_experts_follow_each_other() {
        let experts = ExpertArgs { experts: 32, used: 4, x_parts: 4, mixed: 1, ..ExpertArgs::default() };
        let mut l = LinearArgs { cols: 2880, chunks: 23, parts: 1, experts, ..LinearArgs::default() };
        l.part[0] = Part { bytes: 288, rows: 2880, ..Part::default() };
        let shape = LinearShape::of(&l, 2 * 16 * 288, 0);
        assert_eq!((l.step_chunks(), shape.cols, shape.used, shape.flags), (92, 2880, 4, MIXED));
        assert_eq!(shape.per_slot, 2); // six rounds of the chunks of all experts
        l.experts.mixed = 0;
        assert_eq!((l.step_chunks(), LinearShape::of(&l, 9216, 0).flags), (23, 0));
    }
}
