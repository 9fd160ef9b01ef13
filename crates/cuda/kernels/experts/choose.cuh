// How the experts of a token are chosen: equals Op::Route of graph/reference.rs.

#pragma once

#include "base/phase.cuh"

// Scores as integers in their order: removed ones first, then NaN.
constexpr u32 REMOVED = 0, SCORE_NAN = 1;
DEVICE u32 score_key(float score) {
    u32 bits = __float_as_uint(score);
    return score != score ? SCORE_NAN : bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The best of all lanes' keys; the lower index of equal ones.
DEVICE int warp_best(u32 key, u32 index) {
    u32 best = largest_of_warp(key);
    return (int)smallest_of_warp(key == best ? index : ~0u);
}

DEVICE float expert_weight(const RouteArgs& a, float x, float most, float sum) {
    if (a.gating == GATE_SOFTMAX) return expf(x - most) / sum;
    if (a.gating == GATE_SIGMOID) return 1.f / (1.f + expf(-x));
    if (a.gating == GATE_SQRT_SOFTPLUS) return sqrtf(x > 20.f ? x : log1pf(expf(x)));
    return x; // softmax over the chosen ones follows
}

// What a warp needs to choose experts.
struct RouteWorkspace {
    u32 keys[MOST_EXPERTS];
    float logits[MOST_EXPERTS];
};

// A warp chooses the experts of one token by its logits in the workspace; lane e % 32 has put the one of expert e there, or all lanes
// have waited for it. Calls `put(i, expert, weight)` for the i-th expert, by lane i.
template <class Put> DEVICE void choose(const RouteArgs& a, RouteWorkspace& workspace, Put put) {
    int lane = threadIdx.x % 32;
    u32* keys = workspace.keys;
    float *logits = workspace.logits, most = -INFINITY, sum = 0;
    bool finite = true;
    for (int e = lane; e < a.experts; e += 32) most = fmaxf(most, logits[e]), finite &= is_finite(logits[e]);
    most = warp_max(most), finite = __all_sync(0xffffffff, finite);
    if (a.gating == GATE_SOFTMAX)
        for (int e = lane; e < a.experts; e += 32) sum += expf(logits[e] - most);
    sum = warp_sum(sum);
    for (int e = lane; e < a.experts; e += 32)
        keys[e] = score_key(expert_weight(a, logits[e], most, sum) + (a.bias ? a.bias[e] : 0.f));
    __syncwarp();
    if (a.groups > 0) { // lane g has group g
        int len = a.experts / a.groups;
        float first = -INFINITY, second = -INFINITY;
        for (int i = 0; lane < a.groups && i < len; i++) {
            u32 key = keys[lane * len + i];
            float score = key == SCORE_NAN ? -INFINITY : __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
            second = fmaxf(second, fminf(score, first)), first = fmaxf(first, score);
        }
        u32 key = lane < a.groups ? score_key(len == 1 ? first : first + second) : REMOVED, kept = 0;
        for (int i = 0; i < a.used_groups; i++) {
            int best = warp_best(key, lane);
            kept |= 1u << best;
            if (lane == best) key = REMOVED;
        }
        for (int e = lane; e < a.experts; e += 32)
            if (!(kept >> e / len & 1)) keys[e] = REMOVED;
        __syncwarp();
    }
    float weight = 0; // lane i has expert i and its weight
    int chosen = 0;
    for (int i = 0; i < a.used; i++) {
        u32 key = REMOVED;
        int index = a.experts - 1;
#pragma unroll 4
        for (int e = lane; e < a.experts; e += 32)
            if (keys[e] > key) key = keys[e], index = e;
        int best = warp_best(key, index);
        if (lane == i) weight = expert_weight(a, logits[best], most, sum), chosen = best;
        if (lane == best % 32) keys[best] = REMOVED; // only this lane reads it
    }
    bool real = lane < a.used;
    if (a.gating == GATE_CHOSEN_SOFTMAX) {
        float top = warp_max(real ? weight : -INFINITY);
        weight = real ? expf(weight - top) : 0.f;
        weight /= warp_sum(weight);
    }
    float total = warp_sum(real ? weight : 0.f);
    if (a.renormalise) weight /= fmaxf(total, 6.1035156e-5f);
    if (real) put(lane, chosen, finite ? weight * a.scale : __int_as_float(0x7fffffff));
}
