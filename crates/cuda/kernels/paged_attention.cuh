// Attention of many tokens over pages: equals Op::Attend of graph/reference.rs, after the norm and rotation of its heads.
//
// A block has a tile of rows, which are the query heads of one key head for a few tokens of one slice: row r is token r / HEADS
// and head r % HEADS. Keys and values come tile by tile into shared memory. Scores are q K^T and sums p V on the matrix unit.
// The host plans which tokens and keys a block takes (src/launch/attention_plan.rs).

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

// Rows of BYTES bytes in shared memory, in pieces of 16 bytes: any piece of eight neighbouring rows is in eight different
// groups of banks.
template <int BYTES> struct Rows {
    static constexpr int PIECES = BYTES / 16;
    static constexpr bool SWIZZLED = PIECES % 8 == 0; // otherwise rows have an odd number of pieces
    static constexpr int STRIDE = SWIZZLED ? BYTES : (PIECES | 1) * 16;

    static DEVICE int at(int row, int piece) { return row * STRIDE + (SWIZZLED ? piece ^ (row & 7) : piece) * 16; }

    // From the address of piece 0 or 1 of a row to the one `pieces` further, an even number; rows begin at multiples of 128 bytes
    // if they are swizzled.
    static DEVICE u32 further(u32 address, int pieces) { return SWIZZLED ? (address ^ pieces % 8 * 16) + pieces / 8 * 128 : address + pieces * 16; }
};

// D: columns of a key head, V: those of a value head that a block sums, of VALUES; both multiples of 16. The blocks that share a
// value head compute the same scores. G: query heads of a key head. CELL: what pages hold.
// QUERY_WARPS have ROW_TILES * 16 rows each; KEY_WARPS have the same rows and different keys. One of the two is 1.
// KEYS of a tile, STAGES: tiles that are read ahead, and the one in use.
template <int D, int VALUES, int V, int G, bool CAP, int CELL, int QUERY_WARPS, int ROW_TILES, int KEY_WARPS, int KEYS, int STAGES>
struct PagedAttention {
    static constexpr int WARP_ROWS = ROW_TILES * 16, ROWS = QUERY_WARPS * WARP_ROWS, THREADS = QUERY_WARPS * KEY_WARPS * 32;
    static constexpr int HEAD_GROUPS = (G + ROWS - 1) / ROWS, HEADS = (G + HEAD_GROUPS - 1) / HEAD_GROUPS; // of a block
    static constexpr int V_PARTS = VALUES / V; // blocks that share a value head
    static constexpr int CELL_BYTES = CELL == HALF_CELLS ? 2 : 1, STEPS = D / 16, KEY_TILES = KEYS / 8, V_TILES = V / 8;
    static constexpr int UNIT = PAGE_LEN % KEYS == 0 ? KEYS : PAGE_LEN % 32 == 0 ? 32 : 16, UNITS = KEYS / UNIT; // keys of one page
    static constexpr bool Q_STAYS = ROW_TILES * (STEPS * 4 + V / 2 + KEYS / 2) <= 210; // in registers
    static constexpr int BLOCKS = ROW_TILES == 1 && D <= 128 && V <= 128 && KEYS <= 32 ? 3 : 2; // of a processor, for their registers
    static_assert(D % 16 == 0 && V % 16 == 0 && PAGE_LEN % 16 == 0 && 64 % KEYS == 0, "fragments and pages are whole");
    static_assert(V_PARTS * V == VALUES && (V_PARTS == 1 || V % 128 == 0), "parts of a value head are whole chunks of x");
    static_assert(QUERY_WARPS == 1 || KEY_WARPS == 1, "warps share rows or keys");

    // Sums are rescaled if a score exceeds the row's base by more than this power of two: p is a half.
    static constexpr float RAISE = CELL == HALF_CELLS ? 8 : 0;
    // On the scales of keys and values; small scales times p would be subnormal halves.
    static constexpr float KEY_FACTOR = CELL == FP8_CELLS ? 256 : 1, VALUE_FACTOR = CELL == FP8_CELLS ? 256 : 64;
    static constexpr float SUM_FACTOR = CELL == INT8_CELLS ? 1.f / VALUE_FACTOR : 1;

    // Shared memory: q, and stages of each group of warps; then sums of each group, in the same place; then the rest.
    using QRows = Rows<D * 2>;
    using KeyRows = Rows<D * CELL_BYTES>;
    using ValueRows = Rows<V * CELL_BYTES>;
    static constexpr int VALUES_AT = KEYS * KeyRows::STRIDE, SCALES_AT = VALUES_AT + KEYS * ValueRows::STRIDE;
    static constexpr int STAGE = SCALES_AT + (CELL == HALF_CELLS ? 0 : 2 * KEYS * 4);
    static constexpr int Q_BYTES = ROWS * QRows::STRIDE, PIPELINE = Q_BYTES + KEY_WARPS * STAGES * STAGE;
    static constexpr int SUM_STRIDE = V + 8, SUMS = KEY_WARPS * ROWS * SUM_STRIDE * 4; // rows begin in different banks
    static constexpr int TOPS_AT = PIPELINE > SUMS ? PIPELINE : SUMS;
    static constexpr int FACTORS_AT = TOPS_AT + KEY_WARPS * ROWS * 8, LAST_AT = FACTORS_AT + ROWS * 4, SHARED = LAST_AT + 16;

    static constexpr int PARTIAL = ROWS * (V + 2); // floats of a split: sums [row][V], then largest score and weight [row]

    // Keys that a token sees.
    static DEVICE int reach_of(const AttendArgs& a) { return a.window > 0 ? a.window : 1 << 30; }

    struct Block {
        AttendWork work;
        int kv_head, first_head, heads; // heads of the block, from `first_head` of the key head on
        int first_value;                // the first of its columns of a value head
        int position, last;             // of the first and last token
        int begin, end;                 // keys of the block
        u32 pages; // where its page table is in the inputs

        DEVICE Block(const PagedAttendArgs& p, const AttendWork& item) : work(item) {
            int group = blockIdx.y / V_PARTS;
            first_value = blockIdx.y % V_PARTS * V;
            kv_head = group / HEAD_GROUPS, first_head = group % HEAD_GROUPS * HEADS, heads = min(HEADS, G - first_head);
            position = position_of(p.inputs, work.first_token), last = position + work.tokens - 1;
            int reach = reach_of(p.attend);
            begin = max((int)work.key_begin, max(0, position + 1 - reach) / KEYS * KEYS);
            end = min((int)work.key_end, last + 1 + p.attend.after);
            pages = pages_of(p.inputs, work.first_token, p.attend.windowed) - p.inputs;
        }
        DEVICE int rows() const { return work.tokens * HEADS; }
        DEVICE int first_column() const { return (kv_head * G + first_head) * VALUES + first_value; } // of its first head
    };

    static DEVICE int first_row_of(int thread) { return thread / 32 % QUERY_WARPS * WARP_ROWS; }

    // Copies BYTES of rows of one page, [UNIT][FROM], by a group of warps.
    template <int BYTES, int FROM> static DEVICE void copy_rows(u8* to, int first_row, const u8* from, int thread) {
        constexpr int PIECES = BYTES / 16, GROUP = QUERY_WARPS * 32, COUNT = UNIT * PIECES, COPIES = (COUNT + GROUP - 1) / GROUP;
        constexpr int UNROLL = D > 256 ? 4 : COPIES; // the addresses of all copies of a wide head would not fit into registers
#pragma unroll UNROLL
        for (int first = 0; first < COUNT; first += GROUP) {
            int i = first + thread;
            if (COUNT % GROUP == 0 || i < COUNT) copy16(to + Rows<BYTES>::at(first_row + i / PIECES, i % PIECES), from + i / PIECES * FROM + i % PIECES * 16);
        }
    }

    // Tiles of keys and values of a group of warps, on their way to shared memory.
    struct Tiles {
        u8* stages;
        int first, count, unit_end; // first key, tiles, the last unit of keys
        u32 next[UNITS];            // pages of the tile to fetch next

        DEVICE Tiles(const Block& b, u8* at, int group) : stages(at), first(b.begin + group * KEYS) {
            count = max((b.end - first + KEY_WARPS * KEYS - 1) / (KEY_WARPS * KEYS), 0), unit_end = (b.end - 1) / UNIT * UNIT;
        }
        DEVICE int key(int i) const { return first + i * KEY_WARPS * KEYS; }
        DEVICE const u8* stage(int i) const { return stages + i % STAGES * STAGE; }
        DEVICE int unit(int i, int u) const { return min(key(i) + u * UNIT, unit_end); } // a masked one is another that exists

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
                    copy_rows<D * CELL_BYTES, D * CELL_BYTES>(to, u * UNIT, (const u8*)p.attend.keys + slot * (D * CELL_BYTES), thread);
                    copy_rows<V * CELL_BYTES, VALUES * CELL_BYTES>(to + VALUES_AT, u * UNIT, (const u8*)p.attend.values + (slot * VALUES + b.first_value) * CELL_BYTES, thread);
                    if constexpr (CELL != HALF_CELLS) {
                        int piece = thread % (UNIT / 4) * 4, which = thread / (UNIT / 4);
                        const float* scales = which ? p.value_scales : p.key_scales;
                        if (which < 2) copy16(to + SCALES_AT + (which * KEYS + u * UNIT + piece) * 4, scales + slot + piece);
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
        static DEVICE void load_q(u32 (&to)[4], u32 q_at, int r, int step) { load_matrices(to, QRows::further(q_at, 2 * step) + r * 16 * QRows::STRIDE); }

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
                for (int step = 0; step < STEPS; step += 2) { // two steps at once; the last may be alone, and what follows its row is not used
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
                                multiply(s[r][n + i % 2], a[i / 2][r][0], a[i / 2][r][1], a[i / 2][r][2], a[i / 2][r][3], b0, b1);
                        }
                    }
                }
            }
        }

        // sum += p V. Bytes: a word has two columns of two keys, so that tile n of a pair has columns 2g + n.
        DEVICE void add_values(const u32 (&p)[ROW_TILES][KEYS / 16][4], u32 values_at, int lane) {
            values_at += ValueRows::at(lane % 16, lane / 16);
#pragma unroll
            for (int k = 0; k < KEYS / 16; k++) {
                auto add = [&](int n, u32 b0, u32 b1) {
#pragma unroll
                    for (int r = 0; r < ROW_TILES; r++) multiply(sum[r][n], p[r][k][0], p[r][k][1], p[r][k][2], p[r][k][3], b0, b1);
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
        static DEVICE void mask(float (&s)[ROW_TILES][KEY_TILES][4], const Block& b, int key, int reach, int after) {
            int thread = fixed_thread(), lane = thread % 32, first_row = first_row_of(thread); // not in registers while keys are read
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int own = b.position + (first_row + r * 16 + half * 8 + lane / 4) / HEADS - key;
                    int most = min(own + after, b.end - 1 - key), least = own + 1 - reach;
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
            int thread = fixed_thread(), lane = thread % 32, first_row = first_row_of(thread), power = 1 << (31 - __clz(a.heads));
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

        // Raises the bases to the largest scores, if one exceeds its base by too much.
        DEVICE void raise(const float (&s)[ROW_TILES][KEY_TILES][4]) {
            float most[ROW_TILES][2];
            bool exceeds = false;
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float& m = most[r][half];
                    m = fmaxf(s[r][0][half * 2], s[r][0][half * 2 + 1]);
#pragma unroll
                    for (int n = 1; n < KEY_TILES; n++) m = fmaxf(m, fmaxf(s[r][n][half * 2], s[r][n][half * 2 + 1]));
                    exceeds |= m > base[r][half] + RAISE;
                }
            if (!__any_sync(0xffffffff, exceeds)) return;
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float next = most[r][half];
                    next = fmaxf(next, __shfl_xor_sync(0xffffffff, next, 1));
                    next = fmaxf(next, __shfl_xor_sync(0xffffffff, next, 2));
                    next = fmaxf(next, base[r][half]);
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
            bool whole = key + KEYS - 1 <= min(b.position + args.after, b.end - 1) && key > b.last - reach_of(args);
            if (!whole) mask(s, b, key, reach_of(args), args.after);
            raise(s);
            u32 p[ROW_TILES][KEYS / 16][4];
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float from = base[r][half] == -INFINITY ? 0.f : base[r][half]; // all keys so far are masked
#pragma unroll
                    for (int n = 0; n < KEY_TILES; n++) {
                        float low = exp2_fast(s[r][n][half * 2] - from), high = exp2_fast(s[r][n][half * 2 + 1] - from);
                        weight[r][half] += low + high;
                        if constexpr (CELL != HALF_CELLS) {
                            float2 by = scales[KEYS / 2 + n * 4];
                            low *= by.x * VALUE_FACTOR, high *= by.y * VALUE_FACTOR;
                        }
                        p[r][n / 2][n % 2 * 2 + half] = rounded_halves(low, high);
                    }
                }
            add_values(p, shared_address(stage + VALUES_AT), lane);
        }

        // Soft-capped and in powers of two: the tanh is exact enough because it is added to a score. Infinite scores become NaN.
        static DEVICE float capped(float x, float cap) {
            float up = exp2_fast(x * (2 * LOG2E / cap));
            return cap * LOG2E - 2 * LOG2E * cap * reciprocal(1.f + up) + x * 0.f;
        }

        // Sums, bases and weights into shared memory; `sums` and `tops`: the first row of the warp.
        DEVICE void store(float* sums, float2* tops, int lane) {
            int g = lane / 4, q = lane % 4;
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float total = weight[r][half];
                    total += __shfl_xor_sync(0xffffffff, total, 1);
                    total += __shfl_xor_sync(0xffffffff, total, 2);
                    int row = r * 16 + half * 8 + g;
                    if (q == 0) tops[row] = {base[r][half], total};
#pragma unroll
                    for (int n = 0; n < V_TILES; n += 2) {
                        const float *one = sum[r][n] + half * 2, *two = sum[r][n + 1] + half * 2;
                        float* to = sums + row * SUM_STRIDE + n * 8;
                        if constexpr (CELL == HALF_CELLS) {
                            *(float2*)(to + 2 * q) = {one[0], one[1]};
                            *(float2*)(to + 8 + 2 * q) = {two[0], two[1]};
                        } else {
                            *(float4*)(to + 4 * q) = {one[0], two[0], one[1], two[1]};
                        }
                    }
                }
        }
    };

    // Combines four columns of `count` results: result i has `tops(i)` and `sums(i)`.
    template <class Tops, class Sums> static DEVICE float4 combine(int count, Tops tops, Sums sums, float2& top) {
        float4 value = {0, 0, 0, 0};
        top = {-INFINITY, 0};
#pragma unroll 8
        for (int i = 0; i < count; i++) {
            float2 t = tops(i);
            float4 s = sums(i);
            float next = fmaxf(top.x, t.x), base = next == -INFINITY ? 0.f : next;
            float keep = exp2_fast(top.x - base), now = exp2_fast(t.x - base);
            top = {next, top.y * keep + t.y * now};
            value = {value.x * keep + s.x * now, value.y * keep + s.y * now, value.z * keep + s.z * now, value.w * keep + s.w * now};
        }
        return value;
    }

    // The factor on the sums of a row: the inverse of its weight and that of the head's sink.
    static DEVICE float factor_of(const AttendArgs& a, const Block& b, int row, float2 top) {
        if (!a.sinks) return reciprocal(top.y) * SUM_FACTOR;
        float sink = a.sinks[b.kv_head * G + b.first_head + min(row % HEADS, b.heads - 1)] * LOG2E, most = fmaxf(top.x, sink);
        float keep = exp2_fast(top.x - most);
        return keep * reciprocal(top.y * keep + exp2_fast(sink - most)) * SUM_FACTOR;
    }

    // Combines the results of groups of warps and of splits: afterwards `sums` times `factors` is the output. False in all
    // splits but the last one to arrive.
    static DEVICE bool finish(const PagedAttendArgs& p, const Block& b, u8* shared, int thread) {
        float *sums = (float*)shared, *factors = (float*)(shared + FACTORS_AT);
        float2* tops = (float2*)(shared + TOPS_AT);
        u32 splits = b.work.splits;
        float* partial = p.partial + ((long)b.work.partial + blockIdx.y * splits) * PARTIAL;
        for (int i = thread; i < b.rows() * (V / 4); i += THREADS) {
            int row = i / (V / 4), d = i % (V / 4) * 4;
            float2 top = tops[row];
            float4 value;
            float* own = sums + row * SUM_STRIDE + d;
            if constexpr (KEY_WARPS > 1)
                value = combine(KEY_WARPS, [&](int n) { return tops[n * ROWS + row]; },
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
            *(float4*)(sums + row * SUM_STRIDE + d) =
                combine(splits, [&](int n) { return __ldcg((const float2*)(partial + (long)n * PARTIAL + ROWS * V) + row); },
                        [&](int n) { return __ldcg((const float4*)(partial + (long)n * PARTIAL + row * V + d)); }, top);
            if (d == 0) factors[row] = factor_of(p.attend, b, row, top);
        }
        if (thread == 0) *arrival = 0;
        __syncthreads();
        return true;
    }

    // Writes the outputs of a block: as halves in the order of the next linear, or as floats.
    static DEVICE void write(const PagedAttendArgs& p, const Block& b, const u8* shared, int thread) {
        const float *sums = (const float*)shared, *factors = (const float*)(shared + FACTORS_AT);
        int first = b.first_column(), columns = b.heads * V, order = p.y_half.order;
        if (!p.y_half.at) {
            for (int i = thread; i < b.rows() * (V / 4); i += THREADS) {
                int row = i / (V / 4), d = i % (V / 4) * 4, token = row / HEADS, head = row % HEADS;
                if (head >= b.heads) continue;
                float4 v = *(const float4*)(sums + row * SUM_STRIDE + d);
                float by = factors[row];
                *(float4*)(row_of(p.attend.y, b.work.first_token + token) + first + head * VALUES + d) = {v.x * by, v.y * by, v.z * by, v.w * by};
            }
            return;
        }
        auto output = [&](int token, int column) { // counted from `first`
            int row = token * HEADS + column / VALUES;
            return sums[row * SUM_STRIDE + column % VALUES] * factors[row];
        };
        if (order == BYTES_ORDER || (first % 128 == 0 && columns % 128 == 0)) { // the same columns and positions
            for (int i = thread; i < b.work.tokens * (columns / 8); i += THREADS) {
                int token = i / (columns / 8), column = i % (columns / 8) * 8, at = first + column / V * VALUES + column % V;
                u32 pairs[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    pairs[j] = to_half2(output(token, column_at(order, at + 2 * j) - first), output(token, column_at(order, at + 2 * j + 1) - first));
                *(uint4*)half_at(p.y_half, b.work.first_token + token, at) = {pairs[0], pairs[1], pairs[2], pairs[3]};
            }
        } else {
            for (int i = thread; i < b.work.tokens * columns; i += THREADS) {
                int token = i / columns, column = i % columns;
                *half_at(p.y_half, b.work.first_token + token, position_of_column(order, first + column)) = to_half(output(token, column));
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
        const u32* list = p.inputs + p.inputs[p.inputs[WORK_AT] + p.list]; // the host wrote it: there is no kernel to wait for
        bool real = blockIdx.x < list[0];
        const AttendWork* work = (const AttendWork*)(list + WORK_HEADER) + blockIdx.x;
        int thread = fixed_thread(), lane = thread % 32, group = thread / 32 / QUERY_WARPS, copier = thread % (QUERY_WARPS * 32);
        Result result;
        {
            Block b(p, real ? *work : AttendWork{});
            Tiles tiles(b, shared + Q_BYTES + group * STAGES * STAGE, group);
            if (real) tiles.find(p.inputs, b, 0);
            wait_for_launches();
            if (!real) return;

            fetch_q(p, b, shared, thread);
#pragma unroll
            for (int i = 0; i < STAGES - 1; i++) tiles.fetch(p, b, i, copier);
            arrived<STAGES - 1>();
            __syncthreads();
            u32 q_at = shared_address(shared + QRows::at(first_row_of(thread) + lane % 16, lane / 16));
            bool active = first_row_of(thread) < b.rows();
            result.clear();
            result.keep_q(q_at);
#pragma unroll 1
            for (int i = 0; i < tiles.count; i++) {
                arrived<STAGES - 2>();
                if constexpr (QUERY_WARPS > 1) __syncthreads();
                else __syncwarp();
                tiles.fetch(p, b, i + STAGES - 1, copier);
                if (active) result.add(tiles.stage(i), q_at, b, tiles.key(i), p.attend, lane);
            }
        }
        __syncthreads(); // what was fetched has been used
        int row = group * ROWS + first_row_of(thread);
        result.store((float*)shared + row * SUM_STRIDE, (float2*)(shared + TOPS_AT) + row, lane);
        __syncthreads();
        Block b(p, *work); // again: it was not in registers while keys were read
        if (finish(p, b, shared, thread)) write(p, b, shared, thread);
    }
};
