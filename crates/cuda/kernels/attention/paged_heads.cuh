// Heads before attention of many tokens: equals make_head of heads.cuh, with q as halves and keys and values in pages.

#pragma once

#include "attention/paged_attention.cuh"

// Four neighbouring columns of a head per lane, and four more in every further 128. STORED: columns in memory,
// the last of which are zeros.
template <int D, int STORED> struct HeadQuads {
    static constexpr int N = (STORED + 127) / 128;
    static_assert(D % 4 == 0 && STORED % 4 == 0, "columns are read and written by four");
    float v[N][4];

    static DEVICE int column(int n) { return n * 128 + threadIdx.x % 32 * 4; }
    static DEVICE bool has(int n) { return D % 128 == 0 || column(n) < D; }
    static DEVICE bool stores(int n) { return STORED % 128 == 0 || column(n) < STORED; }

    DEVICE void load(const float* from) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            float4 x = {0, 0, 0, 0};
            if (has(n)) x = load_floats4(from + column(n));
            v[n][0] = x.x, v[n][1] = x.y, v[n][2] = x.z, v[n][3] = x.w;
        }
    }

    DEVICE void norm(const HeadArgs& h) {
        if (!h.norm) return;
        float squares = 0;
#pragma unroll
        for (int n = 0; n < N; n++)
            squares += v[n][0] * v[n][0] + v[n][1] * v[n][1] + (v[n][2] * v[n][2] + v[n][3] * v[n][3]);
        float factor = norm_factor(warp_sum(squares), D, h.eps);
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (!has(n)) continue;
            float4 w = *(const float4*)(h.norm_weight + column(n));
            v[n][0] *= factor * w.x, v[n][1] *= factor * w.y, v[n][2] *= factor * w.z, v[n][3] *= factor * w.w;
        }
    }

    // `turn`: cosine and sine of each pair; `scratch`: D floats of the warp.
    DEVICE void rotate(const AttendArgs& a, const float2* turn, float* scratch) {
        if (!a.pairs) return;
#pragma unroll
        for (int n = 0; n < N; n++)
            if (has(n)) *(float4*)(scratch + column(n)) = {v[n][0], v[n][1], v[n][2], v[n][3]};
        __syncwarp();
#pragma unroll
        for (int n = 0; n < N; n++) {
            int k = column(n);
            if (k >= 2 * a.pairs) continue;
            if (a.pairs % 4 == 0) {
                float x[4] = {v[n][0], v[n][1], v[n][2], v[n][3]};
                if (a.interleaved) {
                    float4 t = *(const float4*)(turn + k / 2);
                    v[n][0] = x[0] * t.x - x[1] * t.y, v[n][1] = x[0] * t.y + x[1] * t.x;
                    v[n][2] = x[2] * t.z - x[3] * t.w, v[n][3] = x[2] * t.w + x[3] * t.z;
                } else { // all columns in the first, or in the second half
                    int pair = k < a.pairs ? k : k - a.pairs;
                    float4 other = *(const float4*)(scratch + (k < a.pairs ? k + a.pairs : pair));
                    float4 t = *(const float4*)(turn + pair), u = *(const float4*)(turn + pair + 2);
                    float sign = k < a.pairs ? -1.f : 1.f;
                    v[n][0] = x[0] * t.x + sign * other.x * t.y, v[n][1] = x[1] * t.z + sign * other.y * t.w;
                    v[n][2] = x[2] * u.x + sign * other.z * u.y, v[n][3] = x[3] * u.z + sign * other.w * u.w;
                }
#pragma unroll
                for (int i = 0; i < 4; i++) v[n][i] *= a.magnitude;
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (k + i >= 2 * a.pairs) continue;
                    int second = a.interleaved ? i % 2 : k + i >= a.pairs;
                    int pair = a.interleaved ? (k + i) / 2 : second ? k + i - a.pairs : k + i;
                    float x0 = scratch[a.interleaved ? 2 * pair : pair],
                          x1 = scratch[a.interleaved ? 2 * pair + 1 : pair + a.pairs];
                    float2 t = turn[pair];
                    v[n][i] = (second ? x0 * t.y + x1 * t.x : x0 * t.x - x1 * t.y) * a.magnitude;
                }
            }
        }
        __syncwarp();
    }

    // Whether all values of the warp are finite.
    DEVICE bool all_finite() const {
        float zero = 0;
#pragma unroll
        for (int n = 0; n < N; n++) zero += v[n][0] * 0.f + v[n][1] * 0.f + (v[n][2] * 0.f + v[n][3] * 0.f);
        return __all_sync(0xffffffff, zero == 0.f);
    }

    // As halves, times a factor; AS_BYTES: in the order of bytes, where lane q of the matrix unit has columns 4q .. 4q
    // + 3 of 16.
    template <bool FINITE, bool AS_BYTES = false> DEVICE void store_halves(u16* to, float by) const {
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (!stores(n)) continue;
            u32 low = to_half2<FINITE>(v[n][0] * by, v[n][1] * by), high = to_half2<FINITE>(v[n][2] * by, v[n][3] * by);
            int k = column(n);
            if constexpr (AS_BYTES) {
                u32* pairs = (u32*)(to + (k & ~15)) + (k >> 2 & 3);
                pairs[0] = low, pairs[4] = high;
            } else {
                *(uint2*)(to + k) = {low, high};
            }
        }
    }

    // As bytes; returns their scale. Numbers that are not finite become finite ones.
    template <int CELL> DEVICE float store_bytes(u8* to) {
        constexpr float MOST = CELL == INT8_CELLS ? 127 : 448;
        float most = 0;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) v[n][i] = in_range_of_halves<true>(v[n][i]), most = fmaxf(most, fabsf(v[n][i]));
        most = warp_max(most);
        float scale = most / MOST,
              by = scale > 0 ? 1.f / scale : 0.f; // a scale of 1 / 2^127 or less would have no inverse
        if (!is_finite(by)) scale = by = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (!stores(n)) continue;
            u32 word = 0;
            if constexpr (CELL == INT8_CELLS) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    word |= (u32)(min(max(__float2int_rn(v[n][i] * by), -127), 127) & 0xff) << 8 * i;
            } else {
                auto within = [&](float x) { return fminf(fmaxf(x * by, -448.f), 448.f); };
                word = to_e4m3(within(v[n][0]), within(v[n][1])) | to_e4m3(within(v[n][2]), within(v[n][3])) << 16;
            }
            *(u32*)(to + column(n)) = word;
        }
        return scale;
    }
};

// A warp makes a query head, or the key and the value of a key head.
template <int D, int V, bool CAP, int CELL> struct PagedHeads {
    static constexpr int KEY_CELLS = in_cells(D), VALUE_CELLS = in_cells(V);
    using Key = HeadQuads<D, KEY_CELLS>;
    using Value = HeadQuads<V, VALUE_CELLS>;

    static DEVICE void query(const PagedAttendArgs& p, int token, int head, const float2* turn, float* scratch) {
        const AttendArgs& a = p.attend;
        Key q;
        q.load(row_of(a.q.x, token) + head * D);
        q.norm(a.q);
        q.rotate(a, turn, scratch);
        float scale = scale_at(a, position_of(p.inputs, token));
        q.template store_halves<false, CELL != HALF_CELLS>(p.q + ((long)token * a.heads + head) * KEY_CELLS,
                                                           CAP ? scale : scale * LOG2E);
    }

    // Values in pages are finite, since masked keys multiply them by zero: if one is not, its key becomes NaN instead.
    static DEVICE void key_and_value(const PagedAttendArgs& p, int token, int head, long slot, const float2* turn,
                                     float* scratch) {
        const AttendArgs& a = p.attend;
        Value v;
        Key k;
        v.load(row_of(a.v, token) + head * V);
        k.load(row_of(a.k.x, token) + head * D);
        k.norm(a.k);
        k.rotate(a, turn, scratch);
        bool finite = v.all_finite();
        if constexpr (CELL == HALF_CELLS) {
            if (!finite)
#pragma unroll
                for (int n = 0; n < Key::N; n++)
                    k.v[n][0] = k.v[n][1] = k.v[n][2] = k.v[n][3] = __int_as_float(0x7fc00000);
            k.template store_halves<false>(a.keys + slot * KEY_CELLS, 1);
            v.template store_halves<true>(a.values + slot * VALUE_CELLS, 1);
        } else {
            finite &= k.all_finite();
            float key_scale = k.template store_bytes<CELL>((u8*)a.keys + slot * KEY_CELLS),
                  value_scale = v.template store_bytes<CELL>((u8*)a.values + slot * VALUE_CELLS);
            if (threadIdx.x % 32 == 0)
                p.key_scales[slot] = finite ? key_scale : __int_as_float(0x7fc00000),
                p.value_scales[slot] = value_scale;
        }
    }
};
