// x of up to four tokens as integers for placed codes (placed.cuh), from halves (x_fragments.cuh). Columns 2 t and 2 t
// + 1 of the matrix unit are the high and the low bytes of token t. Of two tokens, columns 4 to 7 have the same of a
// second chunk.

#pragma once

#include "weights/placed.cuh"
#include "x/x_fragments.cuh"

constexpr int PLACED_HIGH = 254; // a low byte is -127 to 127
constexpr float HIGH_MOST = 126;

struct PlacedX {
    u32 b[8];
    float by, sum; // see multiply_placed: of the token and chunk that the lane has sums of
};

// A lane of x_fragments.cuh has four pieces of 16 bytes of a chunk of a token. Two lanes, of an even g and of the next
// one, have the same token: each converts two of the pieces, and they exchange the results.
template <class F> struct PlacedPieces {
    static constexpr int STEP = F::SIGNS ? 2 : 1; // to the second one
    static DEVICE int first_piece(int lane) { return lane / 4 % 2 * (F::SIGNS ? 1 : 2); }
};

// A lane's halves of token g / 2 (of two chunks, of token g / 2 % 2), N times, become its operands: of even g the high
// bytes, of odd g the low ones.
template <class F, int N> DEVICE void placed_x(PlacedX* (&to)[N], const u32* (&from)[N], int lane) {
    constexpr u32 MAGIC = 0x66006600, LESS = 0xe600e600; // 1536: halves from here on are integers
    constexpr int LARGEST = 1 << Places<F>::power(Places<F>::PER / 2 - 1);
    u32 most2[N] = {}, factors[N];
    float scale[N];
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int n = 0; n < N; n++) most2[n] = larger_magnitude2(most2[n], from[n][i]);
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
#pragma unroll
        for (int n = 0; n < N; n++) most2[n] = larger_magnitude2(most2[n], __shfl_xor_sync(0xffffffff, most2[n], step));
#pragma unroll
    for (int n = 0; n < N; n++) {
        float most = larger_magnitude(low_half(most2[n]), high_half(most2[n]));
        // a number that is not finite makes the scale so
        float factor =
            most < INFINITY && most > 0 ? fminf(HIGH_MOST / LARGEST * reciprocal(most), 65504.f / LARGEST) : 0.f;
        factors[n] = to_half2<true>(factor, factor);
        float rounded = low_half(factors[n]);
        scale[n] = rounded > 0 ? reciprocal(rounded) : most;
    }
    bool low = lane / 4 % 2;
    auto integers = [&](u32 halves, u32 by, u32& lower) { // returns the high ones
        u32 high = half2_fma(halves, by, MAGIC);
        u32 rest = half2_fma(halves, by, half2_add(high, LESS) ^ 0x80008000u);
        lower = half2_fma(rest, 0x5bf05bf0u, MAGIC); // times 254
        return high;
    };
#pragma unroll
    for (int j = 0; j < 4; j++) // of even g; of odd g j + 4, which has the same power of two
#pragma unroll
        for (int n = 0; n < N; n++) {
            static_assert(Places<F>::power(0) == Places<F>::power(4) && Places<F>::power(3) == Places<F>::power(7),
                          "both halves have the same powers");
            const u32* x = from[n];
            u32 by = half2_mul(factors[n], 0x3c003c00u + 0x04000400u * Places<F>::power(j)); // times the power of two
            u32 lower[2], first = integers(x[F::SIGNS ? j : 2 * j], by, lower[0]),
                          second = integers(x[F::SIGNS ? 4 + j : 2 * j + 1], by, lower[1]);
            u32 highs = __byte_perm(first, second, 0x6240), lows = __byte_perm(lower[0], lower[1], 0x6240);
            u32 other = __shfl_xor_sync(0xffffffff, low ? highs : lows, 4);
            to[n]->b[j] = low ? other : highs, to[n]->b[j + 4] = low ? lows : other;
        }
#pragma unroll
    for (int n = 0; n < N; n++) {
        int all[2];
        Places<F>::template sums<PLACED_HIGH>(all, to[n]->b,
                                              [](int, int) { return 0x01010101u * (F::SIGNS ? 0xff : 0x55); });
        float of_token = __shfl_sync(0xffffffff, scale[n], lane % 4 * 8);
        // a set bit is -1, another one 1; codes of two bits are plus 2, and their scales are those of codes times UNIT
        to[n]->by = of_token * (F::SIGNS ? -2.f / (PLACED_HIGH * Places<F>::UNIT) : 1.f / PLACED_HIGH);
        to[n]->sum = (F::SIGNS ? -0.5f : -2.f) * to[n]->by * (float)all[0];
    }
}
