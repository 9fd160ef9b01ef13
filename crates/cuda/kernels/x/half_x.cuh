// x of a linear as halves, for the kernels of many tokens: tiles in the order in which the matrix unit reads them.
//
// [position / 64][token][64 halves]: a row of a tile is 128 bytes, whose eight pieces of 16 bytes are exchanged by the
// token (piece ^ token % 8), so that the matrix unit reads eight rows without bank conflicts.
//
// A position is a column in another order, the one in which a lane has a format's codes: positions 16 t + 2 q, + 1, +
// 8, + 9 are those of lane q in step t.

#pragma once

#include "base/common.cuh"
#include "host/shared.cuh"

// Bytes: within 16 columns, lane q has columns 4 q .. 4 q + 3, and a pair is columns c and c + 2. Bits: within 128
// columns, lane q has columns 32 q .. 32 q + 31, and a pair is columns c and c + 16.
DEVICE int column_at(int order, int position) {
    if (order == PLAIN_ORDER) return position;
    int q = position >> 1 & 3, upper = position >> 3 & 1, second = position & 1;
    if (order == BYTES_ORDER) return (position & ~15) | q << 2 | second << 1 | upper;
    return (position & ~127) | q << 5 | second << 4 | (position >> 4 & 7) << 1 | upper;
}

DEVICE int position_of_column(int order, int column) {
    if (order == PLAIN_ORDER) return column;
    if (order == BYTES_ORDER) return (column & ~15) | (column & 1) << 3 | (column >> 2 & 3) << 1 | (column >> 1 & 1);
    return (column & ~127) | (column >> 1 & 7) << 4 | (column & 1) << 3 | (column >> 5 & 3) << 1 | (column >> 4 & 1);
}

// Where a position of a token is.
DEVICE u16* half_at(const HalfX& x, int token, int position) {
    return x.at + ((long)(position / 64) * x.tokens + token) * 64 +
           ((position % 64 / 8 ^ token % 8) * 8 + position % 8);
}
