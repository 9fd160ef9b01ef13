// Mixtures of experts: the experts of each token (route), the tokens of each expert (sort_experts), and the sum of their results (mix).
// They equal Op::Route and Op::Mix of graph/reference.rs; the products of experts are in tiled_linear.cu.
//
// A pair is a token and one of its experts, with the index token * used + i. Sorted rows are the pairs by expert; the rows of an
// expert begin at a multiple of EXPERT_ROWS.

// Scores as integers in their order: removed ones first, then NaN.
constexpr u32 REMOVED = 0, SCORE_NAN = 1;
DEVICE u32 score_key(float score) {
    u32 bits = __float_as_uint(score);
    return score != score ? SCORE_NAN : bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The best of all lanes' keys; the lower index of equal ones.
DEVICE int warp_best(u32 key, int index) {
    u64 best = (u64)key << 32 | (u32)~index;
    for (int step = 16; step > 0; step /= 2) best = max(best, (u64)__shfl_xor_sync(0xffffffff, best, step));
    return (int)~(u32)best;
}

DEVICE float expert_weight(const RouteArgs& a, float x, float most, float sum) {
    if (a.gating == GATE_SOFTMAX) return expf(x - most) / sum;
    if (a.gating == GATE_SIGMOID) return 1.f / (1.f + expf(-x));
    if (a.gating == GATE_SQRT_SOFTPLUS) return sqrtf(x > 20.f ? x : log1pf(expf(x)));
    return x; // softmax over the chosen ones follows
}

// A warp chooses the experts of one token.
extern "C" __global__ void __launch_bounds__(PHASE_THREADS) route(const __grid_constant__ RouteArgs a) {
    __shared__ u32 all_keys[PHASE_WARPS][MOST_EXPERTS];
    begin_next_launch();
    wait_for_launches();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.x * PHASE_WARPS + warp;
    if (token >= a.inputs[TOKENS]) return;
    u32* keys = all_keys[warp];
    const float* logits = row_of(a.logits, token);
    float most = -INFINITY, sum = 0;
    bool finite = true;
    for (int e = lane; e < a.experts; e += 32) {
        float x = load_float(logits + e);
        most = fmaxf(most, x), finite &= is_finite(x);
    }
    most = warp_max(most), finite = __all_sync(0xffffffff, finite);
    if (a.gating == GATE_SOFTMAX)
        for (int e = lane; e < a.experts; e += 32) sum += expf(load_float(logits + e) - most);
    sum = warp_sum(sum);
    for (int e = lane; e < a.experts; e += 32)
        keys[e] = score_key(expert_weight(a, load_float(logits + e), most, sum) + (a.bias ? a.bias[e] : 0.f));
    __syncwarp();
    if (a.groups > 0) { // lane g has group g
        int len = a.experts / a.groups;
        float first = -INFINITY, second = -INFINITY;
        for (int i = 0; lane < a.groups && i < len; i++) {
            u32 key = keys[lane * len + i];
            float score = key == SCORE_NAN ? -INFINITY : __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
            second = fmaxf(second, fminf(score, first)), first = fmaxf(first, score);
        }
        u32 key = lane < a.groups ? score_key(len == 1 ? first : first + second) : REMOVED, kept = 0;
        for (int i = 0; i < a.used_groups; i++) {
            int best = warp_best(key, lane);
            kept |= 1u << best;
            if (lane == best) key = REMOVED;
        }
        for (int e = lane; e < a.experts; e += 32)
            if (!(kept >> e / len & 1)) keys[e] = REMOVED;
        __syncwarp();
    }
    float *y = row_of(a.y, token), weight = 0; // lane i has the weight of expert i
    for (int i = 0; i < a.used; i++) {
        u32 key = REMOVED;
        int index = a.experts - 1;
        for (int e = lane; e < a.experts; e += 32)
            if (keys[e] > key) key = keys[e], index = e;
        int best = warp_best(key, index);
        if (lane == i) weight = expert_weight(a, load_float(logits + best), most, sum), y[i] = (float)best;
        if (lane == best % 32) keys[best] = REMOVED;
        __syncwarp();
    }
    bool real = lane < a.used;
    if (a.gating == GATE_CHOSEN_SOFTMAX) {
        float top = warp_max(real ? weight : -INFINITY);
        weight = real ? expf(weight - top) : 0.f;
        weight /= warp_sum(weight);
    }
    float total = warp_sum(real ? weight : 0.f);
    if (a.renormalise) weight /= fmaxf(total, 6.1035156e-5f);
    if (real) y[a.used + lane] = finite ? weight * a.scale : __int_as_float(0x7fffffff);
}

// One block: the sorted rows of all pairs, and the tiles of TILE_TOKENS rows that the products of experts have.
extern "C" __global__ void __launch_bounds__(SORT_THREADS) sort_experts(const __grid_constant__ SortArgs a) {
    __shared__ int next[MOST_EXPERTS], sums[2][SORT_THREADS / 32];
    begin_next_launch();
    wait_for_launches();
    int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, pairs = a.inputs[TOKENS] * a.used;
    auto expert_of = [&](int pair) {
        if (!a.route) return pair % a.used;
        // NaN is expert 0
        return max(0, min((int)load_float(a.route + (long)(pair / a.used) * 2 * a.used + pair % a.used), a.experts - 1));
    };
    if (thread < MOST_EXPERTS) next[thread] = 0;
    __syncthreads();
    for (int pair = thread; pair < pairs; pair += SORT_THREADS) atomicAdd(&next[expert_of(pair)], 1);
    __syncthreads();
    // sums over the experts before this thread's: of rows, and of tiles
    int count = thread < a.experts ? next[thread] : 0;
    int rows = (count + EXPERT_ROWS - 1) / EXPERT_ROWS * EXPERT_ROWS, tiles = (count + a.tile - 1) / a.tile;
    int row = rows, tile = tiles;
    for (int step = 1; step < 32; step *= 2) {
        int row_before = __shfl_up_sync(0xffffffff, row, step), tile_before = __shfl_up_sync(0xffffffff, tile, step);
        if (lane >= step) row += row_before, tile += tile_before;
    }
    if (lane == 31) sums[0][warp] = row, sums[1][warp] = tile;
    __syncthreads();
    for (int w = 0; w < warp; w++) row += sums[0][w], tile += sums[1][w];
    if (thread == SORT_THREADS - 1) *a.tiles = tile;
    row -= rows, tile -= tiles;
    if (thread < a.experts) next[thread] = row;
    for (int i = 0; i < tiles; i++) {
        int first = row + i * a.tile;
        ((ExpertTile*)(a.tiles + 4))[tile + i] = {thread, first, min(first + a.tile, row + count), 0};
    }
    __syncthreads();
    for (int pair = thread; pair < pairs; pair += SORT_THREADS) {
        int at = atomicAdd(&next[expert_of(pair)], 1);
        a.pairs[at] = pair, a.rows[pair] = at;
    }
}

// The weighted sum of the results of a token's experts, plus a value.
extern "C" __global__ void __launch_bounds__(PHASE_THREADS) mix(const __grid_constant__ MixArgs a) {
    begin_next_launch();
    wait_for_launches();
    int token = blockIdx.y, k = blockIdx.x * PHASE_THREADS + threadIdx.x;
    if (token >= a.inputs[TOKENS] || k >= a.width) return;
    const float *x = row_of(a.x, token) + k, *weights = a.route + (long)token * 2 * a.used + a.used;
    float sum = 0;
    for (int i = 0; i < a.used; i++) sum += load_float(weights + i) * load_float(x + (long)i * a.width);
    row_of(a.y, token)[k] = sum + (a.add.at ? load_float(row_of(a.add, token) + k) : 0.f);
}
