// Linear phases as the fused step is compiled for them: everything but addresses is constant. The host lists them in
// LINEARS(X) with X(index, LinearShape<...>).

#pragma once

#include "weights/record.cuh"
#include "host/sizes.cuh"

template <class X, class Y> struct Same {
    static constexpr bool VALUE = false;
};
template <class X> struct Same<X, X> {
    static constexpr bool VALUE = true;
};

template <int FORMAT, int ROWS> struct PartShape {
    typedef typename FormatOf<FORMAT>::Is F;
    static constexpr int TILES = (ROWS + TILE - 1) / TILE;
};

// GATED: 0, or 1 + the activation between the first part and the second. PER_SLOT: rounds in a slot of the ring, or one
// half. USED: the chosen experts, or 0. A part is then the matrix of one expert, and the phase has one part, or two
// gated ones. Either each expert has its rows of the result, in the order in which they were chosen, or their results
// are added (MIX): then x and the chunks of a tile are those of the first expert, of the second, ...
template <int COLS_, int FLAGS, int GATED_, int PER_SLOT_, int USED_, class A_, class B_, class C_> struct LinearShape {
    typedef A_ A;
    typedef B_ B;
    typedef C_ C;
    static constexpr int COLS = COLS_, GATED = GATED_, PER_SLOT = PER_SLOT_, USED = USED_;
    static constexpr bool MIX = FLAGS & MIXED;
    static constexpr int MATRIX_CHUNKS = (COLS + CHUNK - 1) / CHUNK; // of a row of one matrix
    static constexpr int CHUNKS = MIX ? USED * MATRIX_CHUNKS : MATRIX_CHUNKS,
                         ROUNDS = (CHUNKS + WARPS - 1) / WARPS;                // in a round each warp has a chunk
    static constexpr int SLOT_WARPS = FLAGS & HALF_ROUNDS ? WARPS / 2 : WARPS; // warps that use a slot
    static constexpr int SLOT_CHUNKS = PER_SLOT * SLOT_WARPS,
                         PIECES = (CHUNKS + SLOT_CHUNKS - 1) / SLOT_CHUNKS; // chunks of a slot, slots of a tile
    static constexpr bool FULL = CHUNKS % WARPS == 0;
    static constexpr bool NORM = FLAGS & NORMED, ADD = FLAGS & ADDED, GATHER = FLAGS & GATHERED,
                          OUTPUTS = FLAGS & OUTPUTS_ONLY;
    static constexpr bool CONV = FLAGS & CONVOLVED, FIELDS = FLAGS & FIELDS_X;
    static constexpr bool BIAS = FLAGS & BIASED, SCALE = FLAGS & SCALED;
    static constexpr bool FRESH = FLAGS & FRESH_X, STAGE = FLAGS & STAGED_X, Y_PASSED = FLAGS & PASSED_Y,
                          Y_BITS = FLAGS & PASSED_IN_BITS_ORDER;
    static constexpr u32 X_MASK = FLAGS & X_TAGGED ? 1 : 0, ADD_MASK = FLAGS & ADD_TAGGED ? 1 : 0;
    static constexpr bool ALIKE = Same<typename A::F, typename B::F>::VALUE &&
                                  Same<typename A::F, typename C::F>::VALUE; // all parts have one format

    // A block's units are tiles, or pairs of tiles of two gated parts.
    static constexpr int MATRIX_UNITS = GATED ? A::TILES : A::TILES + B::TILES + C::TILES, EACH = GATED ? 2 : 1;
    static constexpr int UNITS = USED > 0 && !MIX ? USED * MATRIX_UNITS : MATRIX_UNITS;
    static constexpr int SHARE = UNITS / BLOCKS, EXTRA = UNITS % BLOCKS;
    static DEVICE int first_unit() { return blockIdx.x * SHARE + min((int)blockIdx.x, EXTRA); }
    static DEVICE int units() { return SHARE + ((int)blockIdx.x < EXTRA); }

    // Slots in flight: enough bytes to saturate memory, more if there are many, and at least two; three of small slots
    // and of half rounds, since they are requested strictly in order. Values that blocks pass to each other wait behind
    // what is in flight.
    static constexpr int SLOT_BYTES = (SLOT_CHUNKS < CHUNKS ? SLOT_CHUNKS : CHUNKS) * A::F::BYTES;
    static constexpr bool LONG = SHARE * EACH * CHUNKS * A::F::BYTES > 256 * 1024;
    static constexpr int FITTING = (LONG ? 66 : 36) * 1024 / SLOT_BYTES;
    static constexpr int AT_LEAST = SLOT_WARPS < WARPS       ? 3
                                    : FITTING > 2            ? FITTING
                                    : SLOT_BYTES > 10 * 1024 ? 2
                                                             : 3,
                         FLYING =
                             AT_LEAST < Sizes::SLOTS ? AT_LEAST : Sizes::SLOTS - 1; // a slot does not wait for itself

    // A warp that uses half of the slots waits for every fifth one at least, and slots are filled only if the one
    // FLYING before them is full: it is never two rounds ahead of a slot, whose gate would look full.
    static_assert(SLOT_WARPS == WARPS || Sizes::SLOTS >= FLYING + 5, "the host gives such a ring to half rounds");

    // The index of a chosen expert, if experts have separate rows: of the one that the block's tile `i` belongs to.
    static DEVICE int chosen_of(int i) { return (first_unit() + i / EACH) / MATRIX_UNITS; }

    // The part and the tile in it of the block's tile `i`, in the order of the ring.
    static DEVICE int find(int i, int& tile) {
        tile = first_unit() + i / EACH;
        if (UNITS != MATRIX_UNITS) tile %= MATRIX_UNITS;
        if (GATED) return i % 2;
        if (B::TILES == 0 || tile < A::TILES) return 0;
        tile -= A::TILES;
        if (C::TILES == 0 || tile < B::TILES) return 1;
        tile -= B::TILES;
        return 2;
    }

    // Two tiles of one format are computed together, with alternating pieces: more independent work.
    static constexpr bool PAIRED = ALIKE && PIECES < Sizes::SLOTS;

    // The chunks of a mixed tile that come from one expert: `index` is that of the expert among the chosen ones,
    // `first` and `end` are chunks of the tile. The chunks of a slot begin at `from` and end before `to`.
    struct Run {
        int index, first, end;
    };
    static DEVICE int runs(int from, int to) { return (to - 1) / MATRIX_CHUNKS - from / MATRIX_CHUNKS + 1; }
    static DEVICE Run run_of(int from, int to, int i) {
        int index = from / MATRIX_CHUNKS + i;
        return {index, max(from, index * MATRIX_CHUNKS), min(to, (index + 1) * MATRIX_CHUNKS)};
    }

    // The block's tile and the piece of it in slot `i`: slots are in the order in which warps empty them.
    static DEVICE int tile_of_slot(int i, int& piece) {
        int tile = i / PIECES;
        piece = i % PIECES;
        if (PAIRED && PIECES > 1 && (tile | 1) < units() * EACH) {
            int both = i % (2 * PIECES);
            tile = i / (2 * PIECES) * 2 + both % 2, piece = both / 2;
        }
        return tile;
    }

    static DEVICE int record_bytes(int part) {
        return ALIKE || part == 0 ? A::F::BYTES : part == 1 ? B::F::BYTES : C::F::BYTES;
    }
};
