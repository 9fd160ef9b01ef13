// What all kernels use: conversions, waits, barriers and sums.

#pragma once

#include "base/ptx.cuh"

// A number that is known to the compiler, as an argument.
template <int N> struct Constant {
    static constexpr int VALUE = N;
    DEVICE constexpr operator int() const { return N; }
};
template <class X> constexpr bool IS_CONSTANT = false;
template <int N> constexpr bool IS_CONSTANT<Constant<N>> = true;

// Loads that bypass L1: for data that other blocks wrote, or that is read once.
DEVICE float4 load_floats4(const float* at) { return __ldcg((const float4*)at); }
DEVICE float load_float(const float* at) { return __ldcg(at); }
DEVICE uint4 load_words4(const void* at) { return __ldcg((const uint4*)at); }

// a / b and a % b of numbers below 2^20 that are not negative: a division of integers takes as long as ten other instructions.
DEVICE int small_quotient(int a, int b) { return (int)(((float)a + 0.5f) * reciprocal((float)b)); }
DEVICE int small_rest(int a, int b) { return a - small_quotient(a, b) * b; }

DEVICE bool is_finite(float x) { return fabsf(x) < INFINITY; }

// 65504 is the largest half: larger numbers must not become infinite. A value that is not finite stays so, or becomes a
// number if only numbers are allowed (FINITE).
template <bool FINITE> DEVICE float in_range_of_halves(float x) {
    float clamped = fminf(fmaxf(x, -65504.f), 65504.f);
    return FINITE || is_finite(x) ? clamped : x;
}

template <bool FINITE = false> DEVICE u16 to_half(float x) { return rounded_half(in_range_of_halves<FINITE>(x)); }
template <bool FINITE = false> DEVICE u32 to_half2(float low, float high) {
    high = in_range_of_halves<FINITE>(high);
    return rounded_halves(in_range_of_halves<FINITE>(low), high);
}

DEVICE float low_half(u32 pair) { return to_float((u16)(pair & 0xffff)); }
DEVICE float high_half(u32 pair) { return to_float((u16)(pair >> 16)); }

// Waits of blocks for each other take microseconds. One that does not end stops the kernel with an error after about ten
// seconds: the host reports it, and nothing hangs.
struct Patience {
    u32 left = 1u << 26;

    DEVICE void wear() {
        if (--left == 0) __trap();
    }
};

// A barrier of all blocks of the grid, with THREADS threads each: afterwards loads that bypass L1 see what all have written.
// All blocks must be running, and the threads of each have waited for each other since their last writes.
template <int THREADS> DEVICE void grid_barrier_after_sync(u32* counter, u32 target) {
    if (threadIdx.x == 0) {
        arrive_at(counter);
        u32 seen = 0;
        for (Patience patience; seen < target; patience.wear()) seen = load_shared_word(counter);
    }
    sync_threads<THREADS>();
}
template <int THREADS> DEVICE void grid_barrier(u32* counter, u32 target) {
    sync_threads<THREADS>();
    grid_barrier_after_sync<THREADS>(counter, target);
}

template <class N> DEVICE N warp_sum(N x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

template <class N> DEVICE N warp_max(N x) {
    for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
}

// The sum of x over a block of THREADS threads; `scratch` has a float per warp, and may be used again after a barrier.
template <int THREADS> DEVICE float block_sum(float x, float* scratch) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    sync_threads<THREADS>();
    x = lane < THREADS / 32 ? scratch[lane] : 0.f;
    return warp_sum(x);
}
