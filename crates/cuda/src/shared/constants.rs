//! Sizes, flags and numbers that both sides use.

use super::c_text::{shared_constants, shared_enums};

/// The constants and enums in C.
pub(super) fn c_text() -> String {
    [constants(), enums()].concat()
}

shared_constants! {
    /// Warps of a block that compute in the fused step; one more reads.
    WARPS: usize = 16;
    /// Threads of a block that compute in the fused step.
    THREADS: usize = WARPS * 32;
    /// The most tokens of one sequence in a fused step.
    MOST_NEW: usize = 4;
    /// The most tokens of a fused step: columns of the matrix unit.
    FRAGMENT_TOKENS: usize = 8;
    /// Floats of a token's share of a tile in a fused step of several tokens: 16 rows; the padding keeps
    /// tokens in different banks.
    SHARE_STRIDE: usize = 20;
    /// Phases that a block of the fused step holds in shared memory.
    WINDOW: usize = 4;

    /// Rows of a tile of weights.
    TILE: usize = 16;
    /// Columns of a chunk of weights; a record is a tile by a chunk.
    CHUNK: usize = 128;
    /// Matrices of one linear phase at most.
    MOST_PARTS: usize = 3;
    /// Rotary tables of one model at most.
    MOST_TABLES: usize = 4;
    /// Columns of a key or value head at most.
    MOST_HEAD_DIM: usize = 576;
    /// Columns of a value head that a block sums in registers at most; wider heads are
    /// shared by several blocks.
    MOST_VALUE_COLS: usize = 256;

    /// Query heads of a unit of attention at most: columns of the matrix unit.
    MOST_QUERIES: usize = 8;
    /// Keys that come through the ring together.
    KEYS: usize = 16;
    /// Bytes between four rows of keys or values and the next four in a slot, of units of up to
    /// `PADDED_SLOTS` slots.
    ROWS_PADDING: usize = 32;
    PADDED_SLOTS: usize = 16;
    /// Keys of a split of attention at least: fewer are not worth a second block.
    SPLIT_KEYS: usize = 512;

    /// More keys than any sequence has: of attention that is not causal and has no window.
    ALL_KEYS: usize = 1 << 29;

    /// Threads of a block of the kernels for one phase.
    PHASE_THREADS: usize = 256;
    /// Its warps.
    PHASE_WARPS: usize = PHASE_THREADS / 32;
    /// Threads of a block that makes a row of x.
    PREPARE_THREADS: usize = 512;
    /// The order of columns in x for codes in bytes, ...
    BYTES_ORDER: i32 = 0;
    /// ... and for codes in bits.
    BITS_ORDER: i32 = 1;
    /// The order of columns in values that become bytes after they were passed as halves.
    PLAIN_ORDER: i32 = 2;
    /// Threads of a block that makes a row of x as bytes.
    BYTES_THREADS: usize = 256;
    /// The most tokens of a step that one tile of a linear holds: larger steps are compute-bound, and may
    /// have several tiles.
    ONE_TILE: usize = 128;
    /// Tokens of a step at most whose values are passed before their norm.
    NORMS_TOKENS: usize = 128;
    /// Partial sums of the squares of a row, if results are reproducible: one has every eighth chunk.
    NORM_PARTS: usize = 8;
    /// The fewest tokens of a gated tile that is written through shared memory.
    STAGED_TOKENS: usize = 64;
    /// Blocks of a cluster that share the columns of a linear at most.
    MOST_SPLITS: usize = 4;
    /// Experts of a linear at most, and of a token.
    MOST_EXPERTS: usize = 1024;
    MOST_USED_EXPERTS: usize = 32;
    /// Bytes of the experts that a fused step has chosen: ids, weights, and a counter in 16 bytes.
    CHOICE_BYTES: usize = MOST_USED_EXPERTS * 8 + 16;
    /// Sorted rows of an expert begin at a multiple of this: the columns of that many rows of
    /// x are exchanged together.
    EXPERT_ROWS: usize = 8;
    /// Columns of a linear that computes logits of experts, at most: rows of x are in shared memory.
    MOST_ROUTER_COLS: usize = 8192;
    /// Tokens of a block that computes logits of experts, at most.
    ROUTER_TOKENS: usize = 8;
    /// Warps of a block that chooses experts, one per token.
    ROUTE_WARPS: usize = 4;
    /// Threads of the block that sorts the rows of experts.
    SORT_THREADS: usize = 1024;
    /// Rows of a matrix of floats that a block of launches has.
    FLOAT_ROWS: usize = 6;
    /// Tokens of such a block.
    FLOAT_TOKENS: usize = 4;
    /// The fewest tokens of a tile that a warpgroup multiplies together, on GPUs that can.
    WGMMA_TOKENS: usize = 24;
    /// Bytes of a record of 2-bit codes with one scale per row: raw codes are multiplied, and
    /// a warp of a block sums x.
    RAW_RECORD: usize = 544;
    /// The most tokens of a tile whose raw codes are multiplied.
    RAW_TOKENS: usize = 32;
    /// Keys whose results are added to those of the keys before them, if results are reproducible.
    ATTEND_SEGMENT: usize = 128;
    /// Threads of a block that attends with one head of one token.
    ATTEND_THREADS: usize = 128;

    /// Rows that a convolution adds at most.
    MOST_TAPS: usize = 8;
    /// Threads of a block that convolves, a column each.
    CONV_THREADS: usize = 128;
    /// Tokens of such a thread.
    CONV_TOKENS: usize = 32;
    /// Columns of a state's matrix that a block has in registers.
    STATE_COLUMNS: usize = 16;
    /// Threads of such a block.
    STATE_THREADS: usize = 64;
    /// Tokens that such a block loads at once in prefill.
    STATE_TOKENS: usize = 16;
    /// Columns that a warp of a fused step has.
    STEP_STATE_COLUMNS: usize = 4;
    /// Rows of a state's matrix at most: a thread has an eighth of them in registers, of two columns.
    MOST_STATE_ROWS: usize = 256;
    /// Columns that a block transforms together, and so of a block of a rotation at most.
    TRANSFORM_SPAN: usize = 1024;
    /// Threads of such a block.
    TRANSFORM_THREADS: usize = 128;

    /// Bits of a linear's shape: it normalises x, ...
    NORMED: i32 = 1;
    /// ... adds a value to the result, ...
    ADDED: i32 = 2;
    /// ... gathers rows of x, ...
    GATHERED: i32 = 4;
    /// ... computes output rows only, ...
    OUTPUTS_ONLY: i32 = 8;
    /// ... reads x with tags, ...
    X_TAGGED: i32 = 16;
    /// ... reads what it adds with tags, ...
    ADD_TAGGED: i32 = 32;
    /// ... has a bias, ...
    BIASED: i32 = 64;
    /// ... has a scale, ...
    SCALED: i32 = 128;
    /// ... adds the results of experts with their weights, ...
    MIXED: i32 = 4096;
    /// ... and convolves the results of its first part.
    CONVOLVED: i32 = 16384;
    /// In a fused step of several tokens: x was normalised before, ...
    FRESH_X: i32 = 256;
    /// ... x is staged in shared memory, ...
    STAGED_X: i32 = 512;
    /// ... the value is passed to the next linear as halves, ...
    PASSED_Y: i32 = 1024;
    /// ... in `BITS_ORDER`.
    PASSED_IN_BITS_ORDER: i32 = 2048;
    /// In a fused step of one token: x is in fields of two bits, as codes are (`FieldsX`), ...
    FIELDS_X: i32 = 8192;
    /// ... and a slot of the ring has half a round of records.
    HALF_ROUNDS: i32 = 32768;
    /// Bytes of a chunk of x in fields.
    FIELDS_BYTES: usize = 544;

    /// The columns of a head in pages are a multiple of this.
    HEAD_CELLS: usize = 16;

    /// Words of a step's inputs before the arrays.
    INPUTS_HEADER: usize = 16;
    /// Where token ids begin, in words; the words after it say the same of the other arrays.
    IDS_AT: usize = 0;
    /// Where positions begin.
    POSITIONS_AT: usize = 1;
    /// Where the slice of each token begins.
    SLICES_AT: usize = 2;
    /// Where output rows begin.
    OUTPUT_ROWS_AT: usize = 3;
    /// Where page tables begin.
    PAGES_AT: usize = 4;
    /// Words of the page table of one slice.
    TABLE_STRIDE: usize = 5;
    /// How many tokens the step has.
    TOKENS: usize = 6;
    /// How many output rows the step has.
    OUTPUTS: usize = 7;
    /// The counter of the grid barriers.
    BARRIER: usize = 8;
    /// Where the table of attention's work lists is, in words: where each of them begins.
    WORK_AT: usize = 9;
    /// Where page tables of layers with a window begin; those of all layers, if these have no separate pages.
    WINDOW_PAGES_AT: usize = 10;
    /// Where the slices' tokens and state slots begin, in graphs with recurrent layers.
    STATES_AT: usize = 11;
    /// How many slices the step has.
    SLICE_COUNT: usize = 12;
    /// Where the scales of adapters begin, in graphs that have some: those of all adapters for each slice.
    ADAPTERS_AT: usize = 13;
    /// Where what rotations count from begins, in graphs with tables of several parts: three words per token.
    TURNS_AT: usize = 14;
    /// Where the places of tokens among the rows of images begin, or 0 if none has one.
    IMAGE_ROWS_AT: usize = 15;
    /// Words of a slice of states: its first token, how many there are, the slot that is read or -1,
    /// the slot that is written.
    STATE_WORDS: usize = 4;
    /// Words of a work list before its items; the first is how many there are.
    WORK_HEADER: usize = 8;
    /// The bit of a token id that is an output of the step before; the other bits are its index.
    CARRIED_BIT: usize = 31;
    /// The bit of a token id that is set in the second text of a pair.
    TYPE_BIT: usize = 30;
}

shared_enums! {
    /// How floats are stored.
    FloatKind { F32 as F32, F16 as F16, BF16 as BF16 }

    /// What a page holds: halves, or bytes with a scale per token and head.
    KvCell { Half as HALF_CELLS, Int8 as INT8_CELLS, Fp8 as FP8_CELLS }

    /// What tokens of an image see of it, beside the order of the sequence.
    ImageOrder { Sequence as SEQUENCE_ORDER, Whole as WHOLE_IMAGES, Alone as IMAGES_ALONE }

    /// A norm of rows or heads.
    NormKind { None as NORM_NONE, Rms as RMS, Layer as LAYER }

    /// Which row of a table a token reads: that of its id, of its position or of its type, or the first one.
    TableRows { Token as TOKEN_ROWS, Position as POSITION_ROWS, First as FIRST_ROW, Type as TYPE_ROWS }

    /// How logits of experts become weights.
    GatingKind {
        Softmax as GATE_SOFTMAX, Sigmoid as GATE_SIGMOID, ChosenSoftmax as GATE_CHOSEN_SOFTMAX,
        SqrtSoftplus as GATE_SQRT_SOFTPLUS,
    }

    /// What an element-wise phase computes: a gate of a and b, or one of the others.
    ElementKind {
        Silu as SILU, GeluTanh as GELU_TANH, Gelu as GELU, Relu2 as RELU2, SwigluOai as SWIGLU_OAI, SwigluClamp as SWIGLU_CLAMP,
        Sigmoid as SIGMOID, Product as PRODUCT, Relu as RELU, Add as ADD, Scale as SCALE, SoftCap as SOFTCAP,
        ApplyGelu as APPLY_GELU, ApplyGeluTanh as APPLY_GELU_TANH, ApplyGeluQuick as APPLY_GELU_QUICK, Clamp as CLAMP, GateRows as GATE_ROWS, ScaleAdapters as SCALE_ADAPTERS,
    }
}
