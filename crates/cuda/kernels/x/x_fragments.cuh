// x of a linear as halves, for the fused step of several tokens: each lane of the matrix unit has its operands of two steps in 16
// neighbouring bytes.
//
// [chunk][4 pairs of steps][token][q][2 steps][4 halves]: lane (g, q) has token g, and in step t the four columns that lane q has
// of the rows of weights in this order of columns (half_x.cuh).

#pragma once

#include "base/common.cuh"
#include "host/shared.cuh"

constexpr int FRAGMENT_CHUNK = FRAGMENT_TOKENS * CHUNK; // halves

DEVICE u16* fragment_at(u16* x, int order, int token, int column) {
    int chunk = column / CHUNK, c = column % CHUNK;
    int q = c >> 5, step = c >> 1 & 7, place = (c & 1) << 1 | (c >> 4 & 1);
    if (order == BYTES_ORDER) q = c >> 2 & 3, step = c >> 4, place = (c & 1) << 1 | (c >> 1 & 1);
    return x + chunk * FRAGMENT_CHUNK + ((step / 2 * FRAGMENT_TOKENS + token) * 4 + q) * 8 + step % 2 * 4 + place;
}

// As floats (tagged.cuh), halves carry a tag: their lowest bit. A reader polls them until they have the tag of this step.
constexpr u32 HALF_TAGS = 0x00010001; // of two halves

DEVICE u32 half_tags(u32 epoch) { return epoch & 1 ? HALF_TAGS : 0; }

// Rounds to a multiple of two of the last place, half to even; the largest halves, infinities and NaN are truncated.
DEVICE u16 tagged_half(u32 half, u32 epoch) {
    u32 rounded = (half & 0x7fff) >= 0x7bff ? half : half + (half >> 1 & 1);
    return (u16)((rounded & ~1u) | (epoch & 1));
}

// Stores a value; one that is too large for a half becomes infinite: what is computed with it is not finite, and is reported.
DEVICE void store_fragment(u16* at, float x, u32 epoch) { store_shared_half(at, tagged_half(rounded_half(x), epoch)); }

// Four columns from a multiple of four on.
DEVICE void store_fragment4(u16* x, int order, int token, int column, const float (&v)[4], u32 epoch) {
    u16* at = fragment_at(x, order, token, column);
#pragma unroll
    for (int i = 0; i < 4; i++) store_fragment(at + (order == BYTES_ORDER ? (i & 1) << 1 | i >> 1 : 2 * i), v[i], epoch);
}
