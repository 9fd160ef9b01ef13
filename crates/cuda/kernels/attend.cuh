// Attention over pages: equals Op::Attend of graph/reference.rs, with the norm and rotation of its heads before it.
//
// A block has a unit (ring.cuh) at a time. Warps make its query heads and the keys of this step. Older keys come through
// the ring, KEYS at a time: scores are K q^T and sums V^T p^T on the matrix unit, the queries its columns. What warps have
// meets in shared memory; splits leave what they have in `partial`, and the last to arrive puts them together.

constexpr int OWNERS = 8; // warps that take older keys
constexpr int NEW_KEYS = 4; // of a step at most; the warps after the owners make them
constexpr float LOG2E = 1.4426950408889634f;

DEVICE u32 pair_halves(u32 first, u32 second, bool high) { return __byte_perm(first, second, high ? 0x7632 : 0x5410); }

// D, V: columns of key and value heads, multiples of 8; G: query heads of a unit, at most 8.
template <int D, int V, int G> struct Attention {
    static constexpr int STEPS = (D + 31) / 32;
    // a warp has so many blocks of 64 columns of the values; where that is not all, two share a slot
    static constexpr int SHARERS = V > 128 ? 2 : 1, BLOCKS = (V / SHARERS + 63) / 64, TILES = BLOCKS / 2 * 8 + BLOCKS % 2 * 4;
    static constexpr int TAKERS = OWNERS / SHARERS; // slot s is for warps s % TAKERS * SHARERS and after it
    static constexpr bool EVEN = BLOCKS * 64 * SHARERS == V;

    struct Room {
        float made[OWNERS + NEW_KEYS][D]; // heads on the way
        u16 q[G][D + 8];                  // scaled; rows not in the same banks
        float key[NEW_KEYS][D], value[NEW_KEYS][V];
        float2 tops[TAKERS + NEW_KEYS][G]; // largest score, and weight
        float sums[TAKERS][G][V];
    };
    static_assert(sizeof(Room) <= ARENA, "the host has made room");

    // What a warp has found out: lane (g, q) has queries 2q and 2q + 1, and of every 64 of its columns 8g to 8g + 7.
    struct Found {
        float sum[TILES][4], most[2], weight[2];

        static DEVICE int first_column() { return SHARERS == 1 ? 0 : threadIdx.x / 32 % SHARERS * BLOCKS * 64; }

        DEVICE void clear() {
#pragma unroll
            for (int t = 0; t < TILES; t++) sum[t][0] = sum[t][1] = sum[t][2] = sum[t][3] = 0;
            most[0] = most[1] = -INFINITY, weight[0] = weight[1] = 0;
        }

        // Takes in the keys of a slot, of which the first is `key`; those before `from` and from `end` on do not count.
        DEVICE void take_in(const u8* slot, const uint4 (&query)[STEPS], int key, int from, int end, float softcap) {
            int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, mine = first_column() + 8 * g;
            float even[4] = {}, odd[4] = {};
#pragma unroll
            for (int j = 0; j < STEPS; j++) { // the order of columns is the same for keys and queries, and free
                uint4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
                const u8* at = slot + (g * D + 32 * j + 8 * q) * 2;
                if (D % 32 == 0 || 32 * j + 8 * q < D) a = *(const uint4*)at, b = *(const uint4*)(at + 8 * D * 2);
                multiply(even, a.x, b.x, a.y, b.y, query[j].x, query[j].y);
                multiply(odd, a.z, b.z, a.w, b.w, query[j].z, query[j].w);
            }
            bool whole = key >= from && key + KEYS <= end;
            float p[4], keep[2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                p[i] = even[i] + odd[i];
                if (softcap > 0) p[i] = softcap * tanhf(p[i] / softcap) * LOG2E;
                int k = key + g + i / 2 * 8;
                if (!whole && (k < from || k >= end)) p[i] = -INFINITY;
            }
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float next = fmaxf(p[c], p[c + 2]);
#pragma unroll
                for (int step = 4; step < 32; step *= 2) next = fmaxf(next, __shfl_xor_sync(0xffffffff, next, step));
                next = fmaxf(next, most[c]);
                float base = next == -INFINITY ? 0.f : next; // no key counts so far
                keep[c] = exp2_fast(most[c] - base), most[c] = next;
                p[c] = exp2_fast(p[c] - base), p[c + 2] = exp2_fast(p[c + 2] - base);
                weight[c] = weight[c] * keep[c] + p[c] + p[c + 2];
            }
            if (__any_sync(0xffffffff, keep[0] != 1.f || keep[1] != 1.f)) {
#pragma unroll
                for (int t = 0; t < TILES; t++) sum[t][0] *= keep[0], sum[t][1] *= keep[1], sum[t][2] *= keep[0], sum[t][3] *= keep[1];
            }
            u32 b0 = turned(to_half2(p[0], p[1])), b1 = turned(to_half2(p[2], p[3]));
            const u8* values = slot + KEYS * D * 2;
            // four of the lane's columns in block `b` of its four keys
            auto four = [&](uint2 (&v)[4], int b, int half) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int k = 2 * q + i % 2 + i / 2 * 8;
                    v[i] = {0, 0};
                    if ((EVEN || mine + 64 * b < V) && (whole || (key + k >= from && key + k < end))) // what was never written may be no number
                        v[i] = *(const uint2*)(values + (k * V + mine + 64 * b + 4 * half) * 2);
                }
            };
            auto column = [](const uint2 (&v)[4], int i, int t) { // of keys i and i + 1
                return pair_halves(t / 2 ? v[i].y : v[i].x, t / 2 ? v[i + 1].y : v[i + 1].x, t % 2);
            };
            uint2 low[4], high[4];
#pragma unroll
            for (int b = 0; b + 1 < BLOCKS; b += 2)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    four(low, b, half), four(high, b + 1, half);
#pragma unroll
                    for (int t = 0; t < 4; t++)
                        multiply(sum[b / 2 * 8 + half * 4 + t], column(low, 0, t), column(high, 0, t), column(low, 2, t), column(high, 2, t), b0, b1);
                }
            if constexpr (BLOCKS % 2) {
                four(low, BLOCKS - 1, 0), four(high, BLOCKS - 1, 1);
#pragma unroll
                for (int t = 0; t < 4; t++)
                    multiply(sum[TILES - 4 + t], column(low, 0, t), column(high, 0, t), column(low, 2, t), column(high, 2, t), b0, b1);
            }
        }

        DEVICE void leave(Room& room, int taker) {
            int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, mine = first_column() + 8 * g;
#pragma unroll
            for (int c = 0; c < 2; c++) {
#pragma unroll
                for (int step = 4; step < 32; step *= 2) weight[c] += __shfl_xor_sync(0xffffffff, weight[c], step);
                int h = 2 * q + c;
                if (h >= G) continue;
                if (g == 0) room.tops[taker][h] = {most[c], weight[c]};
                float* to = room.sums[taker][h] + mine;
                auto put = [&](int column, int tile, int i) { // four columns, of four tiles
                    if (EVEN || mine + column < V) *(float4*)(to + column) = {sum[tile][i], sum[tile + 1][i], sum[tile + 2][i], sum[tile + 3][i]};
                };
#pragma unroll
                for (int b = 0; b + 1 < BLOCKS; b += 2) {
                    put(64 * b, b * 4, c), put(64 * b + 4, b * 4 + 4, c);
                    put(64 * b + 64, b * 4, c + 2), put(64 * b + 68, b * 4 + 4, c + 2);
                }
                if constexpr (BLOCKS % 2) put(64 * BLOCKS - 64, TILES - 4, c), put(64 * BLOCKS - 60, TILES - 4, c + 2);
            }
        }
    };

    // Heads of a unit: its queries, and, where it has the last split, this step's keys and values of its sequence, of which
    // one is the token's own and is kept.
    static DEVICE void make_heads(const AttendArgs& a, const Info& info, const Unit& u, int news, const float2* turns, Room& room) {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, made = warp - OWNERS;
        if (warp < G) {
            float scale = a.softcap > 0 ? a.scale : a.scale * LOG2E;
            int head = (u.kv_head * a.groups + u.group) * G + warp;
            make_head<D>(a.q, u.token, head, info.mark, a, turns + u.token * MOST_PAIRS, room.made[warp],
                         [&](int k, float v) { room.q[warp][k] = to_half(v * scale); });
        } else if (made >= 0 && made < news) {
            int token = u.token - (news - 1) + made, position = info.position[token];
            bool keep = token == u.token && u.group == 0;
            long slot = slot_of(a, info.pages[token], position, u.kv_head);
            const float* from = a.v.row(token) + u.kv_head * V;
            make_head<D>(a.k, token, u.kv_head, info.mark, a, turns + token * MOST_PAIRS, room.made[warp], [&](int k, float v) {
                u16 half = to_half(v);
                room.key[made][k] = to_float(half);
                if (keep) a.keys[slot * D + k] = half;
            });
            for (int k = lane; k < V; k += 32) {
                u16 half = to_half(take(from + k, a.v.mask, info.mark));
                room.value[made][k] = to_float(half);
                if (keep) a.values[slot * V + k] = half;
            }
        }
    }

    // Scores of a key of this step: by the warp that made it.
    static DEVICE void score_new(const AttendArgs& a, bool seen, Room& room) {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float scores[G] = {};
#pragma unroll
        for (int k = lane; k < D; k += 32)
#pragma unroll
            for (int h = 0; h < G; h++) scores[h] += to_float(room.q[h][k]) * room.key[warp - OWNERS][k];
#pragma unroll
        for (int h = 0; h < G; h++) {
            float score = warp_sum(scores[h]);
            if (a.softcap > 0) score = a.softcap * tanhf(score / a.softcap) * LOG2E;
            if (lane == 0) room.tops[warp - OWNERS + TAKERS][h] = {seen ? score : -INFINITY, seen ? 1.f : 0.f};
        }
    }

    // Four columns of `count` shares: `tops` and `sums` of share i.
    template <class Tops, class Sums> static DEVICE void combine(int count, Tops tops, Sums sums, float2& top, float4& value) {
        float most = -INFINITY, weight = 0;
        for (int i = 0; i < count; i++) most = fmaxf(most, tops(i).x);
        float base = most == -INFINITY ? 0.f : most;
        value = {0, 0, 0, 0};
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            float2 t = tops(i);
            if (t.y == 0.f) continue; // nothing was found, and nothing left
            float4 s = sums(i);
            float keep = exp2_fast(t.x - base);
            weight += keep * t.y;
            value.x += keep * s.x, value.y += keep * s.y, value.z += keep * s.z, value.w += keep * s.w;
        }
        top = {most, weight};
    }

    // Puts together what the block's warps have found, and the splits of all blocks where there are several.
    static DEVICE void finish(const AttendArgs& a, const Unit& u, int news, int most_splits, u32 mark, Room& room) {
        float* partial = a.partial + (long)u.index * most_splits * G * (V + 2);
        float2* split_tops = (float2*)(partial + u.splits * G * V);
        float* y = a.y.row(u.token) + (u.kv_head * a.groups + u.group) * G * V;
        auto write = [&](int i, const float2& top, const float4& v) {
            give4(y + i, {v.x / top.y, v.y / top.y, v.z / top.y, v.w / top.y}, a.y.mask, mark);
        };
        for (int i = threadIdx.x * 4; i < G * V; i += THREADS * 4) {
            int h = i / V, d = i % V;
            float2 top;
            float4 value;
            combine(TAKERS + news, [&](int n) { return room.tops[n][h]; },
                    [&](int n) { return *(const float4*)(n < TAKERS ? room.sums[n][h] + d : room.value[n - TAKERS] + d); }, top, value);
            if (u.splits == 1) {
                write(i, top, value);
            } else {
                *(float4*)(partial + u.split * G * V + i) = value;
                if (d == 0) split_tops[u.split * G + h] = top;
            }
        }
        if (u.splits == 1) return;
        u32* last = (u32*)(shared + AT_ROOM);
        __threadfence();
        sync_threads<THREADS>();
        if (threadIdx.x == 0) *last = atomicAdd(a.arrivals + u.index, 1);
        sync_threads<THREADS>();
        if (*last != u.splits - 1) return;
        __threadfence();
        for (int i = threadIdx.x * 4; i < G * V; i += THREADS * 4) {
            float2 top;
            float4 value;
            combine(u.splits, [&](int n) { return __ldcg(split_tops + n * G + i / V); },
                    [&](int n) { return __ldcg((const float4*)(partial + n * G * V + i)); }, top, value);
            write(i, top, value);
        }
        if (threadIdx.x == 0) a.arrivals[u.index] = 0;
    }

    // All units of a phase, from a place in the ring on; gives the place after them.
    static APART Ring units(int p, Ring ring, const float2* turns) {
        const AttendArgs& a = phase_at_hand(p).attend;
        const Info& info = info_of_step();
        Room& room = *(Room*)(shared + AT_ARENA);
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        Unit u;
        for (Units units(a, info); units.next(u, a, info);) {
            int position = info.position[u.token], news = u.split == u.splits - 1 ? position - info.first[u.token] + 1 : 0;
            make_heads(a, info, u, news, turns, room);
            sync_threads<THREADS>();
            int slots = u.slots();
            if (warp < OWNERS) {
                uint4 query[STEPS];
#pragma unroll
                for (int j = 0; j < STEPS; j++) {
                    query[j] = {0, 0, 0, 0};
                    int g = lane / 4, k = 32 * j + lane % 4 * 8;
                    if (g < G && k < D) query[j] = *(const uint4*)(room.q[g] + k);
                }
                Found found;
                found.clear();
                for (int i = 0; i < slots; i++, ring.next()) {
                    if (ring.at % TAKERS != warp / SHARERS) continue;
                    ring.full().wait(ring.round & 1);
                    found.take_in(ring.slot(), query, u.begin + i * KEYS, u.from, u.end, a.softcap);
                    ring.release_for(WARPS / SHARERS);
                }
                found.leave(room, warp / SHARERS);
            } else {
                if (warp - OWNERS < news) score_new(a, info.first[u.token] + warp - OWNERS >= u.from, room);
                ring.at += slots;
                while (ring.at >= SLOTS) ring.at -= SLOTS, ring.round++;
            }
            sync_threads<THREADS>();
            finish(a, u, news, units.most_splits, info.mark, room);
            sync_threads<THREADS>(); // the room is used again
        }
        return ring;
    }
};
