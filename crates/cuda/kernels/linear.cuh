// y = norm(x) * w^T for a few tokens, by all blocks of a step: equals Op::Norm, Op::Linear, Op::Gated and Op::Add of
// graph/reference.rs one after the other.
//
// Each block has some tiles of 16 rows. A tile's chunks are shared by the block's warps: warp w has chunks w, w + 16, ...
// of every tile, so it makes these of x for itself and waits for no other warp until the warps' shares of the rows are
// added up.

// x of a phase in shared memory.
struct X {
    u8* bytes;      // [chunk][256 * T]
    float2* scales; // [chunk][T]: what an integer is worth, and the sum of the chunk's integers for formats of one bit
    float* sums;    // [chunk][T][8]: of 16 columns each, for formats with offsets
    float* squares; // [warp][T]: sums of squares of the warp's columns
    float* shares;  // [tile][warp][16 rows][T], of HELD_TILES tiles

    DEVICE X() {
        u8* arena = shared + AT_ARENA;
        bytes = arena, scales = (float2*)(arena + AT_SCALES), sums = (float*)(arena + AT_SUMS);
        shares = (float*)(arena + AT_SHARES), squares = (float*)(shared + AT_ROOM);
    }
};

constexpr int SHARE = WARPS * 16 + 16; // floats a token between the shares of two tiles: not in the same banks

// Eight values of x as integers to their place in shared memory; sixteen neighbouring threads have a chunk.
template <int T> DEVICE void put_x(bool signs, bool real, const X& x, int t, int chunk, const float (&v)[8]) {
    int part = threadIdx.x % 16, sum = 0;
    float most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(v[i]));
#pragma unroll
    for (int step = 8; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
    if (real) {
        if (ANY_SIGNS && signs) sum = store_planes(x.bytes + (chunk * T + t) * 256, part, v, most);
        else sum = store_x(x.bytes + chunk * 256 * T, T, t, part, v, most);
    }
    if (ANY_SIGNS && signs) { // of the whole chunk
#pragma unroll
        for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    } else if (OFFSET_SUMS) {
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        if (real && part % 2 == 0) x.sums[(chunk * T + t) * 8 + part / 2] = (float)sum;
    }
    if (real && part == 0) x.scales[chunk * T + t] = {x_scale_of(most), (float)sum};
}

// The warp's chunks of a row of x, two at a time, times the norm's weights: the norm's factor comes at the end.
template <int T> DEVICE void prepare_row(const LinearArgs& a, const float* from, int t, const X& x, u32 mark) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    auto chunk_of = [&](int round) { return (round + lane / 16) * WARPS + warp; };
    auto column = [&](int round) { return chunk_of(round) * 128 + lane % 16 * 8; };
    float squares = 0;
    Eight next;
    float4 w[2] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    auto ask = [&](int round) {
        int k = column(round);
        if (a.norm.kind && k < a.cols) w[0] = *(const float4*)(a.norm.weight + k), w[1] = *(const float4*)(a.norm.weight + k + 4);
        if (k < a.cols) next.ask(from + k);
        else next.zero(mark);
    };
    ask(0);
    for (int round = 0; round < a.rounds; round += 2) {
        int k = column(round);
        while (!next.is_there(a.x.mask, mark)) next.ask(from + k);
        float v[8], by[8] = {w[0].x, w[0].y, w[0].z, w[0].w, w[1].x, w[1].y, w[1].z, w[1].w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = k < a.cols ? unmarked(next.bits[i], a.x.mask) : 0.f;
            squares += v[i] * v[i];
            if (a.norm.kind) v[i] *= by[i];
        }
        if (round + 2 < a.rounds) ask(round + 2);
        int chunk = chunk_of(round);
        put_x<T>(a.signs, chunk < a.chunks, x, t, chunk, v);
    }
    if (a.norm.kind) {
        squares = warp_sum(squares);
        if (lane == 0) x.squares[warp * T + t] = squares;
    }
}

// The warp's share of one tile, as it comes through the ring. What it is for a row and token goes to `out`.
template <class F, int T> DEVICE void run_tile(Ring& ring, const LinearArgs& a, int per_slot, const X& x, float* out) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4, token = min(q, T - 1);
    float total[F::SIGNS ? T : 1][2] = {};
    for (int chunk = warp; chunk < a.chunks + warp;) { // all warps go through all slots
        ring.full().wait(ring.round & 1);
        const u8* at = ring.slot() + warp * F::BYTES;
        int end = chunk + per_slot * WARPS, last = min(end, a.chunks);
#pragma unroll 2
        for (; chunk < last; chunk += WARPS, at += WARPS * F::BYTES) {
            if constexpr (F::SIGNS) {
                multiply_signs<T>(total, at, x.bytes + chunk * 256 * T, x.scales + chunk * T, lane);
            } else {
                u32 b[8];
                load_x<T>(b, x.bytes + chunk * 256 * T, lane);
                multiply_record<F>(total[0], at, b, x.scales[chunk * T + token].x, x.sums + (chunk * T + token) * 8, lane);
            }
        }
        chunk = end;
        ring.release(), ring.next();
    }
    if constexpr (F::SIGNS) {
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                total[t][r] += __shfl_xor_sync(0xffffffff, total[t][r], 1);
                total[t][r] += __shfl_xor_sync(0xffffffff, total[t][r], 2);
                if (q == 0) out[(g + 8 * r) * T + t] = total[t][r];
            }
    } else if (q < T) {
        out[g * T + q] = total[0][0], out[(g + 8) * T + q] = total[0][1];
    }
}

// The sum of all warps' shares of a row, in a fixed order, and what belongs to its part.
template <int T> DEVICE float whole_row(const Part& part, const float* shares, float factor, int row) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += shares[w * 16 * T];
    return finished(part, sum * factor, row);
}

// Writes the rows of a group of units that begins at the block's unit `from`. `early` was asked for before.
template <int T> DEVICE void write_rows(const LinearArgs& a, const Tiles& tiles, int from, int units, int rows, const X& x, u32 mark, float early) {
    for (int i = threadIdx.x; i < units * 16 * T; i += THREADS) {
        int r = i % 16, unit = i / 16 % units, t = i / 16 / units, n = 0, tile = tiles.first + from + unit;
        if (t >= rows) return;
        if (!a.gated) Tiles::find(a, tile, n, tile);
        const Part& part = a.part[n];
        int row = tile * 16 + r;
        if (row >= part.rows) continue;
        float factor = 1;
        if (a.norm.kind) {
            float squares = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) squares += x.squares[w * T + t];
            factor = norm_factor(squares, a.cols, a.norm.eps);
        }
        const float* shares = x.shares + ((a.gated ? 2 * unit : unit) * SHARE + r) * T + t;
        float y = whole_row<T>(part, shares, factor, row);
        if (a.gated) y = activate(a.gated - 1, y) * whole_row<T>(a.part[1], shares + SHARE * T, factor, row);
        if (a.add.at) y += T == 1 && from == 0 && i == threadIdx.x ? early : take(a.add.row(t) + row, a.add.mask, mark);
        give(part.y + t * part.y_stride + row, y, part.y_mask, mark);
    }
}

// One phase, from a place in the ring on; gives the place after it.
template <int T> APART Ring linear(int p, Ring ring) {
    const LinearArgs& a = phase_at_hand(p).linear;
    const Info& info = info_of_step();
    int rows = a.outputs_only ? info.outputs : info.tokens;
    Tiles tiles(a);
    if (rows == 0 || tiles.left == 0) return ring;
    X x;
    u32 mark = info.mark;
    float early = 0; // one output a thread in most phases: what is added to it is asked for now
    int row = tiles.first * 16 + threadIdx.x;
    if (T == 1 && a.add.at && threadIdx.x < tiles.units * 16 && row < a.part[0].rows) early = take(a.add.at + row, a.add.mask, mark);
    for (int t = 0; t < rows; t++) prepare_row<T>(a, a.x.row(a.gather ? info.output_row[t] : t), t, x, mark);
    __syncwarp();
    int from = 0, held = 0; // units that are written, tiles whose shares are held
    for (; tiles.left; tiles.next(a)) {
        const Part& part = a.part[tiles.part];
        float* out = x.shares + (held * SHARE + threadIdx.x / 32 * 16) * T;
        switch (part.format) {
#define CASE(n, bits, low, group, offsets) case n: run_tile<Format<bits, low, group, offsets>, T>(ring, a, part.per_slot, x, out); break;
            FORMATS(CASE)
#undef CASE
        }
        if (++held < HELD_TILES && tiles.left > 1) continue;
        int units = a.gated ? held / 2 : held;
        sync_threads<THREADS>();
        write_rows<T>(a, tiles, from, units, rows, x, mark, early);
        from += units, held = 0;
        if (tiles.left > 1) sync_threads<THREADS>(); // the shares are used again
    }
    return ring;
}
