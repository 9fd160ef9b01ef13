// y = x * w^T for many tokens: equals Op::Linear, Op::Gated and Op::Add of graph/reference.rs on x as halves
// (half_x.cuh).
//
// A block computes 128 rows of w (64 of a gate and 64 of its partner) for N tokens: eight warps have 16 rows each, as
// the matrix unit's first operand, in registers; tokens are its second operand, in shared memory. Gated tiles may have
// 12, 16 or 20 warps. One more warp copies records and x of a chunk of columns into a ring of stages. The blocks of a
// cluster share the chunks of a tile, and add their sums at the end.
//
// With 2-bit codes and few tokens (SUMS_X), expanding codes would take longer than all else. Their raw bits are
// multiplied (RawRow), which adds a part to the sums of a chunk that depends on x alone. A further warp computes this
// part once per block; the sums of a chunk start at its negative, are scaled per row, and are then added to those of
// the tile.
//
// With experts, tokens are sorted rows (experts.cu), and a tile has rows of one expert.
//
// REPRODUCIBLE: no bit of a row depends on the tokens of a tile and on how many blocks share it. The columns have as
// many segments for all tiles of a linear: of a block of a cluster, or SEGMENTS of a block without one; the sums of
// segments are added in their order.

// Sizes: the host decides how many warps do what, and what a stage has (TileSizes of src/launch/linear_tiling.rs).

#pragma once

#include "base/tagged.cuh"
#include "base/phase.cuh"
#include "x/half_x.cuh"
#include "weights/halves.cuh"
#include "linear/tile_sums.cuh"
#include "host/sizes.cuh"

extern __shared__ __align__(1024) u8 tiled_shared[];

// A stage of the ring: some chunks of x, [chunk][2][N][64] halves or [chunk][N][128] bytes, then of the records of each
// warp. If a warp sums x, also what the sums of each chunk start at, [chunk][N] floats, and a gate that is complete
// when they have arrived. x as bytes has two lots of N floats there (byte_linear.cuh).
template <class F, int N> struct Stages {
    static_assert(Sizes::RECORD == F::BYTES, "the host knows the records of the format");
    static constexpr bool SUMS_X = Sizes::SUMS_X;
    static constexpr int CHUNKS = Sizes::STAGE_CHUNKS, BYTES = Sizes::STAGE;
    static constexpr int X = Sizes::RECORDS_AT, RECORDS = CHUNKS * F::BYTES; // bytes of x, and of a warp's records
    static_assert(X == CHUNKS * N * CHUNK * Sizes::X_BYTES && X + Sizes::ROW_WARPS * RECORDS <= BYTES,
                  "a stage has space");
    static_assert(!SUMS_X || (Sizes::STARTS_AT >= X + Sizes::ROW_WARPS * RECORDS &&
                              Sizes::SUMMED_AT - Sizes::STARTS_AT >= (int)sizeof(float[CHUNKS][N]) &&
                              Sizes::SUMMED_AT % alignof(Gate) == 0 && Sizes::SUMMED_AT + (int)sizeof(Gate) <= BYTES),
                  "a stage has what a warp sums behind the records");
    static_assert(BYTES % 1024 == 0, "x of each stage is aligned for the matrix unit");

    static DEVICE float* starts(u8* stage) { return (float*)(stage + Sizes::STARTS_AT); }
    static DEVICE Gate& summed(u8* stage) { return *(Gate*)(stage + Sizes::SUMMED_AT); }
};

// A tile: 128 rows of a part, or 64 of two, and N tokens.
struct LinearTile {
    int part, rows, first_token, end_token, expert;
}; // rows: the first one, in records

// GATED: 0, or 1 + the activation.
template <class F, int N, int GATED, bool EXPERTS> struct TiledLinear {
    // Whether a gated tile is written through shared memory.
    static constexpr bool STAGED = GATED && N >= STAGED_TOKENS;
    static constexpr int ROW_WARPS = Sizes::ROW_WARPS, SEGMENTS = Sizes::SEGMENTS;
    static constexpr int RECORDS = GATED ? ROW_WARPS / 2 : ROW_WARPS; // of a part in a tile
    static_assert(ROW_WARPS == 8 || (GATED && !STAGED), "other tiles have 128 rows");
    static constexpr int COLUMNS = N / 8; // groups of eight tokens
    typedef Stages<F, N> S;
    static_assert(!(S::SUMS_X && STAGED), "the summing warp takes all stages");
    static constexpr int STAGE = S::BYTES;
    static_assert(SEGMENTS == 1 || S::CHUNKS == 1, "a stage is of one segment");
    const TiledArgs& m;
    int rows; // of x
    int row_tiles, token_tiles;
    int rank, splits, shift, chunk_begin, chunk_end; // splits: 1, 2 or 4, which is 1 << shift
    Gate *full, *empty;
    Gate* received;        // the sums of the other blocks of the cluster
    float* norm_factors;   // [token]: on the sums of x that was passed before its norm
    float* squares;        // [warp][token]: of the value's rows
    float4* sums_of_ranks; // [group of eight tokens][warp][rank][lane]: of the groups that this block adds and writes
    int slot = 0;
    u32 round = 0;

    DEVICE int tiles_of(int part) const { return (m.linear.part[part].tiles + RECORDS - 1) / RECORDS; }

    DEVICE TiledLinear(const TiledArgs& m) : m(m) {
        const LinearArgs& a = m.linear;
        row_tiles = 0;
        for (int p = m.first_part; p < m.end_part; p++) row_tiles += tiles_of(p);
        if (GATED) row_tiles = tiles_of(0);
        if constexpr (EXPERTS) { // no weights are read before the experts are known
            wait_for_launches();
            rows = 0, token_tiles = __ldcg(m.tiles);
        } else {
            rows = rows_of(m.inputs, a.outputs_only);
            token_tiles = (rows + N - 1) / N;
        }
        splits = ROW_WARPS > 8 ? 1 : m.splits; // blocks do not share tall tiles
        shift = splits >> 1, rank = blockIdx.x & splits - 1;
        chunk_begin = a.chunks * rank >> shift, chunk_end = a.chunks * (rank + 1) >> shift;
        full = (Gate*)(tiled_shared + m.stages * STAGE), empty = full + m.stages;
        received = empty + m.stages;
        sums_of_ranks = (float4*)(received + 2);
        norm_factors = (float*)(sums_of_ranks + (adds_sums() ? (COLUMNS + splits - 1 & -splits) * ROW_WARPS * 32 : 0));
        squares = norm_factors + N;
    }

    DEVICE int tiles() const { return row_tiles * token_tiles; }

    DEVICE LinearTile tile(int index) const {
        int row = token_tiles == 1 ? index : index / token_tiles, n = token_tiles == 1 ? 0 : index % token_tiles,
            part = m.first_part;
        if (!GATED)
            while (row >= tiles_of(part)) row -= tiles_of(part++);
        if constexpr (EXPERTS) {
            uint4 t = load_words4((const ExpertTile*)(m.tiles + 4) + n);
            return {part, row * RECORDS, (int)t.y, (int)t.z, (int)t.x};
        }
        return {part, row * RECORDS, n * N, rows, 0};
    }

    DEVICE void next() {
        if (++slot == m.stages) slot = 0, round++;
    }
    DEVICE u8* stage() const { return tiled_shared + slot * STAGE; }

    // Where the records of a tile begin, for each of the warps.
    DEVICE const u8* record(const LinearTile& tile, int warp, int chunk) const {
        const Part& part = m.linear.part[GATED ? warp / RECORDS : tile.part];
        int index = min(tile.rows + warp % RECORDS, part.tiles - 1);
        return part.records + ((long)(tile.expert * part.expert_tiles + index) * m.linear.chunks + chunk) * F::BYTES;
    }

    DEVICE const u8* x_tile(const LinearTile& tile, int half_chunk) const {
        return (const u8*)(m.x.at + ((long)half_chunk * m.x.tokens + tile.first_token) * 64);
    }

    // The copying warp. Records are constant: those of the first stages are copied before the values of earlier
    // launches are waited for.
    DEVICE void produce() {
        [[maybe_unused]] int lane = threadIdx.x % 32;
        int first = blockIdx.x >> shift, step = gridDim.x >> shift;
        int total = tiles(), stages = (chunk_end - chunk_begin + S::CHUNKS - 1) / S::CHUNKS, early = 0;
        auto copy_records = [&](const LinearTile& t, int chunk) {
            int count = min(S::CHUNKS, chunk_end - chunk), bytes = count * F::BYTES;
            if constexpr (ARCH >= 900) {
                if (lane == 0) full[slot].expect(count * N * 256 + ROW_WARPS * bytes);
                __syncwarp();
                if (lane < ROW_WARPS)
                    full[slot].copy(stage() + S::X + lane * S::RECORDS, record(t, lane, chunk), bytes);
            } else {
                for (int w = 0; w < ROW_WARPS; w++)
                    full[slot].copy(stage() + S::X + w * S::RECORDS, record(t, w, chunk), bytes);
            }
        };
        auto copy_x = [&](const LinearTile& t, int chunk) {
            int halves = 2 * min(S::CHUNKS, chunk_end - chunk);
            [[maybe_unused]] bool whole = m.x.tokens == N; // tiles follow each other
            if constexpr (ARCH >= 900) {
                if (lane < (whole ? 1 : halves))
                    full[slot].copy(stage() + lane * N * 128, x_tile(t, 2 * chunk + lane),
                                    (whole ? halves : 1) * N * 128);
            } else {
                for (int h = 0; h < halves; h++)
                    full[slot].copy(stage() + h * N * 128, x_tile(t, 2 * chunk + h), N * 128);
                full[slot].copied();
            }
        };
        if (first < total) {
            LinearTile t = tile(first);
            early = EXPERTS ? 0 : min(stages, m.stages);
            for (int i = 0; i < early; i++, next()) copy_records(t, chunk_begin + i * S::CHUNKS);
            slot = 0, round = 0;
        }
        wait_for_launches();
        for (int index = first; index < total; index += step) {
            LinearTile t = tile(index);
            for (int chunk = chunk_begin; chunk < chunk_end; chunk += S::CHUNKS, next()) {
                if (early > 0) {
                    early--;
                } else {
                    if (round) empty[slot].wait(round + 1 & 1);
                    copy_records(t, chunk);
                }
                copy_x(t, chunk);
            }
            if (STAGED && m.y_half.at) { // a stage for what the warps write
                if (round) empty[slot].wait(round + 1 & 1);
                if (ARCH < 900) full[slot].copied();
                else if (lane == 0) full[slot].arrive();
                next();
            }
        }
    }

    // The summing warp: the part that raw codes add to the sums of each chunk and token, negated. The matrix unit's
    // first operand is x here, eight tokens of the first half of a stage's chunks and eight of the second, and its
    // second one is constant: all columns of a product are equal. Chunks after the last one are summed as well, and
    // not used.
    DEVICE void sum_x() {
        constexpr int HALF = S::CHUNKS / 2 * N, GROUPS = HALF / 8; // tokens, and eights of them
        static_assert(S::CHUNKS % 2 == 0, "a stage has two halves");
        u32 lane = threadIdx.x % 32, row = lane % 8, second = lane / 8 % 2; // whose address the lane passes
        for (int index = blockIdx.x >> shift; index < tiles(); index += gridDim.x >> shift)
            for (int chunk = chunk_begin; chunk < chunk_end; chunk += S::CHUNKS, next()) {
                full[slot].wait(round & 1);
                u32 x = shared_address(stage()) + second * HALF * 256 + row * 128;
                float sums[GROUPS][4] = {};
#pragma unroll
                for (int t = 0; t < 8; t++)
#pragma unroll
                    for (int n = 0; n < GROUPS; n++) {
                        u32 a[4];
                        load_matrices(a, x + ((t % 4 * 2 + lane / 16) ^ row) * 16 + n / COLUMNS * N * 256 +
                                             t / 4 * N * 128 + n % COLUMNS * 1024);
                        multiply(sums[n], a[0], a[1], a[2], a[3], raw_offset(t), raw_offset(t));
                    }
                float* to = S::starts(stage()) + lane / 4;
#pragma unroll
                for (int n = 0; n < GROUPS; n++)
                    if (lane % 4 == 0) to[n * 8] = sums[n][0], to[HALF + n * 8] = sums[n][2];
                __syncwarp();
                if (lane == 0) S::summed(stage()).arrive();
            }
    }

    static constexpr bool BYTES = Sizes::X_BYTES == 1; // x is of large steps, see byte_linear.cuh

    // Whether x and the value may be passed before their norm.
    static constexpr bool NORMS = !EXPERTS && !BYTES && N <= NORMS_TOKENS;

    // The factors on the sums of each token, if x was passed before its norm.
    DEVICE void find_factors(int thread) const {
        const PassedNorms& n = m.norms;
        constexpr int THREADS = ROW_WARPS * 32;
        constexpr int PARTS = REPRODUCIBLE ? NORM_PARTS
                              : N <= 32    ? ROW_WARPS
                                        : THREADS / N; // of the squares of a token: loads that are in flight together
        static_assert(PARTS <= ROW_WARPS, "there is memory for them");
        float last = load_float(n.x_factors + min(thread % N, rows - 1));
#pragma unroll
        for (int i = thread; i < PARTS * N; i += THREADS) {
            int token = i % N;
            if (token >= rows) continue;
            float sum = 0;
#pragma unroll 8
            for (int chunk = i / N; chunk < m.linear.chunks; chunk += PARTS)
                sum += load_float(n.x_squares + chunk * NORMS_TOKENS + token);
            squares[i] = sum;
        }
        sync_threads<THREADS>();
        if (thread < min(rows, N)) {
            float sum = 0;
#pragma unroll
            for (int part = 0; part < PARTS; part++) sum += squares[part * N + thread];
            float factor = norm_factor(sum, m.linear.cols, m.linear.norm.eps);
            norm_factors[thread] = m.x_factor * factor / last;
            if (blockIdx.x == 0) n.factors[thread] = factor;
        }
        sync_threads<THREADS>();
    }

    // The value of 1 in x of a token.
    DEVICE float x_factor(int token) const {
        if (REPRODUCIBLE && m.norms.x_ratios && token < rows) return load_float(m.norms.x_ratios + token);
        return NORMS && m.norms.x_squares && token < rows ? norm_factors[token] : m.x_factor;
    }

    // Whether there are too few tiles for all processors, so that blocks may share them.
    static constexpr bool SPLITS = N < 256 && !BYTES;
    // Whether sums go through shared memory to the block that writes them: also its own, unless two of a lane are one
    // value.
    DEVICE bool adds_sums() const { return SPLITS && (!GATED || splits > 1); }
    static constexpr int PITCH =
        72; // halves of a staged token: 64 columns; those of eight tokens are in different banks

    DEVICE void consume() {
        int thread = fixed_thread(), lane = thread % 32, warp = thread / 32;
        wait_for_launches();
        if (NORMS && m.norms.x_squares) find_factors(thread);
        for (int index = blockIdx.x >> shift; index < tiles(); index += gridDim.x >> shift) {
            Sums<N> sums;
            sums.clear();
            if constexpr (SEGMENTS == 1) {
                multiply_chunks(sums, chunk_begin, chunk_end, lane, warp);
                sums.finish();
            } else {
#pragma unroll 1
                for (int i = 0; i < SEGMENTS; i++) {
                    Sums<N> segment;
                    segment.clear();
                    multiply_chunks(segment, m.linear.chunks * i / SEGMENTS, m.linear.chunks * (i + 1) / SEGMENTS, lane,
                                    warp);
                    segment.finish();
                    sums.add(segment);
                }
            }
            finish_tile(tile(index), sums, thread, lane,
                        warp); // the tile: here, it would take registers from the products
        }
    }

    // Writes the sums of a tile.
    DEVICE void finish_tile(const LinearTile& t, Sums<N>& sums, int thread, int lane, int warp) {
        if (adds_sums()) {
            if constexpr (SPLITS) add_sums(t, sums, thread, lane, warp);
        } else if (STAGED && m.y_half.at) {
            full[slot].wait(round & 1);
            u16* staged = (u16*)stage();
            int column = warp % 4 * 16 + warp / 4 * 8 + lane / 4, row = t.rows * TILE + column;
            RowEnd gate(m.linear.part[0], row, t.expert), other(m.linear.part[1], row, t.expert);
#pragma unroll
            for (int j = 0; j < N / 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int token = 8 * j + lane % 4 * 2 + i;
                    float factor = x_factor(t.first_token + token);
                    staged[token * PITCH + column] =
                        to_half(activate(GATED - 1, gate.of(sums.d[4 * j + i], factor),
                                         other.of(sums.d[4 * j + 2 + i], factor), m.linear.limit) *
                                m.y_factor);
                }
            sync_threads<ROW_WARPS * 32>();
            write_staged(t, staged, thread);
            async_after_writes();
            release(slot, lane);
            next();
        } else if constexpr (!GATED && !EXPERTS) {
            write_rows(t, sums, lane, warp);
        } else {
            constexpr int AT_ONCE = N % 32 == 0      ? 4
                                    : N == 8         ? 1
                                    : N / 8 % 3 == 0 ? 3
                                                     : 2; // what is added is loaded for some tokens together
            static_assert(N / 8 % AT_ONCE == 0, "whole groups of columns");
#pragma unroll
            for (int j = 0; j < N / 8; j += AT_ONCE) {
                Added added[AT_ONCE];
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) load_added(added[i], t, warp, j + i, lane);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) write(t, warp, j + i, sums.d4(j + i), added[i], lane);
            }
        }
    }

    // What is applied to the sums of a row, loaded once per tile; a row that does not exist is zero.
    struct RowEnd {
        float factor, bias;

        DEVICE RowEnd(const Part& part, int row, int expert) {
            bool real = row < part.rows;
            factor = real ? part.factor * (part.scale ? part.scale[expert] : 1.f) : 0.f;
            bias = real && part.bias ? part.bias[(long)expert * part.rows + row] : 0.f;
        }

        DEVICE float of(float sum, float x_factor) const { return sum * (x_factor * factor) + bias; }
    };

    // Writes the rows of a warp as floats; what is added is loaded for many tokens together.
    DEVICE void write_rows(const LinearTile& t, const Sums<N>& sums, int lane, int warp) const {
        constexpr int AT_ONCE = N % 64 == 0 ? 8 : 1;
        const LinearArgs& a = m.linear;
        const Part& part = a.part[t.part];
        int row = (t.rows + warp) * TILE + lane / 4, token = t.first_token + lane % 4 * 2, left = t.end_token - token;
        bool is_row[2] = {row < part.rows, row + 8 < part.rows};
        RowEnd ends[2] = {{part, row, t.expert}, {part, row + 8, t.expert}};
        float* y = part.y + (long)token * part.y_stride + row;
        const float* add = a.add.at ? a.add.at + token * a.add.stride + row : nullptr;
#pragma unroll
        for (int first = 0; first < N / 8; first += AT_ONCE) {
            float added[AT_ONCE][4];
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int k = 8 * (first + n) + i % 2;
                    added[n][i] =
                        add && k < left && is_row[i / 2] ? load_float(add + k * a.add.stride + i / 2 * 8) : 0.f;
                }
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int k = 8 * (first + n) + i % 2;
                    if (k < left && is_row[i / 2])
                        y[(long)k * part.y_stride + i / 2 * 8] =
                            ends[i / 2].of(sums.d[4 * (first + n) + i], x_factor(token + k)) + added[n][i];
                }
        }
    }

    // The rows of a warp in a chunk of a stage: g and g + 8; if it is gated, of the gate and of its partner.
    template <class Row>
    DEVICE void load_rows(Row& first, Row& second, const u8* stage, int chunk, int lane, int warp) const {
        const u8* records = stage + S::X + chunk * F::BYTES;
        if (GATED) {
            first.load(records + warp % RECORDS * S::RECORDS, lane, warp / RECORDS);
            second.load(records + (RECORDS + warp % RECORDS) * S::RECORDS, lane, warp / RECORDS);
        } else {
            first.load(records + warp * S::RECORDS, lane, Constant<0>{});
            second.load(records + warp * S::RECORDS, lane, Constant<1>{});
        }
    }

    DEVICE void release(int slot, int lane) {
        __syncwarp();
        if (lane == 0) empty[slot].arrive();
    }

    // Whether the compiler is to know that a stage's address is uniform: descriptors then take one instruction per
    // product, not four.
    static constexpr bool UNIFORM = Sums<N>::WGMMA;

    // Adds a chunk of the current stage.
    DEVICE void add_chunk(Sums<N>& sums, u8* stage, int chunk, int lane, int warp) {
        if constexpr (S::SUMS_X) {
            RawRow<F> first, second;
            load_rows(first, second, stage, chunk, lane, warp);
            if (chunk == 0) S::summed(stage).wait(round & 1); // late: its rows do not need it
            Sums<N> of_chunk;
            of_chunk.start(S::starts(stage) + chunk * N, lane);
            of_chunk.template add<UNIFORM>(first, second, stage + chunk * N * 256, lane);
            of_chunk.finish();
            sums.add_scaled(of_chunk, first.scale, second.scale);
        } else {
            RowHalves<F> first, second;
            load_rows(first, second, stage, chunk, lane, warp);
            sums.template add<UNIFORM>(first, second, stage + chunk * N * 256, lane);
        }
    }

    DEVICE void multiply_chunks(Sums<N>& sums, int begin, int end, int lane, int warp) {
        for (int chunk = begin; chunk < end; chunk += S::CHUNKS, next()) {
            full[slot].wait(round & 1);
            u8* at = UNIFORM ? tiled_shared + __shfl_sync(0xffffffff, slot * STAGE, 0) : stage();
#pragma unroll
            for (int i = 0; i < S::CHUNKS; i++) {
                if (S::CHUNKS > 1 && chunk + i >= end) break;
                add_chunk(sums, at, i, lane, warp);
            }
            release(slot, lane);
        }
    }

    // A row of the gated value, in the unit of x of the next linear if it is written as halves.
    DEVICE float gated(float gate, float other, int row, int token, int expert) const {
        const LinearArgs& a = m.linear;
        if (row >= a.part[0].rows) return 0.f;
        float factor = x_factor(token);
        return activate(GATED - 1, finished(a.part[0], gate, factor, row, expert),
                        finished(a.part[1], other, factor, row, expert), a.limit) *
               m.y_factor;
    }

    // Staged halves to their places in tiles of x: eight columns at a time if their order stays, or four positions.
    DEVICE void write_staged(const LinearTile& t, const u16* staged, int thread) const {
        int begin = t.rows * TILE; // a multiple of 64
        if (m.y_half.order == PLAIN_ORDER) {
#pragma unroll
            for (int i = thread; i < N * 8; i += ROW_WARPS * 32) {
                int token = i / 8, piece = i % 8 * 8;
                if (t.first_token + token < t.end_token)
                    *(uint4*)half_at(m.y_half, t.first_token + token, begin + piece) =
                        *(const uint4*)(staged + token * PITCH + piece);
            }
            return;
        }
        for (int i = thread; i < N * 16; i += ROW_WARPS * 32) {
            int token = i / 16, n = i % 16;
            if (t.first_token + token >= t.end_token) continue;
            int position = begin + n * 4;
            if (m.y_half.order == BITS_ORDER) position = (begin & ~127) + n / 2 * 16 + n % 2 * 8 + (begin / 64 & 1) * 4;
            u32 h[4];
#pragma unroll
            for (int k = 0; k < 4; k++) h[k] = staged[token * PITCH + column_at(m.y_half.order, position + k) - begin];
            *(uint2*)half_at(m.y_half, t.first_token + token, position) = {h[0] | h[1] << 16, h[2] | h[3] << 16};
        }
    }

    // Where the rows of a token's value begin; that of an expert's, among those of the token's experts.
    DEVICE float* y_of(const Part& part, int token) const {
        if constexpr (EXPERTS) {
            int pair = __ldcg(m.pairs + token), used = m.linear.experts.used;
            return part.y + (long)(pair / used) * part.y_stride + pair % used * part.rows;
        }
        return part.y + (long)token * part.y_stride;
    }

    // What the rows of a warp for eight tokens need from memory, loaded early.
    struct Added {
        float value[4];
        float weight[2], factor[2]; // of the next norm per row, of the last one per token
    };

    DEVICE void load_added(Added& added, const LinearTile& t, int warp, int j, int lane) const {
        const LinearArgs& a = m.linear;
        int row = (t.rows + warp) * TILE + lane / 4, token = t.first_token + 8 * j + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + i / 2 * 8, k = token + i % 2;
            added.value[i] = !GATED && !EXPERTS && a.add.at && k < t.end_token && r < a.part[0].rows
                                 ? load_float(a.add.at + k * a.add.stride + r)
                                 : 0.f;
        }
        if constexpr (!GATED && NORMS) {
            if (!m.norms.y_squares) return;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                added.weight[i] = row + i * 8 < a.part[0].rows ? m.norms.y_weight[row + i * 8] : 0.f;
                added.factor[i] =
                    token + i < t.end_token ? load_float(m.norms.y_factors + token + i) * m.y_factor : 0.f;
            }
        }
    }

    DEVICE bool passes_before_norm() const { return NORMS && !GATED && m.norms.y_squares; }

    // Writes the rows of a warp for eight tokens; what is passed before its norm to `staged`: [token][16 rows].
    DEVICE void write(const LinearTile& t, int warp, int j, const float (&d)[4], const Added& added, int lane,
                      u16* staged = nullptr) const {
        const LinearArgs& a = m.linear;
        int g = lane / 4, token = t.first_token + 8 * j + lane % 4 * 2;
        if (GATED) {
            int row = (t.rows + warp % RECORDS) * TILE + warp / RECORDS * 8 + g;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (token + i >= t.end_token || row >= a.part[0].rows) continue;
                float y = gated(d[i], d[2 + i], row, token + i, t.expert);
                if (m.y_half.at) *half_at(m.y_half, token + i, position_of_column(m.y_half.order, row)) = to_half(y);
                else y_of(a.part[0], token + i)[row] = y;
            }
            return;
        }
        const Part& part = a.part[t.part];
        int row = (t.rows + warp) * TILE + g;
        bool passes = staged && passes_before_norm();
        float of_token[2] = {0, 0}; // squares
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + i / 2 * 8, k = token + i % 2;
            if (k >= t.end_token || r >= part.rows) continue;
            float y = finished(part, d[i], x_factor(k), r, t.expert) + added.value[i];
            y_of(part, k)[r] = y;
            if (!passes) continue;
            staged[(lane % 4 * 2 + i % 2) * TILE + r % TILE] = to_half(y * added.weight[i / 2] * added.factor[i % 2]);
            of_token[i % 2] += y * y;
        }
        if (!passes) return;
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int step = 4; step < 32; step *= 2) of_token[i] += __shfl_xor_sync(0xffffffff, of_token[i], step);
            if (g == 0) squares[warp * N + 8 * j + lane % 4 * 2 + i] = of_token[i];
        }
    }

    // The squares of a tile, of the tokens that this block has written. The value's rows are whole tiles.
    DEVICE void add_squares(const LinearTile& t, int thread) const {
        sync_threads<ROW_WARPS * 32>();
        if (thread >= min(rows, N) || (thread / 8 & splits - 1) != rank) return;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < ROW_WARPS; w++) sum += squares[w * N + thread];
        m.norms.y_squares[t.rows / ROW_WARPS * NORMS_TOKENS + thread] = sum;
    }

    // The blocks of a cluster add their sums: each those of some groups of eight tokens, which the others send it.
    DEVICE void add_sums(const LinearTile& t, Sums<N>& sums, int thread, int lane, int warp) {
        constexpr int AT_ONCE = COLUMNS < 8 ? 1 : 2; // what is added is loaded for some groups together
        auto place = [&](int j) { return sums_of_ranks + ((j >> shift) * ROW_WARPS + warp << shift) * 32 + lane; };
        if (ARCH >= 900 && splits > 1) {
            wait_for_cluster(); // all blocks can receive
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                if ((j & splits - 1) == rank) place(j)[rank * 32] = *(float4*)sums.d4(j);
                else send(j & splits - 1, place(j) + rank * 32, sums.d4(j));
        } else
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) *place(j) = *(float4*)sums.d4(j);
#pragma unroll 1
        for (int from = rank; from < COLUMNS; from += splits * AT_ONCE) {
            Added added[AT_ONCE];
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) load_added(added[n], t, warp, min(from + n * splits, COLUMNS - 1), lane);
            if (splits > 1 && from == rank) received->wait(0);
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                int j = from + n * splits;
                if (j >= COLUMNS) break;
                float total[4] = {};
                for (int r = 0; r < splits; r++) {
                    float4 d = place(j)[r * 32];
                    total[0] += d.x, total[1] += d.y, total[2] += d.z, total[3] += d.w;
                }
                __syncwarp(); // then the memory is used again
                write(t, warp, j, total, added[n], lane, (u16*)(place(j) - lane));
            }
        }
        if (!passes_before_norm()) return;
        add_squares(t, thread);
        write_passed(t, thread);
        if (splits == 1) sync_threads<ROW_WARPS * 32>(); // the next tile uses the memory again
    }

    // Values before their norm to their places in x of the next linear, eight positions at a time: a tile is a chunk.
    DEVICE void write_passed(const LinearTile& t, int thread) const {
        int begin = t.rows * TILE;
#pragma unroll 1
        for (int i = thread; rank + i / 128 * splits < COLUMNS; i += ROW_WARPS * 32) {
            int group = i / 128, in_group = i / 16 % 8, piece = i % 16; // of a token: sixteen pieces
            int token = t.first_token + (rank + group * splits) * 8 + in_group, position = begin + piece * 8;
            if (token >= t.end_token) continue;
            u32 h[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                int row = column_at(m.y_half.order, position + k) - begin;
                h[k] = ((const u16*)(sums_of_ranks +
                                     (group * ROW_WARPS + row / TILE) * splits * 32))[in_group * TILE + row % TILE];
            }
            *(uint4*)half_at(m.y_half, token, position) = {h[0] | h[1] << 16, h[2] | h[3] << 16, h[4] | h[5] << 16,
                                                           h[6] | h[7] << 16};
        }
    }

    // Four floats to the same place of a block of the cluster.
    DEVICE void send(int to, const float4* at, const float (&v)[4]) const {
        u32 there = address_in_block(shared_address(at), to), gate = address_in_block(received->at(), to);
        send_floats4(there, v, gate);
    }

    // Large tiles: a whole warpgroup copies, of whose registers the others take most.
    static constexpr bool LARGE = Sums<N>::WGMMA && Sizes::COPYING_WARPS == 4;
    static_assert(Sizes::WARPGROUPS || !HAS_WGMMA, "the host knows that warps can multiply together");
    static_assert(Sizes::THREADS >= (ROW_WARPS + 1 + S::SUMS_X) * 32, "a warp copies, and one may sum x");

    DEVICE void run() {
        if (threadIdx.x < 2 * m.stages) full[threadIdx.x].open(threadIdx.x < m.stages ? Gate::COPIERS : ROW_WARPS);
        if (S::SUMS_X && threadIdx.x < m.stages) S::summed(tiled_shared + threadIdx.x * STAGE).open(1);
        if (ARCH >= 900 && threadIdx.x == 0 && splits > 1) { // the groups that this block adds
            received->open(1);
            received->expect((COLUMNS - rank + splits - 1 >> shift) * (splits - 1) * ROW_WARPS * 512);
        }
        __syncthreads();
        if (ARCH >= 900 && splits > 1) arrive_at_cluster();
        if (threadIdx.x / 32 >= ROW_WARPS) {
            if constexpr (LARGE) return_registers<40>();
            if (threadIdx.x / 32 == ROW_WARPS) produce();
            else if constexpr (S::SUMS_X) sum_x();
        } else {
            if constexpr (LARGE) take_registers<232>();
            consume();
        }
        // those that have not waited yet: a block of a cluster without a tile, and the warps that do not multiply
        if (ARCH >= 900 && splits > 1 && (threadIdx.x / 32 >= ROW_WARPS || (int)(blockIdx.x >> shift) >= tiles()))
            wait_for_cluster();
    }
};
