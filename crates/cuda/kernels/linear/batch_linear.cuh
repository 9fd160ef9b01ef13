// y = norm(x) * w^T for several tokens, by all blocks of the fused step: equals Op::Norm, Op::Linear, Op::Gated and
// Op::Add of graph/reference.rs in sequence.
//
// Blocks and warps share tiles and chunks as for one token (linear.cuh), and pass values with tags. x comes as halves
// from the phase before (x_fragments.cuh), and each lane has its operands of the warp's chunks in registers; weights
// become halves, too, and the matrix unit takes 16 rows of them and eight tokens. Up to four tokens are multiplied with
// codes of one and two bits as integers (placed_x.cuh), which takes fewer instructions.
//
// The value that a norm follows is passed on before its norm is known: times the norm's weights, and times the factor
// of the token's last norm, so that it is neither too large nor too small for a half. The sums of its squares are
// passed beside it, and the next linear applies the ratio of the factors to its sums.

#pragma once

#include "weights/halves.cuh"
#include "fused_step/ring.cuh"
#include "linear/step_linear.cuh"
#include "x/placed_x.cuh"

static_assert(TOKENS_AT_ONCE <= FRAGMENT_TOKENS, "a step has one column of the matrix unit per token, two or four");
constexpr bool TWO_COLUMNS = 2 * TOKENS_AT_ONCE <= FRAGMENT_TOKENS,
               FOUR_COLUMNS = 4 * TOKENS_AT_ONCE <= FRAGMENT_TOKENS;
constexpr int WARP_SHARE = TOKENS_AT_ONCE * SHARE_STRIDE; // floats of a warp
constexpr int SHARE_FLOATS = WARPS * WARP_SHARE;          // floats of a tile

// What a phase has in shared memory.
struct BatchMemory {
    uint4* staged;  // x of linears with many chunks and many tiles
    float* shares;  // [tile][warp][token][SHARE_STRIDE], of HELD_TILES tiles
    float* squares; // [warp][token]
    float* factors; // [token]: on the sums of this phase
    float* norms;   // [token]: the factor of the last norm

    DEVICE BatchMemory() {
        u8* arena = shared + Sizes::AT_ARENA;
        staged = (uint4*)arena, shares = (float*)(arena + Sizes::AT_SHARES),
        squares = (float*)(shared + Sizes::AT_WARP_FLOATS);
        factors = (float*)(shared + Sizes::AT_FACTORS), norms = factors + FRAGMENT_TOKENS;
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
        auto wait = [&](int k) {
            return i < FLOATS && i % FRAGMENT_TOKENS + k < x_rows && (four.bits[k] ^ info.epoch) & 1;
        };
        for (Patience patience;; patience.wear()) {
            bool again = wait(0) || wait(1) || wait(2) || wait(3);
            if (!__any_sync(0xffffffff, again)) break;
            load_shared_words4_if(again, four.bits, a.passed.squares + i);
        }
        if (i >= FLOATS) continue;
        sum.x += untagged(four.bits[0], 1), sum.y += untagged(four.bits[1], 1), sum.z += untagged(four.bits[2], 1),
            sum.w += untagged(four.bits[3], 1);
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

// A lane's operands of x: those of the warp's chunks in registers if they are few, or else of a turn and the next one.
// A turn is one round, or two of two tokens.
template <class L> struct Fragments {
    typedef typename L::A::F F;
    static constexpr bool CONVERTIBLE = TWO_COLUMNS && L::ALIKE && F::PLACED;
    static constexpr bool PAIRED = FOUR_COLUMNS && CONVERTIBLE && L::PER_SLOT % 2 == 0;
    // converting one chunk at a time pays if several tiles are multiplied with it
    static constexpr bool PLACED = PAIRED || (CONVERTIBLE && (L::SHARE + 1) * L::EACH > 2);
    static constexpr int ROUNDS_OF_TURN = PAIRED ? 2 : 1, TURNS = (L::ROUNDS + ROUNDS_OF_TURN - 1) / ROUNDS_OF_TURN;
    static constexpr bool REGISTERS = PAIRED ? TURNS <= 3 : TURNS <= 2, STAGED = !REGISTERS && L::STAGE;
    static constexpr int PIECES = FRAGMENT_CHUNK * 2 / 16; // of 16 bytes, of a chunk
    static constexpr int TURN_PIECES = ROUNDS_OF_TURN * WARPS * PIECES;
    // Slots of a tile whose code is repeated: few, since loading code takes time, and such that it is known whether a
    // turn is even.
    static constexpr int UNROLLED = REGISTERS ? L::PIECES : L::PER_SLOT / ROUNDS_OF_TURN % 2 ? 2 : 1;
    static constexpr int HELD = REGISTERS ? TURNS : 2; // turns; of more turns, even and odd ones
    const uint4* from;                                 // of the lane's first chunk
    int chunk;                                         // it
    int lane;
    bool real; // whether the lane has a token
    u32 tags;
    // of a turn: pieces of 16 bytes; PLACED, those that the lane converts
    Awaited<PLACED ? 2 : 4, 4 * 32 * (PLACED ? PlacedPieces<F>::STEP : 1)> b[HELD];
    PlacedX integers[HELD]; // the same, PLACED

    DEVICE bool has(int turn) const {
        return real &&
               ((L::FULL && L::ROUNDS % ROUNDS_OF_TURN == 0) || turn * ROUNDS_OF_TURN * WARPS + chunk < L::CHUNKS);
    }
    DEVICE const float* at(int turn) const { return (const float*)(from + turn * TURN_PIECES); }

    // Loads the operands of a turn, which may not be written yet.
    DEVICE void fetch(int turn) {
        if (has(turn)) b[turn % HELD].load(at(turn));
        else b[turn % HELD].zero(tags);
    }

    // Waits until they are written.
    DEVICE void wait(int turn) {
        poll(turn);
        if constexpr (PLACED) {
            PlacedX* to[1] = {&integers[turn % HELD]};
            const u32* from[1] = {b[turn % HELD].bits};
            placed_x<F>(to, from, lane);
        }
    }

    DEVICE void poll(int turn) {
        b[turn % HELD].wait(at(turn), HALF_TAGS, tags);
#pragma unroll
        for (u32& word : b[turn % HELD].bits) word &= ~HALF_TAGS;
    }

    DEVICE Fragments(const LinearArgs& a, const Info& info, int rows, const BatchMemory& m, int lane, int warp)
        : lane(lane) {
        int row = PAIRED ? lane / 8 % 2 : lane / 4 / (PLACED ? 2 : 1);
        real = row < rows, tags = half_tags(info.epoch);
        int token = real && L::GATHER ? info.output_row[row] : row;
        chunk = warp + (PAIRED ? lane / 16 * WARPS : 0);
        from = (const uint4*)a.passed.x + chunk * PIECES + token * 4 + lane % 4;
        if (PLACED) from += PlacedPieces<F>::first_piece(lane) * 32;
#pragma unroll
        for (int turn = 0; turn < (REGISTERS ? TURNS : 1); turn++) fetch(turn);
        if constexpr (STAGED) { // a warp uses only what it has copied itself
            uint4* to = m.staged + warp * PIECES + lane;
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                if (turn + 1 < TURNS) fetch(turn + 1);
                wait(turn);
                if (!L::FULL && turn * ROUNDS_OF_TURN * WARPS + warp >= L::CHUNKS) continue;
                auto put = [&](int i, u32 x, u32 y, u32 z, u32 w) { to[turn * TURN_PIECES + i * 32] = {x, y, z, w}; };
                if constexpr (PLACED) {
                    const PlacedX& x = integers[turn % HELD];
                    put(0, x.b[0], x.b[1], x.b[2], x.b[3]), put(1, x.b[4], x.b[5], x.b[6], x.b[7]);
                    put(2, __float_as_uint(x.by), __float_as_uint(x.sum), 0, 0);
                } else {
                    const u32(&words)[16] = b[turn % HELD].bits;
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        put(i, words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
                }
            }
            from = to;
            __syncwarp();
        }
    }

    // Before the first tile.
    DEVICE void wait_for_registers() {
        if constexpr (REGISTERS) {
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) poll(turn);
            if constexpr (PLACED) { // all together: more independent work
                PlacedX* to[TURNS];
                const u32* from[TURNS];
#pragma unroll
                for (int turn = 0; turn < TURNS; turn++) to[turn] = &integers[turn], from[turn] = b[turn].bits;
                placed_x<F>(to, from, lane);
            }
        }
    }

    // Makes the operands of a turn ready; meanwhile those of the next one are loaded.
    DEVICE void prepare(int turn) {
        if constexpr (STAGED) {
            auto staged = [&](int i) { return from[turn * TURN_PIECES + i * 32]; };
            if constexpr (PLACED) {
                PlacedX& x = integers[turn % HELD];
                uint4 first = staged(0), second = staged(1), rest = staged(2);
                x.b[0] = first.x, x.b[1] = first.y, x.b[2] = first.z, x.b[3] = first.w;
                x.b[4] = second.x, x.b[5] = second.y, x.b[6] = second.z, x.b[7] = second.w;
                x.by = __uint_as_float(rest.x), x.sum = __uint_as_float(rest.y);
            } else {
                u32(&words)[16] = b[turn % HELD].bits;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint4 v = staged(i);
                    words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
                }
            }
        } else if constexpr (!REGISTERS) {
            if (turn + 1 < TURNS) fetch(turn + 1);
            wait(turn);
        }
    }
    // All turns are done: begin again.
    DEVICE void restart() {
        if (!REGISTERS && !STAGED) fetch(0);
    }
};

// The warp's partial sums of N tiles, one or two, as they come through the ring; `out` gets them by token and row.
template <class F, class L, int N> DEVICE void run_tiles(Ring& ring, Fragments<L>& x, float* out, int lane, int warp) {
    constexpr bool PLACED = Fragments<L>::PLACED, PAIRED = Fragments<L>::PAIRED;
    constexpr int AT_ONCE = Fragments<L>::ROUNDS_OF_TURN;
    float sum[N][2][4] = {}; // consecutive products are added to different sums
    float total[N][2] = {};  // of rows g and g + 8 of token q (PAIRED, of token q % 2 and every second round), PLACED
#pragma unroll(Fragments<L>::UNROLLED)
    for (int piece = 0; piece < L::PIECES; piece++) {
        Ring of[N];
        const u8* slot[N];
#pragma unroll
        for (int n = 0; n < N; n++, ring = ring.ahead(1)) of[n] = ring, slot[n] = ring.wait() + warp * F::BYTES;
#pragma unroll
        for (int i = 0; i < L::PER_SLOT; i += AT_ONCE) {
            int round = piece * L::PER_SLOT + i, turn = round / AT_ONCE;
            auto missing = [&](int round) {
                return round >= L::ROUNDS || (!L::FULL && round * WARPS + warp >= L::CHUNKS);
            };
            if (missing(round)) break;
            x.prepare(turn);
            auto record = [&](int n) { return slot[n] + i * WARPS * F::BYTES; };
            const auto& b = x.b[turn % Fragments<L>::HELD].bits; // unless PLACED
            auto step = [&](const RowHalves<F>& first, const RowHalves<F>& second, float (&c)[2][4], int t) {
                u32 w[4];
                first.pairs(w[0], w[2], t), second.pairs(w[1], w[3], t);
                multiply(c[t % 2], w[0], w[1], w[2], w[3], b[2 * t], b[2 * t + 1]);
            };
            if constexpr (PLACED) {
                const PlacedX& of = x.integers[turn % Fragments<L>::HELD];
                int next = missing(round + 1)
                               ? 0
                               : WARPS * F::BYTES; // PAIRED: a chunk that is missing is multiplied with zeros
#pragma unroll
                for (int n = 0; n < N; n++) {
                    if constexpr (PAIRED)
                        multiply_placed<F, PLACED_HIGH>(total[n], record(n), record(n) + next, of.b, of.by, of.sum,
                                                        lane);
                    else multiply_placed<F, PLACED_HIGH>(total[n], record(n), of.b, of.by, of.sum, lane);
                }
            } else if constexpr (F::SIGNS && N == 2) { // both tiles together: more independent work
                RowHalves<F> rows[N][2];
#pragma unroll
                for (int n = 0; n < N; n++)
                    rows[n][0].load(record(n), lane, Constant<0>{}), rows[n][1].load(record(n), lane, Constant<1>{});
#pragma unroll
                for (int t = 0; t < 8; t++)
#pragma unroll
                    for (int n = 0; n < N; n++) step(rows[n][0], rows[n][1], sum[n], t);
            } else {
#pragma unroll
                for (int n = 0; n < N; n++) {
                    RowHalves<F> first, second;
                    first.load(record(n), lane, Constant<0>{}), second.load(record(n), lane, Constant<1>{});
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
        out += lane % (4 / AT_ONCE) * SHARE_STRIDE + lane / 4;
#pragma unroll
        for (int n = 0; n < N; n++, out += SHARE_FLOATS) {
            if constexpr (PAIRED) { // lanes of both chunks have one row each
                float mine = lane & 2 ? total[n][1] : total[n][0];
                mine += __shfl_xor_sync(0xffffffff, lane & 2 ? total[n][0] : total[n][1], 2);
                out[lane & 2 ? 8 : 0] = mine;
            } else if (TOKENS_AT_ONCE >= 4 || lane % 4 < TOKENS_AT_ONCE) {
                out[0] = total[n][0], out[8] = total[n][1];
            }
        }
        return;
    }
    out += lane % 4 * 2 * SHARE_STRIDE + lane / 4;
#pragma unroll
    for (int n = 0; n < N; n++, out += SHARE_FLOATS)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!TWO_COLUMNS || lane % 4 * 2 + i % 2 < TOKENS_AT_ONCE)
                out[i % 2 * SHARE_STRIDE + i / 2 * 8] = sum[n][0][i] + sum[n][1][i];
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
template <class L> DEVICE void write_rows(const LinearArgs& a, const Info& info, int from, int units, int rows,
                                          const BatchMemory& m, Early<L> early) {
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
        if (L::GATED && real)
            y = activate(L::GATED - 1, y, whole_row<L>(a.part[1], shares + SHARE_FLOATS, factor, row), a.limit);
        if (L::ADD && real) y += early.added.get(row_of(a.add, token) + row, info.epoch);
        if (real && !(L::GATED && L::Y_PASSED))
            store_tagged(part.y + (long)token * part.y_stride + row, y, part.y_mask, info.epoch);
        if (!L::Y_PASSED) continue;
        float passed = y * a.passed.y_factor;
        if (!L::GATED) {
            passed *= early.weight * m.norms[token];
            float squares = y * y;
#pragma unroll
            for (int step = 8; step > 0; step /= 2)
                squares += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), squares, step);
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
    if (units > 0) early = load_early<L>(a, thread, 0, min(units, Sizes::HELD_TILES / L::EACH), rows);
    // every block needs the factors later; they are found while x is on its way, or after x if it is not converted
    if (L::NORM && Fragments<L>::PLACED) find_factors<L>(a, info, m);
    x.wait_for_registers();
    if (L::NORM && !Fragments<L>::PLACED) find_factors<L>(a, info, m);
    float* mine = m.shares + warp * WARP_SHARE;
    for (int from = 0; from < units; from += Sizes::HELD_TILES / L::EACH) {
        int now = min(units - from, Sizes::HELD_TILES / L::EACH), tiles = now * L::EACH;
        if (from) sync_threads<THREADS>(); // the memory of the partial sums is used again
        run_units<L>(from, tiles, mine, SHARE_FLOATS, [&](auto format, auto count, float* out) {
            run_tiles<typename decltype(format)::Is, L, decltype(count)::VALUE>(ring, x, out, lane, warp);
        });
        sync_threads<THREADS>();
        write_rows<L>(a, info, from, now, rows, m, early);
    }
    return ring;
}
