// What the linears of a fused step share, for one token (linear.cuh) and for several (batch_linear.cuh).

#pragma once

#include "base/tagged.cuh"
#include "linear/linear_shape.cuh"

// A sum over the warps, in a fixed order.
template <class N> DEVICE float sum_of_warps(N get) {
    float sum[4] = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum[w % 4] += get(w);
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

// The value that is added to a row, loaded early.
template <class L> struct Added {
    u32 bits;

    DEVICE void load(const float* at) { bits = load_shared_word(at); }
    DEVICE float get(const float* at, u32 epoch) {
        for (Patience patience; (bits ^ epoch) & L::ADD_MASK; patience.wear()) bits = load_shared_word(at);
        return untagged(bits, L::ADD_MASK);
    }
};

template <class F> struct FormatTag { typedef F Is; };

// Runs `tiles` tiles of the block from its unit `from` on: `run(format, count, out)` computes `count` tiles, one or two, in the order of
// the ring; their shares are `stride` floats apart.
template <class L, class Run> DEVICE void run_units(int from, int tiles, float* out, int stride, Run run) {
    if constexpr (L::ALIKE) {
        FormatTag<typename L::A::F> format;
        int i = 0;
        if constexpr (L::PAIRED)
            for (; i + 1 < tiles; i += 2, out += 2 * stride) run(format, Constant<2>{}, out);
        for (; i < tiles; i++, out += stride) run(format, Constant<1>{}, out);
    } else {
        for (int i = 0; i < tiles; i++, out += stride) {
            int tile, part = L::find(from * L::EACH + i, tile);
            if (part == 0) run(FormatTag<typename L::A::F>{}, Constant<1>{}, out);
            else if (part == 1) run(FormatTag<typename L::B::F>{}, Constant<1>{}, out);
            else run(FormatTag<typename L::C::F>{}, Constant<1>{}, out);
        }
    }
}
