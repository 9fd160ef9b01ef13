// y = norm(x) * w^T for several tokens, by all blocks of the fused step: equals Op::Norm, Op::Linear, Op::Gated and Op::Add of
// graph/reference.rs in sequence.
//
// Blocks and warps share tiles and chunks as for one token (linear.cuh). x comes as halves from the phase before
// (x_fragments.cuh), and each lane has its operands of the warp's chunks in registers; weights become halves, too, and the
// matrix unit takes 16 rows of them and eight tokens.
//
// The value that a norm follows is passed on before its norm is known: times the norm's weights, and times the factor of the
// token's last norm, so that it is neither too large nor too small for a half. The sums of its squares are passed beside it, and
// the next linear applies the ratio of the factors to its sums.

static_assert(TOKENS_AT_ONCE == FRAGMENT_TOKENS, "a step has one column of the matrix unit per token");
constexpr int SHARE_STRIDE = 20; // floats of a token: 16 rows; the padding keeps tokens in different banks
constexpr int WARP_SHARE = FRAGMENT_TOKENS * SHARE_STRIDE; // floats of a warp
constexpr int SHARE_FLOATS = WARPS * WARP_SHARE;           // floats of a tile

// What a phase has in shared memory.
struct BatchMemory {
    uint4* staged;  // x of linears with many chunks and many tiles
    float* shares;  // [tile][warp][token][SHARE_STRIDE], of HELD_TILES tiles
    float* squares; // [warp][token]
    float* factors; // [token]: on the sums of this phase
    float* norms;   // [token]: the factor of the last norm

    DEVICE BatchMemory() {
        u8* arena = shared + AT_ARENA;
        staged = (uint4*)arena, shares = (float*)(arena + AT_SHARES), squares = (float*)(shared + AT_WARP_FLOATS);
        factors = (float*)(shared + AT_FACTORS), norms = factors + FRAGMENT_TOKENS;
    }
};

// The factors of a norm, from the sums of squares that came with x: [16 columns][token].
template <class L> DEVICE void find_factors(const LinearArgs& a, const BatchMemory& m) {
    int thread = threadIdx.x, lane = thread % 32;
    float4 sum = {0, 0, 0, 0}; // of four tokens: neighbouring threads have the others
    for (int i = thread * 4; i < (L::COLS + TILE - 1) / TILE * FRAGMENT_TOKENS; i += THREADS * 4) {
        float4 v = load_floats4(a.passed.squares + i);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
#pragma unroll
    for (int step = 2; step < 32; step *= 2) {
        sum.x += __shfl_xor_sync(0xffffffff, sum.x, step), sum.y += __shfl_xor_sync(0xffffffff, sum.y, step);
        sum.z += __shfl_xor_sync(0xffffffff, sum.z, step), sum.w += __shfl_xor_sync(0xffffffff, sum.w, step);
    }
    if (lane < 2) *(float4*)(m.squares + thread / 32 * FRAGMENT_TOKENS + lane * 4) = sum;
    sync_threads<THREADS>();
    if (thread >= FRAGMENT_TOKENS) return;
    float squares = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) squares += m.squares[w * FRAGMENT_TOKENS + thread];
    float factor = norm_factor(squares, L::COLS, a.norm.eps);
    m.factors[thread] = a.passed.x_factor * (L::FRESH ? 1.f : factor / m.norms[thread]);
    m.norms[thread] = factor;
}

// A lane's operands of x: those of the warp's chunks in registers if they are few, or else of a round and the next one.
template <class L> struct Fragments {
    static constexpr bool REGISTERS = L::ROUNDS <= 2, STAGED = !REGISTERS && L::STAGE;
    static constexpr int PIECES = FRAGMENT_CHUNK * 2 / 16; // of 16 bytes, of a chunk
    const uint4* from; // of the warp's first chunk
    bool real;         // whether the lane has a token
    uint4 b[2][4];     // of even and odd rounds

    DEVICE uint4 load(int round, int i) const {
        if (!real || (!L::FULL && round * WARPS + (int)threadIdx.x / 32 >= L::CHUNKS)) return uint4{0, 0, 0, 0};
        const uint4* at = from + round * WARPS * PIECES + i * 32;
        return STAGED ? *at : load_words4(at);
    }
    DEVICE void fetch(int round) {
#pragma unroll
        for (int i = 0; i < 4; i++) b[round % 2][i] = load(round, i);
    }

    DEVICE Fragments(const LinearArgs& a, const Info& info, int rows, const BatchMemory& m, int lane, int warp) {
        int g = lane / 4;
        real = g < rows;
        int token = real && L::GATHER ? info.output_row[g] : g;
        from = (const uint4*)a.passed.x + warp * PIECES + token * 4 + lane % 4;
        if constexpr (STAGED) { // a warp uses only what it has copied itself
            uint4* to = m.staged + warp * PIECES + lane;
#pragma unroll 2
            for (int round = 0; round < L::ROUNDS; round++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (L::FULL || round * WARPS + warp < L::CHUNKS) to[round * WARPS * PIECES + i * 32] = real ? load_words4(from + round * WARPS * PIECES + i * 32) : uint4{0, 0, 0, 0};
            from = to;
            __syncwarp();
        }
        fetch(0);
        if (REGISTERS && L::ROUNDS > 1) fetch(1);
    }

    // The operands of a round; meanwhile those of the next one are loaded.
    DEVICE const uint4 (&of(int round))[4] {
        if (!REGISTERS && !STAGED && round + 1 < L::ROUNDS) fetch(round + 1);
        if (STAGED && round > 0) fetch(round);
        return b[round % 2];
    }
    // All rounds are done: begin again.
    DEVICE void restart() {
        if (!REGISTERS) fetch(0);
    }
};

DEVICE u32 word_of(const uint4 (&b)[4], int i) { return i % 4 == 0 ? b[i / 4].x : i % 4 == 1 ? b[i / 4].y : i % 4 == 2 ? b[i / 4].z : b[i / 4].w; }

// The warp's partial sums of N tiles, one or two, as they come through the ring; `out` gets them by token and row.
template <class F, class L, int N> DEVICE void run_tiles(Ring& ring, Fragments<L>& x, float* out, int lane, int warp) {
    float sum[N][2][4] = {}; // consecutive products are added to different sums
#pragma unroll
    for (int piece = 0; piece < L::PIECES; piece++) {
        const u8* slot[N];
#pragma unroll
        for (int n = 0; n < N; n++) slot[n] = ring.ahead(n).wait() + warp * F::BYTES;
#pragma unroll
        for (int i = 0; i < L::PER_SLOT; i++) {
            int round = piece * L::PER_SLOT + i;
            if (round >= L::ROUNDS || (!L::FULL && round * WARPS + warp >= L::CHUNKS)) break;
            const uint4(&b)[4] = x.of(round);
            auto step = [&](const RowHalves<F>& first, const RowHalves<F>& second, float (&c)[2][4], int t) {
                u32 w[4];
                first.pairs(w[0], w[2], t), second.pairs(w[1], w[3], t);
                multiply(c[t % 2], w[0], w[1], w[2], w[3], word_of(b, 2 * t), word_of(b, 2 * t + 1));
            };
            if constexpr (F::SIGNS && N == 2) { // both tiles together: more independent work
                RowHalves<F> rows[N][2];
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int second = 0; second < 2; second++) rows[n][second].load(slot[n] + i * WARPS * F::BYTES, lane, second);
#pragma unroll
                for (int t = 0; t < 8; t++)
#pragma unroll
                    for (int n = 0; n < N; n++) step(rows[n][0], rows[n][1], sum[n], t);
            } else {
#pragma unroll
                for (int n = 0; n < N; n++) {
                    RowHalves<F> first, second;
                    first.load(slot[n] + i * WARPS * F::BYTES, lane, 0), second.load(slot[n] + i * WARPS * F::BYTES, lane, 1);
#pragma unroll
                    for (int t = 0; t < 8; t++) step(first, second, sum[n], t);
                }
            }
        }
        __syncwarp();
        if (lane < N) ring.ahead(lane).empty().arrive();
        ring = ring.ahead(N);
    }
    x.restart();
    out += lane % 4 * 2 * SHARE_STRIDE + lane / 4;
#pragma unroll
    for (int n = 0; n < N; n++, out += SHARE_FLOATS)
#pragma unroll
        for (int i = 0; i < 4; i++) out[i % 2 * SHARE_STRIDE + i / 2 * 8] = sum[n][0][i] + sum[n][1][i];
}

// What a row of a token needs from memory, loaded early.
struct Early { float added, weight; };

template <class L> DEVICE Early load_early(const LinearArgs& a, int i, int from, int units, int rows) {
    Early e = {0, 0};
    if (!L::ADD && !(L::Y_PASSED && !L::GATED)) return e;
    int tile;
    const Part& part = a.part[L::find((from + i / 16 % units) * L::EACH, tile)];
    int row = tile * TILE + i % 16, token = i / 16 / units;
    if (token >= rows || row >= part.rows) return e;
    if (L::ADD) e.added = load_float(row_of(a.add, token) + row);
    if (L::Y_PASSED && !L::GATED && a.passed.y_weight) e.weight = a.passed.y_weight[row];
    return e;
}

// The sum of all warps' partial sums of a row of a token, in a fixed order, with factor, scale and bias.
template <class L> DEVICE float whole_row(const Part& part, const float* shares, float factor, int row) {
    float sum[4] = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum[w % 4] += shares[w * WARP_SHARE];
    return finished<L::SCALE, L::BIAS>(part, sum[0] + sum[1] + (sum[2] + sum[3]), factor, row);
}

// Writes the rows of `units` units from the block's unit `from` on.
template <class L> DEVICE void write_rows(const LinearArgs& a, const Info& info, int from, int units, int rows, const BatchMemory& m, Early early) {
    constexpr int ORDER = L::Y_BITS ? BITS_ORDER : BYTES_ORDER;
    for (int i = threadIdx.x; i < units * 16 * rows; i += THREADS) {
        int r = i % 16, unit = i / 16 % units, token = i / 16 / units, tile;
        const Part& part = a.part[L::find((from + unit) * L::EACH, tile)];
        int row = tile * TILE + r;
        bool real = row < part.rows;
        if (from > 0 || i >= THREADS) early = load_early<L>(a, i, from, units, rows);
        float factor = L::NORM ? m.factors[L::GATHER ? info.output_row[token] : token] : a.passed.x_factor;
        const float* shares = m.shares + unit * L::EACH * SHARE_FLOATS + token * SHARE_STRIDE + r;
        float y = real ? whole_row<L>(part, shares, factor, row) : 0.f;
        if (L::GATED && real) y = activate(L::GATED - 1, y) * whole_row<L>(a.part[1], shares + SHARE_FLOATS, factor, row);
        if (L::ADD) y += early.added;
        if (real && !(L::GATED && L::Y_PASSED)) part.y[(long)token * part.y_stride + row] = y;
        if (!L::Y_PASSED) continue;
        float passed = y * a.passed.y_factor;
        if (!L::GATED) {
            passed *= early.weight * m.norms[token];
            float squares = y * y;
#pragma unroll
            for (int step = 8; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), squares, step);
            if (r == 0) a.passed.squares[tile * FRAGMENT_TOKENS + token] = squares;
        }
        if (real) *fragment_at(a.passed.y, ORDER, token, row) = to_half_or_infinity(passed);
    }
}

// Runs one phase, from a position of the ring on; returns the position after it.
template <class L> DEVICE Ring linear(int p, Ring ring) {
    const LinearArgs& a = phase_at_hand(p).linear;
    const Info& info = info_of_step();
    int rows = L::OUTPUTS ? info.outputs : info.tokens, units = L::units();
    int thread = fixed_thread(), lane = thread % 32, warp = thread / 32;
    if (rows == 0) return ring;
    BatchMemory m;
    Fragments<L> x(a, info, rows, m, lane, warp);
    Early early = {0, 0};
    if (units > 0) early = load_early<L>(a, thread, 0, min(units, HELD_TILES / L::EACH), rows);
    if (L::NORM) find_factors<L>(a, m); // every block needs them later
    float* mine = m.shares + warp * WARP_SHARE;
    for (int from = 0; from < units; from += HELD_TILES / L::EACH) {
        int now = min(units - from, HELD_TILES / L::EACH), tiles = now * L::EACH;
        if (from) sync_threads<THREADS>(); // the memory of the partial sums is used again
        float* out = mine;
        if constexpr (L::ALIKE) {
            typedef typename L::A::F F;
            int i = 0;
            if constexpr (L::PAIRED)
                for (; i + 1 < tiles; i += 2, out += 2 * SHARE_FLOATS) run_tiles<F, L, 2>(ring, x, out, lane, warp);
            for (; i < tiles; i++, out += SHARE_FLOATS) run_tiles<F, L, 1>(ring, x, out, lane, warp);
        } else {
            for (int i = 0; i < tiles; i++, out += SHARE_FLOATS) {
                int tile, part = L::find(from * L::EACH + i, tile);
                if (part == 0) run_tiles<typename L::A::F, L, 1>(ring, x, out, lane, warp);
                else if (part == 1) run_tiles<typename L::B::F, L, 1>(ring, x, out, lane, warp);
                else run_tiles<typename L::C::F, L, 1>(ring, x, out, lane, warp);
            }
        }
        sync_threads<THREADS>();
        write_rows<L>(a, info, from, now, rows, m, early);
    }
    return ring;
}
