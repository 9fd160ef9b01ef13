// Values between phases, and how blocks of the fused step pass them without a grid barrier: the lowest bit of every float is
// a tag that flips from step to step (the epoch), and a reader polls a float until it has the tag of this step. The value
// and its availability are then one load instead of two dependent ones.

#pragma once

#include "base/common.cuh"
#include "host/shared.cuh"

DEVICE float* row_of(const View& view, int row) { return view.at + row * view.stride; }

DEVICE float untagged(u32 bits, u32 mask) { return __uint_as_float(bits & ~mask); }
DEVICE u32 tagged(float x, u32 mask, u32 epoch) { return (__float_as_uint(x) & ~mask) | (epoch & mask); }

DEVICE void store_tagged(float* at, float x, u32 mask, u32 epoch) { store_shared_word(at, tagged(x, mask, epoch)); }
DEVICE void store_tagged4(float* at, const float4& v, u32 mask, u32 epoch) {
    u32 bits[4] = {tagged(v.x, mask, epoch), tagged(v.y, mask, epoch), tagged(v.z, mask, epoch), tagged(v.w, mask, epoch)};
    store_shared_words4(at, bits);
}

constexpr int POLL_NANOSECONDS = 100; // between polls: those of all blocks delay what they wait for

// N pieces of four words that may not be written yet, STRIDE floats apart: floats, or halves with a mask of two tags. All lanes of a
// warp wait together: if some continued alone, the warp would stay diverged, and every later shuffle would be slow.
template <int N, int STRIDE = 4> struct Awaited {
    u32 bits[4 * N];

    DEVICE void load(const float* at) {
#pragma unroll
        for (int n = 0; n < N; n++) load_shared_words4(bits + 4 * n, at + STRIDE * n);
    }

    DEVICE void zero(u32 epoch) {
#pragma unroll
        for (int i = 0; i < 4 * N; i++) bits[i] = epoch;
    }

    DEVICE void wait(const float* at, u32 mask, u32 epoch) {
        for (Patience patience;; patience.wear()) {
            u32 wrong = 0;
#pragma unroll
            for (int i = 0; i < 4 * N; i++) wrong |= bits[i] ^ epoch;
            bool again = wrong & mask;
            if (!__any_sync(0xffffffff, again)) return;
            __nanosleep(POLL_NANOSECONDS);
#pragma unroll
            for (int n = 0; n < N; n++) load_shared_words4_if(again, bits + 4 * n, at + STRIDE * n);
        }
    }
};

// Four factors, or ones; loaded without a branch, which would wait for them.
struct Factors {
    u32 bits[4] = {0x3f800000, 0x3f800000, 0x3f800000, 0x3f800000};

    DEVICE void load_if(bool condition, const float* at) { load_shared_words4_if(condition, bits, at); }
    DEVICE float get(int i) const { return __uint_as_float(bits[i]); }
};

// A float of a value that may not be written yet; by all lanes of a warp together.
DEVICE float awaited_float(const float* at, u32 mask, u32 epoch) {
    u32 bits = load_shared_word(at);
    for (Patience patience; __any_sync(0xffffffff, (bits ^ epoch) & mask); patience.wear()) bits = load_shared_word(at);
    return untagged(bits, mask);
}

// Four floats at each of N places of a value that may not be written yet; by all lanes of a warp together.
template <int N, class At> DEVICE void awaited_quads(float4 (&v)[N], At at, u32 mask, u32 epoch) {
    u32 bits[N][4];
#pragma unroll
    for (int n = 0; n < N; n++) load_shared_words4(bits[n], at(n));
    for (Patience patience;; patience.wear()) {
        u32 wrong = 0;
#pragma unroll
        for (int n = 0; n < N; n++) wrong |= (bits[n][0] ^ epoch) | (bits[n][1] ^ epoch) | (bits[n][2] ^ epoch) | (bits[n][3] ^ epoch);
        bool again = wrong & mask;
        if (!__any_sync(0xffffffff, again)) break;
        __nanosleep(POLL_NANOSECONDS);
#pragma unroll
        for (int n = 0; n < N; n++) load_shared_words4_if(again, bits[n], at(n));
    }
#pragma unroll
    for (int n = 0; n < N; n++) v[n] = {untagged(bits[n][0], mask), untagged(bits[n][1], mask), untagged(bits[n][2], mask), untagged(bits[n][3], mask)};
}

// Loads floats of values that may not be written yet (TAGS), and finds out whether one was not: then all must be loaded again.
template <bool TAGS> struct TaggedLoads {
    u32 epoch, wrong;

    DEVICE float check(u32 bits, u32 mask) {
        wrong |= (bits ^ epoch) & mask;
        return untagged(bits, mask);
    }
    DEVICE float one(const float* at, u32 mask) {
        if constexpr (TAGS) return check(load_shared_word(at), mask);
        else return load_float(at);
    }
    DEVICE float4 four(const float* at, u32 mask) {
        if constexpr (!TAGS) return load_floats4(at);
        u32 bits[4];
        load_shared_words4(bits, at);
        return {check(bits[0], mask), check(bits[1], mask), check(bits[2], mask), check(bits[3], mask)};
    }
};
