// Mixtures of experts: the experts of each token (route), the tokens of each expert (sort_experts), and the sum of their results (mix).
// They equal Op::Route and Op::Mix of graph/reference.rs; the products of experts are in tiled_linear.cu, and how a token's
// experts are chosen is in choose.cuh.
//
// A pair is a token and one of its experts, with the index token * used + i. Sorted rows are the pairs by expert; the rows of an
// expert begin at a multiple of EXPERT_ROWS.

#include "base/tagged.cuh"
#include "base/phase.cuh"
#include "experts/choose.cuh"

// The experts of one token, by a warp.
DEVICE void route_token(const RouteArgs& a, int token, RouteWorkspace& workspace) {
    float* y = row_of(a.y, token);
#pragma unroll 4
    for (int e = threadIdx.x % 32; e < a.experts; e += 32) workspace.logits[e] = load_float(row_of(a.logits, token) + e);
    choose(a, workspace, [&](int i, int expert, float weight) { y[i] = (float)expert, y[a.used + i] = weight; });
}

extern "C" __global__ void __launch_bounds__(ROUTE_WARPS * 32) route(const __grid_constant__ RouteArgs a) {
    __shared__ RouteWorkspace workspaces[ROUTE_WARPS];
    begin_next_launch();
    wait_for_launches();
    int warp = threadIdx.x / 32, token = blockIdx.x * ROUTE_WARPS + warp;
    if (token < a.inputs[TOKENS]) route_token(a, token, workspaces[warp]);
}

// One block: the sorted rows of all pairs, and the tiles of rows that the products of experts have.
template <int THREADS> DEVICE void sort_pairs(const SortArgs& a, int* next, int (*sums)[2]) {
    int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, pairs = a.inputs[TOKENS] * a.used;
    auto expert_of_pair = [&](int pair) { return a.route ? expert_of(a.route, a.experts, a.used, pair / a.used, pair % a.used) : pair % a.used; };
    for (int e = thread; e < MOST_EXPERTS; e += THREADS) next[e] = 0;
    __syncthreads();
    for (int pair = thread; pair < pairs; pair += THREADS) atomicAdd(&next[expert_of_pair(pair)], 1);
    __syncthreads();
    int rows_before = 0, tiles_before = 0;
    for (int base = 0; base < a.experts; base += THREADS) {
        // sums over the experts before this thread's: of rows, and of tiles
        int expert = base + thread, count = expert < a.experts ? next[expert] : 0;
        int rows = (count + EXPERT_ROWS - 1) / EXPERT_ROWS * EXPERT_ROWS, tiles = (count + a.tile - 1) / a.tile;
        int row = rows, tile = tiles;
        for (int step = 1; step < 32; step *= 2) {
            int row_before = __shfl_up_sync(0xffffffff, row, step), tile_before = __shfl_up_sync(0xffffffff, tile, step);
            if (lane >= step) row += row_before, tile += tile_before;
        }
        if (lane == 31) sums[warp][0] = row, sums[warp][1] = tile;
        __syncthreads();
        row += rows_before - rows, tile += tiles_before - tiles;
        for (int w = 0; w < THREADS / 32; w++) {
            if (w < warp) row += sums[w][0], tile += sums[w][1];
            rows_before += sums[w][0], tiles_before += sums[w][1];
        }
        if (expert < a.experts) next[expert] = row;
        for (int i = 0; i < tiles; i++) {
            int first = row + i * a.tile;
            ((ExpertTile*)(a.tiles + 4))[tile + i] = {expert, first, min(first + a.tile, row + count), 0};
        }
        __syncthreads();
    }
    if (thread == 0) *a.tiles = tiles_before;
    for (int pair = thread; pair < pairs; pair += THREADS) {
        int at = atomicAdd(&next[expert_of_pair(pair)], 1);
        a.pairs[at] = pair, a.rows[pair] = at;
    }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) sort_experts(const __grid_constant__ SortArgs a) {
    __shared__ int next[MOST_EXPERTS], sums[SORT_THREADS / 32][2];
    begin_next_launch();
    wait_for_launches();
    sort_pairs<SORT_THREADS>(a, next, sums);
}

// The logits of some experts for some tokens: a norm and a linear of f32. The last block of a small step also chooses the
// experts and sorts their rows.
extern "C" __global__ void __launch_bounds__(PHASE_THREADS) router(const __grid_constant__ RouterArgs p) {
    extern __shared__ __align__(16) u8 router_shared[];
    __shared__ float scratch[32];
    __shared__ u32 last;
    begin_next_launch();
    const RouteArgs& a = p.route;
    const RouterLinear& r = a.router;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tokens = a.inputs[TOKENS], first = blockIdx.y * p.tokens;
    int end = min(first + p.tokens, tokens), rows = blockIdx.x * p.experts;
    float* x = (float*)router_shared; // [token][cols]
    wait_for_launches();
    // a warp normalises a token, or all of them do
    auto normalise = [&](int token, int from, int step, auto total) {
        float *to = x + (token - first) * r.cols, squares = 0, factor = 1;
#pragma unroll 8
        for (int k = from; k < r.cols; k += step) {
            float v = load_float(row_of(r.x, token) + k);
            squares += v * v, to[k] = v;
        }
        if (r.norm.kind) factor = norm_factor(total(squares), r.cols, r.norm.eps);
#pragma unroll 8
        for (int k = from; k < r.cols; k += step) to[k] *= factor * (r.norm.kind ? r.norm.weight[k] : 1.f);
    };
    if (p.tokens == 1 && first < end) normalise(first, threadIdx.x, PHASE_THREADS, [&](float sum) { return block_sum<PHASE_THREADS>(sum, scratch); });
    for (int token = first + warp; p.tokens > 1 && token < end; token += PHASE_WARPS) normalise(token, lane, 32, [](float sum) { return warp_sum(sum); });
    __syncthreads();
    for (int row = rows + warp; row < min(rows + p.experts, a.experts); row += PHASE_WARPS) {
        float sums[ROUTER_TOKENS] = {};
        const float* w = r.w + (long)row * r.cols;
#pragma unroll 2
        for (int k = lane * 4; k < r.cols; k += 128) {
            float4 v = *(const float4*)(w + k);
#pragma unroll
            for (int t = 0; t < ROUTER_TOKENS; t++) {
                if (first + t >= end) continue;
                float4 u = *(const float4*)(x + t * r.cols + k);
                sums[t] += v.x * u.x + v.y * u.y + (v.z * u.z + v.w * u.w);
            }
        }
#pragma unroll
        for (int t = 0; t < ROUTER_TOKENS; t++) {
            float sum = warp_sum(sums[t]);
            if (lane == 0 && first + t < end) row_of(a.logits, first + t)[row] = (r.bias ? sum + r.bias[row] : sum) * r.factor;
        }
    }
    if (!p.arrivals) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(p.arrivals, 1);
    __syncthreads();
    if (last != gridDim.x * gridDim.y - 1) return;
    __threadfence();
    RouteWorkspace* workspaces = (RouteWorkspace*)router_shared;
    for (int token = warp; token < tokens; token += PHASE_WARPS) route_token(a, token, workspaces[warp]);
    __syncthreads();
    sort_pairs<PHASE_THREADS>(p.sort, (int*)router_shared, (int(*)[2])scratch);
    if (threadIdx.x == 0) *p.arrivals = 0;
}

// The weighted sum of the results of a token's experts, plus a value.
extern "C" __global__ void __launch_bounds__(PHASE_THREADS) mix(const __grid_constant__ MixArgs a) {
    begin_next_launch();
    wait_for_launches();
    int token = blockIdx.y, k = blockIdx.x * PHASE_THREADS + threadIdx.x;
    if (token >= a.inputs[TOKENS] || k >= a.width) return;
    const float *x = row_of(a.x, token) + k, *weights = a.route + (long)token * 2 * a.used + a.used;
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < a.used; i++) sum += load_float(weights + i) * load_float(x + (long)i * a.width);
    row_of(a.y, token)[k] = sum + (a.add.at ? load_float(row_of(a.add, token) + k) : 0.f);
}
