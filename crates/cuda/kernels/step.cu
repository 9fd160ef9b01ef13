// A whole step of up to T tokens in one launch: a block a multiprocessor, phase after phase, a grid-wide barrier between.
//
// Defined by the host: FORMATS, ATTENTIONS(X) with X(number, head columns, value columns, query heads at a time),
// PAGE_LEN, SLOT (bytes of a slot of the ring), SLOTS, TOKENS_AT_ONCE (1 or 4), NORM_PASSES, OFFSET_SUMS, ANY_SIGNS,
// PHASE_BYTES, WINDOW (phases at hand), MOST_PAIRS, and where things lie in shared memory: AT_...

template <int T> DEVICE void step(const StepArgs& args) {
    Phase* window = (Phase*)(shared + AT_WINDOW);
    float* room = (float*)(shared + AT_ROOM);
    float* arena = (float*)(shared + AT_ARENA);
    float2* turns = (float2*)(shared + AT_TURNS); // [table][T][MOST_PAIRS]
    Info& info = *(Info*)(shared + AT_INFO);
    int block = blockIdx.x, blocks = gridDim.x, warp = threadIdx.x / 32;
    u32* inputs = args.inputs;
    constexpr int PIECES = sizeof(Phase) / 16;
    for (int i = threadIdx.x; i < min(3, args.count) * PIECES; i += THREADS) if (warp < WARPS) ((uint4*)window)[i] = ((const uint4*)args.phases)[i];
    if (threadIdx.x < 4) {
        int t = threadIdx.x;
        if (t == 0) info.tokens = inputs[TOKENS], info.outputs = inputs[OUTPUTS], info.neighbours = inputs[NEIGHBOURS];
        if (t < inputs[TOKENS]) info.position[t] = position_of(inputs, t), info.pages[t] = pages_of(inputs, t);
        if (t < inputs[OUTPUTS]) info.output_row[t] = output_row(inputs, t);
    }
    Ring ring;
    if (threadIdx.x < SLOTS) ring.full[threadIdx.x].open(Gate::COPIERS), ring.empty[threadIdx.x].open(WARPS);
    __syncthreads();
    if (warp == WARPS) return ring.read(args.phases, args.count, info.outputs);
    int tokens = info.tokens;
    for (int i = threadIdx.x; i < args.tables * tokens * MOST_PAIRS; i += THREADS) {
        int table = i / (tokens * MOST_PAIRS), token = i / MOST_PAIRS % tokens, pair = i % MOST_PAIRS;
        if (pair >= args.pairs[table]) continue;
        float2 turn;
        sincosf((float)info.position[token] * args.freqs[table][pair], &turn.y, &turn.x);
        turns[(table * T + token) * MOST_PAIRS + pair] = turn;
    }
    sync_threads<THREADS>();

    u32 barriers = 0, slot = 0;
    auto barrier = [&]() { grid_barrier<THREADS>(inputs + BARRIER, ++barriers * blocks); };
    for (int p = 0; p < args.count; p++) {
        const Phase& phase = window[p % WINDOW];
        // the phase after the next two, read now and kept where the last one was
        uint4 ahead;
        bool reads = p + 3 < args.count && threadIdx.x < PIECES;
        if (reads) ahead = ((const uint4*)(args.phases + p + 3))[threadIdx.x];
        switch (phase.kind) {
            case LINEAR: slot = linear<T>(p, slot); break;
            case ATTEND: {
                const AttendArgs& a = phase.attend;
                const float2* turn = turns + a.table * T * MOST_PAIRS;
                if (info.neighbours) { // tokens of one sequence see each other's keys
                    for (int i = block; i < tokens * a.kv_heads; i += blocks) {
                        int token = i / a.kv_heads, head = i % a.kv_heads;
                        long slot = slot_of(a, info.pages[token], info.position[token], head);
                        if (warp == 0) store_key(a, slot, token, head, turn + token * MOST_PAIRS, arena);
                        if (warp == 1) store_value(a, slot, token, head);
                    }
                    barrier();
                }
                switch (a.shape) {
#define CASE(n, d, v, g) case n: Attention<d, v, g>::run(p, turn); break;
                    ATTENTIONS(CASE)
#undef CASE
                }
                break;
            }
            case ARGMAX: {
                const ArgmaxArgs& a = phase.argmax;
                for (int row = 0; row < info.outputs; row++) argmax_share(a, row, room, block, blocks);
                barrier();
                for (int row = block; row < info.outputs; row += blocks) argmax_whole(a, row, room, blocks);
                break;
            }
            default: small_phase<THREADS>(phase, inputs, room, block, blocks);
        }
        if (reads) ((uint4*)(window + (p + 3) % WINDOW))[threadIdx.x] = ahead;
        if (p + 1 < args.count) barrier();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) one_launch(const __grid_constant__ StepArgs args) { step<TOKENS_AT_ONCE>(args); }
