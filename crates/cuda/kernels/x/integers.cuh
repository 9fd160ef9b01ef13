// x as integers for the matrix unit: their layout, and how it is written.
//
// They have 16 bits and a scale per chunk. The high and the low byte are neighbouring columns of b, so that lanes q = 0
// get the sums of both for their rows.
//
// For codes of two bits in their places (placed.cuh), every second sixteen is times 4. For those of many tiles, planes
// are in fields of two bits (FieldsX).

#pragma once

#include "weights/record.cuh"

enum XOrder { X_BYTES, X_PLACED, X_PLANES, X_FIELDS };

// A chunk of x: [2 step pairs][high, low][q][2 steps][2 halves] words, 256 bytes.
DEVICE void load_x(u32 (&b)[8], const u8* chunk, int lane) {
    int g = lane / 4, q = lane % 4;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        uint4 v = {0, 0, 0, 0};
        if (g < 2) v = *(const uint4*)(chunk + m * 128 + g * 64 + q * 16);
        b[4 * m] = v.x, b[4 * m + 1] = v.y, b[4 * m + 2] = v.z, b[4 * m + 3] = v.w;
    }
}

// What a lane adds of the numbers of bits that planes and rows g and g + 8 have in common: c[0] is of planes 2 q and 2
// q + 1, c[1] of those 8 above.
DEVICE void weighted_counts(float (&sums)[2], const int (&c)[2][4], int lane) {
    int top = lane % 4 == 3 ? -512 : 512;
    sums[0] = (float)(c[0][0] + 2 * c[0][1] + 256 * c[1][0] + top * c[1][1]);
    sums[1] = (float)(c[0][2] + 2 * c[0][3] + 256 * c[1][2] + top * c[1][3]);
}
DEVICE float weight_of_planes(int lane) {
    return lane % 4 == 0 ? 1.f : lane % 4 == 1 ? 4.f : lane % 4 == 2 ? 16.f : 64.f;
}

// x for codes of one bit: bit planes of 15-bit integers, [plane % 8][q][plane / 8] words; plane 15 repeats plane
// 14, which makes them 16-bit integers.
//
// The sum of u x over codes u of one bit is the sum over planes p of 2^p (the last one -2^15) times the number of bits
// that u and the plane have in common. A weight is 1 - 2 u, so the sum of x is needed too: it is that of a row whose
// bits are all set.
//
// A lane gets planes 2q and 2q + 1 of both halves of the integers for its rows; the lanes of a quad are added at the
// end.
template <class F> struct PlanesX {
    static_assert(F::GROUPS == 1 || !F::SIGNS, "all columns of a chunk have one scale");
    static constexpr int REGISTERS = 4;
    u32 planes[2];
    float by, sum; // the value of a common bit of its lowest plane, and of no common bit

    DEVICE void load(const u8* chunk, float scale, int lane) {
        uint2 v = *(const uint2*)(chunk + lane * 8);
        planes[0] = v.x, planes[1] = v.y;
        by = -2.f * scale * weight_of_planes(lane);
        float sums[2];
        count(sums, uint2{~0u, ~0u}, lane);
        sum = -0.5f * by * sums[0];
    }

    DEVICE void count(float (&sums)[2], uint2 words, int lane) const {
        int c[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) count_common(c[half], words.x, words.y, planes[half]);
        weighted_counts(sums, c, lane);
    }
    DEVICE void count(float (&sums)[2], const u8* record, int lane) const {
        count(sums, *(const uint2*)(record + lane * 8), lane);
    }
};

// x for codes of two bits that are multiplied as bits: in fields of two bits, each opposite a code. The low bit of a
// code is multiplied with plane p, its high bit with plane p - 1 of the same column: both count 2^p. There is no plane
// below 0, and plane 15 of 2 x is the sign of x. A weight is a code minus 2.
//
// Integers become operands in two steps, both by the warp that multiplies with them. `put` stores them reversed, so
// that plane p - 1 is above plane p: [q][j][2] words, of columns 16 j + 4 q and two further, and of the columns after
// them. `convert` replaces them by [lane][low and high planes][2 words of codes], and [q] of `by` and `sum`.
struct FieldsX {
    static constexpr int BYTES = FIELDS_BYTES; // of a chunk
    static_assert(BYTES == 32 * 16 + 4 * 8, "operands of all lanes, and two floats per q");
    static constexpr u32 EVEN = 0x55555555;
    u32 planes[2][2];
    float by, sum; // as in PlanesX

    // Stores eight neighbouring values of x, the `part`-th eight of a chunk, times `by`.
    static DEVICE void put(u8* chunk, int part, const float (&x)[8], float by) {
        u32 v[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = __float_as_uint(x[i] * by + 12582912.f); // the low half is the nearest integer
#pragma unroll
        for (int n = 0; n < 8; n += 4) {
            auto reversed = [&](int i) { return __brev(__byte_perm(v[n + i + 2], v[n + i], 0x5410)); };
            *(uint2*)(chunk + (part % 2 * 2 + n / 4) * 64 + part / 2 * 8) = {reversed(0), reversed(1)};
        }
    }

    template <class F> static DEVICE void convert(u8* chunk, float scale, int lane) {
        static_assert(F::RAISED && F::PLACED, "codes of two bits, stored plus 2");
        int g = lane / 4, q = lane % 4;
        // planes g + 7 and g + 8, then g - 1 and g, of the first of four columns in bytes 0 and 1 of a word, of the
        // third in bytes 2 and 3; the others in the second word
        u32 fields[2][2] = {};
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint4 v = *(const uint4*)(chunk + q * 64 + m * 16);
            u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int to = 6 - 2 * (2 * (m % 2) + i / 2); // the place of the column's code in its byte
                fields[m / 2][i % 2] |= __funnelshift_r(words[i], words[i], 7 - g - to) & 0x03030303u << to;
            }
        }
        FieldsX x;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            x.planes[0][i] = __byte_perm(fields[i][0], fields[i][1], 0x7351) & (g == 0 ? EVEN : ~0u);
            x.planes[1][i] = __byte_perm(fields[i][0], fields[i][1], 0x6240);
        }
        __syncwarp();
        *(uint4*)(chunk + lane * 16) = {x.planes[0][0], x.planes[0][1], x.planes[1][0], x.planes[1][1]};
        float sums[2];
        x.count(sums, uint4{EVEN, EVEN, EVEN, EVEN}, lane);
        float by = (float)F::UNIT * scale * weight_of_planes(lane);
        if (g == 0) *(float2*)(chunk + 512 + q * 8) = {by, -2.f * by * sums[0]};
    }

    DEVICE void load(const u8* chunk, int lane) {
        uint4 v = *(const uint4*)(chunk + lane * 16);
        float2 f = *(const float2*)(chunk + 512 + lane % 4 * 8);
        planes[0][0] = v.x, planes[0][1] = v.y, planes[1][0] = v.z, planes[1][1] = v.w, by = f.x, sum = f.y;
    }

    DEVICE void count(float (&sums)[2], uint4 words, int lane) const {
        int c[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++)
            count_common(c[half], words.x, words.y, words.z, words.w, planes[half][0], planes[half][1]);
        weighted_counts(sums, c, lane);
    }
    DEVICE void count(float (&sums)[2], const u8* record, int lane) const {
        count(sums, *(const uint4*)(record + lane * 16), lane);
    }
};

// The integer of the largest value of a chunk: one bit less for bit planes, see PlanesX.
constexpr float BYTES_MOST = 32512.f, PLANES_MOST = 16256.f;
DEVICE constexpr float most_of(XOrder order) {
    return order == X_PLANES || order == X_FIELDS ? PLANES_MOST : order == X_PLACED ? BYTES_MOST / 4 : BYTES_MOST;
}

// The factor from values to integers, and the scale of the integers; values below 1e-30 become 0.
DEVICE float to_integers(float most, float becomes) { return most > 1e-30f ? becomes * reciprocal(most) : 0.f; }
DEVICE float x_scale_of(float most, float becomes) { return most * (1.f / becomes); }

// The words of four neighbouring values times `by`. Returns the sum of the integers.
DEVICE int x_words(u32& high, u32& low, const float* x, float by) {
    u32 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __float_as_uint(x[i] * by + (12582912.f + 32768.f)); // the low half is the nearest integer + 0x8000
    u32 first = __byte_perm(v[0], v[1], 0x5410), second = __byte_perm(v[2], v[3], 0x5410);
    low = __byte_perm(first, second, 0x6420);
    high = __byte_perm(first + 0x00800080u, second + 0x00800080u, 0x7531) ^ 0x80808080u;
    return 256 * __dp4a((int)high, 0x01010101, 0) + __dp4a((int)low, 0x01010101, 0);
}

// Stores eight neighbouring values of x, the `part`-th eight of a chunk, times `by`. Returns the sum of the integers.
DEVICE int store_x(u8* chunk, int part, const float (&x)[8], float by) {
    int s = part / 4, half = part / 2 % 2, q = part % 2 * 2, sum = 0;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        u32 high, low;
        sum += x_words(high, low, x + 4 * n, by);
        u8* at = chunk + s / 2 * 128 + (q + n) * 16 + s % 2 * 8 + half * 4;
        *(u32*)at = high;
        *(u32*)(at + 64) = low;
    }
    return sum;
}

// With X_PLACED, what codes that are stored plus 2 add to a sum, for the sum of a chunk's integers. Codes are times 64.
DEVICE float excess_of(float x_scale, float sum) { return -128.f * x_scale * sum; }

// Transposes 8 by 8 bits whose rows are bytes 0 to 3 of x and y: byte 3 of x gets the top bits, in the order of the
// rows.
DEVICE void transpose_bits(u32& x, u32& y) {
    u32 t;
    t = (x ^ x >> 7) & 0x00aa00aau, x ^= t ^ t << 7;
    t = (y ^ y >> 7) & 0x00aa00aau, y ^= t ^ t << 7;
    t = (x ^ x >> 14) & 0x0000ccccu, x ^= t ^ t << 14;
    t = (y ^ y >> 14) & 0x0000ccccu, y ^= t ^ t << 14;
    t = (x & 0xf0f0f0f0u) | (y >> 4 & 0x0f0f0f0fu);
    y = (x << 4 & 0xf0f0f0f0u) | (y & 0x0f0f0f0fu);
    x = t;
}

// Two lanes exchange halves of their words: the other lane gets the bytes that `send` selects of a and b, and the bytes
// that come back replace them.
DEVICE void exchange(u32& a, u32& b, int lanes, u32 send, u32 keep_a, u32 keep_b) {
    u32 back = __shfl_xor_sync(0xffffffff, __byte_perm(a, b, send), lanes);
    a = __byte_perm(a, back, keep_a), b = __byte_perm(b, back, keep_b);
}

// As store_x, into bit planes. A thread's eight values are one byte of each plane; four threads exchange bytes, so that
// each has whole words of four planes. All threads of a warp must call it; only a `real` one writes.
DEVICE void store_planes(bool real, u8* chunk, int part, const float (&x)[8], float most) {
    float by = to_integers(most, PLANES_MOST);
    int v[8], n = part % 4, q = part / 4;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __float_as_int(x[i] * by + 12582912.f);
    u32 word[4]; // byte b of word k: plane 4k + b
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 rows[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 first = __byte_perm(v[4 * i + 1], v[4 * i], half ? 0x51 : 0x40); // row 4i over row 4i + 1
            u32 second = __byte_perm(v[4 * i + 3], v[4 * i + 2], half ? 0x51 : 0x40);
            rows[i] = __byte_perm(second, first, 0x5410);
        }
        transpose_bits(rows[0], rows[1]);
        word[2 * half] = rows[1], word[2 * half + 1] = rows[0];
    }
    bool odd = n % 2, upper = n / 2;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        exchange(word[k], word[k + 1], 1, odd ? 0x6420 : 0x7531, odd ? 0x3514 : 0x5240, odd ? 0x3716 : 0x7260);
        exchange(word[k], word[k + 1], 2, upper ? 0x5410 : 0x7632, upper ? 0x3254 : 0x5410, upper ? 0x3276 : 0x7610);
    }
    if (!real) return;
    uint2* at = (uint2*)chunk; // planes n, n + 8 and n + 4, n + 12
    at[n * 4 + q] = make_uint2(word[0], word[2]);
    at[(n + 4) * 4 + q] = make_uint2(word[1], word[3]);
}
