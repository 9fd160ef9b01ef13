// x of a linear as halves, for the fused step of several tokens: each lane of the matrix unit has its operands of two steps in 16
// neighbouring bytes.
//
// [chunk][4 pairs of steps][token][q][2 steps][4 halves]: lane (g, q) has token g, and in step t the four columns that lane q has
// of the rows of weights in this order of columns (half_x.cuh).

constexpr int FRAGMENT_TOKENS = 8;
constexpr int FRAGMENT_CHUNK = FRAGMENT_TOKENS * CHUNK; // halves

DEVICE u16* fragment_at(u16* x, int order, int token, int column) {
    int chunk = column / CHUNK, c = column % CHUNK;
    int q = c >> 5, step = c >> 1 & 7, place = (c & 1) << 1 | (c >> 4 & 1);
    if (order == BYTES_ORDER) q = c >> 2 & 3, step = c >> 4, place = c & 3;
    return x + chunk * FRAGMENT_CHUNK + ((step / 2 * FRAGMENT_TOKENS + token) * 4 + q) * 8 + step % 2 * 4 + place;
}

// Four columns from a multiple of four on.
DEVICE void store_fragment4(u16* x, int order, int token, int column, const float (&v)[4]) {
    u16* at = fragment_at(x, order, token, column);
    if (order == BYTES_ORDER) {
        *(uint2*)at = {to_half2(v[0], v[1]), to_half2(v[2], v[3])};
    } else { // two steps
#pragma unroll
        for (int i = 0; i < 4; i++) at[2 * i] = to_half(v[i]);
    }
}

// Values that are too large for a half become infinite: what is computed with them is not finite, and is reported.
DEVICE u16 to_half_or_infinity(float x) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}
