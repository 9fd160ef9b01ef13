//! The arguments of launches: of the fused step, of the kernels for one phase, and of
//! the bandwidth measurement.

use super::c_text::shared_structs;
use super::constants::MOST_TABLES;
use super::phase_args::{AttendArgs, FloatLinearArgs, LinearArgs, RouteArgs, TransformArgs};
use super::phases::RawPhase;

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
        /// Whether each pair of a table turns by a part of the position, as in `RopeArgs`.
        parted: [i32; MOST_TABLES],
        tables: i32,
        /// How many phases there are.
        count: i32,
        /// The tag of this step's values.
        epoch: u32,
        pad: u32,
    }

    /// x of a linear phase as halves (`kernels/x/half_x.cuh`).
    HalfX {
        at: *mut u16,
        /// Rows of a tile: as many as the largest step has tokens, in whole tiles.
        tokens: i64,
        /// `BYTES_ORDER` or `BITS_ORDER`.
        order: i32,
        pad: i32,
    }

    /// x of a linear phase as bytes (`kernels/x/byte_x.cuh`).
    ByteX {
        at: *mut u8,
        /// `[group][tokens]`: the scale of the group before, divided by the group's scale.
        ratios: *mut f32,
        /// `[tokens]`: the scale of the last group.
        scales: *mut f32,
        /// Rows of a tile.
        tokens: i64,
        /// Columns of a group.
        group: i32,
        /// `BYTES_ORDER` or `BITS_ORDER`.
        order: i32,
    }

    /// Norms of values that are passed before their squares are added: the factor of the last norm is on
    /// them, and the linear phase after them applies the ratio of the factors to its sums.
    PassedNorms {
        /// Sums of squares of x: `[128 columns][NORMS_TOKENS]`, or nothing if x is normalised.
        x_squares: *const f32,
        /// `[token]`: the factors on x.
        x_factors: *const f32,
        /// `[token]`: the factors of the phase's norm, for the next value.
        factors: *mut f32,
        /// `[token]`: the factors on the sums of x that a launch has made before its norm, or nothing.
        x_ratios: *const f32,
        /// Sums of squares of the value, or nothing if it is not passed so.
        y_squares: *mut f32,
        /// `[token]`: the factors on it.
        y_factors: *const f32,
        /// The weights of the next norm.
        y_weight: *const f32,
    }

    /// Makes x of a linear phase.
    PrepareArgs {
        linear: LinearArgs,
        x: HalfX,
        inputs: *const u32,
        /// `[token]`: gets the factors of the norm, or nothing.
        norm_factors: *mut f32,
        /// `[token]`: the factors of the last norm, if they are to be on x instead of those of this norm, ...
        last_factors: *const f32,
        /// and then gets the factors on the sums of the linear.
        ratios: *mut f32,
        /// With experts: the sorted row of each pair of a token and an expert
        /// (`kernels/launches/experts.cu`).
        rows: *const i32,
        /// On the values.
        factor: f32,
        pad: i32,
    }

    /// Makes x of a linear phase as bytes.
    PrepareBytesArgs {
        linear: LinearArgs,
        /// The values as halves in `PLAIN_ORDER`, or nothing: then they are floats.
        passed: HalfX,
        x: ByteX,
        inputs: *const u32,
    }

    /// Sorts the pairs of tokens and experts by expert (`kernels/launches/experts.cu`).
    SortArgs {
        route: *const f32,
        inputs: *const u32,
        /// How many tiles there are, and from word 4 on the tiles.
        tiles: *mut i32,
        /// The pair of each sorted row.
        pairs: *mut i32,
        /// The sorted row of each pair.
        rows: *mut i32,
        experts: i32,
        used: i32,
        /// Rows of a tile.
        tile: i32,
        pad: i32,
    }

    /// Computes the logits of experts; the last block also chooses and sorts if it has a counter.
    RouterArgs {
        route: RouteArgs,
        sort: SortArgs,
        /// Zero between launches, or nothing.
        arrivals: *mut u32,
        /// Experts and tokens of a block.
        experts: i32,
        tokens: i32,
    }

    /// Sorted rows of one expert.
    ExpertTile {
        expert: i32,
        first: i32,
        end: i32,
        pad: i32,
    }

    /// Computes parts of a linear phase that have one format.
    TiledArgs {
        linear: LinearArgs,
        x: HalfX,
        /// The value as x of the next linear phase, or nothing.
        y_half: HalfX,
        norms: PassedNorms,
        inputs: *const u32,
        /// With experts: their tiles, and the pair of each sorted row.
        tiles: *const i32,
        pairs: *const i32,
        /// The value of 1 in x.
        x_factor: f32,
        /// On the value that is passed.
        y_factor: f32,
        first_part: i32,
        end_part: i32,
        /// Blocks of a cluster, which share the columns.
        splits: i32,
        /// Stages of the ring.
        stages: i32,
    }

    /// Computes a linear phase of a large step with x as bytes.
    ByteLinearArgs {
        tiled: TiledArgs,
        x: ByteX,
    }

    /// What a block of attention takes: tokens of one slice, and keys.
    AttendWork {
        first_token: u32,
        tokens: u32,
        /// The keys of the split, before window and causality.
        key_begin: u32,
        key_end: u32,
        split: u32,
        splits: u32,
        /// Results that the last block combines: one per split, or per segment of the tile if
        /// they are reproducible, ...
        results: u32,
        /// ... of which this is the first.
        first_segment: u32,
        /// The index of the first result, for the first key head.
        partial: u32,
        /// The index of the counter of splits that are done, for the first key head.
        arrival: u32,
        /// With images: the first key that the tokens see, and how many after themselves, up to the last key.
        first_key: u32,
        after: u32,
    }

    /// Heads and attention of many tokens.
    PagedAttendArgs {
        attend: AttendArgs,
        /// Queries: `[token][heads * in_cells(head_dim)]` halves
        q: *mut u16,
        /// The result as x of the next linear phase, or nothing.
        y_half: HalfX,
        /// The scales, if keys and values are bytes: `[page][kv_head][PAGE_LEN]`
        key_scales: *mut f32,
        value_scales: *mut f32,
        inputs: *const u32,
        /// The results of splits: `[split][rows * (in_cells(v_dim) + 2)]`
        partial: *mut f32,
        /// Zero between launches.
        arrivals: *mut u32,
        /// The index of the work list.
        list: i32,
        pad: i32,
    }

    /// Transforms rows.
    TransformLaunch {
        transform: TransformArgs,
        /// The value as x of the next linear phase, or nothing.
        y_half: HalfX,
        inputs: *const u32,
        /// On the value that is passed.
        y_factor: f32,
        /// Whether the launch before it is independent, and had waited for all others when it began this one
        /// (`FloatLinearsArgs::shares_x`).
        beside: i32,
    }

    /// Runs a phase of another kind.
    PhaseArgs {
        phase: RawPhase,
        inputs: *const u32,
        /// Blocks that have looked for a row's best token.
        blocks: i32,
        pad: i32,
    }

    /// Multiplies with a matrix of floats, or with two of the same size that have the same x.
    FloatLinearsArgs {
        linear: [FloatLinearArgs; 2],
        inputs: *const u32,
        /// Whether the next launch reads the same x, and nothing of this one: it runs beside it.
        shares_x: i32,
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
