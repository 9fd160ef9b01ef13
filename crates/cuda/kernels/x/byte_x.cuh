// x of a linear as bytes, for the kernels of large steps (byte_linear.cuh): tiles in the order in which the matrix unit
// reads them.
//
// [chunk][token][128 bytes]: the eight pieces of 16 bytes of a row are exchanged by the token, as in half_x.cuh. A
// position is a column in the order in which a lane has a format's codes: positions 32 s + 16 h + 4 q + i are bytes i
// of half h of lane q in step s.
//
// A group of columns has one scale per token. The sums of a group are in units of its scale, so each group has the
// ratio of the scale of the group before it to its own, and the last one its scale.

#pragma once

#include "base/common.cuh"
#include "host/shared.cuh"

// Where a position of a token is.
DEVICE u8* byte_at(const ByteX& x, int token, int position) {
    return x.at + ((long)(position / CHUNK) * x.tokens + token) * CHUNK +
           ((position % CHUNK / 16 ^ token % 8) * 16 + position % 16);
}

constexpr int BYTES_OF_THREAD = 16; // neighbouring columns: four words of x

// Word n of sixteen columns from `first` on: its bytes, and its position. Codes of bits: a lane has the bits of step n
// of its 32 columns in its word (record.cuh), which are columns 3 - n of four neighbours, in pairs that are exchanged.
DEVICE constexpr int column_of_byte(bool bits, int n, int i) { return bits ? (i ^ 1) * 4 + 3 - n : n * 4 + i; }
DEVICE int position_of_word(int order, int first, int n) {
    if (order != BITS_ORDER) return first + n * 4;
    return (first & ~127) | n << 5 | (first & 16) | (first >> 5 & 3) << 2;
}

// The low bytes of four words.
DEVICE u32 low_bytes(u32 a, u32 b, u32 c, u32 d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// Makes x of a token, by a block of THREADS threads. `load` gives sixteen neighbouring columns and adds their squares
// before the weights of a norm; `factor` turns the thread's sum of squares into a factor on all columns.
template <int THREADS> struct ByteRow {
    static constexpr int HELD = 1; // times sixteen columns of a thread stay in registers; others are loaded again
    static constexpr int MOST_GROUPS = 512;
    // A group whose values are all smaller than this part of the row's largest one has a scale as if they were not: the
    // ratios of scales stay small.
    static constexpr float LEAST = 1.f / (1 << 20);
    static constexpr float ROUNDS = 12582912.f; // 1.5 * 2^23: what is added to it is rounded, and ends in its low byte
    float largest[MOST_GROUPS], sums[32];

    template <class Load, class Factor>
    DEVICE void make(const ByteX& x, int token, int cols, Load load, Factor factor) {
        int thread = threadIdx.x, lane = thread % 32, lanes = x.group / BYTES_OF_THREAD;
        float held[HELD][BYTES_OF_THREAD], squares = 0;
        auto each = [&](auto held_ones, auto others) { // `first` may be after the last column
#pragma unroll
            for (int n = 0; n < HELD; n++)
                if (n * THREADS * BYTES_OF_THREAD < cols) held_ones(held[n], (n * THREADS + thread) * BYTES_OF_THREAD);
            for (int n = HELD * THREADS; n * BYTES_OF_THREAD < cols; n += THREADS)
                others((n + thread) * BYTES_OF_THREAD);
        };
        auto find = [&](float (&v)[BYTES_OF_THREAD], int first) {
            load(v, first, squares);
            float most = 0;
#pragma unroll
            for (int i = 0; i < BYTES_OF_THREAD; i++) most = larger_magnitude(most, v[i]);
            for (int step = lanes / 2; step > 0; step /= 2)
                most = larger_magnitude(most, __shfl_xor_sync(0xffffffff, most, step));
            if (lane % lanes == 0 && first < cols) largest[first / x.group] = most;
        };
        each(find, [&](int first) {
            float v[BYTES_OF_THREAD];
            find(v, first);
        });
        float by = factor(squares, sums);
        __syncthreads();
        int groups = cols / x.group;
        float most = 0;
        for (int group = lane; group < groups; group += 32) most = larger_magnitude(most, largest[group]);
        for (int step = 16; step > 0; step /= 2) most = larger_magnitude(most, __shfl_xor_sync(0xffffffff, most, step));
        float least = most == 0 ? 1.f : most * LEAST;
        auto top = [&](int group) { return larger_magnitude(largest[group], least); };
        for (int group = thread; group < groups; group += THREADS)
            x.ratios[group * x.tokens + token] = group ? top(group - 1) / top(group) : 1.f;
        if (thread == 0) x.scales[token] = top(groups - 1) * by / 127.f;
        auto store = [&](const float (&v)[BYTES_OF_THREAD], int first) {
            if (first >= cols) return;
            float unit = 127.f / top(first / x.group);
            auto put = [&](auto bits) {
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    auto rounded = [&](int i) {
                        return __float_as_uint(v[column_of_byte(bits, n, i)] * unit + ROUNDS);
                    };
                    *(u32*)byte_at(x, token, position_of_word(x.order, first, n)) =
                        low_bytes(rounded(0), rounded(1), rounded(2), rounded(3));
                }
            };
            if (x.order == BITS_ORDER) put(Constant<true>{});
            else put(Constant<false>{});
        };
        each(store, [&](int first) {
            float v[BYTES_OF_THREAD], ignored = 0;
            load(v, first, ignored), store(v, first);
        });
    }
};
