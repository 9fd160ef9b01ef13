// Codes of weights as halves, in the order in which the matrix unit takes the rows of its first operand: in step t, a lane has
// two pairs of positions (half_x.cuh) of rows g and g + 8.

#pragma once

#include "weights/record.cuh"

// The words of one lane for one row of a plane: of row g, or of row g + 8. `second` is a Constant if both rows of
// a record are loaded: the words of both are then loaded once.
template <int B, class Row> DEVICE void load_row(u32* words, const u8* plane, int lane, Row second) {
    if constexpr (B == 1) {
        words[0] = *(const u32*)(plane + lane * 8 + second * 4);
    } else if constexpr (B == 2) {
        if constexpr (IS_CONSTANT<Row>) {
            uint4 v = *(const uint4*)(plane + lane * 16);
            words[0] = second ? v.y : v.x, words[1] = second ? v.w : v.z;
        } else {
            const u32* v = (const u32*)(plane + lane * 16) + second;
            words[0] = v[0], words[1] = v[2];
        }
    } else {
#pragma unroll
        for (int m = 0; m < B / 4; m++) {
            uint4 v = *(const uint4*)(plane + (second * (B / 4) + m) * 512 + lane * 16);
            words[4 * m] = v.x, words[4 * m + 1] = v.y, words[4 * m + 2] = v.z, words[4 * m + 3] = v.w;
        }
    }
}

// One row of a record: `load` takes it from shared memory, `pairs` gives the halves of a step.
template <class F> struct RowHalves {
    static constexpr int WORDS = F::FLOATS ? 1 : F::BITS, LOWS = F::LOW > 0 ? F::LOW : 1;
    static constexpr int SCALES = F::FLOATS || F::SIGNS ? 1 : F::GROUPS; // bits: the lane's columns have one
    u32 words[WORDS], low[LOWS], scale[SCALES];
    u32 offset[F::OFFSETS ? F::GROUPS : 1];
    const u8* from;

    template <class Row> DEVICE void load(const u8* record, int lane, Row second) {
        if constexpr (F::FLOATS) {
            from = record + lane * 16 + second * 8;
        } else {
            load_row<F::BITS>(words, record, lane, second);
            if constexpr (F::LOW > 0) load_row<F::LOW>(low, record + 256 * F::BITS, lane, second);
            const u32* pairs = (const u32*)(record + F::SCALES_AT) + lane / 4 * F::GROUPS;
            u32 own = second ? 0x3232 : 0x1010; // twice the row's half
            if constexpr (F::SIGNS) {
                const u32* first = pairs + lane % 4 * 32 / F::GROUP;
                scale[0] = __byte_perm(first[0], first[F::GROUP < 32 ? 1 : 0], second ? 0x7632 : 0x5410);
            } else {
#pragma unroll
                for (int i = 0; i < F::GROUPS; i++) {
                    scale[i] = __byte_perm(pairs[i], 0, own);
                    if constexpr (F::OFFSETS) offset[i] = half2_mul(__byte_perm(pairs[i + 8 * F::GROUPS], 0, own), UNIT2);
                }
            }
        }
    }

    static constexpr u32 UNIT2 = F::UNIT == 1 ? 0x3c003c00 : F::UNIT == 2 ? 0x40004000 : F::UNIT == 4 ? 0x44004400 : F::UNIT == 8 ? 0x48004800
        : F::UNIT == 16 ? 0x4c004c00 : F::UNIT == 32 ? 0x50005000 : 0x54005400;

    // The pairs of step t: in units of the format's UNIT, times the scale, plus the offset.
    DEVICE void pairs(u32& first, u32& second, int t) const {
        if constexpr (F::FLOATS) {
            uint2 v = *(const uint2*)(from + t * 512);
            first = v.x, second = v.y;
        } else if constexpr (F::SIGNS) {
            int bit = 8 * (t / 4) + 7 - 2 * (t % 4); // of the first column; the second is the bit below, a pair 16 bits apart
            first = (words[0] << (15 - bit) & 0x80008000u) ^ scale[0];
            second = (words[0] << (16 - bit) & 0x80008000u) ^ scale[0];
        } else {
            u32 by = scale[t * 16 / F::GROUP];
            if constexpr (F::BITS == 4 && F::LOW == 0) { // of each byte, the upper half in even steps and the lower one in odd steps
                auto pair = [&](u32 word) { // below the exponent of 1024; the code plus 8
                    if (t % 2 == 0) return half2_add(masked_xor(word, 0x00f000f0u, 0x64806480u), 0xe480e480u);
                    return half2_fma(masked_xor(word, 0x000f000fu, 0x64086408u), 0x4c004c00u, 0xf408f408u); // times 16
                };
                first = pair(words[t / 2]), second = pair(words[t / 2] >> 8);
            } else if constexpr (F::BITS == 2 && F::LOW == 0) { // of each byte, two bits per step, the first at the top
                auto pair = [&](u32 word) { // below the exponent of 1024; the code plus 2
                    if (t % 4 == 0) return half2_add(masked_xor(word, 0x00c000c0u, 0x64006400u), 0xe480e480u);
                    if (t % 4 == 1) return half2_fma(masked_xor(word, 0x00300030u, 0x64006400u), 0x44004400u, 0xec20ec20u); // times 4
                    return half2_fma(masked_xor(t % 4 == 2 ? word : word << 2, 0x000c000cu, 0x64006400u), 0x4c004c00u, 0xf408f408u); // times 16
                };
                first = pair(words[t / 4]), second = pair(words[t / 4] >> 8);
            } else {
                u32 bytes = codes<F>(words, low, t) ^ 0x80808080u; // plus 128: below the exponent of 1024 it is 1024 + 128 + the code
                first = half2_add(__byte_perm(bytes, 0x64646464u, 0x4240), 0xe480e480u);
                second = half2_add(__byte_perm(bytes, 0x64646464u, 0x4341), 0xe480e480u);
            }
            if constexpr (F::OFFSETS) {
                first = half2_fma(first, by, offset[t * 16 / F::GROUP]), second = half2_fma(second, by, offset[t * 16 / F::GROUP]);
            } else {
                first = half2_mul(first, by), second = half2_mul(second, by);
            }
        }
    }
};

// One row of a record of 2-bit codes that are multiplied as they are stored: a half takes one instruction, and the scale is applied to the
// sums. A half is 64 times the code, plus an offset (raw_offset).
template <class F> struct RawRow {
    static_assert(F::RAISED && F::PLACED, "codes of two bits, stored plus 2; a row has one scale");
    u32 words[F::BITS];
    float scale;

    template <class Row> DEVICE void load(const u8* record, int lane, Row second) {
        load_row<F::BITS>(words, record, lane, second);
        scale = to_float(((const u16*)(record + F::SCALES_AT))[lane / 4 * 2 + second]);
    }

    // The pairs of step t. Of each byte, two bits per step, the first at the top: below the exponent of 1024 in even steps, and of 4096 in odd steps.
    DEVICE void pairs(u32& first, u32& second, int t) const {
        u32 word = words[t / 4];
        // one constant in a register serves both exponents
        auto pair = [&](u32 w) { return merged(w, t % 2 == 0 ? 0x08c008c0u : 0x00300030u, 0x6c006c00u); };
        first = pair(t % 4 < 2 ? word : word << 4), second = pair(t % 4 < 2 ? word >> 8 : word >> 4);
    }
};

// The offset of RawRow in step t, negated, as a pair: that of the exponent, and 64 times the 2 that codes are stored plus.
DEVICE constexpr u32 raw_offset(int t) { return t % 2 == 0 ? 0xe480e480u : 0xec20ec20u; }
