// Attention of many tokens over pages: equals Op::Attend of graph/reference.rs, after the norm and rotation of its
// heads.
//
// A block has a tile of rows, which are the query heads of one key head for a few tokens of one slice: row r is token r
// / HEADS and head r % HEADS. Keys and values come tile by tile into shared memory. Scores are q K^T and sums p V on
// the matrix unit. The host plans which tokens and keys a block takes (src/launch/attention_plan.rs).
//
// REPRODUCIBLE: no bit of a row depends on how its keys are shared. They are divided into segments at multiples of
// ATTEND_SEGMENT; a warp computes a segment from its first key on, 16 keys at a time, and the results of segments are
// added in their order, whichever warps and blocks have computed them.

#pragma once

#include "base/tagged.cuh"
#include "base/phase.cuh"
#include "attention/pages.cuh"
#include "x/half_x.cuh"

constexpr float LOG2E = 1.4426950408889634f;

// Two of the four bytes of a word as halves: int8 as it is, e4m3 divided by 256.
template <int CELL, int FIRST, int SECOND> DEVICE u32 bytes_to_half2(u32 word) {
    if constexpr (CELL == INT8_CELLS) { // 1024 + 128 + the number, minus 1152
        u32 pair = __byte_perm(word ^ 0x80808080, 0x64646464, FIRST | 4 << 4 | SECOND << 8 | 4 << 12);
        return half2_add(pair, 0xe480e480);
    } else {
        u32 pair = __byte_perm(word, 0, 4 | FIRST << 4 | 4 << 8 | SECOND << 12);
        return (pair & 0x80008000) | (pair & 0x7f007f00) >> 1;
    }
}

// Rows of BYTES bytes in shared memory, in pieces of 16 bytes: any piece of eight neighbouring rows is in eight
// different groups of banks.
template <int BYTES> struct Rows {
    static constexpr int PIECES = BYTES / 16;
    static constexpr bool SWIZZLED = PIECES % 8 == 0; // otherwise rows have an odd number of pieces
    static constexpr int STRIDE = SWIZZLED ? BYTES : (PIECES | 1) * 16;

    static DEVICE int at(int row, int piece) { return row * STRIDE + (SWIZZLED ? piece ^ (row & 7) : piece) * 16; }

    // From the address of piece 0 or 1 of a row to the one `pieces` further, an even number; rows begin at multiples of
    // 128 bytes if they are swizzled.
    static DEVICE u32 further(u32 address, int pieces) {
        return SWIZZLED ? (address ^ pieces % 8 * 16) + pieces / 8 * 128 : address + pieces * 16;
    }
};

// D: columns of a key head in pages, V: those of a value head that a block sums, of VALUES; all multiples of 16, where
// heads of other sizes are followed by zeros. OUT: columns of a value head without these. The blocks
// that share a value head compute the same scores. G: query heads of a key head. CELL: what pages hold. QUERY_WARPS
// have ROW_TILES * 16 rows each; KEY_WARPS have the same rows and different keys. One of the two is 1. KEYS of a tile,
// STAGES: tiles that are read ahead, and the one in use.
template <int D, int VALUES, int V, int OUT, int G, bool CAP, int CELL, int QUERY_WARPS, int ROW_TILES, int KEY_WARPS,
          int KEYS, int STAGES>
struct PagedAttention {
    static constexpr int WARP_ROWS = ROW_TILES * 16, ROWS = QUERY_WARPS * WARP_ROWS,
                         THREADS = QUERY_WARPS * KEY_WARPS * 32;
    static constexpr int HEAD_GROUPS = (G + ROWS - 1) / ROWS, HEADS = (G + HEAD_GROUPS - 1) / HEAD_GROUPS; // of a block
    static constexpr int V_PARTS = VALUES / V; // blocks that share a value head
    static constexpr int CELL_BYTES = CELL == HALF_CELLS ? 2 : 1, STEPS = D / 16, KEY_TILES = KEYS / 8, V_TILES = V / 8;
    static constexpr int UNIT = PAGE_LEN % KEYS == 0 ? KEYS
                                : PAGE_LEN % 32 == 0 ? 32
                                                     : 16,
                         UNITS = KEYS / UNIT; // keys of one page
    static constexpr bool Q_STAYS =
        ROW_TILES * (STEPS * 4 + V / 2 + KEYS / 2) <= (REPRODUCIBLE ? 170 : 210); // in registers
    static constexpr int BLOCKS =
        ROW_TILES == 1 && D <= 128 && V <= 128 && KEYS <= 32 ? 3 : 2; // of a processor, for their registers
    static_assert(D % 16 == 0 && V % 16 == 0 && PAGE_LEN % 16 == 0 && 64 % KEYS == 0, "fragments and pages are whole");
    static_assert(V_PARTS * V == VALUES && (V_PARTS == 1 || V % 128 == 0),
                  "parts of a value head are whole chunks of x");
    static_assert(QUERY_WARPS == 1 || KEY_WARPS == 1, "warps share rows or keys");
    static_assert(OUT == VALUES || (OUT < VALUES && V_PARTS == 1), "a block sums all of a value head that has zeros");
    static constexpr int OUT_PART = OUT == VALUES ? V : OUT; // columns that a block writes

    // Sums are rescaled if a score exceeds the row's base by more than this power of two: p is a half.
    static constexpr float RAISE = CELL == HALF_CELLS ? 8 : 0;
    static constexpr int RAISED_KEYS = REPRODUCIBLE ? 16 : KEYS; // whose scores are compared with the base together
    static constexpr int SEGMENT_TILES = ATTEND_SEGMENT / KEYS;
    static_assert(ATTEND_SEGMENT % KEYS == 0, "a segment has whole tiles");
    // On the scales of keys and values; small scales times p would be subnormal halves.
    static constexpr float KEY_FACTOR = CELL == FP8_CELLS ? 256 : 1, VALUE_FACTOR = CELL == FP8_CELLS ? 256 : 64;
    static constexpr float SUM_FACTOR = CELL == INT8_CELLS ? 1.f / VALUE_FACTOR : 1;

    // Shared memory: q, and stages of each group of warps; then sums of each group, in the same place; then the rest.
    // REPRODUCIBLE: the sums of all segments so far, after the stages.
    using QRows = Rows<D * 2>;
    using KeyRows = Rows<D * CELL_BYTES>;
    using ValueRows = Rows<V * CELL_BYTES>;
    static constexpr int VALUES_AT = KEYS * KeyRows::STRIDE, SCALES_AT = VALUES_AT + KEYS * ValueRows::STRIDE;
    static constexpr int STAGE = SCALES_AT + (CELL == HALF_CELLS ? 0 : 2 * KEYS * 4);
    static constexpr int Q_BYTES = ROWS * QRows::STRIDE, PIPELINE = Q_BYTES + KEY_WARPS * STAGES * STAGE;
    static constexpr int SUM_GROUPS = REPRODUCIBLE ? 1 : KEY_WARPS;
    static constexpr int SUM_STRIDE = V + 8, SUMS = SUM_GROUPS * ROWS * SUM_STRIDE * 4; // rows begin in different banks
    static constexpr int SUMS_AT = REPRODUCIBLE ? PIPELINE : 0;
    static constexpr int TOPS_AT = PIPELINE > SUMS_AT + SUMS ? PIPELINE : SUMS_AT + SUMS;
    static constexpr int FACTORS_AT = TOPS_AT + SUM_GROUPS * ROWS * 8, LAST_AT = FACTORS_AT + ROWS * 4,
                         SHARED = LAST_AT + 16;

    static constexpr int PARTIAL =
        ROWS * (V + 2); // floats of a split: sums [row][V], then largest score and weight [row]

    // Keys that a token sees.
    static DEVICE int reach_of(const AttendArgs& a) { return a.window > 0 ? a.window : 1 << 30; }

    struct Block {
        AttendWork work;
        int kv_head, first_head, heads; // heads of the block, from `first_head` of the key head on
        int first_value;                // the first of its columns of a value head
        int position, last;             // of the first and last token
        int begin, end;                 // keys of the block
        int after;                      // keys that a token sees after itself
        u32 pages;                      // where its page table is in the inputs

        DEVICE Block(const PagedAttendArgs& p, const AttendWork& item) : work(item) {
            int group = blockIdx.y / V_PARTS;
            first_value = blockIdx.y % V_PARTS * V;
            kv_head = group / HEAD_GROUPS, first_head = group % HEAD_GROUPS * HEADS, heads = min(HEADS, G - first_head);
            position = position_of(p.inputs, work.first_token), last = position + work.tokens - 1;
            int reach = reach_of(p.attend);
            begin = max((int)work.key_begin, max(0, position + 1 - reach) / KEYS * KEYS);
            after = IMAGES ? work.after : p.attend.after;
            end = min((int)work.key_end, last + 1 + after);
            pages = pages_of(p.inputs, work.first_token, p.attend.windowed) - p.inputs;
        }
        DEVICE int rows() const { return work.tokens * HEADS; }
        DEVICE int first_column() const { return (kv_head * G + first_head) * OUT + first_value; } // of its first head
    };

    static DEVICE int first_row_of(int thread) { return thread / 32 % QUERY_WARPS * WARP_ROWS; }

    // Copies BYTES of rows of one page, [UNIT][FROM], by a group of warps.
    template <int BYTES, int FROM> static DEVICE void copy_rows(u8* to, int first_row, const u8* from, int thread) {
        constexpr int PIECES = BYTES / 16, GROUP = QUERY_WARPS * 32, COUNT = UNIT * PIECES,
                      COPIES = (COUNT + GROUP - 1) / GROUP;
        constexpr int UNROLL =
            D > 256 ? 4 : COPIES; // the addresses of all copies of a wide head would not fit into registers
#pragma unroll UNROLL
        for (int first = 0; first < COUNT; first += GROUP) {
            int i = first + thread;
            if (COUNT % GROUP == 0 || i < COUNT)
                copy16(to + Rows<BYTES>::at(first_row + i / PIECES, i % PIECES),
                       from + i / PIECES * FROM + i % PIECES * 16);
        }
    }

    // Tiles of keys and values of a group of warps, on their way to shared memory.
    struct Tiles {
        u8* stages;
        int first, count, unit_end; // first key, tiles, the last unit of keys; REPRODUCIBLE: the first key of the first
                                    // segment, and with the tiles before `begin`
        u32 next[UNITS];            // pages of the tile to fetch next

        DEVICE Tiles(const Block& b, u8* at, int group) : stages(at), first(b.begin + group * KEYS) {
            count = max((b.end - first + KEY_WARPS * KEYS - 1) / (KEY_WARPS * KEYS), 0),
            unit_end = (b.end - 1) / UNIT * UNIT;
            if constexpr (REPRODUCIBLE) {
                first = (b.begin / ATTEND_SEGMENT + group) * ATTEND_SEGMENT;
                int last = b.end - 1 - first; // of the last key; the segments before it, and the tiles in its own
                int round = last < 0 ? -1 : last / (KEY_WARPS * ATTEND_SEGMENT),
                    rest = last - round * (KEY_WARPS * ATTEND_SEGMENT);
                count = round * SEGMENT_TILES + min(rest / KEYS + 1, SEGMENT_TILES);
                if (last < 0) count = 0;
            }
        }
        DEVICE int key(int i) const {
            if constexpr (REPRODUCIBLE)
                return first + i / SEGMENT_TILES * (KEY_WARPS * ATTEND_SEGMENT) + i % SEGMENT_TILES * KEYS;
            return first + i * KEY_WARPS * KEYS;
        }
        // The first tile that a row may see.
        DEVICE int first_tile(const Block& b) const { return REPRODUCIBLE ? max(b.begin - first, 0) / KEYS : 0; }
        DEVICE const u8* stage(int i) const { return stages + i % STAGES * STAGE; }
        DEVICE int unit(int i, int u) const {
            return min(key(i) + u * UNIT, unit_end);
        } // a masked one is another that exists

        DEVICE void find(const u32* inputs, const Block& b, int i) {
#pragma unroll
            for (int u = 0; u < UNITS; u++) next[u] = __ldg(inputs + b.pages + (u32)unit(i, u) / PAGE_LEN);
        }

        DEVICE void fetch(const PagedAttendArgs& p, const Block& b, int i, int thread) {
            if (i < count) {
                u8* to = stages + i % STAGES * STAGE;
#pragma unroll
                for (int u = 0; u < UNITS; u++) {
                    long slot = ((long)next[u] * p.attend.kv_heads + b.kv_head) * PAGE_LEN + (u32)unit(i, u) % PAGE_LEN;
                    copy_rows<D * CELL_BYTES, D * CELL_BYTES>(
                        to, u * UNIT, (const u8*)p.attend.keys + slot * (D * CELL_BYTES), thread);
                    copy_rows<V * CELL_BYTES, VALUES * CELL_BYTES>(
                        to + VALUES_AT, u * UNIT,
                        (const u8*)p.attend.values + (slot * VALUES + b.first_value) * CELL_BYTES, thread);
                    if constexpr (CELL != HALF_CELLS) {
                        int piece = thread % (UNIT / 4) * 4, which = thread / (UNIT / 4);
                        const float* scales = which ? p.value_scales : p.key_scales;
                        if (which < 2)
                            copy16(to + SCALES_AT + (which * KEYS + u * UNIT + piece) * 4, scales + slot + piece);
                    }
                }
                find(p.inputs, b, i + 1);
            }
            committed();
        }
    };

    // A warp's rows.
    struct Result {
        u32 q[Q_STAYS ? ROW_TILES : 1][Q_STAYS ? STEPS : 1][4];
        float sum[ROW_TILES][V_TILES][4], base[ROW_TILES][2], weight[ROW_TILES][2]; // the weight is the lane's share

        DEVICE void clear() {
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
                for (int n = 0; n < V_TILES; n++) sum[r][n][0] = sum[r][n][1] = sum[r][n][2] = sum[r][n][3] = 0;
                base[r][0] = base[r][1] = -INFINITY, weight[r][0] = weight[r][1] = 0;
            }
        }

        // `q_at`: the lane's address in the warp's first rows.
        static DEVICE void load_q(u32 (&to)[4], u32 q_at, int r, int step) {
            load_matrices(to, QRows::further(q_at, 2 * step) + r * 16 * QRows::STRIDE);
        }

        DEVICE void keep_q(u32 q_at) {
            if constexpr (Q_STAYS)
#pragma unroll
                for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                    for (int step = 0; step < STEPS; step++) load_q(q[r][step], q_at, r, step);
        }

        DEVICE void q_of(u32 (&to)[ROW_TILES][4], u32 q_at, int step) const {
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                if constexpr (Q_STAYS) {
#pragma unroll
                    for (int i = 0; i < 4; i++) to[r][i] = q[r][step][i];
                } else {
                    load_q(to[r], q_at, r, step);
                }
            }
        }

        // Scores of all keys of a tile. Bytes: a word has four columns of a key, and q has its columns in that order.
        DEVICE void score(float (&s)[ROW_TILES][KEY_TILES][4], u32 keys_at, u32 q_at, int lane) const {
            bool halves = CELL == HALF_CELLS; // matrices: [8 keys][step's halves], or [step][8 keys]
            keys_at += halves ? KeyRows::at(lane % 8 + lane / 16 * 8, lane / 8 % 2) : KeyRows::at(lane % 16, lane / 16);
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int n = 0; n < KEY_TILES; n++) s[r][n][0] = s[r][n][1] = s[r][n][2] = s[r][n][3] = 0;
            // the addresses of all steps of a wide head would not fit into registers
            constexpr int UNROLL = D > 256 ? 4 : STEPS;
            if constexpr (CELL == HALF_CELLS) {
#pragma unroll UNROLL
                for (int step = 0; step < STEPS; step++) {
                    u32 a[ROW_TILES][4], b[4];
                    q_of(a, q_at, step);
#pragma unroll
                    for (int n = 0; n < KEY_TILES; n += 2) {
                        load_matrices(b, KeyRows::further(keys_at, 2 * step) + n * 8 * KeyRows::STRIDE);
#pragma unroll
                        for (int r = 0; r < ROW_TILES; r++) {
                            multiply(s[r][n], a[r][0], a[r][1], a[r][2], a[r][3], b[0], b[1]);
                            multiply(s[r][n + 1], a[r][0], a[r][1], a[r][2], a[r][3], b[2], b[3]);
                        }
                    }
                }
            } else {
#pragma unroll UNROLL
                for (int step = 0; step < STEPS;
                     step += 2) { // two steps at once; the last may be alone, and what follows its row is not used
                    u32 a[2][ROW_TILES][4], b[4];
                    q_of(a[0], q_at, step);
                    if (step + 1 < STEPS) q_of(a[1], q_at, step + 1);
#pragma unroll
                    for (int n = 0; n < KEY_TILES; n += 2) {
                        load_matrices(b, KeyRows::further(keys_at, step) + n * 8 * KeyRows::STRIDE);
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            if (step + i / 2 >= STEPS) continue;
                            u32 b0 = bytes_to_half2<CELL, 0, 1>(b[i]), b1 = bytes_to_half2<CELL, 2, 3>(b[i]);
#pragma unroll
                            for (int r = 0; r < ROW_TILES; r++)
                                multiply(s[r][n + i % 2], a[i / 2][r][0], a[i / 2][r][1], a[i / 2][r][2],
                                         a[i / 2][r][3], b0, b1);
                        }
                    }
                }
            }
        }

        // sum += p V, of some keys. Bytes: a word has two columns of two keys, so that tile n of a pair has columns 2g
        // + n.
        DEVICE void add_values(const u32 (&p)[ROW_TILES][RAISED_KEYS / 16][4], u32 values_at, int lane) {
            values_at += ValueRows::at(lane % 16, lane / 16);
#pragma unroll
            for (int k = 0; k < RAISED_KEYS / 16; k++) {
                auto add = [&](int n, u32 b0, u32 b1) {
#pragma unroll
                    for (int r = 0; r < ROW_TILES; r++)
                        multiply(sum[r][n], p[r][k][0], p[r][k][1], p[r][k][2], p[r][k][3], b0, b1);
                };
                u32 b[4];
                if constexpr (CELL == HALF_CELLS) {
#pragma unroll
                    for (int n = 0; n < V_TILES; n += 2) {
                        load_matrices<true>(b, ValueRows::further(values_at, n) + k * 16 * ValueRows::STRIDE);
                        add(n, b[0], b[1]), add(n + 1, b[2], b[3]);
                    }
                } else {
#pragma unroll
                    for (int n = 0; n < V_TILES; n += 4) {
                        load_matrices<true>(b, ValueRows::further(values_at, n / 2) + k * 16 * ValueRows::STRIDE);
                        add(n, bytes_to_half2<CELL, 0, 2>(b[0]), bytes_to_half2<CELL, 0, 2>(b[1]));
                        add(n + 1, bytes_to_half2<CELL, 1, 3>(b[0]), bytes_to_half2<CELL, 1, 3>(b[1]));
                        if (n + 2 < V_TILES) {
                            add(n + 2, bytes_to_half2<CELL, 0, 2>(b[2]), bytes_to_half2<CELL, 0, 2>(b[3]));
                            add(n + 3, bytes_to_half2<CELL, 1, 3>(b[2]), bytes_to_half2<CELL, 1, 3>(b[3]));
                        }
                    }
                }
            }
        }

        // Sets scores of keys that a row does not see to -INFINITY.
        static DEVICE void mask(float (&s)[ROW_TILES][KEY_TILES][4], const Block& b, int key, int reach) {
            int thread = fixed_thread(), lane = thread % 32,
                first_row = first_row_of(thread); // not in registers while keys are read
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int own = b.position + (first_row + r * 16 + half * 8 + lane / 4) / HEADS - key;
                    int most = min(own + b.after, b.end - 1 - key), least = own + 1 - reach;
                    if (IMAGES) least = max(least, (int)b.work.first_key - key);
#pragma unroll
                    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
                        for (int i = 0; i < 2; i++) {
                            int k = n * 8 + lane % 4 * 2 + i;
                            if (k > most || k < least) s[r][n][half * 2 + i] = -INFINITY;
                        }
                }
        }

        // Subtracts the distance of each key times the slope of the row's head, in powers of two.
        static DEVICE void slope(float (&s)[ROW_TILES][KEY_TILES][4], const Block& b, int key, const AttendArgs& a) {
            int thread = fixed_thread(), lane = thread % 32, first_row = first_row_of(thread),
                power = 1 << (31 - __clz(a.heads));
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int row = first_row + r * 16 + half * 8 + lane / 4, own = b.position + row / HEADS - key;
                    int head = b.kv_head * G + b.first_head + min(row % HEADS, b.heads - 1);
                    float exponent = head < power ? (head + 1.f) / power : (2.f * (head - power) + 1.f) / (2 * power);
                    float by = exp2f(-a.alibi * exponent) * LOG2E;
#pragma unroll
                    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
                        for (int i = 0; i < 2; i++) s[r][n][half * 2 + i] -= by * abs(own - (n * 8 + lane % 4 * 2 + i));
                }
        }

        // The largest number of the lanes of a row.
        static DEVICE float of_row(float x) {
            x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
            return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
        }

        // Raises the bases to the largest scores of RAISED_KEYS from tile `first` on, if one exceeds its base by too
        // much.
        DEVICE void raise(const float (&s)[ROW_TILES][KEY_TILES][4], int first) {
            float most[ROW_TILES][2];
            bool exceeds = false;
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float& m = most[r][half];
                    m = fmaxf(s[r][first][half * 2], s[r][first][half * 2 + 1]);
#pragma unroll
                    for (int n = first + 1; n < first + RAISED_KEYS / 8; n++)
                        m = fmaxf(m, fmaxf(s[r][n][half * 2], s[r][n][half * 2 + 1]));
                    exceeds |= m > base[r][half] + RAISE;
                }
            if (!__any_sync(0xffffffff, exceeds)) return;
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float next = fmaxf(of_row(most[r][half]), base[r][half]);
                    if (REPRODUCIBLE && !(next > base[r][half] + RAISE))
                        next = base[r][half]; // whatever other rows need
                    float keep = next == base[r][half] ? 1.f : exp2_fast(base[r][half] - next); // both may be -INFINITY
                    base[r][half] = next, weight[r][half] *= keep;
#pragma unroll
                    for (int n = 0; n < V_TILES; n++) sum[r][n][half * 2] *= keep, sum[r][n][half * 2 + 1] *= keep;
                }
        }

        // Adds the keys of a tile, the first of which is `key`.
        DEVICE void add(const u8* stage, u32 q_at, const Block& b, int key, const AttendArgs& args, int lane) {
            float s[ROW_TILES][KEY_TILES][4];
            const float2* scales = (const float2*)(stage + SCALES_AT) + lane % 4; // of keys 2q and 2q + 1
            score(s, shared_address(stage), q_at, lane);
            if constexpr (CELL != HALF_CELLS || CAP)
#pragma unroll
                for (int n = 0; n < KEY_TILES; n++) {
                    float2 by = {1, 1};
                    if constexpr (CELL != HALF_CELLS) by = scales[n * 4], by.x *= KEY_FACTOR, by.y *= KEY_FACTOR;
#pragma unroll
                    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            s[r][n][i] *= i % 2 ? by.y : by.x;
                            if constexpr (CAP) s[r][n][i] = capped(s[r][n][i], args.softcap);
                        }
                }
            if constexpr (SLOPED) slope(s, b, key, args);
            bool whole = key + KEYS - 1 <= min(b.position + b.after, b.end - 1) && key > b.last - reach_of(args) &&
                         (!IMAGES || key >= (int)b.work.first_key);
            if (!whole) mask(s, b, key, reach_of(args));
#pragma unroll
            for (int first = 0; first < KEY_TILES; first += RAISED_KEYS / 8) {
                raise(s, first);
                u32 p[ROW_TILES][RAISED_KEYS / 16][4];
#pragma unroll
                for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        float from = base[r][half] == -INFINITY ? 0.f : base[r][half]; // all keys so far are masked
#pragma unroll
                        for (int n = 0; n < RAISED_KEYS / 8; n++) {
                            const float* score = s[r][first + n] + half * 2;
                            float low = exp2_fast(score[0] - from), high = exp2_fast(score[1] - from);
                            weight[r][half] += low + high;
                            if constexpr (CELL != HALF_CELLS) {
                                float2 by = scales[KEYS / 2 + (first + n) * 4];
                                low *= by.x * VALUE_FACTOR, high *= by.y * VALUE_FACTOR;
                            }
                            p[r][n / 2][n % 2 * 2 + half] = rounded_halves(low, high);
                        }
                    }
                add_values(p, shared_address(stage + VALUES_AT) + first * 8 * ValueRows::STRIDE, lane);
            }
        }

        // Soft-capped and in powers of two: the tanh is exact enough because it is added to a score. Infinite scores
        // become NaN.
        static DEVICE float capped(float x, float cap) {
            float up = exp2_fast(x * (2 * LOG2E / cap));
            return cap * LOG2E - 2 * LOG2E * cap * reciprocal(1.f + up) + x * 0.f;
        }

        // Passes the rows of the warp: `use(row, base and weight, columns)`, where `columns(put)` passes two
        // neighbouring columns at a time: `put(column, values)`.
        template <class Use> DEVICE void each_row(int lane, Use use) const {
            int g = lane / 4, q = lane % 4;
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float total = weight[r][half];
                    total += __shfl_xor_sync(0xffffffff, total, 1);
                    total += __shfl_xor_sync(0xffffffff, total, 2);
                    use(r * 16 + half * 8 + g, float2{base[r][half], total}, [&](auto put) {
#pragma unroll
                        for (int n = 0; n < V_TILES; n += 2) {
                            const float *one = sum[r][n] + half * 2, *two = sum[r][n + 1] + half * 2;
                            if constexpr (CELL == HALF_CELLS) {
                                put(n * 8 + 2 * q, float2{one[0], one[1]});
                                put(n * 8 + 8 + 2 * q, float2{two[0], two[1]});
                            } else {
                                put(n * 8 + 4 * q, float2{one[0], two[0]});
                                put(n * 8 + 4 * q + 2, float2{one[1], two[1]});
                            }
                        }
                    });
                }
        }

        // Sums, bases and weights into shared memory; `sums` and `tops`: the first row of the warp.
        DEVICE void store(float* sums, float2* tops, int lane) const {
            each_row(lane, [&](int row, float2 top, auto columns) {
                if (lane % 4 == 0) tops[row] = top;
                columns([&](int column, float2 values) { *(float2*)(sums + row * SUM_STRIDE + column) = values; });
            });
        }

        // Adds a segment to those before it, as `combine` does.
        DEVICE void add_to(float* sums, float2* tops, int lane) const {
            each_row(lane, [&](int row, float2 top, auto columns) {
                Joined joined(tops[row], top);
                columns([&](int column, float2 values) {
                    float2* at = (float2*)(sums + row * SUM_STRIDE + column);
                    *at = {joined.sum(at->x, values.x), joined.sum(at->y, values.y)};
                });
                __syncwarp(); // all lanes have read it
                if (lane % 4 == 0) tops[row] = joined.top;
            });
            __syncwarp();
        }

        // The result of a segment that other blocks continue; `rows`: those of the warp that exist.
        DEVICE void write_partial(float* to, int first_row, int rows, int lane) const {
            each_row(lane, [&](int row, float2 top, auto columns) {
                if (row >= rows) return;
                if (lane % 4 == 0) *(float2*)(to + ROWS * V + (first_row + row) * 2) = top;
                columns([&](int column, float2 values) { *(float2*)(to + (first_row + row) * V + column) = values; });
            });
        }
    };

    // Two results of a row, a base and a weight each, become one.
    struct Joined {
        float2 top;
        float keep, now;

        DEVICE Joined(float2 first, float2 second) {
            float next = fmaxf(first.x, second.x), base = next == -INFINITY ? 0.f : next;
            keep = exp2_fast(first.x - base), now = exp2_fast(second.x - base);
            top = {next, sum(first.y, second.y)};
        }
        DEVICE float sum(float first, float second) const { return first * keep + second * now; }
    };

    // Combines four columns of `count` results: result i has `tops(i)` and `sums(i)`.
    template <class Tops, class Sums> static DEVICE float4 combine(int count, Tops tops, Sums sums, float2& top) {
        float4 value = {0, 0, 0, 0};
        top = {-INFINITY, 0};
#pragma unroll 8
        for (int i = 0; i < count; i++) {
            Joined joined(top, tops(i));
            float4 s = sums(i);
            top = joined.top;
            value = {joined.sum(value.x, s.x), joined.sum(value.y, s.y), joined.sum(value.z, s.z),
                     joined.sum(value.w, s.w)};
        }
        return value;
    }

    // The factor on the sums of a row: the inverse of its weight and that of the head's sink.
    static DEVICE float factor_of(const AttendArgs& a, const Block& b, int row, float2 top) {
        if (!a.sinks) return reciprocal(top.y) * SUM_FACTOR;
        float sink = a.sinks[b.kv_head * G + b.first_head + min(row % HEADS, b.heads - 1)] * LOG2E,
              most = fmaxf(top.x, sink);
        float keep = exp2_fast(top.x - most);
        return keep * reciprocal(top.y * keep + exp2_fast(sink - most)) * SUM_FACTOR;
    }

    // Combines the results of groups of warps and of splits: afterwards `sums` times `factors` is the output. False in
    // all splits but the last one to arrive.
    static DEVICE bool finish(const PagedAttendArgs& p, const Block& b, u8* shared, int thread) {
        float *sums = (float*)(shared + SUMS_AT), *factors = (float*)(shared + FACTORS_AT);
        float2* tops = (float2*)(shared + TOPS_AT);
        u32 splits = b.work.splits;
        float* partial = partial_of(p, b);
        for (int i = thread; i < b.rows() * (V / 4); i += THREADS) {
            int row = i / (V / 4), d = i % (V / 4) * 4;
            float2 top = tops[row];
            float4 value;
            float* own = sums + row * SUM_STRIDE + d;
            if constexpr (REPRODUCIBLE) { // segments have been added or written
                if (d == 0 && splits == 1) factors[row] = factor_of(p.attend, b, row, top);
                continue;
            }
            if constexpr (KEY_WARPS > 1)
                value = combine(
                    KEY_WARPS, [&](int n) { return tops[n * ROWS + row]; },
                    [&](int n) { return *(const float4*)(own + n * ROWS * SUM_STRIDE); }, top);
            else value = *(const float4*)own;
            if (splits > 1) {
                float* to = partial + (long)b.work.split * PARTIAL;
                *(float4*)(to + row * V + d) = value;
                if (d == 0) *(float2*)(to + ROWS * V + row * 2) = top;
            } else {
                if (KEY_WARPS > 1) *(float4*)own = value;
                if (d == 0) factors[row] = factor_of(p.attend, b, row, top);
            }
        }
        if (splits == 1) {
            __syncthreads();
            return true;
        }
        u32* arrival = p.arrivals + b.work.arrival + blockIdx.y;
        u32* last = (u32*)(shared + LAST_AT);
        __threadfence();
        __syncthreads();
        if (thread == 0) *last = atomicAdd(arrival, 1);
        __syncthreads();
        if (*last != splits - 1) return false;
        __threadfence();
        for (int i = thread; i < b.rows() * (V / 4); i += THREADS) {
            int row = i / (V / 4), d = i % (V / 4) * 4;
            float2 top;
            *(float4*)(sums + row * SUM_STRIDE + d) = combine(
                b.work.results,
                [&](int n) { return __ldcg((const float2*)(partial + (long)n * PARTIAL + ROWS * V) + row); },
                [&](int n) { return __ldcg((const float4*)(partial + (long)n * PARTIAL + row * V + d)); }, top);
            if (d == 0) factors[row] = factor_of(p.attend, b, row, top);
        }
        if (thread == 0) *arrival = 0;
        __syncthreads();
        return true;
    }

    // Where the results of a tile's splits are.
    static DEVICE float* partial_of(const PagedAttendArgs& p, const Block& b) {
        return p.partial + ((long)b.work.partial + blockIdx.y * b.work.results) * PARTIAL;
    }

    // Writes the outputs of a block: as halves in the order of the next linear, or as floats.
    static DEVICE void write(const PagedAttendArgs& p, const Block& b, const u8* shared, int thread) {
        const float *sums = (const float*)(shared + SUMS_AT), *factors = (const float*)(shared + FACTORS_AT);
        int first = b.first_column(), columns = b.heads * OUT_PART, order = p.y_half.order;
        if (!p.y_half.at) {
            for (int i = thread; i < b.rows() * (V / 4); i += THREADS) {
                int row = i / (V / 4), d = i % (V / 4) * 4, token = row / HEADS, head = row % HEADS;
                if (head >= b.heads || (OUT < VALUES && d >= OUT)) continue;
                float4 v = *(const float4*)(sums + row * SUM_STRIDE + d);
                float by = factors[row];
                *(float4*)(row_of(p.attend.y, b.work.first_token + token) + first + head * OUT + d) = {
                    v.x * by, v.y * by, v.z * by, v.w * by};
            }
            return;
        }
        auto output = [&](int token, int column) { // counted from `first`
            int row = token * HEADS + column / OUT;
            return sums[row * SUM_STRIDE + column % OUT] * factors[row];
        };
        if (OUT == VALUES && (order != BITS_ORDER || (first % 128 == 0 && columns % 128 == 0))) { // the same columns
                                                                                                  // and positions
            for (int i = thread; i < b.work.tokens * (columns / 8); i += THREADS) {
                int token = i / (columns / 8), column = i % (columns / 8) * 8,
                    at = first + column / V * VALUES + column % V;
                u32 pairs[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    pairs[j] = to_half2(output(token, column_at(order, at + 2 * j) - first),
                                        output(token, column_at(order, at + 2 * j + 1) - first));
                *(uint4*)half_at(p.y_half, b.work.first_token + token, at) = {pairs[0], pairs[1], pairs[2], pairs[3]};
            }
        } else {
            for (int i = thread; i < b.work.tokens * columns; i += THREADS) {
                int token = i / columns, column = i % columns;
                *half_at(p.y_half, b.work.first_token + token, position_of_column(order, first + column)) =
                    to_half(output(token, column));
            }
        }
    }

    // q of the block's rows; rows that do not exist get one that does.
    static DEVICE void fetch_q(const PagedAttendArgs& p, const Block& b, u8* to, int thread) {
        for (int i = thread; i < ROWS * QRows::PIECES; i += THREADS) {
            int row = i / QRows::PIECES, piece = i % QRows::PIECES;
            int token = min(row / HEADS, (int)b.work.tokens - 1), head = min(row % HEADS, b.heads - 1);
            long at = (long)(b.work.first_token + token) * p.attend.heads + b.kv_head * G + b.first_head + head;
            copy16(to + QRows::at(row, piece), p.q + at * D + piece * 8);
        }
        committed();
    }

    static DEVICE void run(const PagedAttendArgs& p, u8* shared) {
        begin_next_launch();
        const u32* list =
            p.inputs + p.inputs[p.inputs[WORK_AT] + p.list]; // the host wrote it: there is no kernel to wait for
        bool real = blockIdx.x < list[0];
        const AttendWork* work = (const AttendWork*)(list + WORK_HEADER) + blockIdx.x;
        int thread = fixed_thread(), lane = thread % 32, group = thread / 32 / QUERY_WARPS,
            copier = thread % (QUERY_WARPS * 32);
        Result result;
        {
            Block b(p, real ? *work : AttendWork{});
            Tiles tiles(b, shared + Q_BYTES + group * STAGES * STAGE, group);
            if (real) tiles.find(p.inputs, b, tiles.first_tile(b));
            wait_for_launches();
            if (!real) return;

            fetch_q(p, b, shared, thread);
            int i = tiles.first_tile(b);
#pragma unroll
            for (int n = 0; n < STAGES - 1; n++) tiles.fetch(p, b, i + n, copier);
            arrived<STAGES - 1>();
            __syncthreads();
            u32 q_at = shared_address(shared + QRows::at(first_row_of(thread) + lane % 16, lane / 16));
            bool active = first_row_of(thread) < b.rows();
            result.clear();
            result.keep_q(q_at);
            auto add_tiles = [&](int end) {
#pragma unroll 1
                for (; i < end; i++) {
                    arrived<STAGES - 2>();
                    if constexpr (QUERY_WARPS > 1) __syncthreads();
                    else __syncwarp();
                    tiles.fetch(p, b, i + STAGES - 1, copier);
                    if (active) result.add(tiles.stage(i), q_at, b, tiles.key(i), p.attend, lane);
                }
            };
            if constexpr (REPRODUCIBLE) {
                float* sums = (float*)(shared + SUMS_AT);
                float2* tops = (float2*)(shared + TOPS_AT);
                if (b.work.splits == 1) {
                    for (int i = thread; i < ROWS * SUM_STRIDE; i += THREADS) sums[i] = 0;
                    for (int i = thread; i < ROWS; i += THREADS) tops[i] = {-INFINITY, 0};
                    __syncthreads();
                }
                int segments = (b.end + ATTEND_SEGMENT - 1) / ATTEND_SEGMENT - b.begin / ATTEND_SEGMENT,
                    row = first_row_of(thread);
#pragma unroll 1
                for (int from = 0; from < segments; from += KEY_WARPS) {
                    add_tiles(min((from / KEY_WARPS + 1) * SEGMENT_TILES, tiles.count));
                    bool has = active && from + group < segments;
                    if (b.work.splits > 1) {
                        int segment = b.begin / ATTEND_SEGMENT + from + group - b.work.first_segment;
                        if (has)
                            result.write_partial(partial_of(p, b) + (long)segment * PARTIAL, row, b.rows() - row, lane);
                    } else {
#pragma unroll 1
                        for (int g = 0; g < KEY_WARPS; g++) { // in the order of segments
                            if (has && group == g) result.add_to(sums + row * SUM_STRIDE, tops + row, lane);
                            if (KEY_WARPS > 1) __syncthreads();
                        }
                    }
                    result.clear();
                }
            } else {
                add_tiles(tiles.count);
            }
        }
        __syncthreads(); // what was fetched has been used
        if constexpr (!REPRODUCIBLE) {
            int row = group * ROWS + first_row_of(thread);
            result.store((float*)shared + row * SUM_STRIDE, (float2*)(shared + TOPS_AT) + row, lane);
            __syncthreads();
        }
        Block b(p, *work); // again: it was not in registers while keys were read
        if (finish(p, b, shared, thread)) write(p, b, shared, thread);
    }
};
