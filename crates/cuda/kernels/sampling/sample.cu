// Sampling: the same numbers as graph/sampling/sample.rs in every step, so that a row gives the same token.
//
// The slow equivalent for one row:
//     a NaN or an infinity among the logits: no token                                      sample_best
//     x = logits; x[i] = -inf if the mask lacks bit i;   x += bias; x = penalised(x)        sample_best
//     best = the highest x, the lowest id among equals; greedy rows take it                 sample_best
//     w[i] = round(exp((x[i] - x[best]) / temperature) * 2^30), 0 below the floor           sample_draw, every block
//     sort by (w descending, id ascending); keep the first top_k;                           sample_draw, the last block
//     keep the first whose sum reaches ceil(top_p * sum(w))
//     in the order of the ids, take the one at which the running sum passes floor(draw * sum(w))
// Sums and counts are integers: they are the same in any order. The cut is a weight and the number of tokens of exactly this
// weight that are kept, the lowest ids first; it is found digit by digit, without sorting.
//
// Grid of both kernels: (blocks of BLOCK_IDS ids, rows from `first` on). The last block of a row to finish continues alone.

#include "base/common.cuh"
#include "host/shared.cuh"

// Above the rank of every token: a logit of the row is not finite.
constexpr u64 NOT_FINITE = ~0ull;

// Logits as integers in the same order. -0 counts as 0; a token that cannot be sampled has rank 0.
DEVICE u64 rank(float x, u32 id) {
    if (!(x > -INFINITY)) return 0;
    u32 bits = __float_as_uint(x == 0.f ? 0.f : x);
    return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | (u32)~id;
}

DEVICE float ranked(u64 rank) {
    u32 bits = (u32)(rank >> 32);
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// `weight` of graph/sampling/choice.rs: each operation is rounded separately.
DEVICE u32 weight_of(float d) {
    d = d > -25.f ? d : -25.f;
    float shifted = __fadd_rn(__fmul_rn(d, 1.44269504f), 12582912.f);
    float n = __fsub_rn(shifted, 12582912.f);
    float r = __fsub_rn(__fsub_rn(d, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, -2.12194440e-4f));
    const float terms[] = {1.3982e-3f, 8.333452e-3f, 4.1665796e-2f, 0.16666665f, 0.5f};
    float p = 1.9875691e-4f;
#pragma unroll
    for (int i = 0; i < 5; i++) p = __fadd_rn(__fmul_rn(p, r), terms[i]);
    float e = __fadd_rn(__fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r), 1.f);
    float power = __uint_as_float((__float_as_uint(shifted) << 23) + (157u << 23));
    return __float2uint_rn(__fmul_rn(e, power));
}

// A number of tokens and their weight.
struct Tally {
    u64 weight;
    u32 count;
    DEVICE Tally operator+(Tally b) const { return {weight + b.weight, count + b.count}; }
};

// The sum over the threads of this warp before this one.
DEVICE Tally warp_before(Tally own, int lane) {
    Tally sum = own;
    for (int step = 1; step < 32; step *= 2) {
        Tally other = {__shfl_up_sync(0xffffffff, sum.weight, step), __shfl_up_sync(0xffffffff, sum.count, step)};
        if (lane >= step) sum = sum + other;
    }
    return {sum.weight - own.weight, sum.count - own.count};
}

// The same in the whole block; `scratch` may be used again after a barrier.
DEVICE Tally block_before(Tally own, Tally* scratch) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Tally before = warp_before(own, lane);
    if (lane == 31) scratch[warp] = before + own;
    __syncthreads();
    Tally other = lane < warp ? scratch[lane] : Tally{0, 0};
    return before + Tally{warp_sum(other.weight), (u32)warp_sum((u64)other.count)};
}

// Whether this is the last block of a row to arrive; it then sees what the others have written.
DEVICE bool is_last(u32* arrivals) {
    __shared__ u32 before;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); // orders the block's writes before its arrival
        before = atomicAdd(arrivals, 1);
        __threadfence(); // orders the arrivals before later reads
        if (before + 1 == gridDim.x) *arrivals = 0;
    }
    __syncthreads();
    return before + 1 == gridDim.x;
}

// The first of `count` pairs whose id is at least `id`.
DEVICE u32 first_pair(const u32* pairs, u32 count, u32 id) {
    u32 low = 0;
    while (low < count) {
        u32 middle = (low + count) / 2;
        if (pairs[2 * middle] < id) low = middle + 1;
        else count = middle;
    }
    return low;
}

// Calls `change(x, value)` for each pair of the tile's ids; one thread has all pairs of an id, in order.
template <class F> DEVICE void each_pair(float* tile, u32 from, const u32* pairs, u32 count, F change) {
    for (u32 i = first_pair(pairs, count, from) + threadIdx.x; i < count; i += SAMPLE_THREADS) {
        u32 id = pairs[2 * i];
        if (id >= from + BLOCK_IDS) break;
        if (i > 0 && pairs[2 * i - 2] == id) continue;
        float x = tile[id - from];
        for (u32 j = i; j < count && pairs[2 * j] == id; j++) x = change(x, pairs[2 * j + 1]);
        tile[id - from] = x;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS, 1) sample_best(const SampleArgs a) {
    __shared__ float tile[BLOCK_IDS];
    __shared__ u64 scratch[BLOCK_RUNS];
    wait_for_launches();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x;
    long slot = blockIdx.y, at = a.first + slot;
    const SampleRow row = ((const SampleRow*)a.words)[at];
    if (!(row.what & CHOOSE)) {
        if (blockIdx.x == 0 && threadIdx.x == 0) a.chosen[at] = -1;
        return;
    }
    u32 from = blockIdx.x * BLOCK_IDS, first = from + warp * RUN + lane; // this thread's ids: first + 0, 32, 64, 96
    float x[4];
    u64 best = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 id = first + 32 * i, word = id / 32;
        x[i] = id < (u32)a.width ? a.logits[at * a.stride + id] : -INFINITY;
        if (id < (u32)a.width && !is_finite(x[i])) best = NOT_FINITE;
        if ((row.what & MASKED) && !(word < row.mask_words && (a.words[row.mask + word] >> lane & 1))) x[i] = -INFINITY;
    }
    if (row.what & ADJUSTED) {
#pragma unroll
        for (int i = 0; i < 4; i++) tile[first + 32 * i - from] = x[i];
        __syncthreads();
        each_pair(tile, from, a.words + row.bias, row.bias_count,
                  [&](float x, u32 by) { return __fadd_rn(x, __uint_as_float(by)); });
        each_pair(tile, from, a.words + row.seen, row.seen_count, [&](float x, u32 times) {
            x = x > 0.f ? fminf(__fdiv_rn(x, row.repetition), 3.402823466e38f) : __fmul_rn(x, row.repetition);
            float often = __fmul_rn(row.frequency, __uint2float_rn(times));
            return __fsub_rn(x, __fadd_rn(often, times > 0 ? row.presence : 0.f));
        });
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = tile[first + 32 * i - from];
    }
    bool changed = (row.what & (MASKED | ADJUSTED)) && !(row.what & GREEDY);
    float* copy = (float*)a.weights + slot * blocks * BLOCK_IDS;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (changed) copy[first + 32 * i] = x[i];
        best = max(best, rank(x[i], first + 32 * i));
    }
    best = warp_max(best);
    if (lane == 0) scratch[warp] = best;
    __syncthreads();
    u64* bests = a.best + slot * blocks;
    if (warp == 0) {
        best = warp_max(scratch[lane]);
        if (lane == 0) bests[blockIdx.x] = best;
    }
    if (!is_last(a.arrivals + slot) || warp > 0) return;
    best = 0;
    for (int i = lane; i < blocks; i += 32) best = max(best, bests[i]);
    best = warp_max(best);
    if (lane > 0) return;
    if (best == NOT_FINITE) best = 0;
    bests[0] = best;
    if (best == 0) a.chosen[at] = -1;
    else if (row.what & GREEDY) a.chosen[at] = (int)~(u32)best;
}

// One row's weights, for the block that continues with it.
struct RowWeights {
    const u32 *weights, *peaks;
    int runs;

    // Each warp calls `each(run, words)` for its runs with a weight of at least `least`, with four words per lane.
    template <class F> DEVICE void visit(u32 least, F each) const {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        for (int group = warp * 32; group < runs; group += BLOCK_RUNS * 32) {
            u32 left = __ballot_sync(0xffffffff, peaks[group + lane] >= least);
            while (left) {
                int run[4]; // several at a time, to hide latency
                uint4 four[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    run[i] = left ? group + __ffs(left) - 1 : -1;
                    left &= left - 1;
                    if (run[i] >= 0) four[i] = ((const uint4*)(weights + (long)run[i] * RUN))[lane];
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 words[4] = {four[i].x, four[i].y, four[i].z, four[i].w};
                    if (run[i] >= 0) each(run[i], words);
                }
            }
        }
    }
};

// Per digit: the number of tokens, and the sum of their weights below the digit, in two parts that do not overflow.
enum { DIGITS = 1025 };
struct Search {
    u32 count[DIGITS], high[DIGITS], low[DIGITS];
    Tally scratch[BLOCK_RUNS], above;
    u32 digit;
};

struct Found { u32 weight; Tally above; };

// The highest weight at which the tokens of this weight or more reach `want`, by number or by weight, and the tally above
// it; weight 0 if all together do not. The caller knows that it is at least `least`, or 0.
DEVICE Found find(const RowWeights& row, Search& s, bool by_weight, u64 want, u32 least) {
    Found at = {0, {0, 0}};
#pragma unroll 1
    for (int shift = 20; shift >= 0; shift -= 10) {
        for (int i = threadIdx.x; i < DIGITS; i += SAMPLE_THREADS) s.count[i] = s.high[i] = s.low[i] = 0;
        __syncthreads();
        // digit 0 is what remains if the others do not suffice: most tokens have it and need not be visited
        u32 from = max(at.weight + (1u << shift), least);
        u32 end = shift == 20 ? 0xffffffffu : at.weight + (1u << (shift + 10));
        row.visit(from, [&](int, const u32 (&words)[4]) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 w = words[i];
                if (w < from || w >= end) continue;
                u32 digit = (w - at.weight) >> shift, rest = w & ((1u << shift) - 1);
                atomicAdd(&s.count[digit], 1);
                if (rest >> 10) atomicAdd(&s.high[digit], rest >> 10);
                if (rest & 1023) atomicAdd(&s.low[digit], rest & 1023);
            }
        });
        __syncthreads();
        u32 digit = DIGITS - 1 - threadIdx.x, count = s.count[digit];
        u64 each = at.weight + (digit << shift);
        Tally own = {count * each + ((u64)s.high[digit] << 10) + s.low[digit], count};
        Tally before = at.above + block_before(own, s.scratch), with = before + own;
        u64 had = by_weight ? before.weight : before.count, has = by_weight ? with.weight : with.count;
        if (had < want && want <= has) s.digit = digit, s.above = before;
        if (threadIdx.x == SAMPLE_THREADS - 1 && has < want) s.digit = 0, s.above = with;
        __syncthreads();
        at.weight += s.digit << shift, at.above = s.above;
    }
    return at;
}

// What is kept: all weights above `weight`, and the `ties` lowest ids of those that equal it.
struct Cut {
    u32 weight, ties;
    u64 total;
    DEVICE u64 kept(Tally t) const { return t.weight + (u64)min(t.count, ties) * weight; }
};

// What one token adds: its weight if it is above the cut, or a tie.
DEVICE Tally tally(const Cut& cut, u32 w) {
    return {w > cut.weight ? w : 0u, w == cut.weight && w > 0 ? 1u : 0u};
}

// Top-k, then top-p of the tokens that top-k keeps.
DEVICE Cut find_cut(const RowWeights& weights, Search& s, const SampleRow& row, u64 total) {
    Cut cut = {0, 0, total};
#pragma unroll 1
    for (int top_p = 0; top_p < 2; top_p++) {
        if (top_p ? row.top_p >= 1.f : row.top_k == 0) continue;
        u64 limit = max(__double2ull_ru(__dmul_rn((double)row.top_p, (double)cut.total)), 1ull);
        Found found = find(weights, s, top_p, top_p ? limit : row.top_k, max(cut.weight, 1u));
        if (found.weight == 0) continue; // no more than top_k tokens
        u64 missing = limit - found.above.weight;
        u32 ties = top_p ? (u32)((missing + found.weight - 1) / found.weight) : row.top_k - found.above.count;
        cut = {found.weight, ties, found.above.weight + (u64)ties * found.weight};
    }
    return cut;
}

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS, 1) sample_draw(const SampleArgs a) {
    __shared__ Search s;
    __shared__ Tally before_run;
    __shared__ int chosen_run;
    wait_for_launches();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x, runs = blocks * BLOCK_RUNS;
    long slot = blockIdx.y, at = a.first + slot;
    const SampleRow row = ((const SampleRow*)a.words)[at];
    if ((row.what & (CHOOSE | GREEDY)) != CHOOSE) return;
    u64 best = a.best[slot * blocks];
    if (best == 0) return;
    float most = ranked(best);
    u32* weights = a.weights + slot * blocks * BLOCK_IDS;
    u32* peaks = a.peaks + slot * runs;
    u32* ties = a.ties + slot * runs;
    u64* sums = a.sums + slot * runs;

    bool changed = row.what & (MASKED | ADJUSTED);
    const float* logits = changed ? (const float*)weights : a.logits + at * a.stride;
    int first = blockIdx.x * BLOCK_IDS + warp * RUN + lane;
    u32 peak = 0;
    u64 sum = 0;
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = first + 32 * i < a.width ? logits[first + 32 * i] : -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 w = weight_of(__fdiv_rn(__fsub_rn(x[i], most), row.temperature));
        if (w < row.floor) w = 0;
        weights[first + 32 * i] = w;
        peak = max(peak, w), sum += w;
    }
    sum = warp_sum(sum), peak = (u32)warp_max((u64)peak);
    if (lane == 0) peaks[first / RUN] = peak, sums[first / RUN] = sum;
    if (!is_last(a.arrivals + slot)) return;

    // from here on one block has the row
    RowWeights all = {weights, peaks, runs};
    int share = (runs + SAMPLE_THREADS - 1) / SAMPLE_THREADS; // neighbouring runs per thread
    int from = min((int)threadIdx.x * share, runs), to = min(from + share, runs);
    Tally own = {0, 0};
    for (int i = from; i < to; i++) own.weight += sums[i];
    Tally before = block_before(own, s.scratch);
    if (threadIdx.x == SAMPLE_THREADS - 1) s.above = before + own;
    __syncthreads();
    u64 total = s.above.weight;
    if (total == 0) { // beside an infinite logit all weights are 0
        if (threadIdx.x == 0) a.chosen[at] = -1;
        return;
    }
    Cut cut = find_cut(all, s, row, total);
    if (cut.weight > 0) {
        for (int i = threadIdx.x; i < runs; i += SAMPLE_THREADS)
            if (peaks[i] < cut.weight) sums[i] = 0, ties[i] = 0;
        all.visit(cut.weight, [&](int run, const u32 (&words)[4]) {
            Tally t = {0, 0};
#pragma unroll
            for (int i = 0; i < 4; i++) t = t + tally(cut, words[i]);
            t = {warp_sum(t.weight), (u32)warp_sum((u64)t.count)};
            if (lane == 0) sums[run] = t.weight, ties[run] = t.count;
        });
        __syncthreads();
        own = {0, 0};
        for (int i = from; i < to; i++) own = own + Tally{sums[i], ties[i]};
        before = block_before(own, s.scratch);
    }
    u64 target = min(__double2ull_rd(__dmul_rn((double)row.draw, (double)cut.total)), cut.total - 1);
    if (cut.kept(before) <= target && target < cut.kept(before + own)) {
        int run = from;
        for (;; run++) {
            Tally next = before + Tally{sums[run], cut.weight > 0 ? ties[run] : 0};
            if (target < cut.kept(next)) break;
            before = next;
        }
        chosen_run = run, before_run = before;
    }
    __syncthreads();
    if (warp > 0) return;
    uint4 four = ((const uint4*)(weights + (long)chosen_run * RUN))[lane];
    u32 words[4] = {four.x, four.y, four.z, four.w};
    own = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) own = own + tally(cut, words[i]);
    before = before_run + warp_before(own, lane);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        Tally next = before + tally(cut, words[i]);
        if (cut.kept(before) <= target && target < cut.kept(next)) a.chosen[at] = chosen_run * RUN + lane * 4 + i;
        before = next;
    }
}
