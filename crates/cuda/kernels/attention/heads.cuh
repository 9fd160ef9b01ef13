// Heads before attention, one warp each, for any shape: equals Op::Norm and Op::Rope of graph/reference.rs and the storing of
// keys and values in Op::Attend.

#pragma once

#include "base/tagged.cuh"
#include "base/phase.cuh"

// One head of a token, normalised and rotated, by one warp; `turn` has cosine and sine of each pair. Calls `put(k, value)`.
template <int MOST, class Put>
DEVICE void make_head(const HeadArgs& h, int token, int head, const AttendArgs& a, const float2* turn, float* scratch, Put put) {
    constexpr int EACH = (MOST + 31) / 32;
    int lane = threadIdx.x % 32, dim = a.head_dim, pairs = a.pairs;
    const float* x = row_of(h.x, token) + head * dim;
    float v[EACH], w[EACH], squares = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int k = i * 32 + lane;
        v[i] = k < dim ? load_float(x + k) : 0.f;
        w[i] = h.norm && k < dim ? h.norm_weight[k] : 1.f;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) squares += v[i] * v[i];
    float factor = h.norm ? norm_factor(warp_sum(squares), dim, h.eps) : 1.f;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i * 32 + lane < dim) scratch[i * 32 + lane] = v[i] * factor * w[i];
    __syncwarp();
    for (int k = lane; k < dim; k += 32) {
        if (k >= 2 * pairs) {
            put(k, scratch[k]);
            continue;
        }
        int pair = a.interleaved ? k / 2 : k < pairs ? k : k - pairs, second = a.interleaved ? k % 2 : k >= pairs;
        float x0 = scratch[a.interleaved ? 2 * pair : pair] * a.magnitude, x1 = scratch[a.interleaved ? 2 * pair + 1 : pair + pairs] * a.magnitude;
        put(k, second ? x0 * turn[pair].y + x1 * turn[pair].x : x0 * turn[pair].x - x1 * turn[pair].y);
    }
    __syncwarp();
}
