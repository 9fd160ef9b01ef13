// Attention over pages: equals Op::Attend of graph/reference.rs, with the norm and rotation of its heads before it.
//
// A unit is some query heads of one key head of one token, over a split of its keys: a block's work. Splits of one unit
// leave what they have in `partial`, and the last to arrive puts them together.

constexpr int SPLIT_KEYS = 256; // fewer are not worth a second block
constexpr float LOG2E = 1.4426950408889634f;

// One head of a token, normalised and turned, by one warp; `turn` holds cosine and sine of each pair. `put(k, value)`.
template <class Put>
DEVICE void make_head(const HeadArgs& a, const float* x, int dim, int pairs, int interleaved, const float2* turn, float magnitude, float* room, Put put) {
    int lane = threadIdx.x % 32;
    float squares = 0;
    for (int k = lane; k < dim; k += 32) {
        float v = load_float(x + k);
        room[k] = v;
        squares += v * v;
    }
    float factor = 1;
    if (a.norm) factor = norm_factor(warp_sum(squares), dim, a.eps);
    __syncwarp();
    for (int k = lane; k < dim; k += 32) {
        auto get = [&](int i) { return room[i] * factor * (a.norm ? a.norm_weight[i] : 1.f); };
        if (k >= 2 * pairs) {
            put(k, get(k));
            continue;
        }
        int pair = interleaved ? k / 2 : k % max(pairs, 1), second = interleaved ? k % 2 : k >= pairs;
        float x0 = get(interleaved ? 2 * pair : pair) * magnitude, x1 = get(interleaved ? 2 * pair + 1 : pair + pairs) * magnitude;
        put(k, second ? x0 * turn[pair].y + x1 * turn[pair].x : x0 * turn[pair].x - x1 * turn[pair].y);
    }
    __syncwarp();
}

// Keys and values of one token's key head into their page, by two warps.
DEVICE void store_key(const AttendArgs& a, const u32* inputs, int token, int head, const float2* turn, float* room) {
    int position = position_of(inputs, token);
    long slot = ((long)pages_of(inputs, token)[position / PAGE_LEN] * a.kv_heads + head) * PAGE_LEN + position % PAGE_LEN;
    u16* key = a.keys + slot * a.head_dim;
    make_head(a.k, a.k.x.at + token * a.k.x.stride + head * a.head_dim, a.head_dim, a.pairs, a.interleaved, turn, a.magnitude, room,
              [&](int k, float v) { key[k] = to_half(v); });
}

DEVICE void store_value(const AttendArgs& a, const u32* inputs, int token, int head) {
    int position = position_of(inputs, token);
    long slot = ((long)pages_of(inputs, token)[position / PAGE_LEN] * a.kv_heads + head) * PAGE_LEN + position % PAGE_LEN;
    const float* v = a.v.at + token * a.v.stride + head * a.v_dim;
    for (int k = threadIdx.x % 32; k < a.v_dim; k += 32) a.values[slot * a.v_dim + k] = to_half(load_float(v + k));
}

DEVICE void to_floats(float (&to)[8], const Words4& v) {
    to[0] = low_half(v.x), to[1] = high_half(v.x), to[2] = low_half(v.y), to[3] = high_half(v.y);
    to[4] = low_half(v.z), to[5] = high_half(v.z), to[6] = low_half(v.w), to[7] = high_half(v.w);
}

DEVICE constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2); }

// D, V: columns of key and value heads, multiples of 8; G: query heads at a time.
template <int D, int V, int G> struct Attention {
    static constexpr int LANES = power_of_two_from((D > V ? D : V) / 8); // a lane has 8 columns of a key
    static constexpr int KEYS = 32 / LANES, UNROLL = G > 2 ? 2 : 4;                 // keys a load of the warp, loads at a time
    static constexpr int WARP_ROOM = G * (V + 2);                        // floats
    static constexpr int ROOM = G * D + (2 + G) * D + WARPS * WARP_ROOM;

    static APART void unit(const AttendArgs& a, const u32* inputs, int token, int kv_head, int first_head, int split, int splits,
                            bool store, const float2* turn, float* room, float* partial, u32* arrivals) {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        int position = position_of(inputs, token);
        int from = a.window > 0 ? max(0, position + 1 - a.window) : 0, keys = position + 1 - from;
        int each = (keys + splits - 1) / splits;
        int begin = from + split * each, end = min(from + keys, begin + each);
        float* queries = room; // [G][D]
        float* heads = queries + G * D;
        float* shares = heads + (2 + G) * D; // [WARPS][G][V + 2]
        float scale = a.softcap > 0 ? a.scale : a.scale * LOG2E;
        if (warp < G) {
            const float* q = a.q.x.at + token * a.q.x.stride + (first_head + warp) * D;
            make_head(a.q, q, D, a.pairs, a.interleaved, turn, a.magnitude, heads + warp * D,
                      [&](int k, float v) { queries[warp * D + k] = v * scale; });
        } else if (store && warp == G) {
            store_key(a, inputs, token, kv_head, turn, heads + G * D);
        } else if (store && warp == G + 1) {
            store_value(a, inputs, token, kv_head);
        }
        __syncthreads();

        int sub = lane % LANES, which = lane / LANES;
        bool in_key = sub * 8 < D, in_value = sub * 8 < V;
        float q[G][8], sum[G][8] = {}, most[G], weight[G] = {};
#pragma unroll
        for (int h = 0; h < G; h++) {
            most[h] = -INFINITY;
#pragma unroll
            for (int i = 0; i < 8; i++) q[h][i] = in_key ? queries[h * D + sub * 8 + i] : 0.f;
        }
        const u32* pages = pages_of(inputs, token);
        for (int at = begin + warp * KEYS * UNROLL; at < end; at += WARPS * KEYS * UNROLL) {
            Words4 key[UNROLL], value[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int i = at + u * KEYS + which;
                key[u] = {0, 0, 0, 0}, value[u] = {0, 0, 0, 0};
                if (i < end) {
                    long slot = ((long)pages[i / PAGE_LEN] * a.kv_heads + kv_head) * PAGE_LEN + i % PAGE_LEN;
                    if (in_key) key[u] = load_words4(a.keys + slot * D + sub * 8);
                    if (in_value) value[u] = load_words4(a.values + slot * V + sub * 8);
                }
            }
            float scores[UNROLL][G];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                float k[8];
                to_floats(k, key[u]);
                bool real = at + u * KEYS + which < end;
#pragma unroll
                for (int h = 0; h < G; h++) {
                    float score = 0;
#pragma unroll
                    for (int i = 0; i < 8; i++) score += q[h][i] * k[i];
#pragma unroll
                    for (int step = LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffff, score, step);
                    if (a.softcap > 0) score = a.softcap * tanhf(score / a.softcap) * LOG2E;
                    scores[u][h] = real ? score : -INFINITY;
                }
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
                to_floats(v, value[u]);
#pragma unroll
                for (int h = 0; h < G; h++)
#pragma unroll
                    for (int i = 0; i < 8; i++) sum[h][i] += scores[u][h] * v[i];
            }
        }
        // the keys of a warp's lane groups, then those of the warps
#pragma unroll
        for (int h = 0; h < G; h++) {
#pragma unroll
            for (int step = LANES; step < 32; step *= 2) {
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
            float* share = shares + (warp * G + h) * (V + 2);
            if (lane == 0) share[0] = most[h], share[1] = weight[h];
            if (which == 0 && in_value)
#pragma unroll
                for (int i = 0; i < 8; i++) share[2 + sub * 8 + i] = sum[h][i];
        }
        __syncthreads();
        float* y = a.y.at + token * a.y.stride + first_head * V;
        float* mine = partial + (long)split * G * (V + 2);
        for (int i = threadIdx.x; i < G * V; i += THREADS) {
            int h = i / V, d = i % V;
            float top, total, value;
            combine(shares + h * (V + 2), WARPS, G * (V + 2), d, top, total, value);
            if (splits == 1) {
                y[i] = value / total;
            } else {
                mine[h * (V + 2) + 2 + d] = value;
                if (d == 0) mine[h * (V + 2)] = top, mine[h * (V + 2) + 1] = total;
            }
        }
        if (splits == 1) {
            __syncthreads(); // the room is used again
            return;
        }
        u32* last = (u32*)room;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) *last = atomicAdd(arrivals, 1);
        __syncthreads();
        if (*last == splits - 1) {
            __threadfence();
            for (int i = threadIdx.x; i < G * V; i += THREADS) {
                float top, total, value;
                combine(partial + i / V * (V + 2), splits, G * (V + 2), i % V, top, total, value);
                y[i] = value / total;
            }
            if (threadIdx.x == 0) *arrivals = 0;
        }
        __syncthreads();
    }

    // Column d of `count` shares, each with its largest score, its weight, and its sums.
    static DEVICE void combine(const float* shares, int count, int stride, int d, float& top, float& total, float& value) {
        top = -INFINITY, total = 0, value = 0;
        for (int i = 0; i < count; i++) top = fmaxf(top, load_any(shares + i * stride));
        float base = top == -INFINITY ? 0.f : top;
        for (int i = 0; i < count; i++) {
            float keep = exp2_fast(load_any(shares + i * stride) - base);
            total += keep * load_any(shares + i * stride + 1);
            value += keep * load_any(shares + i * stride + 2 + d);
        }
    }

    // From shared memory or from what another block has just written.
    static DEVICE float load_any(const float* at) { return *(const volatile float*)at; }

    static DEVICE void run(const AttendArgs& a, const u32* inputs, bool store, const float2* turns, int turn_stride, float* room, int block, int blocks) {
        int tokens = inputs[TOKENS], groups = a.heads / a.kv_heads / G, heads = a.kv_heads * groups;
        int most_splits = max(1, blocks / (tokens * heads));
        for (int u = block; u < tokens * heads * most_splits; u += blocks) {
            int token = u / (heads * most_splits), head = u / most_splits % heads, split = u % most_splits;
            int position = position_of(inputs, token);
            int keys = a.window > 0 ? min(position + 1, a.window) : position + 1;
            int splits = min(most_splits, (keys + SPLIT_KEYS - 1) / SPLIT_KEYS);
            if (split >= splits) continue;
            int kv_head = head / groups, first_head = kv_head * groups * G + head % groups * G;
            // the split that has the token's own key stores it; other query groups of the same key head wait for no one,
            // they make it themselves
            unit(a, inputs, token, kv_head, first_head, split, splits, store && split == splits - 1, turns + token * turn_stride, room,
                 a.partial + (long)(token * heads + head) * most_splits * G * (V + 2), a.arrivals + token * heads + head);
        }
    }
};
