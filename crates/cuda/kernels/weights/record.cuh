// The layout of weights on the device.
//
// A record is 16 rows by 128 columns (one chunk) of a matrix. Floats are halves: [16 columns][g][q][row g, g +
// 8][columns 4 q, 4 q + 2, 4 q + 1, 4 q + 3]. Codes are signed, at the top of their byte: BITS in the first plane, LOW
// more in a second. Those of two bits are stored plus 2 (RAISED). Column 32 s + 16 h + 4 q + i of a chunk is byte i of
// step s, half h of lane q, as the matrix unit takes it. A lane has rows g and g + 8, the words of one after those of
// the other, or by turns in planes of two bits; a warp reads 16 bytes per lane at a time. After the codes come the
// scales, a pair of halves (rows g and g + 8) per group, and as many offsets if the format has them.
//
// 1-bit weights are multiplied as bits (SIGNS) and have another layout. A word has the bits of 32 neighbouring columns:
// bit 7 - j of byte i is column 8 i + j. Lane q has the columns from 32 q on.

#pragma once

#include "base/common.cuh"
#include "host/shared.cuh"

template <int BITS_, int LOW_, int GROUP_, bool OFFSETS_> struct Format {
    static constexpr int BITS = BITS_, LOW = LOW_, GROUP = GROUP_, GROUPS = CHUNK / GROUP_;
    static constexpr bool OFFSETS = OFFSETS_;
    static constexpr bool FLOATS = BITS == 16; // no codes: halves, see RowHalves
    static constexpr int SCALES_AT = 256 * (BITS + LOW), OFFSETS_AT = SCALES_AT + 32 * GROUPS;
    static constexpr int BYTES = SCALES_AT + (FLOATS ? 0 : 32 * GROUPS * (OFFSETS ? 2 : 1));
    static constexpr bool SIGNS = BITS == 1;              // a set bit is -1
    static constexpr bool RAISED = BITS == 2 && LOW == 0; // codes are stored plus 2
    static constexpr bool PLACED =
        (SIGNS || RAISED) && !OFFSETS && GROUPS == 1; // codes can be multiplied where they are (placed.cuh)
    static constexpr int UNIT = SIGNS || FLOATS ? 1 : 1 << (8 - BITS - LOW); // the byte that a code of one is
};

// The format of index N, as the host numbers them.
template <int N> struct FormatOf;
#define DEFINE(n, bits, low, group, offsets, bytes)   \
    template <> struct FormatOf<n> {                  \
        typedef Format<bits, low, group, offsets> Is; \
    };                                                \
    static_assert(FormatOf<n>::Is::BYTES == bytes, "a record has the size that the host packs");
FORMATS(DEFINE)
#undef DEFINE
static_assert(TILE == 16 && CHUNK == 128, "lanes of the matrix unit hold 16 rows by 128 columns");

// The words of one lane in a plane: B of each of its two rows.
template <int B> DEVICE void load_plane(u32 (&words)[2][B], const u8* plane, int lane) {
    if constexpr (B == 1) {
        uint2 v = *(const uint2*)(plane + lane * 8);
        words[0][0] = v.x, words[1][0] = v.y;
    } else {
#pragma unroll
        for (int m = 0; m < B / 2; m++) {
            uint4 v = *(const uint4*)(plane + m * 512 + lane * 16);
            u32 four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                words[B == 2 ? i % 2 : (m * 4 + i) / B][B == 2 ? i / 2 : (m * 4 + i) % B] = four[i];
        }
    }
}

// Four codes of one row as bytes: of step j / 2, half j % 2.
template <class F> DEVICE u32 codes(const u32* words, const u32* low, int j) {
    constexpr int PER = 8 / F::BITS;
    u32 w = words[j / PER] << (F::BITS * (j % PER));
    constexpr u32 MASK = 0x01010101u * (0x100u - (1u << (8 - F::BITS)));
    if constexpr (F::RAISED) w = masked_xor(w, MASK, 0x80808080u);
    else if constexpr (F::BITS < 8) w &= MASK;
    if constexpr (F::LOW > 0) {
        constexpr int PER_LOW = 8 / (F::LOW > 0 ? F::LOW : 1);
        u32 l = low[j / PER_LOW];
        int down = F::BITS - F::LOW * (j % PER_LOW);
        l = down >= 0 ? l >> down : l << -down;
        w |= l & 0x01010101u * (((1u << F::LOW) - 1) << (8 - F::BITS - F::LOW));
    }
    return w;
}

// One record in registers; formats of bits are multiplied otherwise (PlanesX, RowHalves).
template <class F> struct Codes {
    u32 words[2][F::BITS];
    u32 low[2][F::LOW > 0 ? F::LOW : 1];

    DEVICE void load(const u8* record, int lane) {
        load_plane<F::BITS>(words, record, lane);
        if constexpr (F::LOW > 0) load_plane<F::LOW>(low, record + 256 * F::BITS, lane);
    }

    DEVICE u32 get(int row, int j) const { return codes<F>(words[row], low[row], j); }
};

// One weight of a record of codes.
template <class F> DEVICE float coded_weight(const u8* record, int row, int k) {
    int g = row % 8, second = row / 8, s = k / 32, half = k / 16 % 2, q = k / 4 % 4, i = k % 4, j = 2 * s + half;
    int lane = g * 4 + q;
    if constexpr (F::SIGNS) {
        auto bit = [&](int word) {
            return (int)(*(const u32*)(record + word * 4 + second * 4) >> (k % 32 / 8 * 8 + 7 - k % 8) & 1);
        };
        int code = 1 - 2 * bit((g * 4 + k / 32) * 2);
        u32 scale = ((const u32*)(record + F::SCALES_AT))[g * F::GROUPS + k / F::GROUP];
        return code * (second ? high_half(scale) : low_half(scale));
    }
    auto word = [&](int bits, int n, int at) { // word n of the row in the plane at `at`
        int index = bits == 2 ? n * 2 + second : second * bits + n;
        return bits == 1 ? *(const u32*)(record + at + lane * 8 + index * 4)
                         : *(const u32*)(record + at + index / 4 * 512 + lane * 16 + index % 4 * 4);
    };
    constexpr int PER = 8 / F::BITS;
    u32 w = word(F::BITS, j / PER, 0) << (F::BITS * (j % PER));
    u32 top = w >> (8 * i) & (0x100u - (1u << (8 - F::BITS))) & 0xff;
    if constexpr (F::LOW > 0) {
        constexpr int PER_LOW = 8 / (F::LOW > 0 ? F::LOW : 1);
        u32 l = word(F::LOW, j / PER_LOW, 256 * F::BITS) >> (8 * i) & 0xff;
        l = l >> (8 - F::LOW * (j % PER_LOW + 1)) & ((1u << F::LOW) - 1);
        top |= l << (8 - F::BITS - F::LOW);
    }
    int code = (signed char)(F::RAISED ? top ^ 0x80 : top);
    const u32* scales = (const u32*)(record + F::SCALES_AT) + g * F::GROUPS + k / F::GROUP;
    u32 scale = *scales;
    float value = (second ? high_half(scale) : low_half(scale)) * code;
    if constexpr (F::OFFSETS) {
        u32 offset = scales[8 * F::GROUPS];
        value += (second ? high_half(offset) : low_half(offset)) * F::UNIT;
    }
    return value; // times UNIT
}

// One weight of a record: for embeddings.
template <class F> DEVICE float weight_of(const u8* record, int row, int k) {
    if constexpr (F::FLOATS)
        return to_float(*(const u16*)(record + (k / 16 * 32 + row % 8 * 4 + k / 4 % 4) * 16 + row / 8 * 8 +
                                      (k % 2 * 2 + k / 2 % 2) * 2));
    else return coded_weight<F>(record, row, k);
}
