//! The arguments of phases: what one fused op works on.

use super::c_text::shared_structs;
use super::constants::{CHUNK, MOST_PARTS, STEP_STATE_COLUMNS, WARPS};

/// Structs in C.
pub(super) fn c_text() -> String {
    structs()
}

shared_structs! {
    /// The rows of a value: row `r` begins at `at + r * stride`.
    View {
        at: *mut f32,
        stride: i64,
        /// 1 if floats carry tags.
        mask: u32,
        pad: u32,
    }

    /// A norm of whole rows: by itself, or root mean square and without a bias before a linear.
    NormArgs {
        weight: *const f32,
        bias: *const f32,
        eps: f32,
        /// A `NormKind`.
        kind: i32,
    }

    /// A matrix of a linear, or rows of one that begin at a whole tile.
    Part {
        /// `[tile][chunk]` records
        records: *const u8,
        bias: *const f32,
        scale: *const f32,
        y: *mut f32,
        y_stride: i32,
        rows: i32,
        tiles: i32,
        format: i32,
        /// Bytes of a record.
        bytes: i32,
        /// On all scales and offsets.
        factor: f32,
        y_mask: u32,
        /// Tiles from one expert to the next: those of all rows of the matrix.
        expert_tiles: i32,
    }

    /// What a linear gets and passes as halves in a fused step of several tokens
    /// (`kernels/x/x_fragments.cuh`).
    PassedArgs {
        x: *const u16,
        /// Its value as x of the next linear, or nothing.
        y: *mut u16,
        /// The weights of the next linear's norm.
        y_weight: *const f32,
        /// Sums of squares of x before its norm: `[16 columns][token]`.
        squares: *const f32,
        /// The same of its value.
        y_squares: *mut f32,
        /// The value of 1 in x.
        x_factor: f32,
        /// On the value that is passed.
        y_factor: f32,
    }

    /// Makes x of a linear as halves.
    FragmentArgs {
        x: View,
        norm: NormArgs,
        to: *mut u16,
        squares: *mut f32,
        /// On the values.
        factor: f32,
        cols: i32,
        chunks: i32,
        /// `BYTES_ORDER` or `BITS_ORDER`.
        order: i32,
        outputs_only: i32,
        pad: i32,
    }

    /// The experts of a linear, or none.
    ExpertArgs {
        /// `[token][2 * used]`: ids, then weights
        route: *const f32,
        experts: i32,
        /// Per token; 0 if there are no experts.
        used: i32,
        /// Parts of a row of x: one per expert of the token, or one for all.
        x_parts: i32,
        /// Whether the results of a token's experts are added with their weights: only in a fused step.
        mixed: i32,
    }

    /// A convolution over the rows of each slice, whose last rows are state, or of whole texts
    /// (`kernels/launches/convolve.cu`).
    ConvArgs {
        x: View,
        y: View,
        /// `[width][taps]`
        taps: *const f32,
        bias: *const f32,
        /// `[slot][taps - 1][width]`, or nothing: the tap in the middle is for the token itself.
        state: *mut f32,
        inputs: *const u32,
        width: i32,
        taps_count: i32,
        silu: i32,
        pad: i32,
    }

    /// Norm, gate and rotation of rows (`kernels/launches/transform.cu`).
    TransformArgs {
        x: View,
        /// What the norm of x is gated with, or nothing.
        gate: View,
        y: View,
        /// Or nothing.
        norm: NormArgs,
        /// `[group_width]`
        signs: *const f32,
        /// Columns that are normalised together.
        group: i32,
        width: i32,
        /// Columns that the rotation is for; the others are rotated as these.
        group_width: i32,
        /// Columns that are transformed together; 0 without a rotation.
        block: i32,
        /// Heads that change places, or 0.
        outer: i32,
        inner: i32,
        inverse: i32,
        /// 0, or 1 + the activation of the gate.
        act: i32,
        /// The gate is some columns of each head of a value, or 0: `gate_len` from `gate_first`
        /// on, of every `gate_every`.
        gate_len: i32,
        gate_every: i32,
        gate_first: i32,
        /// Whether eight neighbouring columns can be read together everywhere.
        wide: i32,
        outputs_only: i32,
        gather: i32,
        /// The limit of a clamped activation.
        limit: f32,
        /// In a fused step: the blocks, from the last one on, that other phases use (`place_among`).
        first_block: i32,
    }

    LinearArgs {
        x: View,
        /// Added to the result, or nothing.
        add: View,
        norm: NormArgs,
        cols: i32,
        chunks: i32,
        parts: i32,
        /// 0, or 1 + the activation between part 0 and part 1.
        gated: i32,
        outputs_only: i32,
        gather: i32,
        /// Formats of bits: all parts or none.
        signs: i32,
        /// The limit of a clamped activation.
        limit: f32,
        part: [Part; MOST_PARTS],
        experts: ExpertArgs,
        passed: PassedArgs,
        /// In a fused step of one token: the convolution of the results of the first part, or nothing.
        conv: ConvArgs,
    }

    FloatLinearArgs {
        w: *const (),
        x: View,
        /// The norm of whole rows, or nothing.
        norm: NormArgs,
        bias: *const f32,
        scale: *const f32,
        y: View,
        rows: i32,
        cols: i32,
        /// A `FloatKind`.
        kind: i32,
        outputs_only: i32,
        /// In a fused step: the block that has the first row, so that neighbouring phases use different
        /// blocks; -1 if there are many rows.
        first_block: i32,
        pad: i32,
        experts: ExpertArgs,
    }

    EmbedArgs {
        table: *const (),
        y: View,
        /// Tokens that the step before sampled.
        chosen: *const i32,
        factor: f32,
        cols: i32,
        chunks: i32,
        /// The index of a format of codes, or -1 - a `FloatKind`.
        format: i32,
        /// Added to the row, or nothing.
        add: View,
        /// A `TableRows`.
        rows: i32,
        pad: i32,
    }

    RowNormArgs {
        x: View,
        y: View,
        norm: NormArgs,
        group: i32,
        width: i32,
        outputs_only: i32,
        /// Groups that have separate weights, one after the other; 1 if all share them.
        weights: i32,
    }

    RopeArgs {
        x: View,
        y: View,
        freqs: *const f32,
        magnitude: f32,
        width: i32,
        head_dim: i32,
        pairs: i32,
        interleaved: i32,
        /// Whether each pair turns by a part of the position: the parts follow the frequencies.
        parted: i32,
    }

    ElementArgs {
        a: View,
        b: View,
        y: View,
        by: f32,
        /// The lower bound of `CLAMP`.
        low: f32,
        /// An `ElementKind`.
        what: i32,
        width: i32,
        outputs_only: i32,
        pad: i32,
    }

    /// Rows of images in place of those of their tokens, or added to them.
    ImageRowsArgs {
        x: View,
        y: View,
        /// `[row][row_width]`
        rows: *const f32,
        width: i32,
        row_width: i32,
        /// The first column of a row.
        start: i32,
        adds: i32,
    }

    /// Each head has `a_len` columns of a from `a_first` on, and then `b_len` of b.
    JoinHeadsArgs {
        a: View,
        b: View,
        y: View,
        heads: i32,
        /// Columns of a head of a.
        a_every: i32,
        a_first: i32,
        a_len: i32,
        b_len: i32,
        outputs_only: i32,
    }

    OutputsArgs {
        x: View,
        y: View,
        width: i32,
        /// Whether results are means of the rows of a sequence up to the requested one.
        mean: i32,
    }

    /// Norm and rotation of the heads of q or k on their way into attention.
    HeadArgs {
        x: View,
        norm_weight: *const f32,
        eps: f32,
        /// A `NormKind`.
        norm: i32,
    }

    AttendArgs {
        q: HeadArgs,
        /// Nothing, as `v`, if it reads what another phase stores.
        k: HeadArgs,
        v: View,
        y: View,
        /// q after norm and rotation, for the kernels that make it beforehand.
        ready: View,
        freqs: *const f32,
        /// `[page][kv_head][PAGE_LEN][in_cells(head_dim)]` halves
        keys: *mut u16,
        /// `[page][kv_head][PAGE_LEN][in_cells(v_dim)]` halves
        values: *mut u16,
        /// The results of splits: sums, then largest scores and weights.
        partial: *mut f32,
        /// Counters of arrived splits: `[token][kv_head][query group]`
        arrivals: *mut u32,
        /// In a fused step of several tokens: the result as x of the next linear, or nothing.
        y_half: *mut u16,
        /// One more score of each head, without a value, or nothing.
        sinks: *const f32,
        magnitude: f32,
        scale: f32,
        softcap: f32,
        heads: i32,
        kv_heads: i32,
        head_dim: i32,
        v_dim: i32,
        window: i32,
        pairs: i32,
        interleaved: i32,
        table: i32,
        shape: i32,
        /// Groups of the query heads of one key head: a block attends with one.
        groups: i32,
        /// The order of `y_half`: `BYTES_ORDER` or `BITS_ORDER`.
        y_order: i32,
        /// Scores are times `1 + growth * ln(position / growth_length + 1)`.
        growth: f32,
        growth_length: i32,
        /// Whether its pages are in the tables of layers with a window (1) or of the others (0).
        windowed: i32,
        /// Keys after a token that it sees: 0 if attention is causal.
        after: i32,
        /// Scores decrease with the distance of the key by the head's slope, which follows from this
        /// number; 0 if they do not.
        alibi: f32,
        /// Whether each pair turns by a part of the position, as in `RopeArgs`.
        parted: i32,
        /// What tokens of an image see of it: an `ImageOrder`.
        images: i32,
        pad: i32,
    }

    /// A delta rule or a scan: a matrix per head is state (`kernels/launches/recurrent.cu`).
    RecurrentArgs {
        /// Keys, queries and values of all heads.
        x: View,
        /// One value per head: decays of a delta rule, time steps of a scan.
        gate: View,
        /// Strengths of a delta rule, or nothing.
        beta: View,
        y: View,
        rate: *const f32,
        bias: *const f32,
        /// The arguments of a scan, or nothing.
        skip: *const f32,
        /// `[slot][head][column][row]`
        state: *mut f32,
        inputs: *const u32,
        /// Floats of a slot.
        slot: i64,
        heads: i32,
        key_heads: i32,
        rows: i32,
        cols: i32,
        /// Columns of x at which keys, queries and values begin.
        key_at: i32,
        query_at: i32,
        value_at: i32,
        /// Whether consecutive heads share a key head.
        grouped: i32,
        /// Whether rows of x can be read in pieces of 16 bytes.
        aligned: i32,
        /// Added to the squares of keys and queries.
        eps: f32,
    }

    /// The norm and the linear whose results are logits of experts, or nothing.
    RouterLinear {
        x: View,
        norm: NormArgs,
        /// `[experts][cols]`
        w: *const f32,
        bias: *const f32,
        cols: i32,
        /// On the logits.
        factor: f32,
    }

    /// Chooses the experts of each token.
    RouteArgs {
        logits: View,
        y: View,
        bias: *const f32,
        inputs: *const u32,
        experts: i32,
        used: i32,
        /// A `GatingKind`.
        gating: i32,
        /// Groups of experts, or 0, and how many of them a token uses.
        groups: i32,
        used_groups: i32,
        renormalise: i32,
        scale: f32,
        pad: i32,
        router: RouterLinear,
    }

    /// The weighted sum of the results of a token's experts, plus a value.
    MixArgs {
        x: View,
        /// Added to the result, or nothing.
        add: View,
        y: View,
        /// As `ExpertArgs::route`.
        route: *const f32,
        inputs: *const u32,
        used: i32,
        width: i32,
    }

    /// The best token of each row; `best` and `places` are what blocks found: `[row][block]`.
    ArgmaxArgs {
        logits: View,
        best: *mut f32,
        places: *mut i32,
        chosen: *mut i32,
        width: i32,
        pad: i32,
    }
}

impl TransformArgs {
    /// Blocks of a fused step that compute a transform: each makes two chunks.
    pub(crate) fn blocks(width: usize) -> usize {
        width.div_ceil(2 * CHUNK)
    }
}

impl RecurrentArgs {
    /// Warps of a fused step that have columns of the state.
    pub(crate) fn warps(&self) -> usize {
        self.heads as usize * (self.cols as usize).div_ceil(STEP_STATE_COLUMNS)
    }
}

impl FloatLinearArgs {
    /// Blocks of a fused step that compute few rows of a token: each has two.
    pub(crate) fn blocks(rows: usize) -> usize {
        rows.div_ceil(2)
    }
}

impl LinearArgs {
    pub(crate) fn used_parts(&self) -> &[Part] {
        &self.part[..self.parts as usize]
    }

    /// Tiles of all parts.
    pub(crate) fn tiles(&self) -> usize {
        self.used_parts().iter().map(|p| p.tiles as usize).sum()
    }

    /// Bytes of the largest record.
    pub(crate) fn record_bytes(&self) -> usize {
        self.used_parts().iter().map(|p| p.bytes as usize).max().unwrap_or(0)
    }

    /// Bytes of a round of a fused step: a record per warp.
    pub(crate) fn round_bytes(&self) -> usize {
        self.record_bytes() * WARPS.min(self.step_chunks())
    }

    /// Chunks of a row of x as a fused step multiplies it: those of all chosen experts if
    /// their results are added.
    pub(crate) fn step_chunks(&self) -> usize {
        let matrices = if self.experts.mixed != 0 { self.experts.used } else { 1 };
        (self.chunks * matrices) as usize
    }
}
