// The small phases, each over the rows of a value and shared by all blocks; each equals the op of its name in
// graph/reference.rs.

DEVICE float read_float(const void* at, long i, int kind) {
    if (kind == F32) return ((const float*)at)[i];
    u16 bits = ((const u16*)at)[i];
    return kind == F16 ? to_float(bits) : __int_as_float((int)bits << 16);
}

// What a block needs to run its share of a small phase.
struct BlockContext {
    const u32* inputs;
    u32 epoch;
    float* scratch; // a float per warp
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
        u32 row = token_id(c.inputs, a.chosen, token);
        for (int k = first; k < a.cols; k += step) {
            float x;
            switch (a.format) {
#define CASE(n, ...) case n: x = embedded<FormatOf<n>::Is>(a, row, k); break;
                FORMATS(CASE)
#undef CASE
                default: x = read_float(a.table, (long)row * a.cols + k, -1 - a.format) * a.factor;
            }
            store_tagged(row_of(a.y, token) + k, x, a.y.mask, c.epoch);
        }
    }
}

// A warp computes a row of weights for four tokens at a time.
template <int THREADS> DEVICE void run(const FloatLinearArgs& a, const BlockContext& c) {
    int lane = threadIdx.x % 32, warps = THREADS / 32, rows = rows_of(c.inputs, a.outputs_only);
    for (int row = c.block * warps + threadIdx.x / 32; row < a.rows; row += c.blocks * warps) {
        for (int first = 0; first < rows; first += 4) {
            float sums[4] = {};
            auto add = [&](int k, float w) {
#pragma unroll
                for (int t = 0; t < 4; t++)
                    if (first + t < rows) sums[t] += w * load_float(a.x.at + (first + t) * a.x.stride + k);
            };
            int k = 0;
            if (a.kind != F32 && a.cols % 8 == 0) {
                const u8* w = (const u8*)a.w + (long)row * a.cols * 2;
                for (int at = lane * 8; at < a.cols; at += 256) {
                    uint4 v = *(const uint4*)(w + at * 2);
                    u32 four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        u16 bits = (u16)(four[i / 2] >> (16 * (i % 2)));
                        add(at + i, a.kind == F16 ? to_float(bits) : __int_as_float((int)bits << 16));
                    }
                }
            } else {
                for (k = lane; k < a.cols; k += 32) add(k, read_float(a.w, (long)row * a.cols + k, a.kind));
            }
#pragma unroll
            for (int t = 0; t < 4; t++) {
                float sum = warp_sum(sums[t]);
                if (a.scale) sum *= *a.scale;
                if (a.bias) sum += a.bias[row];
                if (lane == 0 && first + t < rows) a.y.at[(first + t) * a.y.stride + row] = sum;
            }
        }
    }
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
            y[i] = (load_float(x + i) - mean) * factor * a.norm.weight[i] + (a.norm.bias ? a.norm.bias[i] : 0.f);
    }
}

// x of a linear as halves, after its norm, and the sums of its squares; columns behind the last one are zero. A block makes a row,
// behind a barrier: x may have tags.
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
        for (int i = threadIdx.x; i < (a.cols + TILE - 1) / TILE; i += THREADS) store_tagged(a.squares + i * FRAGMENT_TOKENS + token, i == 0 ? sum : 0.f, 1, c.epoch);
    }
}

// A thread rotates one pair, or copies one column that is not rotated.
template <int THREADS> DEVICE void run(const RopeArgs& a, const BlockContext& c) {
    int rest = a.head_dim - 2 * a.pairs, items = a.pairs + rest, heads = a.width / a.head_dim;
    for (int token = c.block; token < c.inputs[TOKENS]; token += c.blocks) {
        float position = position_of(c.inputs, token);
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
            sincosf(position * a.freqs[item], &sine, &cosine);
            float x0 = load_float(x + k0) * a.magnitude, x1 = load_float(x + k1) * a.magnitude;
            y[k0] = x0 * cosine - x1 * sine;
            y[k1] = x0 * sine + x1 * cosine;
        }
    }
}

template <int THREADS> DEVICE void run(const ElementArgs& e, const BlockContext& c) {
    long count = (long)rows_of(c.inputs, e.outputs_only) * e.width;
    for (long i = (long)c.block * THREADS + threadIdx.x; i < count; i += (long)c.blocks * THREADS) {
        long row = i / e.width, k = i % e.width;
        float x = load_float(e.a.at + row * e.a.stride + k), y;
        float other = e.b.at ? load_float(e.b.at + row * e.b.stride + k) : 0.f;
        if (e.what < ADD) y = activate(e.what, x) * other;
        else if (e.what == ADD) y = x + other;
        else if (e.what == SCALE) y = x * e.by;
        else y = soft_capped(x, e.by);
        e.y.at[row * e.y.stride + k] = y;
    }
}

template <int THREADS> DEVICE void run(const OutputsArgs& a, const BlockContext& c) {
    for (int row = c.block; row < c.inputs[OUTPUTS]; row += c.blocks) {
        const float* x = a.x.at + output_row(c.inputs, row) * a.x.stride;
        for (int k = threadIdx.x; k < a.width; k += THREADS) a.y.at[row * a.y.stride + k] = load_float(x + k);
    }
}

// Runs a small phase: `run` has an overload for the arguments of each kind.
template <int THREADS> APART void small_phase(const Phase& phase, const u32* inputs, u32 epoch, float* scratch, int block, int blocks) {
    BlockContext c = {inputs, epoch, scratch, block, blocks};
    switch (phase.kind) {
#define CASE(kind, args) case kind: run<THREADS>(phase.args, c); break;
        SMALL_PHASES(CASE)
#undef CASE
    }
}
