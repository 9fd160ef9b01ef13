// Products of a tile of linears for many tokens (tiled_linear.cuh): of 16 rows of weights in registers with x in shared
// memory, by a warp, or with the rows of four warps together (`wgmma`).

#pragma once

#include "base/common.cuh"
#include "host/shared.cuh"
#include "host/wgmma.cuh"

// Sums of a warp: 16 rows, N tokens. Element 4 j + i is that of the matrix unit's c[i], for tokens 8 j .. 8 j + 7.
template <int N> struct Sums {
    static constexpr bool WGMMA = HAS_WGMMA && (REPRODUCIBLE || N >= WGMMA_TOKENS);
    static constexpr int CHAINS =
        N == 8 && !REPRODUCIBLE ? 2 : 1; // consecutive products of few tokens are added to different sums
    float d[N / 2], other[CHAINS == 2 ? 4 : 1];

    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < N / 2; i++) d[i] = 0;
        if constexpr (CHAINS == 2) other[0] = other[1] = other[2] = other[3] = 0;
    }

    // The sums of a chunk start at a value per token, the same for all rows.
    DEVICE void start(const float* values, int lane) {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float2 two = *(const float2*)(values + 8 * j + (u32)lane % 4 * 2);
            d[4 * j] = d[4 * j + 2] = two.x, d[4 * j + 1] = d[4 * j + 3] = two.y;
        }
        if constexpr (CHAINS == 2) other[0] = other[1] = other[2] = other[3] = 0;
    }

    // Adds the sums of a chunk, finished, times the scales of rows g and g + 8.
    DEVICE void add_scaled(const Sums& chunk, float first, float second) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) d[i] += (i % 4 < 2 ? first : second) * chunk.d[i];
    }

    // Adds the sums of a segment, finished.
    DEVICE void add(const Sums& segment) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) d[i] += segment.d[i];
    }

    DEVICE float (&d4(int j))[4] { return *(float (*)[4])(d + 4 * j); }

    // Adds a chunk of the rows `first` (g) and `second` (g + 8); x is in two tiles of 64 positions. UNIFORM: the
    // compiler knows that all lanes have the same x.
    template <bool UNIFORM, class Row> DEVICE void add(const Row& first, const Row& second, const u8* x, int lane) {
        if constexpr (WGMMA) { // while one warpgroup's products run, the other one makes its rows
            u32 a[8][4];
#pragma unroll
            for (int t = 0; t < 8; t++) first.pairs(a[t][0], a[t][2], t), second.pairs(a[t][1], a[t][3], t);
            u32 tile = shared_address(x);
            wgmma_fence();
#pragma unroll
            for (int t = 0; t < 8; t++) {
                int offset = t / 4 * N * 128 + t % 4 * 32;
                Wgmma<N>::multiply(
                    d, a[t], UNIFORM ? matrix_descriptor(tile, 0) + offset / 16 : matrix_descriptor(tile, offset));
            }
            wgmma_commit();
            wgmma_wait<0>();
            return;
        }
        int matrix = lane / 8, row = lane % 8;
        u32 both[4]; // x of eight tokens, of two steps
#pragma unroll
        for (int t = 0; t < 8; t++) {
            u32 a[4];
            first.pairs(a[0], a[2], t), second.pairs(a[1], a[3], t);
            const u8* tile = x + t / 4 * N * 128;
            if constexpr (N == 8) {
                if (t % 2 == 0)
                    load_matrices(both, shared_address(tile + row * 128 + ((t % 4 / 2 * 4 + matrix) ^ row) * 16));
                multiply(CHAINS == 2 && t % 2 ? (float (&)[4])other : d4(0), a[0], a[1], a[2], a[3], both[t % 2 * 2],
                         both[t % 2 * 2 + 1]);
            } else {
#pragma unroll
                for (int j = 0; j < N / 8; j += 2) {
                    u32 b[4];
                    load_matrices(b, shared_address(tile + (8 * j + matrix / 2 * 8 + row) * 128 +
                                                    ((t % 4 * 2 + matrix % 2) ^ row) * 16));
                    multiply(d4(j), a[0], a[1], a[2], a[3], b[0], b[1]);
                    if (j + 1 < N / 8) multiply(d4(j + 1), a[0], a[1], a[2], a[3], b[2], b[3]);
                }
            }
        }
    }

    // After the last product: what the matrix unit has written is read from here on.
    DEVICE void finish() {
#pragma unroll
        for (int i = 0; i < N / 2; i++) after_products(d[i]);
        if constexpr (CHAINS == 2)
            for (int i = 0; i < 4; i++) d[i] += other[i];
    }
};
