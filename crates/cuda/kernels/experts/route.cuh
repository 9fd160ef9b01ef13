// The choice of a token's experts in the fused step of one token: equals Op::Norm, Op::Linear and Op::Route of
// graph/reference.rs in sequence.
//
// Blocks share the rows of the router; the logits have tags. Every block waits for all of them and chooses for itself,
// so that the choice is in the shared memory of each, and there is no grid barrier.

#pragma once

#include "base/tagged.cuh"
#include "fused_step/ring.cuh"
#include "linear/step_linear.cuh"
#include "experts/choose.cuh"

static_assert(!ROUTES || sizeof(RouteWorkspace) <= Sizes::ARENA, "the host has reserved shared memory for it");

// The logits of the block's experts: all warps share the columns of a row.
DEVICE void write_logits(const RouteArgs& a, u32 epoch, float* scratch) {
    constexpr int EACH = MOST_ROUTER_COLS / (4 * THREADS); // pieces of four columns that a thread has at most
    static_assert(EACH * 4 * THREADS == MOST_ROUTER_COLS, "threads share the columns evenly");
    int thread = fixed_thread(), lane = thread % 32, warp = thread / 32, cols = a.router.cols;
    bool normed = a.router.norm.kind;
    u32 mask = a.router.x.mask;
    auto column = [&](int i) { return (i * THREADS + thread) * 4; };
    const float *w = a.router.w + (long)blockIdx.x * cols, *from = row_of(a.router.x, 0);
    float4 x[EACH], first[EACH]; // of the norm and then x, and of the first row
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        first[i] = {0, 0, 0, 0}, x[i] = {1, 1, 1, 1};
        if (column(i) >= cols) continue;
        first[i] = *(const float4*)(w + column(i));
        if (normed) x[i] = *(const float4*)(a.router.norm.weight + column(i));
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (i * THREADS * 4 >= cols) break; // all threads together
        Awaited<1> four;
        if (column(i) < cols) four.load(from + column(i));
        else four.zero(epoch);
        four.wait(from + column(i), mask, epoch);
        if (column(i) >= cols) continue;
        float4 v = {untagged(four.bits[0], mask), untagged(four.bits[1], mask), untagged(four.bits[2], mask),
                    untagged(four.bits[3], mask)};
        squares += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
        x[i] = {x[i].x * v.x, x[i].y * v.y, x[i].z * v.z, x[i].w * v.w};
    }
    squares = warp_sum(squares);
    if (lane == 0) scratch[2 * WARPS + warp] = squares;
    float* sums = scratch; // of every other row
    for (int row = blockIdx.x; row < a.experts;
         row += BLOCKS, w += (long)BLOCKS * cols, sums = sums == scratch ? scratch + WARPS : scratch) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (column(i) >= cols) continue;
            float4 v = first[i];
            if (row != blockIdx.x) v = *(const float4*)(w + column(i));
            sum += v.x * x[i].x + v.y * x[i].y + (v.z * x[i].z + v.w * x[i].w);
        }
        sum = warp_sum(sum);
        if (lane == 0) sums[warp] = sum;
        sync_threads<THREADS>();
        if (thread != 0) continue;
        float logit = sum_of_warps([&](int n) { return sums[n]; });
        if (normed)
            logit *= norm_factor(sum_of_warps([&](int n) { return scratch[2 * WARPS + n]; }), cols, a.router.norm.eps);
        if (a.router.bias) logit += a.router.bias[row];
        store_tagged(row_of(a.logits, 0) + row, logit * a.router.factor, a.logits.mask, epoch);
    }
}

APART void route(int p) {
    const RouteArgs a = phase_at_hand(p).route; // in registers: phases are in shared memory
    RouteWorkspace& workspace = *(RouteWorkspace*)(shared + Sizes::AT_ARENA);
    int thread = fixed_thread();
    u32 epoch = info_of_step().epoch, mask = a.logits.mask;
    if (a.router.w && blockIdx.x < a.experts) write_logits(a, epoch, (float*)(shared + Sizes::AT_WARP_FLOATS));
    const float* logits = row_of(a.logits, 0);
    for (int base = 0; base < a.experts; base += THREADS) {
        int e = base + thread;
        u32 bits = e < a.experts ? load_shared_word(logits + e) : epoch;
        for (Patience patience;; patience.wear()) { // the lanes of a warp continue together
            bool again = (bits ^ epoch) & mask;
            if (!__any_sync(0xffffffff, again)) break;
            if (again) bits = load_shared_word(logits + e);
        }
        if (e < a.experts) workspace.logits[e] = untagged(bits, mask);
    }
    sync_threads<THREADS>();
    if (thread >= 32) return;
    Choice& choice = choice_of_step();
    choose(a, workspace,
           [&](int i, int expert, float weight) { choice.expert[i] = expert, choice.weight[i] = weight; });
    __syncwarp();
    if (thread == 0) choice.publish();
}
