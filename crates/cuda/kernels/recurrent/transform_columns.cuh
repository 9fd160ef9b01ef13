// Which columns a transform reads.

#pragma once

#include "base/common.cuh"
#include "host/shared.cuh"

// The column of the value that the rotation has at this place.
DEVICE int place_of(const TransformArgs& a, int column) {
    if (!a.outer) return column;
    int each = small_quotient(a.group_width, a.outer * a.inner), in = small_rest(column, a.group_width), head = small_quotient(in, each);
    return column - head * each + (small_rest(head, a.outer) * a.inner + small_quotient(head, a.outer)) * each;
}

DEVICE int gate_column(const TransformArgs& a, int column) {
    return a.gate_len ? column + small_quotient(column, a.gate_len) * (a.gate_every - a.gate_len) + a.gate_first : column;
}
