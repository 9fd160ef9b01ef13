//! The arguments of launches: of the fused step, of the kernels for one phase, and of the bandwidth measurement.

use super::c_text::shared_structs;
use super::constants::MOST_TABLES;
use super::phases::{LinearArgs, RawPhase};

/// The structs in C.
pub(super) fn c_text() -> String {
    structs()
}

shared_structs! {
    /// A fused step.
    StepArgs {
        phases: *const RawPhase,
        inputs: *mut u32,
        /// Rotary tables, and the pairs of each.
        freqs: [*const f32; MOST_TABLES],
        pairs: [i32; MOST_TABLES],
        tables: i32,
        /// How many phases there are.
        count: i32,
        /// The tag of this step's values.
        epoch: u32,
        pad: u32,
    }

    /// x of a linear phase as integers: bytes `[chunk][token / 4][1024]`, scales `[chunk][token]`, sums
    /// `[chunk][token][8]`.
    IntegerX {
        bytes: *mut u8,
        scales: *mut f32,
        sums: *mut f32,
        /// Rows, in whole blocks of `BLOCK_TOKENS`.
        tokens: i64,
    }

    /// Makes x of a linear phase.
    PrepareArgs {
        linear: LinearArgs,
        x: IntegerX,
        inputs: *const u32,
    }

    /// Computes a part of a linear phase.
    GemmArgs {
        linear: LinearArgs,
        x: IntegerX,
        part: i32,
        rows: i32,
    }

    /// Runs a phase of another kind.
    PhaseArgs {
        phase: RawPhase,
        inputs: *const u32,
        /// Blocks that have looked for a row's best token.
        blocks: i32,
        pad: i32,
    }

    /// Reads memory.
    BandwidthArgs {
        from: *const (),
        /// Pieces of 16 bytes.
        count: u64,
        to: *mut u32,
    }
}
