// Products of codes of one or two bits that stay where they are in their bytes: moving them would cost more than the products.
//
// A byte has codes times 2^7, 2^6, ... 1, or times 64, 16, 4 and 1, none of them negative: bits as they are, others plus 2. The
// integers that a code is multiplied with are times a power of two such that all products of the first half of a byte have one factor,
// and those of the second half the same factor divided by 16. An integer has two bytes, as two columns of the matrix unit: a
// high one, which counts HIGH, and a low one.

#pragma once

#include "weights/record.cuh"

template <class F> struct Places {
    static constexpr int PER = 8 / F::BITS; // codes of a byte
    static constexpr int UNIT = F::SIGNS ? 128 : 64; // all products are times it

    // The code of step and half j, as it is in its byte.
    static DEVICE constexpr u32 mask(int j) { return (0x01010101u * ((1 << F::BITS) - 1)) << (8 - F::BITS * (j % PER + 1)); }
    // The power of two of the integers of step and half j.
    static DEVICE constexpr int power(int j) { return F::BITS * (j % (PER / 2)); }

    // The sums of rows g and g + 8 for the lane's two columns, UNIT times those of the codes; `words(row, i)` has the codes.
    template <int HIGH, class Words> static DEVICE void sums(int (&sum)[2], const u32 (&b)[8], Words words) {
        int c[2][4] = {}; // of the first half of bytes, and of the second
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            u32 first = words(0, j / PER), second = words(1, j / PER);
            multiply_unsigned(c[j % PER >= PER / 2], first & mask(j), second & mask(j), first & mask(j + 1), second & mask(j + 1), b[j], b[j + 1]);
        }
#pragma unroll
        for (int row = 0; row < 2; row++) sum[row] = (c[0][2 * row] + 16 * c[1][2 * row]) * HIGH + (c[0][2 * row + 1] + 16 * c[1][2 * row + 1]);
    }

    // The same of a record.
    template <int HIGH> static DEVICE void sums(int (&sum)[2], const u8* record, const u32 (&b)[8], int lane) {
        Codes<F> w;
        w.load(record, lane);
        sums<HIGH>(sum, b, [&](int row, int i) { return w.words[row][i]; });
    }
};

// total += record * chunk of x for rows g and g + 8: x is `by` times its integers, and `sum` is what the codes have too much or too little.
template <class F, int HIGH> DEVICE void multiply_placed(float (&total)[2], const u8* record, const u32 (&b)[8], float by, float sum, int lane) {
    u32 scale = ((const u32*)(record + F::SCALES_AT))[lane / 4];
    int sums[2];
    Places<F>::template sums<HIGH>(sums, record, b, lane);
    total[0] += low_half(scale) * (by * (float)sums[0] + sum);
    total[1] += high_half(scale) * (by * (float)sums[1] + sum);
}

// The same of two chunks, each in half of the columns: total += both records * chunks of x.
template <class F, int HIGH> DEVICE void multiply_placed(float (&total)[2], const u8* first, const u8* second, const u32 (&b)[8], float by, float sum, int lane) {
    bool is_second = lane & 2; // of the lane's columns
    u32 scale = ((const u32*)((is_second ? second : first) + F::SCALES_AT))[lane / 4];
    int sums[2][2];
    Places<F>::template sums<HIGH>(sums[0], first, b, lane);
    Places<F>::template sums<HIGH>(sums[1], second, b, lane);
    total[0] += low_half(scale) * (by * (float)(is_second ? sums[1][0] : sums[0][0]) + sum);
    total[1] += high_half(scale) * (by * (float)(is_second ? sums[1][1] : sums[0][1]) + sum);
}
