// What the kernels of attention share: where keys and values are in pages of PAGE_LEN tokens, and the factor on scores.

#pragma once

#include "base/phase.cuh"

// Columns of a head in pages: the last of them are zeros.
DEVICE constexpr int in_cells(int columns) { return (columns + HEAD_CELLS - 1) / HEAD_CELLS * HEAD_CELLS; }

// The index of the key of one head at a position that is in this page.
DEVICE long slot_in(const AttendArgs& a, u32 page, int position, int head) {
    return ((long)page * a.kv_heads + head) * PAGE_LEN + position % PAGE_LEN;
}
DEVICE long slot_of(const AttendArgs& a, const u32* pages, int position, int head) {
    return slot_in(a, pages[position / PAGE_LEN], position, head);
}

// The factor on the scores of a query.
DEVICE float scale_at(const AttendArgs& a, int position) {
    return a.growth_length > 0 ? a.scale * (1.f + a.growth * logf((float)(position / a.growth_length + 1))) : a.scale;
}
