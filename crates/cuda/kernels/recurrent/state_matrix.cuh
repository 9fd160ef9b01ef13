// Columns of the matrix of a recurrent head in registers, and one token of a slice.
//
// STATE_LANES lanes share the rows of a column: lane r has the pieces r, r + STATE_LANES, .. of four rows. A lane has
// two columns. State is [slot][head][column][row].
//
// Sizes (StateSizes of src/launch/recurrent.rs): STATE_ROWS, the rows of a matrix, STATE_LANES: 8, or 16 in a fused
// step, which has warps for half as many columns each, since code that runs once takes the time of loading it; and
// STATE_QUADS, the pieces of a lane.

#pragma once

#include "base/tagged.cuh"
#include "base/phase.cuh"
#include "recurrent/slice_state.cuh"
#include "host/sizes.cuh"

constexpr int STATE_ROWS = Sizes::STATE_ROWS, QUADS = Sizes::STATE_QUADS, COLUMNS_OF_WARP = 2 * 32 / Sizes::STATE_LANES;

DEVICE int key_head_of(const RecurrentArgs& a, int head) {
    return a.grouped ? small_quotient(head, small_quotient(a.heads, a.key_heads)) : small_rest(head, a.key_heads);
}
DEVICE float key_factor_of(float squares, float eps) { return rsqrtf(squares + eps); }
DEVICE float query_factor_of(float squares, float eps) { return rsqrtf(squares + eps) * rsqrtf((float)STATE_ROWS); }

// Weights of a head.
struct HeadWeights {
    float bias, rate;

    DEVICE HeadWeights(const RecurrentArgs& a, int head) : bias(a.bias[head]), rate(a.rate[head]) {}
};

// Decay and strength of a token.
template <bool DELTA> DEVICE float2 gates_of(const HeadWeights& w, float gate, float beta) {
    float x = gate + w.bias, soft = x > 20.f ? x : log1pf(expf(x));
    return {expf(w.rate * soft), DELTA ? 1.f / (1.f + expf(-beta)) : soft};
}

// The product of four rows.
DEVICE float product4(float4 x, float4 y) {
    return __fmaf_rn(x.w, y.w, __fmaf_rn(x.z, y.z, __fmaf_rn(x.y, y.y, x.x * y.x)));
}

// Rows from which on a lane has none, in a piece.
DEVICE int rows_in(int quad) {
    return STATE_ROWS - (quad * Sizes::STATE_LANES + (int)(threadIdx.x % Sizes::STATE_LANES)) * 4;
}

struct StateColumns {
    float v[2][QUADS][4];

    static DEVICE float* at(const RecurrentArgs& a, int slot, int head, int column, int quad) {
        return a.state + slot * a.slot + ((long)head * a.cols + column) * STATE_ROWS +
               (quad * Sizes::STATE_LANES + threadIdx.x % Sizes::STATE_LANES) * 4;
    }

    // Zeros if there is no slot.
    DEVICE void load(const RecurrentArgs& a, int slot, int head, int column) {
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++) {
                bool has = slot >= 0 && column + c < a.cols;
                if (STATE_ROWS % 4 == 0) {
                    float4 x = {0, 0, 0, 0};
                    if (has && rows_in(quad) > 0) x = load_floats4(at(a, slot, head, column + c, quad));
                    v[c][quad][0] = x.x, v[c][quad][1] = x.y, v[c][quad][2] = x.z, v[c][quad][3] = x.w;
                } else {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        v[c][quad][i] =
                            has && i < rows_in(quad) ? load_float(at(a, slot, head, column + c, quad) + i) : 0.f;
                }
            }
    }

    DEVICE void store(const RecurrentArgs& a, int slot, int head, int column) const {
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++) {
                if (column + c >= a.cols) continue;
                float* to = at(a, slot, head, column + c, quad);
                const float (&x)[4] = v[c][quad];
                if (STATE_ROWS % 4 == 0) {
                    if (rows_in(quad) > 0) *(float4*)to = {x[0], x[1], x[2], x[3]};
                } else {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (i < rows_in(quad)) to[i] = x[i];
                }
            }
    }

    // The product of each column with a row, of all lanes that share it.
    DEVICE void dot(float (&sums)[2], const float4 (&row)[QUADS]) const {
#pragma unroll
        for (int c = 0; c < 2; c++) {
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++) {
                const float (&x)[4] = v[c][quad];
                sums[c] += product4(row[quad], {x[0], x[1], x[2], x[3]});
            }
#pragma unroll
            for (int step = 1; step < Sizes::STATE_LANES; step *= 2)
                sums[c] += __shfl_xor_sync(0xffffffff, sums[c], step);
        }
    }

    // The outer product of a row and two values, after the decay.
    DEVICE void add(float decay, const float4 (&row)[QUADS], const float (&added)[2]) {
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++) {
                float (&x)[4] = v[c][quad];
                x[0] = __fmaf_rn(decay, x[0], row[quad].x * added[c]),
                x[1] = __fmaf_rn(decay, x[1], row[quad].y * added[c]);
                x[2] = __fmaf_rn(decay, x[2], row[quad].z * added[c]),
                x[3] = __fmaf_rn(decay, x[3], row[quad].w * added[c]);
            }
    }
};

// A warp's pieces of a row of keys or queries. Lanes without rows load others and drop them: after a branch, a load
// would be waited for before the next one begins.
template <bool TAGS, bool ALIGNED>
DEVICE void load_row(TaggedLoads<TAGS>& loads, float4 (&row)[QUADS], const float* from, u32 mask) {
#pragma unroll
    for (int quad = 0; quad < QUADS; quad++) {
        int first = (quad * Sizes::STATE_LANES + threadIdx.x % Sizes::STATE_LANES) * 4;
        if constexpr (ALIGNED) {
            static_assert(!ALIGNED || STATE_ROWS % 4 == 0, "rows are read four at a time");
            float4 four = loads.four(from + min(first, STATE_ROWS - 4), mask);
            row[quad] = first < STATE_ROWS ? four : float4{0, 0, 0, 0};
        } else {
            auto one = [&](int i) {
                float x = loads.one(from + min(first + i, STATE_ROWS - 1), mask);
                return first + i < STATE_ROWS ? x : 0.f;
            };
            row[quad] = {one(0), one(1), one(2), one(3)};
        }
    }
}

DEVICE float product_of(const float4 (&x)[QUADS], const float4 (&y)[QUADS]) {
    float sum = 0;
#pragma unroll
    for (int quad = 0; quad < QUADS; quad++) sum += product4(x[quad], y[quad]);
#pragma unroll
    for (int step = 1; step < Sizes::STATE_LANES; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    return sum;
}

// The first token of a slice on some columns of a head, by a warp. Its values may have tags (TAGS).
template <bool DELTA, bool TAGS>
DEVICE void advance_token(const RecurrentArgs& a, const SliceState& s, int head, int first, u32 epoch) {
    int lane = threadIdx.x % 32, part = lane % Sizes::STATE_LANES, column = first + lane / Sizes::STATE_LANES * 2;
    StateColumns state;
    state.load(a, s.read, head, column);
    HeadWeights weights(a, head);
    if (!TAGS) wait_for_launches();
    const float* x = row_of(a.x, s.first);
    int key_head = key_head_of(a, head);
    float4 key[QUADS], query[QUADS];
    float gate, beta = 0, value[2];
    const float *gate_at = row_of(a.gate, s.first) + head, *beta_at = row_of(a.beta, s.first) + head,
                *values = x + a.value_at + head * a.cols;
    auto load = [&](auto aligned) { // all at once: each load takes long
        TaggedLoads<TAGS> loads = {epoch, 0};
        gate = loads.one(gate_at, a.gate.mask);
        if (DELTA) beta = loads.one(beta_at, a.beta.mask);
        load_row<TAGS, decltype(aligned)::VALUE>(loads, key, x + a.key_at + key_head * STATE_ROWS, a.x.mask);
        load_row<TAGS, decltype(aligned)::VALUE>(loads, query, x + a.query_at + key_head * STATE_ROWS, a.x.mask);
#pragma unroll
        for (int c = 0; c < 2; c++) value[c] = loads.one(values + min(column + c, a.cols - 1), a.x.mask);
        return loads.wrong;
    };
    for (Patience patience;; patience.wear()) {
        bool again = STATE_ROWS % 4 == 0 && a.aligned ? load(Constant<STATE_ROWS % 4 == 0>{}) : load(Constant<0>{});
        if (!TAGS || !__any_sync(0xffffffff, again)) break;
        // polls one float per lane: all others are written at about the same time
        awaited_float(values + min(column, a.cols - 1), a.x.mask, epoch);
    }
    float2 gates = gates_of<DELTA>(weights, gate, beta);
    float known[2] = {}, sum[2] = {}, key_factor = 1, query_factor = 1, product = product_of(key, query);
    if (DELTA) {
        key_factor = key_factor_of(product_of(key, key), a.eps),
        query_factor = query_factor_of(product_of(query, query), a.eps);
        state.dot(known, key);
    }
    state.dot(sum, query);
    float decay = gates.x, y[2], added[2];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        float d = gates.y * (value[c] - decay * key_factor * known[c]);
        y[c] = decay * query_factor * sum[c] + product * key_factor * query_factor * d;
        if (!DELTA) y[c] += a.skip[head] * value[c];
        added[c] = key_factor * d;
    }
    state.add(decay, key, added);
    if (part < 2 && column + part < a.cols)
        store_tagged(row_of(a.y, s.first) + head * a.cols + column + part, part ? y[1] : y[0], TAGS ? a.y.mask : 0,
                     epoch);
    state.store(a, s.write, head, column);
}
