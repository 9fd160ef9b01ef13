// The phases of a step: what one fused op works on. The same structs, in the same order, stand in src/phase.rs.
//
// Defined by the host: FORMATS(X) with X(number, bits, low, group, offsets) for each format of codes in the model.

constexpr int WARPS = 16, THREADS = WARPS * 32; // of a block in a step of a few tokens, beside the warp that reads

// A step's inputs: words 0 to 4 say where token ids, positions, slices, output rows and page tables begin.
enum { TABLE_STRIDE = 5, TOKENS = 6, OUTPUTS = 7, BARRIER = 8 };

DEVICE int rows_of(const u32* inputs, int outputs_only) { return inputs[outputs_only ? OUTPUTS : TOKENS]; }
DEVICE int position_of(const u32* inputs, int token) { return inputs[inputs[1] + token]; }
DEVICE int output_row(const u32* inputs, int output) { return inputs[inputs[3] + output]; }
DEVICE const u32* pages_of(const u32* inputs, int token) {
    return inputs + inputs[4] + inputs[inputs[2] + token] * inputs[TABLE_STRIDE];
}
// A token id, or the place among the last step's choices from which it is taken.
DEVICE u32 token_id(const u32* inputs, const int* chosen, int token) {
    u32 id = inputs[inputs[0] + token];
    return id & 0x80000000u ? max(chosen[id & 0x7fffffffu], 0) : id;
}

// Norms of whole rows: by themselves, or of the first kind and without a bias before a linear.
struct NormArgs { const float *weight, *bias; float eps; int kind; };
enum NormKind { RMS = 1, LAYER = 2 }; // 0 is none

// A matrix, or rows of one that begin at a whole tile.
struct Part {
    const u8* records; // [tile][chunk] records
    const float *bias, *scale;
    float* y;
    int y_stride, rows, tiles, format;
    int bytes;    // of a record
    float factor; // on all scales and offsets
    u32 y_mask;
    int pad;
};

// What belongs to the part beside the products of one of its rows; whether it may have a scale and a bias.
template <bool SCALE = true, bool BIAS = true> DEVICE float finished(const Part& part, float sum, float factor, int row) {
    sum *= factor * part.factor;
    if (SCALE && part.scale) sum *= *part.scale;
    return BIAS && part.bias ? sum + part.bias[row] : sum;
}

enum { MOST_PARTS = 3 };

struct LinearArgs {
    View x, add; // `add` is added to the result, or nothing
    NormArgs norm;
    int cols, chunks, parts;
    int gated;         // 0, or 1 + the activation between part 0 and part 1
    int outputs_only, gather, signs; // signs: formats of bits, all parts or none
    int pad;
    Part part[MOST_PARTS];
};

struct FloatLinearArgs { const void* w; View x; const float *bias, *scale; View y; int rows, cols, kind, outputs_only; };
struct EmbedArgs { const void* table; View y; const int* chosen; float factor; int cols, chunks, format; }; // format -1 - kind: floats
struct RowNormArgs { View x, y; NormArgs norm; int group, width, outputs_only; };
struct RopeArgs { View x, y; const float* freqs; float magnitude; int width, head_dim, pairs, interleaved; };
struct ElementArgs { View a, b, y; float by; int what, width, outputs_only; };
struct OutputsArgs { View x, y; int width; };

// Norm and rotation of the heads of q or k on their way into attention.
struct HeadArgs { View x; const float* norm_weight; float eps; int norm; };
struct AttendArgs {
    HeadArgs q, k;
    View v, y;
    View ready;          // q as attention wants it, where that is made beforehand
    const float* freqs;
    u16 *keys, *values;  // [page][kv_head][PAGE_LEN][dim] halves
    float* partial;      // of splits: sums, then largest scores and weights
    u32* arrivals;       // of splits: [token][kv_head][query group]
    float magnitude, scale, softcap;
    int heads, kv_heads, head_dim, v_dim, window, pairs, interleaved, table, shape;
    int groups; // of query heads of a key head: a block attends with one
};
struct ArgmaxArgs { View logits; float* best; int *places, *chosen; int width; }; // what blocks found: [row][block]

enum Kind { EMBED, LINEAR, FLOAT_LINEAR, ROW_NORM, ROPE, ELEMENTS, OUTPUT_ROWS, ATTEND, ARGMAX };

struct alignas(16) Phase {
    int kind;
    int waits; // for all blocks, for the so-manieth time: it reads or writes what has no marks; or 0
    int shape; // of a linear: its number in LINEARS
    int pad;
    union {
        LinearArgs linear;
        FloatLinearArgs float_linear;
        EmbedArgs embed;
        RowNormArgs norm;
        RopeArgs rope;
        ElementArgs elements;
        OutputsArgs outputs;
        AttendArgs attend;
        ArgmaxArgs argmax;
    };
};
static_assert(sizeof(Phase) == PHASE_BYTES, "a phase has the size that the host writes");

DEVICE float activate(int act, float x) {
    if (act == 0) return x * reciprocal(1.f + exp2_fast(x * -1.4426950408889634f));
    if (act == 1) return 0.5f * x * (1.f + tanhf(0.7978846f * x * (1.f + 0.044715f * x * x)));
    return x * fmaxf(x, 0.f);
}

// Also of what is infinite: that must not become a number.
DEVICE float soft_capped(float x, float cap) { return cap * tanhf(x / cap) + x * 0.f; }
