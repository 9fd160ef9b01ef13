// The small phases, each over the rows of a value and shared by all blocks; each equals the op of its name in
// graph/reference.rs.

#pragma once

#include "weights/record.cuh"
#include "base/tagged.cuh"
#include "base/phase.cuh"
#include "x/x_fragments.cuh"

DEVICE float read_float(const void* at, long i, int kind) {
    if (kind == F32) return ((const float*)at)[i];
    u16 bits = ((const u16*)at)[i];
    return kind == F16 ? to_float(bits) : __int_as_float((int)bits << 16);
}

// What a block needs to run its share of a small phase.
struct BlockContext {
    const u32* inputs;
    u32 epoch;
    float* scratch; // three floats per warp
    int block, blocks;
};

template <class F> DEVICE float embedded(const EmbedArgs& a, u32 row, int k) {
    const u8* tile = (const u8*)a.table + (long)(row / TILE) * a.chunks * F::BYTES;
    return weight_of<F>(tile + k / CHUNK * F::BYTES, row % TILE, k % CHUNK) * a.factor;
}

template <int THREADS> DEVICE void run(const EmbedArgs& a, const BlockContext& c) {
    // several blocks share a row
    int tokens = c.inputs[TOKENS], shares = max(1, c.blocks / tokens);
    for (int i = c.block; i < tokens * shares; i += c.blocks) {
        int token = i / shares, first = i % shares * THREADS + threadIdx.x, step = shares * THREADS;
        u32 row = a.rows == TOKEN_ROWS      ? token_id(c.inputs, a.chosen, token)
                  : a.rows == POSITION_ROWS ? position_of(c.inputs, token)
                  : a.rows == TYPE_ROWS     ? type_of(c.inputs, token)
                                            : 0;
        for (int k = first; k < a.cols; k += step) {
            float x;
            switch (a.format) {
#define CASE(n, ...) \
    case n: x = embedded<FormatOf<n>::Is>(a, row, k); break;
                FORMATS(CASE)
#undef CASE
                default: x = read_float(a.table, (long)row * a.cols + k, -1 - a.format) * a.factor;
            }
            if (a.add.at) x += load_float(row_of(a.add, token) + k);
            store_tagged(row_of(a.y, token) + k, x, a.y.mask, c.epoch);
        }
    }
}

// Whether four columns of weights and of x can be read together.
DEVICE bool reads_by_four(const FloatLinearArgs& a) {
    return a.kind == F32 && a.cols % 4 == 0 && a.x.stride % 4 == 0 && (u64)a.x.at % 16 == 0;
}

// Writes a row of a token from its sum, with the norm that the squares of x belong to.
DEVICE void write_float_row(const FloatLinearArgs& a, int row, int token, int tokens, float sum, float squares) {
    if (row >= a.rows || token >= tokens) return;
    if (a.norm.kind) sum *= norm_factor(squares, a.cols, a.norm.eps);
    if (a.scale) sum *= *a.scale;
    row_of(a.y, token)[row] = a.bias ? sum + a.bias[row] : sum;
}

// Some rows of weights for some tokens, by a warp.
template <int ROWS, int TOKENS_OF_WARP>
DEVICE void float_rows(const FloatLinearArgs& a, int row, int token, int tokens) {
    int lane = threadIdx.x % 32;
    float sums[ROWS][TOKENS_OF_WARP] = {}, squares[TOKENS_OF_WARP] = {};
    bool by_four = reads_by_four(a);
#pragma unroll(16 / (ROWS + TOKENS_OF_WARP))
    for (int k = lane * 4; by_four && k < a.cols; k += 128) {
        float4 w[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            w[r] = *(const float4*)((const float*)a.w + (long)min(row + r, a.rows - 1) * a.cols + k);
#pragma unroll
        for (int t = 0; t < TOKENS_OF_WARP; t++) {
            float4 x = load_floats4(row_of(a.x, min(token + t, tokens - 1)) + k);
            if (a.norm.kind) {
                float4 by = *(const float4*)(a.norm.weight + k);
                squares[t] += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
                x = {x.x * by.x, x.y * by.y, x.z * by.z, x.w * by.w};
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) sums[r][t] += w[r].x * x.x + w[r].y * x.y + (w[r].z * x.z + w[r].w * x.w);
        }
    }
    for (int k = lane; !by_four && k < a.cols; k += 32) {
        float w[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            w[r] = row + r < a.rows ? read_float(a.w, (long)(row + r) * a.cols + k, a.kind) : 0.f;
#pragma unroll
        for (int t = 0; t < TOKENS_OF_WARP; t++) {
            float x = token + t < tokens ? load_float(row_of(a.x, token + t) + k) : 0.f;
            if (a.norm.kind) squares[t] += x * x, x *= a.norm.weight[k];
#pragma unroll
            for (int r = 0; r < ROWS; r++) sums[r][t] += w[r] * x;
        }
    }
#pragma unroll
    for (int t = 0; t < TOKENS_OF_WARP; t++) {
        if (a.norm.kind) squares[t] = warp_sum(squares[t]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum = warp_sum(sums[r][t]);
            if (lane == 0) write_float_row(a, row + r, token + t, tokens, sum, squares[t]);
        }
    }
}

// The place of a block among those of a phase that few blocks compute: they begin with the last ones, which have the
// fewest tiles of linears.
DEVICE int place_among(int first_block, int block, int blocks) {
    return small_rest(2 * blocks - 1 - block - small_rest(first_block, blocks), blocks);
}

// The same for the blocks of a phase: from its count on, a block does not compute it.
DEVICE int place_in(const BlockRange& range, int block, int blocks) {
    return range.count ? place_among(range.first, block, blocks) : block;
}
DEVICE int count_of(const BlockRange& range, int blocks) { return range.count ? range.count : blocks; }

// A block of a fused step has two rows at a time, if there are few. All that is multiplied is loaded before the value
// is waited for, at once: without branches, and used only after it.
template <int THREADS> DEVICE void few_float_rows(const FloatLinearArgs& a, const BlockContext& c, int tokens) {
    constexpr int QUADS_AT_ONCE = 3, WARPS_OF_BLOCK = THREADS / 32;
    int pairs = (a.rows + 1) / 2;
    for (int i = place_among(a.first_block, c.block, c.blocks); i < pairs * tokens; i += c.blocks) {
        int token = small_quotient(i, pairs), row = (i - token * pairs) * 2;
        const float *x = row_of(a.x, token), *w = (const float*)a.w + (long)row * a.cols;
        long next = row + 1 < a.rows ? a.cols : 0; // to the second row
        float sums[3] = {};                        // of both rows, and of squares
#pragma unroll 1
        for (int begin = threadIdx.x * 4; begin - (int)threadIdx.x * 4 < a.cols;
             begin += QUADS_AT_ONCE * THREADS * 4) { // the lanes of a warp wait together
            float4 v[QUADS_AT_ONCE], weight[QUADS_AT_ONCE][2];
            Factors by[QUADS_AT_ONCE];
            auto column = [&](int n) { return begin + n * THREADS * 4; };
            auto at = [&](int n) { return min(column(n), a.cols - 4); };
#pragma unroll
            for (int n = 0; n < QUADS_AT_ONCE; n++) {
                by[n].load_if(a.norm.kind, a.norm.weight + at(n));
#pragma unroll
                for (int r = 0; r < 2; r++) weight[n][r] = *(const float4*)(w + r * next + at(n));
            }
            awaited_quads(v, [&](int n) { return x + at(n); }, a.x.mask, c.epoch);
#pragma unroll
            for (int n = 0; n < QUADS_AT_ONCE; n++) {
                if (column(n) >= a.cols) continue;
                float4 x = v[n];
                sums[2] += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
                x = {x.x * by[n].get(0), x.y * by[n].get(1), x.z * by[n].get(2), x.w * by[n].get(3)};
#pragma unroll
                for (int r = 0; r < 2; r++)
                    sums[r] +=
                        x.x * weight[n][r].x + x.y * weight[n][r].y + (x.z * weight[n][r].z + x.w * weight[n][r].w);
            }
        }
        int thread = fixed_thread(), lane = thread % 32, warp = thread / 32; // not held while x is waited for
#pragma unroll
        for (int r = 0; r < 3; r++) {
            sums[r] = warp_sum(sums[r]);
            if (lane == 0) c.scratch[r * WARPS_OF_BLOCK + warp] = sums[r];
        }
        sync_threads<THREADS>();
        if (warp < 2) { // a row each
            auto all = [&](int r) {
                return warp_sum(lane < WARPS_OF_BLOCK ? c.scratch[r * WARPS_OF_BLOCK + lane] : 0.f);
            };
            float sum = all(warp);
            if (a.norm.kind) sum *= rsqrtf(all(2) / (float)a.cols + a.norm.eps);
            if (a.scale) sum *= *a.scale;
            if (a.bias) sum += a.bias[min(row + warp, a.rows - 1)];
            if (lane == 0 && row + warp < a.rows) store_tagged(row_of(a.y, token) + row + warp, sum, a.y.mask, c.epoch);
        }
        sync_threads<THREADS>();
    }
}

// A warp has four rows for eight tokens: launches of few tokens are others (float_linears). A fused step has few tokens
// and no experts.
template <int THREADS> DEVICE void run(const FloatLinearArgs& a, const BlockContext& c) {
    int warps = THREADS / 32, tokens = rows_of(c.inputs, a.outputs_only);
    if constexpr (THREADS != PHASE_THREADS) {
        if (a.first_block >= 0) return few_float_rows<THREADS>(a, c, tokens);
        for (int i = c.block * warps + threadIdx.x / 32; i < a.rows * ((tokens + 3) / 4); i += c.blocks * warps)
            float_rows<1, 4>(a, i % a.rows, i / a.rows * 4, tokens);
        return;
    }
    const ExpertArgs& e = a.experts;
    for (int i = c.block * warps + threadIdx.x / 32; e.used > 0 && i < a.rows * tokens * e.used;
         i += c.blocks * warps) {
        int row = i % a.rows, token = i / a.rows / e.used, n = i / a.rows % e.used, expert = n; // n: the token's expert
        if (e.route) expert = expert_of(e.route, e.experts, e.used, token, n);
        FloatLinearArgs one = a;
        one.w = (const u8*)a.w + (long)expert * a.rows * a.cols * (a.kind == F32 ? 4 : 2);
        one.x.at += e.x_parts > 1 ? n * a.cols : 0, one.y.at += n * a.rows;
        if (a.scale) one.scale += expert;
        if (a.bias) one.bias += (long)expert * a.rows;
        float_rows<1, 1>(one, row, token, token + 1);
    }
    if (e.used > 0) return;
    int fours = (a.rows + 3) / 4;
    for (int i = c.block * warps + threadIdx.x / 32; i < fours * ((tokens + 7) / 8); i += c.blocks * warps)
        float_rows<4, 8>(a, i % fours * 4, i / fours * 8, tokens);
}

// A block normalises one run of `group` columns at a time.
template <int THREADS> DEVICE void run(const RowNormArgs& a, const BlockContext& c) {
    int groups = a.width / a.group, runs = rows_of(c.inputs, a.outputs_only) * groups;
    for (int run = c.block; run < runs; run += c.blocks) {
        const float* x = a.x.at + run / groups * a.x.stride + run % groups * a.group;
        float* y = a.y.at + run / groups * a.y.stride + run % groups * a.group;
        float mean = 0;
        if (a.norm.kind == LAYER) {
            for (int i = threadIdx.x; i < a.group; i += THREADS) mean += load_float(x + i);
            mean = block_sum<THREADS>(mean, c.scratch) / a.group;
            sync_threads<THREADS>();
        }
        float squares = 0;
        for (int i = threadIdx.x; i < a.group; i += THREADS) {
            float d = load_float(x + i) - mean;
            squares += d * d;
        }
        float factor = norm_factor(block_sum<THREADS>(squares, c.scratch), a.group, a.norm.eps);
        sync_threads<THREADS>();
        for (int i = threadIdx.x; i < a.group; i += THREADS)
            y[i] = (load_float(x + i) - mean) * factor *
                       (a.norm.weight ? a.norm.weight[run % groups % a.weights * a.group + i] : 1.f) +
                   (a.norm.bias ? a.norm.bias[i] : 0.f);
    }
}

// x of a linear as halves, after its norm, and the sums of its squares; columns after the last one are zero. A block
// makes a row, behind a barrier: x may have tags.
template <int THREADS> DEVICE void run(const FragmentArgs& a, const BlockContext& c) {
    for (int token = c.block; token < rows_of(c.inputs, a.outputs_only); token += c.blocks) {
        auto x = [&](int k) { return untagged(load_shared_word(row_of(a.x, token) + k), a.x.mask); };
        float sum = 0, factor = a.factor;
        for (int k = threadIdx.x; k < a.cols; k += THREADS) sum += x(k) * x(k);
        sum = block_sum<THREADS>(sum, c.scratch);
        sync_threads<THREADS>();
        if (a.norm.kind) factor *= norm_factor(sum, a.cols, a.norm.eps);
        for (int k = threadIdx.x; k < a.chunks * CHUNK; k += THREADS) {
            float v = k < a.cols ? x(k) * factor * (a.norm.kind ? a.norm.weight[k] : 1.f) : 0.f;
            store_fragment(fragment_at(a.to, a.order, token, k), v, c.epoch);
        }
        for (int i = threadIdx.x; i < (a.cols + TILE - 1) / TILE; i += THREADS)
            store_tagged(a.squares + i * FRAGMENT_TOKENS + token, i == 0 ? sum : 0.f, 1, c.epoch);
    }
}

// A thread rotates one pair, or copies one column that is not rotated.
template <int THREADS> DEVICE void run(const RopeArgs& a, const BlockContext& c) {
    int rest = a.head_dim - 2 * a.pairs, items = a.pairs + rest, heads = a.width / a.head_dim;
    for (int token = c.block; token < c.inputs[TOKENS]; token += c.blocks) {
        for (int i = threadIdx.x; i < heads * items; i += THREADS) {
            int item = i % items;
            const float* x = a.x.at + token * a.x.stride + i / items * a.head_dim;
            float* y = a.y.at + token * a.y.stride + i / items * a.head_dim;
            if (item >= a.pairs) {
                int k = a.pairs + item;
                y[k] = load_float(x + k);
                continue;
            }
            int k0 = a.interleaved ? 2 * item : item, k1 = a.interleaved ? 2 * item + 1 : item + a.pairs;
            float sine, cosine;
            sincosf(angle_of(c.inputs, a.freqs, a.pairs, a.parted, token, item), &sine, &cosine);
            float x0 = load_float(x + k0) * a.magnitude, x1 = load_float(x + k1) * a.magnitude;
            y[k0] = x0 * cosine - x1 * sine;
            y[k1] = x0 * sine + x1 * cosine;
        }
    }
}

// The scale of column k's adapter in a row's sequence; `by` is the rank of all.
DEVICE float adapter_scale(const ElementArgs& e, const u32* inputs, long row, long k) {
    int token = e.outputs_only ? output_row(inputs, row) : row, rank = e.by, adapters = e.width / rank;
    return __int_as_float(inputs[inputs[ADAPTERS_AT] + inputs[inputs[SLICES_AT] + token] * adapters + k / rank]);
}

template <int THREADS> DEVICE void run(const ElementArgs& e, const BlockContext& c) {
    long count = (long)rows_of(c.inputs, e.outputs_only) * e.width;
    for (long i = (long)c.block * THREADS + threadIdx.x; i < count; i += (long)c.blocks * THREADS) {
        long row = i / e.width, k = i % e.width;
        float x = load_float(e.a.at + row * e.a.stride + k), y;
        float other = e.b.at ? load_float(e.b.at + row * e.b.stride + (e.what == GATE_ROWS ? 0 : k)) : 0.f;
        if constexpr (THREADS == PHASE_THREADS) { // fused steps have no adapters
            if (e.what == SCALE_ADAPTERS) {
                float scale = adapter_scale(e, c.inputs, row, k);
                e.y.at[row * e.y.stride + k] = scale == 0 ? 0 : x * scale; // values of other adapters may not be finite
                continue;
            }
        }
        if (e.what < ADD) y = activate_any(e.what, x, other, e.by);
        else if (e.what == ADD) y = x + other;
        else if (e.what == SCALE) y = x * e.by;
        else if (e.what == SOFTCAP) y = soft_capped(x, e.by);
        else if (e.what == GATE_ROWS) y = activate(SIGMOID, other, x, 0.f);
        else if (e.what == APPLY_GELU_QUICK) y = x * reciprocal(1.f + expf(-1.702f * x));
        else if (e.what == CLAMP) y = x != x ? x : fminf(fmaxf(x, e.low), e.by);
        else y = activate_any(e.what == APPLY_GELU ? GELU : GELU_TANH, x, 1.f, 0.f);
        e.y.at[row * e.y.stride + k] = y;
    }
}

template <int THREADS> DEVICE void run(const ImageRowsArgs& a, const BlockContext& c) {
    const u32* rows = c.inputs[IMAGE_ROWS_AT] ? c.inputs + c.inputs[IMAGE_ROWS_AT] : nullptr;
    long count = (long)c.inputs[TOKENS] * a.width;
    for (long begin = (long)c.block * THREADS; begin < count;
         begin += (long)c.blocks * THREADS) { // the lanes of a warp wait together
        long i = min(begin + threadIdx.x, count - 1);
        int token = i / a.width, k = i % a.width, row = rows ? (int)rows[token] : -1;
        float x = awaited_float(row_of(a.x, token) + k, a.x.mask, c.epoch);
        if (row >= 0) x = (a.adds ? x : 0.f) + load_float(a.rows + (long)row * a.row_width + a.start + k);
        if (begin + threadIdx.x < count) store_tagged(row_of(a.y, token) + k, x, a.y.mask, c.epoch);
    }
}

template <int THREADS> DEVICE void run(const JoinHeadsArgs& a, const BlockContext& c) {
    int each = a.a_len + a.b_len, width = a.heads * each;
    long count = (long)rows_of(c.inputs, a.outputs_only) * width;
    for (long begin = (long)c.block * THREADS; begin < count;
         begin += (long)c.blocks * THREADS) { // the lanes of a warp wait together
        long i = min(begin + threadIdx.x, count - 1);
        int token = i / width, column = i % width, head = column / each, k = column % each;
        bool of_a = k < a.a_len;
        const float* from = of_a ? row_of(a.a, token) + head * a.a_every + a.a_first + k
                                 : row_of(a.b, token) + head * a.b_len + k - a.a_len;
        float x = awaited_float(from, of_a ? a.a.mask : a.b.mask, c.epoch);
        if (begin + threadIdx.x < count) store_tagged(row_of(a.y, token) + column, x, a.y.mask, c.epoch);
    }
}

template <int THREADS> DEVICE void run(const OutputsArgs& a, const BlockContext& c) {
    for (int row = c.block; row < c.inputs[OUTPUTS]; row += c.blocks) {
        int last = output_row(c.inputs, row),
            count = a.mean ? position_of(c.inputs, last) + 1 : 1; // sequences are whole
        const float* x = a.x.at + (last - count + 1) * a.x.stride;
        for (int k = threadIdx.x; k < a.width; k += THREADS) {
            float sum = 0;
            for (int i = 0; i < count; i++) sum += load_float(x + i * a.x.stride + k);
            a.y.at[row * a.y.stride + k] = sum / count;
        }
    }
}

// Runs a small phase: `run` has an overload for the arguments of each kind.
template <int THREADS>
APART void small_phase(const Phase& phase, const u32* inputs, u32 epoch, float* scratch, int block, int blocks) {
    BlockContext c = {inputs, epoch, scratch, block, blocks};
    switch (phase.kind) {
#define CASE(kind, args) \
    case kind: run<THREADS>(phase.args, c); break;
        SMALL_PHASES(CASE)
#undef CASE
    }
}
