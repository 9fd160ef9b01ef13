// Attention over pages: equals Op::Attend of graph/reference.rs, with the norm and rotation of its heads before it.
//
// A unit is some query heads of one key head of one token, over a split of its keys: a block's work. Splits of one unit
// leave what they have in `partial`, and the last to arrive puts them together.

constexpr int SPLIT_KEYS = 256; // fewer are not worth a second block
constexpr int FEW_KEYS = 512;
constexpr float LOG2E = 1.4426950408889634f;

DEVICE void to_floats(float (&to)[8], const uint4& v) {
    to[0] = low_half(v.x), to[1] = high_half(v.x), to[2] = low_half(v.y), to[3] = high_half(v.y);
    to[4] = low_half(v.z), to[5] = high_half(v.z), to[6] = low_half(v.w), to[7] = high_half(v.w);
}

DEVICE constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2); }

// Eight neighbouring columns of a head a lane, LANES lanes a head: normalised and turned. Rotated columns come in eights.
template <int D, int LANES, int N> struct Eights {
    float v[N][8];

    DEVICE static void read(float (&to)[8], const float* from, int sub) {
        float4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
        if (sub * 8 < D) low = load_floats4(from + sub * 8), high = load_floats4(from + sub * 8 + 4);
        to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w, to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
    }

    // N heads from `x` on.
    DEVICE void make(const HeadArgs& h, const float* x, const AttendArgs& a, const float2* turn) {
        int lane = threadIdx.x % 32, sub = lane % LANES;
        float w[8];
#pragma unroll
        for (int n = 0; n < N; n++) read(v[n], x + n * D, sub);
        if (h.norm) {
            read(w, h.norm_weight, sub);
#pragma unroll
            for (int n = 0; n < N; n++) {
                float squares = 0;
#pragma unroll
                for (int i = 0; i < 8; i++) squares += v[n][i] * v[n][i];
#pragma unroll
                for (int step = LANES / 2; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffff, squares, step);
                float factor = norm_factor(squares, D, h.eps);
#pragma unroll
                for (int i = 0; i < 8; i++) v[n][i] *= factor * w[i];
            }
        }
        if (a.pairs == 0) return;
        if (a.interleaved) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (sub * 4 + i >= a.pairs) break;
                float2 t = turn[sub * 4 + i];
#pragma unroll
                for (int n = 0; n < N; n++) {
                    float x0 = v[n][2 * i] * a.magnitude, x1 = v[n][2 * i + 1] * a.magnitude;
                    v[n][2 * i] = x0 * t.x - x1 * t.y, v[n][2 * i + 1] = x0 * t.y + x1 * t.x;
                }
            }
        } else {
            int apart = a.pairs / 8, second = sub >= apart, turned = sub < 2 * apart;
            int from = turned ? lane + (second ? -apart : apart) : lane, pair = turned ? (sub - (second ? apart : 0)) * 8 : 0;
            float by = a.magnitude;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float2 t = turn[pair + i];
#pragma unroll
                for (int n = 0; n < N; n++) {
                    float mine = v[n][i], other = __shfl_sync(0xffffffff, mine, from);
                    if (turned) v[n][i] = (mine * t.x + (second ? other : -other) * t.y) * by;
                }
            }
        }
    }
};

DEVICE uint4 to_halves(const float (&v)[8]) {
    return {to_half2(v[0], v[1]), to_half2(v[2], v[3]), to_half2(v[4], v[5]), to_half2(v[6], v[7])};
}

// D, V: columns of key and value heads, multiples of 8; G: query heads at a time where there are many keys. Where there
// are few, one at a time on more blocks is sooner done.
template <int D, int V, int G> struct Attention {
    static constexpr int LANES = power_of_two_from((D > V ? D : V) / 8); // a lane has 8 columns of a key
    static constexpr int KEYS = 32 / LANES, UNROLL = 2;    // keys a load of the warp, loads at a time
    static constexpr int BATCH = KEYS * UNROLL;                         // keys of a warp at a time

    // Where a unit works, and the keys it has.
    struct Place {
        int token, kv_head, first_head, split, splits, begin, end, own; // own: the key that is not in its page yet, or -1
        const u32* pages;
        const float2* turn;
    };

    struct Keys {
        uint4 key[UNROLL], value[UNROLL];

        // The keys from `at` on, of which each group of LANES lanes has one a load.
        DEVICE void load(const AttendArgs& a, const Place& p, int at) {
            int lane = threadIdx.x % 32, sub = lane % LANES, which = lane / LANES;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int i = at + u * KEYS + which;
                key[u] = {0, 0, 0, 0}, value[u] = {0, 0, 0, 0};
                if (i < p.end && i != p.own) {
                    long slot = slot_of(a, p.pages, i, p.kv_head);
                    if (sub * 8 < D) key[u] = load_words4(a.keys + slot * D + sub * 8);
                    if (sub * 8 < V) value[u] = load_words4(a.values + slot * V + sub * 8);
                }
            }
        }

        // The token's own key and value, made here and kept in their page: by the warp that has them among its keys.
        DEVICE void take_own(const AttendArgs& a, const Place& p, int at) {
            int lane = threadIdx.x % 32, sub = lane % LANES, which = lane / LANES;
            Eights<D, LANES, 1> k;
            k.make(a.k, a.k.x.at + p.token * a.k.x.stride + p.kv_head * D, a, p.turn);
            float v[8];
            Eights<V, LANES, 1>::read(v, a.v.at + p.token * a.v.stride + p.kv_head * V, sub);
            long slot = slot_of(a, p.pages, p.own, p.kv_head);
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (at + u * KEYS + which != p.own) continue;
                key[u] = to_halves(k.v[0]), value[u] = to_halves(v);
                if (sub * 8 < D) *(uint4*)(a.keys + slot * D + sub * 8) = key[u];
                if (sub * 8 < V) *(uint4*)(a.values + slot * V + sub * 8) = value[u];
            }
        }
    };

    // Four columns of `count` shares, each with sums [G][V] and largest score and weight [G].
    template <bool OWN> static DEVICE void combine(const float* sums, const float2* tops, int count, int h, int d, float2& top, float4& value) {
        auto get = [&](int i) { return OWN ? tops[i * G + h] : __ldcg(tops + i * G + h); };
        float most = -INFINITY, weight = 0;
        for (int i = 0; i < count; i++) most = fmaxf(most, get(i).x);
        float base = most == -INFINITY ? 0.f : most;
        value = {0, 0, 0, 0};
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            float2 t = get(i);
            const float4* at = (const float4*)(sums + (i * G + h) * V + d);
            float4 s = OWN ? *at : __ldcg(at);
            float keep = exp2_fast(t.x - base);
            weight += keep * t.y;
            value.x += keep * s.x, value.y += keep * s.y, value.z += keep * s.z, value.w += keep * s.w;
        }
        top = {most, weight};
    }

    static DEVICE void unit(const AttendArgs& a, const Place& p, float* partial, u32* arrivals) {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % LANES, which = lane / LANES;
        float* shares = (float*)(shared + AT_ARENA); // [WARPS][G][V]
        float2* tops = (float2*)(shares + WARPS * G * V); // [WARPS][G]
        int at = p.begin + warp * BATCH;
        if (at < p.end) {
            Keys keys;
            keys.load(a, p, at); // on their way while the queries are made
            Eights<D, LANES, G> q;
            q.make(a.q, a.q.x.at + p.token * a.q.x.stride + p.first_head * D, a, p.turn);
            float scale = a.softcap > 0 ? a.scale : a.scale * LOG2E, sum[G][8] = {}, most[G], weight[G] = {};
#pragma unroll
            for (int h = 0; h < G; h++) {
                most[h] = -INFINITY;
#pragma unroll
                for (int i = 0; i < 8; i++) q.v[h][i] *= scale;
            }
            for (; at < p.end; at += WARPS * BATCH) {
                Keys next; // on their way while these are used
                next.load(a, p, at + WARPS * BATCH);
                if (p.own >= at && p.own < at + BATCH) keys.take_own(a, p, at);
                float scores[UNROLL][G];
#pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    float k[8];
                    to_floats(k, keys.key[u]);
#pragma unroll
                    for (int h = 0; h < G; h++) {
                        scores[u][h] = 0;
#pragma unroll
                        for (int i = 0; i < 8; i++) scores[u][h] += q.v[h][i] * k[i];
                    }
                }
#pragma unroll
                for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
                    for (int u = 0; u < UNROLL; u++)
#pragma unroll
                        for (int h = 0; h < G; h++) scores[u][h] += __shfl_xor_sync(0xffffffff, scores[u][h], step);
#pragma unroll
                for (int u = 0; u < UNROLL; u++)
#pragma unroll
                    for (int h = 0; h < G; h++) {
                        if (a.softcap > 0) scores[u][h] = a.softcap * tanhf(scores[u][h] / a.softcap) * LOG2E;
                        if (at + u * KEYS + which >= p.end) scores[u][h] = -INFINITY;
                    }
#pragma unroll
                for (int h = 0; h < G; h++) {
                    float next = most[h];
#pragma unroll
                    for (int u = 0; u < UNROLL; u++) next = fmaxf(next, scores[u][h]);
                    // a lane's keys may all lie beyond the end: then nothing is added
                    float base = next == -INFINITY ? 0.f : next, keep = exp2_fast(most[h] - base);
                    weight[h] *= keep;
#pragma unroll
                    for (int i = 0; i < 8; i++) sum[h][i] *= keep;
#pragma unroll
                    for (int u = 0; u < UNROLL; u++) {
                        scores[u][h] = exp2_fast(scores[u][h] - base);
                        weight[h] += scores[u][h];
                    }
                    most[h] = next;
                }
#pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    float v[8];
                    to_floats(v, keys.value[u]);
#pragma unroll
                    for (int h = 0; h < G; h++)
#pragma unroll
                        for (int i = 0; i < 8; i++) sum[h][i] += scores[u][h] * v[i];
                }
                keys = next;
            }
            // the keys of the warp's lane groups come together
#pragma unroll
            for (int step = LANES; step < 32; step *= 2)
#pragma unroll
                for (int h = 0; h < G; h++) {
                    float other = __shfl_xor_sync(0xffffffff, most[h], step), next = fmaxf(most[h], other);
                    float base = next == -INFINITY ? 0.f : next, keep = exp2_fast(most[h] - base);
                    weight[h] *= keep;
                    weight[h] += __shfl_xor_sync(0xffffffff, weight[h], step);
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        sum[h][i] *= keep;
                        sum[h][i] += __shfl_xor_sync(0xffffffff, sum[h][i], step);
                    }
                    most[h] = next;
                }
#pragma unroll
            for (int h = 0; h < G; h++) {
                if (lane == 0) tops[warp * G + h] = {most[h], weight[h]};
                if (which == 0 && sub * 8 < V) {
                    float4* to = (float4*)(shares + (warp * G + h) * V + sub * 8);
                    to[0] = {sum[h][0], sum[h][1], sum[h][2], sum[h][3]}, to[1] = {sum[h][4], sum[h][5], sum[h][6], sum[h][7]};
                }
            }
        }
        sync_threads<THREADS>();
        int busy = min(WARPS, (p.end - p.begin + BATCH - 1) / BATCH); // warps that had keys
        float* y = a.y.at + p.token * a.y.stride + p.first_head * V;
        float2* split_tops = (float2*)(partial + p.splits * G * V);
        auto write = [&](int i, const float2& top, const float4& v) {
            *(float4*)(y + i) = {v.x / top.y, v.y / top.y, v.z / top.y, v.w / top.y};
        };
        for (int i = threadIdx.x * 4; i < G * V; i += THREADS * 4) {
            float2 top;
            float4 value;
            combine<true>(shares, tops, busy, i / V, i % V, top, value);
            if (p.splits == 1) {
                write(i, top, value);
            } else {
                *(float4*)(partial + p.split * G * V + i) = value;
                if (i % V == 0) split_tops[p.split * G + i / V] = top;
            }
        }
        if (p.splits > 1) {
            u32* last = (u32*)(shared + AT_ROOM);
            __threadfence();
            sync_threads<THREADS>();
            if (threadIdx.x == 0) *last = atomicAdd(arrivals, 1);
            sync_threads<THREADS>();
            if (*last == p.splits - 1) {
                __threadfence();
                for (int i = threadIdx.x * 4; i < G * V; i += THREADS * 4) {
                    float2 top;
                    float4 value;
                    combine<false>(partial, split_tops, p.splits, i / V, i % V, top, value);
                    write(i, top, value);
                }
                if (threadIdx.x == 0) *arrivals = 0;
            }
        }
        sync_threads<THREADS>(); // the arena is used again
    }

    // All units of a phase, by all blocks.
    static APART void units(int phase, const float2* turns) {
        const AttendArgs& a = ((const Phase*)(shared + AT_WINDOW))[phase % WINDOW].attend;
        const Info& info = *(const Info*)(shared + AT_INFO);
        int groups = a.heads / a.kv_heads / G, heads = a.kv_heads * groups, blocks = gridDim.x;
        int most_splits = max(1, blocks / (info.tokens * heads));
        for (int u = blockIdx.x; u < info.tokens * heads * most_splits; u += blocks) {
            // splits of one head lie far apart: with few keys there is one split, and every block's first unit is one
            int head = u % heads, token = u / heads % info.tokens, split = u / (heads * info.tokens);
            int position = info.position[token], from = a.window > 0 ? max(0, position + 1 - a.window) : 0;
            int keys = position + 1 - from, splits = min(most_splits, (keys + SPLIT_KEYS - 1) / SPLIT_KEYS);
            if (split >= splits) continue;
            int kv_head = head / groups, each = (keys + splits - 1) / splits, begin = from + split * each;
            // the split that has the token's own key stores it; other query groups of the same key head wait for no one,
            // they make it themselves
            int own = !info.neighbours && split == splits - 1 ? position : -1;
            Place p = {token, kv_head, kv_head * groups * G + head % groups * G, split, splits, begin, min(from + keys, begin + each), own,
                       info.pages[token], turns + token * MOST_PAIRS};
            unit(a, p, a.partial + (long)(token * heads + head) * most_splits * G * (V + 2), a.arrivals + token * heads + head);
        }
    }

    static DEVICE void run(int phase, const float2* turns) {
        const Info& info = *(const Info*)(shared + AT_INFO);
        int longest = 0;
        for (int t = 0; t < info.tokens; t++) longest = max(longest, info.position[t]);
        if (longest < FEW_KEYS) Attention<D, V, 1>::units(phase, turns);
        else units(phase, turns);
    }
};
