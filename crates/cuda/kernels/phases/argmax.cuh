// The best token of each row, the lowest id among equals, or -1 if a logit is not finite: nothing is above INFINITY with id
// -1. Equals greedy sampling of graph/sampling/sample.rs. Each block searches a share of the row; then the shares are combined.

#pragma once

#include "base/phase.cuh"

struct Best { float value; int place; };

DEVICE void better(Best& best, float value, int place) {
    if (value > best.value || (value == best.value && (u32)place < (u32)best.place)) best = {value, place};
}

template <int THREADS> DEVICE Best block_best(Best best, float* scratch) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int step = 16; step > 0; step /= 2) {
        float value = __shfl_xor_sync(0xffffffff, best.value, step);
        int place = __shfl_xor_sync(0xffffffff, best.place, step);
        better(best, value, place);
    }
    __shared__ int places[32];
    sync_threads<THREADS>();
    if (lane == 0) scratch[warp] = best.value, places[warp] = best.place;
    sync_threads<THREADS>();
    best = {-INFINITY, -1};
    for (int w = 0; w < THREADS / 32; w++) better(best, scratch[w], places[w]);
    return best;
}

DEVICE void argmax_share(const ArgmaxArgs& a, int row, float* scratch, int block, int blocks) {
    const float* logits = a.logits.at + row * a.logits.stride;
    Best best = {-INFINITY, -1};
    for (int i = block * THREADS + threadIdx.x; i < a.width; i += blocks * THREADS) {
        float value = load_float(logits + i);
        if (!is_finite(value)) best = {INFINITY, -1};
        else if (value > best.value) best = {value, i};
    }
    best = block_best<THREADS>(best, scratch);
    if (threadIdx.x == 0) a.best[row * blocks + block] = best.value, a.places[row * blocks + block] = best.place;
}

DEVICE void argmax_whole(const ArgmaxArgs& a, int row, float* scratch, int blocks) {
    Best best = {-INFINITY, -1};
    for (int i = threadIdx.x; i < blocks; i += THREADS)
        better(best, load_float(a.best + row * blocks + i), __float_as_int(load_float((const float*)a.places + row * blocks + i)));
    best = block_best<THREADS>(best, scratch);
    if (threadIdx.x == 0) a.chosen[row] = best.place;
}
