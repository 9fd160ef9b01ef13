// A whole step of up to TOKENS_AT_ONCE tokens in one launch: one block per multiprocessor, phase after phase. Blocks
// wait for the values that they read (tagged.cuh); a grid barrier precedes phases whose values have no tags. The
// kernels are in one_token.cu and several_tokens.cu, which include the phases before this file.
//
// Defined by the host: FORMATS, LINEARS, ATTENTIONS(X) with X(index, columns of a key head, columns of a value head,
// query heads of a unit, whether scores have a soft cap, floats of a split, warps that share older keys, bytes of
// workspace), BLOCKS, PAGE_LEN, TOKENS_AT_ONCE, OFFSET_SUMS, ROUTES (whether a phase chooses experts), RECURRENT
// (step_recurrent.cuh).
//
// Sizes (FusedMemory of src/launch/fused_memory.rs): SLOT (bytes of a slot of the ring), SLOTS, KEYS_FLYING (slots of
// keys in flight), HELD_TILES (tiles whose rows are written together), MOST_PAIRS, SINKS and WINDOWS (whether attention
// has them), offsets in shared memory (AT_...), sizes of parts of it (ARENA, INFO), and those of state_matrix.cuh.

#pragma once

#include "phases/argmax.cuh"
#include "fused_step/ring.cuh"
#include "attention/attend.cuh"

// The switch of `step` has a case for each of them but sums of experts, which are part of a linear; a step of several
// tokens lacks recurrent ones.
static_assert(LARGE_PHASES == 8, "each large phase has a case in `step`");

DEVICE void step(const StepArgs& args) {
    Phase* window = (Phase*)(shared + Sizes::AT_WINDOW);
    float* scratch = (float*)(shared + Sizes::AT_WARP_FLOATS);
    float2* turns = (float2*)(shared + Sizes::AT_TURNS); // [table][token][MOST_PAIRS]
    Info& info = *(Info*)(shared + Sizes::AT_INFO);
    int block = blockIdx.x, blocks = gridDim.x, warp = threadIdx.x / 32;
    u32* inputs = args.inputs;
    constexpr int PIECES = sizeof(Phase) / 16;
    for (int i = threadIdx.x; i < min(WINDOW - 1, args.count) * PIECES; i += THREADS)
        if (warp < WARPS) ((uint4*)window)[i] = ((const uint4*)args.phases)[i];
    if (threadIdx.x < TOKENS_AT_ONCE) {
        int t = threadIdx.x;
#if TOKENS_AT_ONCE == 1 && RECURRENT
        SliceState state = state_of(inputs, 0);
        info.state_read = state.read, info.state_write = state.write;
#endif
        if (t == 0)
            info.tokens = inputs[TOKENS], info.outputs = inputs[OUTPUTS], info.epoch = args.epoch,
            info.window_tables = inputs[WINDOW_PAGES_AT] - inputs[PAGES_AT];
        if (t < inputs[TOKENS]) {
            info.position[t] = position_of(inputs, t), info.pages[t] = pages_of(inputs, t, 0);
            int before = 0; // tokens of one sequence are consecutive
            while (before < t && inputs[inputs[SLICES_AT] + t - before - 1] == inputs[inputs[SLICES_AT] + t]) before++;
            info.first[t] = info.position[t] - before;
        }
        if (t < inputs[OUTPUTS]) info.output_row[t] = output_row(inputs, t);
    }
#if TOKENS_AT_ONCE > 1
    if (threadIdx.x < FRAGMENT_TOKENS) BatchMemory().norms[threadIdx.x] = 1; // before the first norm
#endif
#if ROUTES
    if (threadIdx.x == 0) choice_of_step().count = 0;
#endif
    if (threadIdx.x < Sizes::SLOTS) {
        Ring slot = Ring{0, 0}.ahead(threadIdx.x);
        slot.full().open(Gate::COPIERS), slot.empty().open(WARPS);
    }
    __syncthreads();
    if (warp == WARPS) return Reader{}.read(args.phases, args.count);
    int tokens = info.tokens;
    for (int i = threadIdx.x; i < args.tables * tokens * Sizes::MOST_PAIRS; i += THREADS) {
        int table = i / (tokens * Sizes::MOST_PAIRS), token = i / Sizes::MOST_PAIRS % tokens,
            pair = i % Sizes::MOST_PAIRS;
        if (pair >= args.pairs[table]) continue;
        float2 turn;
        sincosf(angle_of(inputs, args.freqs[table], args.pairs[table], args.parted[table], token, pair), &turn.y,
                &turn.x);
        turns[(table * TOKENS_AT_ONCE + token) * Sizes::MOST_PAIRS + pair] = turn;
    }

    Ring ring = {0, 0};
    for (int p = 0; p < args.count; p = *(volatile int*)&info.phase + 1) {
        const Phase& phase = window[p % WINDOW];
        arrived<1>();
        sync_threads<THREADS>(); // the phase has arrived, and all threads have left the last one
        info.phase = p;          // by each thread, so that none reads it before it is written
        // the phase after the next two replaces the last one
        if (p + WINDOW - 1 < args.count && threadIdx.x < PIECES)
            copy16((uint4*)(window + (p + WINDOW - 1) % WINDOW) + threadIdx.x,
                   (const uint4*)(args.phases + p + WINDOW - 1) + threadIdx.x);
        committed();
        if (phase.barrier) grid_barrier_after_sync<THREADS>(inputs + BARRIER, phase.barrier * blocks);
        if (TOKENS_AT_ONCE == 1 && RECURRENT && phase.range.count &&
            place_in(phase.range, block, BLOCKS) >= phase.range.count)
            continue;
        switch (phase.kind) {
            case LINEAR:
                switch (phase.shape) {
#define CASE(n, ...) \
    case n: ring = linear<__VA_ARGS__>(p, ring); break;
                    LINEARS(CASE)
#undef CASE
                }
                break;
            case ATTEND: {
                const float2* turn = turns + phase.attend.table * TOKENS_AT_ONCE * Sizes::MOST_PAIRS;
                switch (phase.attend.shape) {
#define CASE(n, ...) \
    case n: ring = Attention<__VA_ARGS__>::units(p, ring, turn); break;
                    ATTENTIONS(CASE)
#undef CASE
                }
                break;
            }
#if ROUTES
            case ROUTE: route(p); break;
#endif
#if TOKENS_AT_ONCE == 1 && RECURRENT
            case CONV: step_conv(phase.conv, block, blocks); break;
            case RECURRENT_PHASE: step_matrices(phase, block, blocks); break;
            case TRANSFORM: step_transform(phase.transform, scratch, block, blocks); break;
#endif
            case ARGMAX: {
                const ArgmaxArgs& a = phase.argmax;
                for (int row = 0; row < info.outputs; row++) argmax_share(a, row, scratch, block, blocks);
                grid_barrier<THREADS>(inputs + BARRIER, (phase.barrier + 1) * blocks);
                for (int row = block; row < info.outputs; row += blocks) argmax_whole(a, row, scratch, blocks);
                break;
            }
            default: small_phase<THREADS>(phase, inputs, args.epoch, scratch, block, blocks);
        }
    }
}
