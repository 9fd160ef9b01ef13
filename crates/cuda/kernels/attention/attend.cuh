// Attention over pages: equals Op::Attend of graph/reference.rs, with the norm and rotation of its heads before it.
//
// A block runs one unit (ring.cuh) at a time. Warps compute its query heads and the keys of this step. Older keys come
// through the ring, KEYS at a time: scores are K q^T and sums V^T p^T on the matrix unit, with the queries as its
// columns. The results of warps are combined in shared memory; splits write theirs to `partial`, and the last one to
// arrive combines them.

#pragma once

#include "base/tagged.cuh"
#include "base/phase.cuh"
#include "attention/pages.cuh"
#include "attention/heads.cuh"
#include "x/x_fragments.cuh"
#include "fused_step/ring.cuh"

constexpr float LOG2E = 1.4426950408889634f;

// A head, or the values of one: four neighbouring columns per lane, and four more in every further 128.
template <int D> struct Quads {
    static constexpr int N = (D + 127) / 128, AT_ONCE = D % 256 == 0 ? 2 : 1; // loads at once: each takes long
    float v[N][4];

    static DEVICE int column(int n) { return n * 128 + threadIdx.x % 32 * 4; }
    static DEVICE bool has(int n) { return D % 128 == 0 || column(n) < D; }

    DEVICE void take(const float* from, u32 mask, u32 epoch) {
#pragma unroll
        for (int n = 0; n < N; n += AT_ONCE) {
            Awaited<AT_ONCE, 128> fours;
            if (has(n)) fours.load(from + column(n));
            else fours.zero(mask & epoch);
            fours.wait(from + column(n), mask, epoch);
#pragma unroll
            for (int i = 0; i < 4 * AT_ONCE; i++) v[n + i / 4][i % 4] = untagged(fours.bits[i], mask);
        }
    }

    // As make_head of heads.cuh, four columns at a time.
    DEVICE void make(const HeadArgs& h, int token, int head, u32 epoch, const AttendArgs& a, const float2* turn,
                     float* scratch) {
        float4 w[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            w[n] = {1, 1, 1, 1};
            if (h.norm && has(n)) w[n] = *(const float4*)(h.norm_weight + column(n));
        }
        take(row_of(h.x, token) + head * D, h.x.mask, epoch);
        float squares = 0, factor = 1;
#pragma unroll
        for (int n = 0; n < N; n++)
            squares += v[n][0] * v[n][0] + v[n][1] * v[n][1] + (v[n][2] * v[n][2] + v[n][3] * v[n][3]);
        if (h.norm) factor = rsqrtf(warp_sum(squares) * (1.f / D) + h.eps);
#pragma unroll
        for (int n = 0; n < N; n++) {
            v[n][0] *= factor * w[n].x, v[n][1] *= factor * w[n].y, v[n][2] *= factor * w[n].z,
                v[n][3] *= factor * w[n].w;
            if (has(n)) *(float4*)(scratch + column(n)) = {v[n][0], v[n][1], v[n][2], v[n][3]};
        }
        __syncwarp();
#pragma unroll
        for (int n = 0; n < N; n++) {
            int k = column(n), second = k >= a.pairs, pair = a.interleaved ? k / 2 : second ? k - a.pairs : k;
            if (k >= 2 * a.pairs) continue;
            float4 first = *(const float4*)(turn + pair); // cosine and sine of two pairs
            if (a.interleaved) {
                float x0 = v[n][0], x1 = v[n][1], x2 = v[n][2], x3 = v[n][3];
                v[n][0] = x0 * first.x - x1 * first.y, v[n][1] = x0 * first.y + x1 * first.x;
                v[n][2] = x2 * first.z - x3 * first.w, v[n][3] = x2 * first.w + x3 * first.z;
            } else {
                float4 other = *(const float4*)(scratch + (second ? k - a.pairs : k + a.pairs)),
                       more = *(const float4*)(turn + pair + 2);
                float sign = second ? 1.f : -1.f;
                v[n][0] = v[n][0] * first.x + sign * other.x * first.y,
                v[n][1] = v[n][1] * first.z + sign * other.y * first.w;
                v[n][2] = v[n][2] * more.x + sign * other.z * more.y,
                v[n][3] = v[n][3] * more.z + sign * other.w * more.w;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) v[n][i] *= a.magnitude;
        }
    }

    // Stores it as halves, times a factor, in shared memory or in a page.
    template <bool FINITE = false> DEVICE void store(u16* to, float by) const {
#pragma unroll
        for (int n = 0; n < N; n++)
            if (has(n))
                *(uint2*)(to + column(n)) = {to_half2<FINITE>(v[n][0] * by, v[n][1] * by),
                                             to_half2<FINITE>(v[n][2] * by, v[n][3] * by)};
    }

    // Whether all values of the warp are finite.
    DEVICE bool all_finite() const {
        float zero = 0;
#pragma unroll
        for (int n = 0; n < N; n++) zero += v[n][0] * 0.f + v[n][1] * 0.f + (v[n][2] * 0.f + v[n][3] * 0.f);
        return __all_sync(0xffffffff, zero == 0.f);
    }
};

DEVICE u32 pair_halves(u32 first, u32 second, bool high) { return __byte_perm(first, second, high ? 0x7632 : 0x5410); }

// D, V: columns of key and value heads, multiples of 8; G: query heads of a unit, at most 8; CAPPED: scores have a soft
// cap. PARTIAL: floats of a split, as the host has allocated them; TAKERS_: warps, or pairs of them, that share older
// keys: slot i of a unit is for the SHARERS warps from i % TAKERS * SHARERS on; WORKSPACE: bytes of shared memory that
// the host has reserved.
template <int D, int V, int G, bool CAPPED, int PARTIAL, int TAKERS_, int WORKSPACE> struct Attention {
    static_assert(G <= MOST_QUERIES && WARPS >= MOST_QUERIES + 2 * MOST_NEW, "warps have one head each");
    static constexpr int AT_VALUES = WARPS - 2 * MOST_NEW,
                         AT_KEYS = WARPS - MOST_NEW; // the first warps with values and keys of this step
    static constexpr int STEPS = (D + 31) / 32;
    // a warp has SPANS spans of 64 columns of the values; wide values are shared by two warps per slot
    static constexpr int SHARERS = V > 128 ? 2 : 1, SPANS = (V / SHARERS + 63) / 64,
                         TILES = SPANS / 2 * 8 + SPANS % 2 * 4;
    static constexpr int TAKERS = TAKERS_;
    static_assert(Sizes::SLOTS % TAKERS == 0, "each taker always has the same slots");
    static_assert(TAKERS * SHARERS <= AT_KEYS, "the keys of this step have other warps");
    static constexpr bool EVEN = SPANS * 64 * SHARERS == V;
    static_assert(PARTIAL >= G * (V + 2) && PARTIAL % 4 == 0, "splits are written four floats at a time");

    struct alignas(16) Workspace {
        float made[MOST_QUERIES + MOST_NEW][D]; // heads after the norm, before the rotation
        alignas(16) u16 q[G][D + 8];            // scaled; the padding keeps rows in different banks
        u16 key[MOST_NEW][D], value[MOST_NEW][V];
        float2 tops[TAKERS + MOST_NEW][G];         // largest score and weight
        alignas(16) float sums[TAKERS][G * V + 8]; // the padding keeps takers in different banks
        Unit unit;                                 // here and not in registers while keys are read
        int news, takers;
        int not_finite[MOST_NEW]; // whether the value is not finite
        float sinks[G];           // as scores
    };
    static_assert(KEYS * (D + V) * 2 + 2 * (KEYS / 4) * ROWS_PADDING <= Sizes::SLOT,
                  "a slot holds keys and values with padding");
    static_assert(sizeof(Workspace) <= WORKSPACE && WORKSPACE <= Sizes::ARENA,
                  "the host has reserved shared memory for it");

    // A warp's result: lane (g, q) has queries 2q and 2q + 1, and columns 8g to 8g + 7 of every 64 of the warp.
    struct Result {
        float sum[TILES][4], most[2], weight[2];

        static DEVICE int first_column() { return SHARERS == 1 ? 0 : threadIdx.x / 32 % SHARERS * SPANS * 64; }

        DEVICE void clear() {
#pragma unroll
            for (int t = 0; t < TILES; t++) sum[t][0] = sum[t][1] = sum[t][2] = sum[t][3] = 0;
            most[0] = most[1] = -INFINITY, weight[0] = weight[1] = 0;
        }

        // Adds the keys of a slot, the first of which is `key`; keys before `from` and from `end` on are masked. Keys
        // are multiplied in an order in which lanes that load together, of keys as of values, have rows of different
        // fours (ring.cuh).
        DEVICE void add(const u8* slot, const Workspace& workspace, int key, int from, int end, int padding,
                        float softcap) {
            int lane = fixed_thread() % 32, g = lane / 4, q = lane % 4,
                mine = first_column() + 8 * g;                              // not held across phases
            int four_keys = 8 * D + padding, four_values = 8 * V + padding; // bytes
            int four = g / 2 ^ g % 2 * 2, row = g % 2; // of row g of the matrix unit; that of row g + 8 is two further
            float even[4] = {}, odd[4] = {};
#pragma unroll
            for (int j = 0; j < STEPS; j++) { // columns may have any order that is the same for keys and queries
                uint4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0}, query = {0, 0, 0, 0};
                int k = 32 * j + 8 * q;
                const u8* at = slot + four * four_keys + (row * D + k) * 2;
                if (D % 32 == 0 || k < D) {
                    a = *(const uint4*)at, b = *(const uint4*)(at + 2 * D * 2);
                    if (G == 8 || g < G) query = *(const uint4*)(workspace.q[g] + k);
                }
                multiply(even, a.x, b.x, a.y, b.y, query.x, query.y);
                multiply(odd, a.z, b.z, a.w, b.w, query.z, query.w);
            }
            bool whole = key >= from && key + KEYS <= end;
            float p[4], keep[2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                p[i] = even[i] + odd[i];
                if (CAPPED) p[i] = soft_capped(p[i], softcap) * LOG2E;
                int k = key + four * 4 + row + i / 2 * 2;
                if (!whole && (k < from || k >= end)) p[i] = -INFINITY;
            }
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float next = fmaxf(p[c], p[c + 2]);
#pragma unroll
                for (int step = 4; step < 32; step *= 2) next = fmaxf(next, __shfl_xor_sync(0xffffffff, next, step));
                next = fmaxf(next, most[c]);
                float base = next == -INFINITY ? 0.f : next; // all keys so far are masked
                keep[c] = exp2_fast(most[c] - base), most[c] = next;
                p[c] = exp2_fast(p[c] - base), p[c + 2] = exp2_fast(p[c + 2] - base);
                weight[c] = weight[c] * keep[c] + p[c] + p[c + 2];
            }
            if (__any_sync(0xffffffff, keep[0] != 1.f || keep[1] != 1.f)) {
#pragma unroll
                for (int t = 0; t < TILES; t++)
                    sum[t][0] *= keep[0], sum[t][1] *= keep[1], sum[t][2] *= keep[0], sum[t][3] *= keep[1];
            }
            u32 b0 = transposed(to_half2<true>(p[0], p[1])),
                b1 = transposed(to_half2<true>(p[2], p[3])); // a NaN stays in `weight`
            const u8* values = slot + KEYS / 4 * four_keys;
            // four of the lane's columns in span `b`, of its four keys
            auto load = [&](uint2(&v)[4], int b, int half) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    v[i] = {0, 0}; // masked values must be finite too: all values in pages are
                    if (EVEN || mine + 64 * b < V)
                        v[i] = *(const uint2*)(values + (q ^ i % 2 * 2) * four_values +
                                               (i * V + mine + 64 * b + 4 * half) * 2);
                }
            };
            auto column = [](const uint2(&v)[4], int i, int t) { // of keys i and i + 1
                return pair_halves(t / 2 ? v[i].y : v[i].x, t / 2 ? v[i + 1].y : v[i + 1].x, t % 2);
            };
            uint2 low[4], high[4];
#pragma unroll
            for (int b = 0; b + 1 < SPANS; b += 2)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    load(low, b, half), load(high, b + 1, half);
#pragma unroll
                    for (int t = 0; t < 4; t++)
                        multiply(sum[b / 2 * 8 + half * 4 + t], column(low, 0, t), column(high, 0, t),
                                 column(low, 2, t), column(high, 2, t), b0, b1);
                }
            if constexpr (SPANS % 2) {
                load(low, SPANS - 1, 0), load(high, SPANS - 1, 1);
#pragma unroll
                for (int t = 0; t < 4; t++)
                    multiply(sum[TILES - 4 + t], column(low, 0, t), column(high, 0, t), column(low, 2, t),
                             column(high, 2, t), b0, b1);
            }
        }

        DEVICE void store(Workspace& workspace, int taker) {
            int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, mine = first_column() + 8 * g;
#pragma unroll
            for (int c = 0; c < 2; c++) {
#pragma unroll
                for (int step = 4; step < 32; step *= 2) weight[c] += __shfl_xor_sync(0xffffffff, weight[c], step);
                int h = 2 * q + c;
                if (h >= G) continue;
                if (g == 0) workspace.tops[taker][h] = {most[c], weight[c]};
                float* to = workspace.sums[taker] + h * V + mine;
                auto put = [&](int column, int tile, int i) { // four columns, of four tiles
                    if (EVEN || mine + column < V)
                        *(float4*)(to + column) = {sum[tile][i], sum[tile + 1][i], sum[tile + 2][i], sum[tile + 3][i]};
                };
#pragma unroll
                for (int b = 0; b + 1 < SPANS; b += 2) {
                    put(64 * b, b * 4, c), put(64 * b + 4, b * 4 + 4, c);
                    put(64 * b + 64, b * 4, c + 2), put(64 * b + 68, b * 4 + 4, c + 2);
                }
                if constexpr (SPANS % 2) put(64 * SPANS - 64, TILES - 4, c), put(64 * SPANS - 60, TILES - 4, c + 2);
            }
        }
    };

    // Heads of a unit: its queries and, in the last split, this step's keys and values of its sequence, of which the
    // token's own are stored in the page.
    static DEVICE void make_heads(const AttendArgs& a, const Info& info, const Unit& u, int news, const float2* turns,
                                  Workspace& workspace) {
        int warp = threadIdx.x / 32, made = (warp - AT_VALUES) % MOST_NEW;
        bool query = warp < G, is_new = warp >= AT_VALUES && made < news;
        int token = query ? u.token : u.token - (news - 1) + made,
            head = (u.kv_head * a.groups + u.group) * G + warp; // of a query
        bool own = is_new && token == u.token && u.group == 0;
        u32 page = own ? info.pages_of(a, token)[info.position[token] / PAGE_LEN] : 0; // loaded meanwhile
        auto slot = [&]() { return slot_in(a, page, info.position[token], u.kv_head); };
        if (query || (is_new && warp >= AT_KEYS)) { // the same code for queries and keys
            if (Sizes::SINKS && query && a.sinks && threadIdx.x % 32 == 0)
                workspace.sinks[warp] = a.sinks[head] * LOG2E;
            Quads<D> x;
            x.make(query ? a.q : a.k, token, query ? head : u.kv_head, info.epoch, a, turns + token * Sizes::MOST_PAIRS,
                   workspace.made[query ? warp : MOST_QUERIES + made]);
            float scale = CAPPED ? 1.f : LOG2E;
            x.store(query ? workspace.q[warp] : workspace.key[made],
                    query ? scale_at(a, info.position[token]) * scale : 1.f);
            if (own) x.store(a.keys + slot() * D, 1);
        } else if (is_new) {
            Quads<V> v;
            v.take(row_of(a.v, token) + u.kv_head * V, a.v.mask, info.epoch);
            v.store(workspace.value[made], 1);
            if (own) v.template store<true>(a.values + slot() * V, 1);
            bool finite = v.all_finite();
            if (threadIdx.x % 32 == 0) workspace.not_finite[made] = !finite;
        }
    }

    // Scores of a key of this step, by the warp that computed it. Values in pages are finite, since masked keys
    // multiply them by zero: if a value is not finite, its key becomes NaN instead.
    static DEVICE void score_new(const AttendArgs& a, const Info& info, bool seen, Workspace& workspace) {
        int lane = threadIdx.x % 32, made = threadIdx.x / 32 - AT_KEYS;
        if (workspace.not_finite[made] && made == workspace.news - 1 && workspace.unit.group == 0 && lane == 0)
            a.keys[slot_of(a, info.pages_of(a, workspace.unit.token), info.position[workspace.unit.token],
                           workspace.unit.kv_head) *
                   D] = 0x7fff;
        float scores[G] = {};
#pragma unroll
        for (int n = 0; n < Quads<D>::N; n++) {
            if (!Quads<D>::has(n)) continue;
            uint2 key = *(const uint2*)(workspace.key[made] + Quads<D>::column(n));
#pragma unroll
            for (int h = 0; h < G; h++) {
                uint2 q = *(const uint2*)(workspace.q[h] + Quads<D>::column(n));
                scores[h] += low_half(q.x) * low_half(key.x) + high_half(q.x) * high_half(key.x) +
                             (low_half(q.y) * low_half(key.y) + high_half(q.y) * high_half(key.y));
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
#pragma unroll
            for (int h = 0; h < G; h++) scores[h] += __shfl_xor_sync(0xffffffff, scores[h], step);
#pragma unroll
        for (int h = 0; h < G; h++) {
            float score = scores[h];
            if (CAPPED) score = soft_capped(score, a.softcap) * LOG2E;
            if (lane == 0) workspace.tops[TAKERS + made][h] = {seen ? score : -INFINITY, seen ? 1.f : 0.f};
        }
    }

    // Combines four columns of up to `most_shares` results: whether result i is `there`, its `tops` and `sums`.
    template <class There, class Tops, class Sums>
    static DEVICE void combine(int most_shares, There there, Tops tops, Sums sums, float2& top, float4& value) {
        float most = -INFINITY, weight = 0;
#pragma unroll
        for (int i = 0; i < most_shares; i++)
            if (there(i)) most = fmaxf(most, tops(i).x);
        float base = most == -INFINITY ? 0.f : most;
        value = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < most_shares; i++) {
            if (!there(i)) continue;
            float2 t = tops(i);
            float4 s = sums(i);
            float keep = exp2_fast(t.x - base);
            weight += keep * t.y;
            value.x += keep * s.x, value.y += keep * s.y, value.z += keep * s.z, value.w += keep * s.w;
        }
        top = {most, weight};
    }

    // Combines the results of four neighbouring lanes.
    static DEVICE void combine_lanes(float2& top, float4& value) {
        float most = top.x;
#pragma unroll
        for (int step = 1; step < 4; step *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
        float keep = top.x == -INFINITY ? 0.f : exp2_fast(top.x - most),
              all[5] = {top.y * keep, value.x * keep, value.y * keep, value.z * keep, value.w * keep};
#pragma unroll
        for (int step = 1; step < 4; step *= 2)
#pragma unroll
            for (float& x : all) x += __shfl_xor_sync(0xffffffff, x, step);
        top = {most, all[0]}, value = {all[1], all[2], all[3], all[4]};
    }

    // Combines the results of the block's warps, and those of all splits if there are several.
    static DEVICE void finish(const AttendArgs& a, u32 epoch, Workspace& workspace) {
        Unit u = workspace.unit;
        int takers = workspace.takers, news = workspace.news;
        float* partial = a.partial + (long)u.first_split * PARTIAL;
        float2* split_tops = (float2*)(partial + u.splits * G * V);
        float* y = row_of(a.y, u.token) + (u.kv_head * a.groups + u.group) * G * V;
        auto write = [&](int i, const float2& top, const float4& v) {
            float by = reciprocal(top.y);
            if (Sizes::SINKS && a.sinks) { // one more score, without a value
                float sink = workspace.sinks[i / V], most = fmaxf(top.x, sink), keep = exp2_fast(top.x - most);
                by = keep * reciprocal(top.y * keep + exp2_fast(sink - most));
            }
            float four[4] = {v.x * by, v.y * by, v.z * by, v.w * by};
            if (TOKENS_AT_ONCE > 1 && a.y_half) {
                store_fragment4(a.y_half, a.y_order, u.token, (u.kv_head * a.groups + u.group) * G * V + i, four,
                                epoch);
            } else {
                store_tagged4(y + i, {four[0], four[1], four[2], four[3]}, a.y.mask, epoch);
            }
        };
        constexpr int SHARES = TAKERS + (TOKENS_AT_ONCE == 1 ? 1 : MOST_NEW), QUADS_OF_WARP = 8;
        int lane = threadIdx.x % 32, part = lane % 4; // four lanes share the results of four columns
        for (int first = threadIdx.x / 32 * QUADS_OF_WARP; first < G * V / 4; first += WARPS * QUADS_OF_WARP) {
            int i = min(first + lane / 4, G * V / 4 - 1) * 4, h = i / V, d = i % V;
            bool writes = part == 0 && first + lane / 4 < G * V / 4;
            float2 top;
            float4 value;
            // results of older keys, and this step's keys, whose sums are their values
            auto there = [&](int n) {
                return part + 4 * n < TAKERS ? part + 4 * n < takers : part + 4 * n < TAKERS + news;
            };
            auto sums = [&](int n) {
                if (part + 4 * n < TAKERS) return *(const float4*)(workspace.sums[part + 4 * n] + i);
                uint2 v = *(const uint2*)(workspace.value[part + 4 * n - TAKERS] + d);
                return float4{low_half(v.x), high_half(v.x), low_half(v.y), high_half(v.y)};
            };
            combine((SHARES + 3) / 4, there, [&](int n) { return workspace.tops[part + 4 * n][h]; }, sums, top, value);
            combine_lanes(top, value);
            if (!writes) continue;
            if (u.splits == 1) {
                write(i, top, value);
            } else {
                *(float4*)(partial + u.split * G * V + i) = value;
                if (d == 0) split_tops[u.split * G + h] = top;
            }
        }
        if (u.splits == 1) return;
        u32* last = (u32*)(shared + Sizes::AT_WARP_FLOATS);
        __threadfence();
        sync_threads<THREADS>();
        if (threadIdx.x == 0) *last = atomicAdd(a.arrivals + u.index, 1);
        sync_threads<THREADS>();
        if (*last != u.splits - 1) return;
        __threadfence();
        for (int i = threadIdx.x * 4; i < G * V; i += THREADS * 4) {
            float2 top;
            float4 value;
            combine(
                u.splits, [](int) { return true; }, [&](int n) { return __ldcg(split_tops + n * G + i / V); },
                [&](int n) { return __ldcg((const float4*)(partial + n * G * V + i)); }, top, value);
            write(i, top, value);
        }
        if (threadIdx.x == 0) a.arrivals[u.index] = 0;
    }

    // Runs all units of a phase, from a position of the ring on; returns the position after them.
    static DEVICE Ring units(int p, Ring ring, const float2* turns) {
        const AttendArgs& a = phase_at_hand(p).attend;
        const Info& info = info_of_step();
        Workspace& workspace = *(Workspace*)(shared + Sizes::AT_ARENA);
        int warp = threadIdx.x / 32;
        for (Units units;;) {
            Unit u;
            if (!units.next(u, a, info)) break;
            int news = u.split == u.splits - 1 ? info.position[u.token] - info.first[u.token] + 1 : 0,
                slots = u.slots();
            make_heads(a, info, u, news, turns, workspace);
            if (threadIdx.x == 0) workspace.unit = u, workspace.news = news, workspace.takers = min(slots, TAKERS);
            sync_threads<THREADS>();
            int taker = warp / SHARERS;
            if (taker < min(slots, TAKERS)) {
                Result result;
                result.clear();
                Ring mine = ring.ahead(taker);
                int padding = u.padding();
                for (int i = taker; i < slots; i += TAKERS, mine = mine.ahead(TAKERS)) {
                    result.add(mine.wait(), workspace, workspace.unit.begin + i * KEYS, workspace.unit.from,
                               workspace.unit.end, padding, a.softcap);
                    mine.release_for(WARPS / SHARERS);
                }
                result.store(workspace, taker);
            } else if (warp >= AT_KEYS && warp - AT_KEYS < news) {
                score_new(a, info, info.first[u.token] + warp - AT_KEYS >= u.from, workspace);
            }
            ring.skip(slots);
            sync_threads<THREADS>();
            finish(a, info.epoch, workspace);
            sync_threads<THREADS>(); // the workspace is used again
        }
        return ring;
    }
};
