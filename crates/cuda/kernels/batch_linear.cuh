// y = norm(x) * w^T for several tokens, by all blocks of the fused step: equals Op::Norm, Op::Linear, Op::Gated and Op::Add of
// graph/reference.rs in sequence.
//
// Blocks and warps share tiles and chunks as for one token (linear.cuh), and pass values with tags. x comes as halves from the
// phase before (x_fragments.cuh), and each lane has its operands of the warp's chunks in registers; weights become halves, too, and the
// matrix unit takes 16 rows of them and eight tokens. Up to four tokens are multiplied with codes of one and two bits as integers
// (placed_x.cuh), which takes fewer instructions.
//
// The value that a norm follows is passed on before its norm is known: times the norm's weights, and times the factor of the
// token's last norm, so that it is neither too large nor too small for a half. The sums of its squares are passed beside it, and
// the next linear applies the ratio of the factors to its sums.

static_assert(TOKENS_AT_ONCE <= FRAGMENT_TOKENS, "a step has one column of the matrix unit per token, or two");
constexpr bool TWO_COLUMNS = 2 * TOKENS_AT_ONCE <= FRAGMENT_TOKENS;
constexpr int WARP_SHARE = TOKENS_AT_ONCE * SHARE_STRIDE;  // floats of a warp
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
template <class L> DEVICE void find_factors(const LinearArgs& a, const Info& info, const BatchMemory& m) {
    int thread = threadIdx.x, lane = thread % 32;
    float4 sum = {0, 0, 0, 0}; // of four tokens: neighbouring threads have the others
    constexpr int FLOATS = (L::COLS + TILE - 1) / TILE * FRAGMENT_TOKENS;
    int x_rows = L::OUTPUTS && !L::GATHER ? info.outputs : info.tokens;
#pragma unroll
    for (int base = 0; base < FLOATS; base += THREADS * 4) {
        int i = base + thread * 4;
        Awaited<1> four;
        if (i < FLOATS) four.load(a.passed.squares + i);
        else four.zero(info.epoch);
        // rows that x does not have are not waited for
        auto wait = [&](int k) { return i < FLOATS && i % FRAGMENT_TOKENS + k < x_rows && (four.bits[k] ^ info.epoch) & 1; };
        for (Patience patience;; patience.wear()) {
            bool again = wait(0) || wait(1) || wait(2) || wait(3);
            if (!__any_sync(0xffffffff, again)) break;
            load_shared_words4_if(again, four.bits, a.passed.squares + i);
        }
        if (i >= FLOATS) continue;
        sum.x += untagged(four.bits[0], 1), sum.y += untagged(four.bits[1], 1), sum.z += untagged(four.bits[2], 1), sum.w += untagged(four.bits[3], 1);
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
    typedef typename L::A::F F;
    // converting x pays if several tiles are multiplied with it
    static constexpr bool PLACED = TWO_COLUMNS && L::ALIKE && F::PLACED && (L::SHARE + 1) * L::EACH > 2;
    static constexpr bool REGISTERS = L::ROUNDS <= 2, STAGED = !REGISTERS && L::STAGE;
    static constexpr int PIECES = FRAGMENT_CHUNK * 2 / 16; // of 16 bytes, of a chunk
    // Slots of a tile whose code is repeated: few, since loading code takes time, and such that it is known whether a round is even.
    static constexpr int UNROLLED = REGISTERS ? L::PIECES : L::PER_SLOT % 2 ? 2 : 1;
    const uint4* from; // of the warp's first chunk
    bool real;         // whether the lane has a token
    u32 tags;
    // of even and odd rounds: pieces of 16 bytes; PLACED, those that the lane converts
    Awaited<PLACED ? 2 : 4, 4 * 32 * (PLACED ? PlacedPieces<F>::STEP : 1)> b[2];
    PlacedX integers[2];     // the same, PLACED

    DEVICE bool has(int round) const { return real && (L::FULL || round * WARPS + (int)threadIdx.x / 32 < L::CHUNKS); }
    DEVICE const float* at(int round) const { return (const float*)(from + round * WARPS * PIECES); }

    // Loads the operands of a round, which may not be written yet.
    DEVICE void fetch(int round) {
        if (has(round)) b[round % 2].load(at(round));
        else b[round % 2].zero(tags);
    }

    // Waits until they are written.
    DEVICE void wait(int round) {
        poll(round);
        if constexpr (PLACED) {
            PlacedX* to[1] = {&integers[round % 2]};
            const u32* from[1] = {b[round % 2].bits};
            placed_x<F>(to, from, threadIdx.x % 32);
        }
    }

    DEVICE void poll(int round) {
        b[round % 2].wait(at(round), HALF_TAGS, tags);
#pragma unroll
        for (u32& word : b[round % 2].bits) word &= ~HALF_TAGS;
    }

    DEVICE Fragments(const LinearArgs& a, const Info& info, int rows, const BatchMemory& m, int lane, int warp) {
        int row = lane / 4 / (PLACED ? 2 : 1);
        real = row < rows, tags = half_tags(info.epoch);
        int token = real && L::GATHER ? info.output_row[row] : row;
        from = (const uint4*)a.passed.x + warp * PIECES + token * 4 + lane % 4;
        if (PLACED) from += PlacedPieces<F>::first_piece(lane) * 32;
        fetch(0);
        if (REGISTERS && L::ROUNDS > 1) fetch(1);
        if constexpr (STAGED) { // a warp uses only what it has copied itself
            uint4* to = m.staged + warp * PIECES + lane;
#pragma unroll
            for (int round = 0; round < L::ROUNDS; round++) {
                if (round + 1 < L::ROUNDS) fetch(round + 1);
                wait(round);
                if (!L::FULL && round * WARPS + warp >= L::CHUNKS) continue;
                auto put = [&](int i, u32 x, u32 y, u32 z, u32 w) { to[round * WARPS * PIECES + i * 32] = {x, y, z, w}; };
                if constexpr (PLACED) {
                    const PlacedX& x = integers[round % 2];
                    put(0, x.b[0], x.b[1], x.b[2], x.b[3]), put(1, x.b[4], x.b[5], x.b[6], x.b[7]);
                    put(2, __float_as_uint(x.by), __float_as_uint(x.sum), 0, 0);
                } else {
                    const u32(&words)[16] = b[round % 2].bits;
#pragma unroll
                    for (int i = 0; i < 4; i++) put(i, words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
                }
            }
            from = to;
            __syncwarp();
        }
    }

    // Before the first tile.
    DEVICE void wait_for_registers() {
        if constexpr (REGISTERS && L::ROUNDS == 1) {
            wait(0);
        } else if constexpr (REGISTERS) {
            poll(0), poll(1);
            if constexpr (PLACED) { // both together: more independent work
                PlacedX* to[2] = {&integers[0], &integers[1]};
                const u32* from[2] = {b[0].bits, b[1].bits};
                placed_x<F>(to, from, threadIdx.x % 32);
            }
        }
    }

    // Makes the operands of a round ready; meanwhile those of the next one are loaded.
    DEVICE void prepare(int round) {
        if constexpr (STAGED) {
            auto staged = [&](int i) { return from[round * WARPS * PIECES + i * 32]; };
            if constexpr (PLACED) {
                PlacedX& x = integers[round % 2];
                uint4 first = staged(0), second = staged(1), rest = staged(2);
                x.b[0] = first.x, x.b[1] = first.y, x.b[2] = first.z, x.b[3] = first.w;
                x.b[4] = second.x, x.b[5] = second.y, x.b[6] = second.z, x.b[7] = second.w;
                x.by = __uint_as_float(rest.x), x.sum = __uint_as_float(rest.y);
            } else {
                u32(&words)[16] = b[round % 2].bits;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint4 v = staged(i);
                    words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
                }
            }
        } else if constexpr (!REGISTERS) {
            if (round + 1 < L::ROUNDS) fetch(round + 1);
            wait(round);
        }
    }
    // All rounds are done: begin again.
    DEVICE void restart() {
        if (!REGISTERS && !STAGED) fetch(0);
    }
};

// The warp's partial sums of N tiles, one or two, as they come through the ring; `out` gets them by token and row.
template <class F, class L, int N> DEVICE void run_tiles(Ring& ring, Fragments<L>& x, float* out, int lane, int warp) {
    constexpr bool PLACED = Fragments<L>::PLACED;
    float sum[N][2][4] = {}; // consecutive products are added to different sums
    float total[N][2] = {};  // of rows g and g + 8 of token q, PLACED
#pragma unroll(Fragments<L>::UNROLLED)
    for (int piece = 0; piece < L::PIECES; piece++) {
        Ring of[N];
        const u8* slot[N];
#pragma unroll
        for (int n = 0; n < N; n++, ring = ring.ahead(1)) of[n] = ring, slot[n] = ring.wait() + warp * F::BYTES;
#pragma unroll
        for (int i = 0; i < L::PER_SLOT; i++) {
            int round = piece * L::PER_SLOT + i;
            if (round >= L::ROUNDS || (!L::FULL && round * WARPS + warp >= L::CHUNKS)) break;
            x.prepare(round);
            auto record = [&](int n) { return slot[n] + i * WARPS * F::BYTES; };
            const auto& b = x.b[round % 2].bits; // unless PLACED
            auto step = [&](const RowHalves<F>& first, const RowHalves<F>& second, float (&c)[2][4], int t) {
                u32 w[4];
                first.pairs(w[0], w[2], t), second.pairs(w[1], w[3], t);
                multiply(c[t % 2], w[0], w[1], w[2], w[3], b[2 * t], b[2 * t + 1]);
            };
            if constexpr (PLACED) {
                const PlacedX& integers = x.integers[round % 2];
#pragma unroll
                for (int n = 0; n < N; n++) multiply_placed<F, PLACED_HIGH>(total[n], record(n), integers.b, integers.by, integers.sum, lane);
            } else if constexpr (F::SIGNS && N == 2) { // both tiles together: more independent work
                RowHalves<F> rows[N][2];
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int second = 0; second < 2; second++) rows[n][second].load(record(n), lane, second);
#pragma unroll
                for (int t = 0; t < 8; t++)
#pragma unroll
                    for (int n = 0; n < N; n++) step(rows[n][0], rows[n][1], sum[n], t);
            } else {
#pragma unroll
                for (int n = 0; n < N; n++) {
                    RowHalves<F> first, second;
                    first.load(record(n), lane, 0), second.load(record(n), lane, 1);
#pragma unroll
                    for (int t = 0; t < 8; t++) step(first, second, sum[n], t);
                }
            }
        }
        __syncwarp();
        if (lane == 0)
#pragma unroll
            for (int n = 0; n < N; n++) of[n].empty().arrive();
    }
    x.restart();
    if constexpr (PLACED) {
        out += lane % 4 * SHARE_STRIDE + lane / 4;
#pragma unroll
        for (int n = 0; n < N; n++, out += SHARE_FLOATS) out[0] = total[n][0], out[8] = total[n][1];
        return;
    }
    out += lane % 4 * 2 * SHARE_STRIDE + lane / 4;
#pragma unroll
    for (int n = 0; n < N; n++, out += SHARE_FLOATS)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!TWO_COLUMNS || lane % 4 * 2 + i % 2 < TOKENS_AT_ONCE) out[i % 2 * SHARE_STRIDE + i / 2 * 8] = sum[n][0][i] + sum[n][1][i];
}

// What a row of a token needs from memory, loaded early.
template <class L> struct Early {
    Added<L> added;
    float weight; // of the next norm
};

template <class L> DEVICE Early<L> load_early(const LinearArgs& a, int i, int from, int units, int rows) {
    Early<L> e = {{0}, 0};
    if (!L::ADD && !(L::Y_PASSED && !L::GATED)) return e;
    int tile;
    const Part& part = a.part[L::find((from + i / 16 % units) * L::EACH, tile)];
    int row = tile * TILE + i % 16, token = i / 16 / units;
    if (token >= rows || row >= part.rows) return e;
    if (L::ADD) e.added.load(row_of(a.add, token) + row);
    if (L::Y_PASSED && !L::GATED && a.passed.y_weight) e.weight = a.passed.y_weight[row];
    return e;
}

// The sum of all warps' partial sums of a row of a token, in a fixed order, with factor, scale and bias.
template <class L> DEVICE float whole_row(const Part& part, const float* shares, float factor, int row) {
    return finished<L::SCALE, L::BIAS>(part, sum_of_warps([&](int w) { return shares[w * WARP_SHARE]; }), factor, row);
}

// Writes the rows of `units` units from the block's unit `from` on.
template <class L> DEVICE void write_rows(const LinearArgs& a, const Info& info, int from, int units, int rows, const BatchMemory& m, Early<L> early) {
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
        if (L::GATED && real) y = activate(L::GATED - 1, y, whole_row<L>(a.part[1], shares + SHARE_FLOATS, factor, row), a.limit);
        if (L::ADD && real) y += early.added.get(row_of(a.add, token) + row, info.epoch);
        if (real && !(L::GATED && L::Y_PASSED)) store_tagged(part.y + (long)token * part.y_stride + row, y, part.y_mask, info.epoch);
        if (!L::Y_PASSED) continue;
        float passed = y * a.passed.y_factor;
        if (!L::GATED) {
            passed *= early.weight * m.norms[token];
            float squares = y * y;
#pragma unroll
            for (int step = 8; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), squares, step);
            if (r == 0) store_tagged(a.passed.y_squares + tile * FRAGMENT_TOKENS + token, squares, 1, info.epoch);
        }
        if (real) store_fragment(fragment_at(a.passed.y, ORDER, token, row), passed, info.epoch);
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
    Early<L> early = {{0}, 0};
    if (units > 0) early = load_early<L>(a, thread, 0, min(units, HELD_TILES / L::EACH), rows);
    // every block needs the factors later; they are found while x is on its way, or after x if it is not converted
    if (L::NORM && Fragments<L>::PLACED) find_factors<L>(a, info, m);
    x.wait_for_registers();
    if (L::NORM && !Fragments<L>::PLACED) find_factors<L>(a, info, m);
    float* mine = m.shares + warp * WARP_SHARE;
    for (int from = 0; from < units; from += HELD_TILES / L::EACH) {
        int now = min(units - from, HELD_TILES / L::EACH), tiles = now * L::EACH;
        if (from) sync_threads<THREADS>(); // the memory of the partial sums is used again
        run_units<L>(from, tiles, mine, SHARE_FLOATS, [&](auto format, auto count, float* out) {
            run_tiles<typename decltype(format)::Is, L, decltype(count)::VALUE>(ring, x, out, lane, warp);
        });
        sync_threads<THREADS>();
        write_rows<L>(a, info, from, now, rows, m, early);
    }
    return ring;
}
