// One token of one column of a convolution, in a fused step: equals Op::Conv of graph/reference.rs. What the rows before the token add up
// to, and their move by one row, come before its value is known.

#pragma once

#include "fused_step/ring.cuh"

struct ConvColumn {
    float sum, tap;

    DEVICE void begin(const ConvArgs& a, const Info& info, int column) {
        int old = a.taps_count - 1, read = info.state_read;
        const float* taps = a.taps + (long)column * a.taps_count;
        const float* from = a.state + (long)max(read, 0) * old * a.width + column;
        float* to = a.state + (long)info.state_write * old * a.width + column;
        float rows[MOST_TAPS - 1];
#pragma unroll
        for (int j = 0; j < MOST_TAPS - 1; j++) rows[j] = j < old && read >= 0 ? load_float(from + (long)j * a.width) : 0.f;
        tap = taps[old], sum = 0;
#pragma unroll
        for (int j = 0; j < MOST_TAPS - 1; j++) {
            if (j >= old) break;
            sum += rows[j] * taps[j];
            if (j > 0) to[(long)(j - 1) * a.width] = rows[j];
        }
    }

    DEVICE float end(const ConvArgs& a, const Info& info, int column, float x) const {
        int old = a.taps_count - 1;
        a.state[((long)info.state_write * old + old - 1) * a.width + column] = x;
        float y = sum + x * tap;
        if (a.bias) y += a.bias[column];
        return a.silu ? y / (1.f + expf(-y)) : y;
    }
};
