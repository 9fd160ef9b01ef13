// y = x * w^T for large steps, with x as bytes (byte_x.cuh) and codes of one or two bits that have one scale per row
// and chunk: equals Op::Linear, Op::Gated and Op::Add of graph/reference.rs on x as bytes.
//
// Tiles, and what is done with their sums, are those of tiled_linear.cuh. Codes become bytes in registers, the matrix
// unit's first operand; the next chunk's do while it multiplies this one. Sums of products of bytes are exact. They
// start at MAGIC, whose bits as a float are 1.5 * 2^23, so that they are floats without a conversion. Within a group of
// x they continue from chunk to chunk, and each is weighted with the difference of the scales of two chunks of weights
// (summation by parts). The sums of a row are in units of the group's scale of x: the ratio of two groups changes the
// unit, and MAGIC times the first scale is taken off in the same instruction.
//
// What limits it are the instructions per sum and chunk beside the products, each of which takes about three cycles
// while products run: a scale of x for more columns needs fewer of them. Four warps copy: twelve copies per stage take
// one thread about as long as the products take.

#pragma once

#include "linear/tiled_linear.cuh"

// Codes of a row of a record as bytes, in units of UNIT, and the row's scale.
template <class F> struct RowBytes {
    static_assert(F::PLACED, "codes of one or two bits with one scale per row");
    static constexpr int UNIT = F::SIGNS ? 32 : F::UNIT;
    // Chunks of a group of x: as many as keep the sums of a group below 2^22.
    static constexpr int GROUP = F::SIGNS ? 4 : 2;
    static_assert((F::SIGNS ? 1 : 2) * UNIT * 127 * GROUP * CHUNK < 1 << 22, "sums are exact in a float at MAGIC");
    u32 words[F::BITS];
    float scale;

    template <class Row> DEVICE void load(const u8* record, int lane, Row second) {
        load_row<F::BITS>(words, record, lane, second);
        scale = to_float(((const u16*)(record + F::SCALES_AT))[lane / 4 * 2 + second]);
    }

    // Both halves of each step.
    DEVICE void steps(u32 (&a)[4][4], int second) const {
        if constexpr (F::SIGNS) { // three bits of a nibble choose one of eight bytes
            u32 low = words[0] & 0x77777777u, top = words[0] >> 3 & 0x11111111u;
            constexpr u32 PLUS = 0x01010101u * UNIT, MINUS = 0x01010101u * (0x100 - UNIT),
                          BIT0 = (MINUS & 0xff00ff00u) | (PLUS & 0x00ff00ffu),
                          BIT1 = (MINUS & 0xffff0000u) | (PLUS & 0x0000ffffu);
            auto put = [&](int step, u32 first, u32 other, u32 from) {
                a[step][second] = __byte_perm(first, other, from),
                a[step][second + 2] = __byte_perm(first, other, from >> 16);
            };
            put(0, BIT0, BIT0, low), put(1, BIT1, BIT1, low), put(2, PLUS, MINUS, low), put(3, BIT0, BIT0, top);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++)
                a[j / 2][second + j % 2 * 2] = masked_xor(words[j / 4] << j % 4 * 2, 0xc0c0c0c0u, 0x80808080u);
        }
    }
};

template <class F, int N, int GATED> struct ByteLinear {
    typedef TiledLinear<F, N, GATED, false> Tiles;
    typedef typename Tiles::S S;
    static constexpr int GROUP = RowBytes<F>::GROUP, RATIOS = Sizes::STARTS_AT, SCALES = RATIOS + N * 4,
                         COPYING_WARPS = Sizes::COPYING_WARPS, ROW_WARPS = Sizes::ROW_WARPS;
    static_assert(S::CHUNKS == 2 && COPYING_WARPS == 4 && ROW_WARPS == 8, "each warp copies a part of a stage");
    static_assert(SCALES + N * 4 <= S::BYTES, "a stage has space for ratios and scales");
    static constexpr int MAGIC = 0x4b400000; // as a float 1.5 * 2^23
    Tiles tiles;
    const ByteX& x;
    int acc[N / 2];
    u32 codes[2][4][4]; // of this chunk and of the next one
    float first[2], second[2];

    DEVICE ByteLinear(const ByteLinearArgs& m) : tiles(m.tiled), x(m.x) {}

    // What one lane of a copying warp copies: a part of x, with ratios and scales, or the records of four warps.
    DEVICE void produce(int part) {
        wait_for_launches();
        int chunks = tiles.m.linear.chunks, total = tiles.tiles();
        for (int index = blockIdx.x; index < total; index += gridDim.x) {
            LinearTile t = tiles.tile(index);
            const u8 *from_x = x.at + ((long)part * x.tokens + t.first_token) * CHUNK, *records[4];
            if (part >= 2)
#pragma unroll
                for (int i = 0; i < 4; i++) records[i] = tiles.record(t, part * 4 - 8 + i, 0);
            for (int chunk = 0; chunk < chunks; chunk += 2, tiles.next()) {
                Gate& full = tiles.full[tiles.slot];
                if (tiles.round) tiles.empty[tiles.slot].wait(tiles.round + 1 & 1);
                u8* at = tiles.stage();
                bool begins = chunk % GROUP == 0, ends = chunk + 2 >= chunks;
                if (part < 2) {
                    if (part == 0) full.expect(S::X + ROW_WARPS * S::RECORDS + N * 4 * (begins + ends));
                    full.copy(at + part * N * CHUNK, from_x, N * CHUNK);
                    from_x += x.tokens * (2 * CHUNK);
                    if (part == 0 && begins)
                        full.copy(at + RATIOS, x.ratios + (long)chunk / GROUP * x.tokens + t.first_token, N * 4);
                    if (part == 1 && ends) full.copy(at + SCALES, x.scales + t.first_token, N * 4);
                } else {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        full.copy(at + S::X + (part * 4 - 8 + i) * S::RECORDS, records[i], S::RECORDS);
                        records[i] += S::RECORDS;
                    }
                }
            }
            if (Tiles::STAGED && tiles.m.y_half.at) { // a stage for what the warps write
                if (tiles.round) tiles.empty[tiles.slot].wait(tiles.round + 1 & 1);
                if (part == 0) tiles.full[tiles.slot].arrive();
                tiles.next();
            }
        }
    }

    // Codes and scales of a chunk of the current stage.
    template <int CHUNK_OF_STAGE> DEVICE void load(int lane, int warp) {
        RowBytes<F> a, b;
        tiles.load_rows(a, b, tiles.stage(), CHUNK_OF_STAGE, lane, warp);
        a.steps(codes[CHUNK_OF_STAGE], 0), b.steps(codes[CHUNK_OF_STAGE], 1);
        first[CHUNK_OF_STAGE] = a.scale, second[CHUNK_OF_STAGE] = b.scale;
    }

    template <bool BEGINS> DEVICE void multiply(const u32 (&rows)[4][4], u32 tile) {
        if (BEGINS)
#pragma unroll
            for (int i = 0; i < N / 2; i++) acc[i] = MAGIC;
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; s++) WgmmaBytes<N>::multiply(acc, rows[s], matrix_descriptor(tile, 0) + s * 2);
        wgmma_commit();
    }

    // Adds the sums so far of a group, weighted.
    template <bool BEGINS> DEVICE void add(Sums<N>& sums, float of_first, float of_second, const float* ratios,
                                           float first_scale, float second_scale, int lane) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) asm volatile("" : "+r"(acc[i])::"memory");
        constexpr float MAGIC_VALUE = 12582912.f;
        float start[2] = {-MAGIC_VALUE * first_scale, -MAGIC_VALUE * second_scale};
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float2 ratio = {1, 1};
            if (BEGINS) ratio = *(const float2*)(ratios + 8 * j + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float& sum = sums.d[4 * j + i];
                if (BEGINS) sum = sum * (i % 2 ? ratio.y : ratio.x) + start[i / 2];
                sum = (i < 2 ? of_first : of_second) * __int_as_float(acc[4 * j + i]) + sum;
            }
        }
    }

    // The sums of a tile.
    DEVICE void multiply_tile(Sums<N>& sums, int lane, int warp) {
        int chunks = tiles.m.linear.chunks;
        auto uniform_stage = [&] { return tiled_shared + __shfl_sync(0xffffffff, tiles.slot * S::BYTES, 0); };
        tiles.full[tiles.slot].wait(tiles.round & 1);
        load<0>(lane, warp);
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; chunk += GROUP) {
            const float* ratios = (const float*)(uniform_stage() + RATIOS);
            float first_scale = first[0], second_scale = second[0];
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                u8* stage = uniform_stage();
                u32 tile = shared_address(stage) + i % 2 * N * CHUNK;
                if (i == 0) multiply<true>(codes[0], tile);
                else multiply<false>(codes[i % 2], tile);
                int used = tiles.slot;
                float of_first = first[i % 2], of_second = second[i % 2];
                bool ends = i + 1 == GROUP && chunk + GROUP >= chunks;
                if (i % 2 == 0) {
                    load<1>(lane, warp);
                } else {
                    tiles.next();
                    if (!ends) {
                        tiles.full[tiles.slot].wait(tiles.round & 1);
                        load<0>(lane, warp);
                    }
                }
                wgmma_wait<0>();
                if (i + 1 < GROUP) of_first -= first[1 - i % 2], of_second -= second[1 - i % 2];
                if (i == 0) add<true>(sums, of_first, of_second, ratios, first_scale, second_scale, lane);
                else add<false>(sums, of_first, of_second, nullptr, 0, 0, lane);
                if (i % 2 == 0) continue;
                if (ends) scale(sums, (const float*)(stage + SCALES), lane);
                tiles.release(used, lane);
            }
        }
    }

    // To units of the format.
    DEVICE void scale(Sums<N>& sums, const float* scales, int lane) {
        constexpr float UNIT = (float)F::UNIT / RowBytes<F>::UNIT;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float2 by = *(const float2*)(scales + 8 * j + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) sums.d[4 * j + i] *= (i % 2 ? by.y : by.x) * UNIT;
        }
    }

    DEVICE void consume() {
        int thread = fixed_thread(), lane = thread % 32, warp = thread / 32;
        wait_for_launches();
        for (int index = blockIdx.x; index < tiles.tiles(); index += gridDim.x) {
            Sums<N> sums;
            sums.clear();
            multiply_tile(sums, lane, warp);
            tiles.finish_tile(tiles.tile(index), sums, thread, lane, warp);
        }
    }

    DEVICE void run() {
        int warp = threadIdx.x / 32;
        if (threadIdx.x < 2 * tiles.m.stages)
            tiles.full[threadIdx.x].open(threadIdx.x < tiles.m.stages ? 1 : ROW_WARPS);
        __syncthreads();
        if (warp >= ROW_WARPS) {
            return_registers<40>();
            if (threadIdx.x % 32 == 0) produce(warp - ROW_WARPS);
        } else {
            take_registers<232>();
            consume();
        }
    }
};
