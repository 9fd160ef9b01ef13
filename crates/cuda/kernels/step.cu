// A whole step of up to T tokens in one launch: a block a multiprocessor, phase after phase, a grid-wide barrier between.
//
// Defined by the host: FORMATS, ATTENTIONS(X) with X(number, head columns, value columns, query heads at a time),
// PAGE_LEN, SLOT (bytes of a slot of the ring), DEPTH (slots of a ring), TOKENS_AT_ONCE (1 or 4), NORM_PASSES,
// OFFSET_SUMS, PHASE_BYTES, WINDOW (phases at hand).

template <int T, int SLOTS> DEVICE void step(const StepArgs& args) {
    Phase* window = (Phase*)(shared + args.window);
    float* room = (float*)(shared + args.room);
    float* arena = (float*)(shared + args.arena);
    int block = blockIdx.x, blocks = gridDim.x, warp = threadIdx.x / 32;
    u32* inputs = args.inputs;
    int tokens = inputs[TOKENS];

    constexpr int PIECES = sizeof(Phase) / 16;
    for (int i = threadIdx.x; i < min(3, args.count) * PIECES; i += THREADS) ((Words4*)window)[i] = ((const Words4*)args.phases)[i];
    float2* turns = (float2*)(shared + args.turns); // [table][T][most_pairs]
    for (int i = threadIdx.x; i < args.tables * tokens * args.most_pairs; i += THREADS) {
        int table = i / (tokens * args.most_pairs), token = i / args.most_pairs % tokens, pair = i % args.most_pairs;
        if (pair >= args.pairs[table]) continue;
        float2 turn;
        sincosf((float)position_of(inputs, token) * args.freqs[table][pair], &turn.y, &turn.x);
        turns[(table * T + token) * args.most_pairs + pair] = turn;
    }
    Ring<SLOTS>(args).start();
    __syncthreads();

    u32 barriers = 0;
    auto barrier = [&]() { grid_barrier(inputs + BARRIER, ++barriers * blocks); };
    for (int p = 0; p < args.count; p++) {
        const Phase& phase = window[p % WINDOW];
        // the phase after the next two, read now and kept where the last one was
        Words4 ahead;
        bool reads = p + 3 < args.count && threadIdx.x < PIECES;
        if (reads) ahead = ((const Words4*)(args.phases + p + 3))[threadIdx.x];
        read_on<SLOTS>(args, min(args.count, p + 3));
        switch (phase.kind) {
            case LINEAR: linear<T, SLOTS>(phase.linear, args); break;
            case ATTEND: {
                const AttendArgs& a = phase.attend;
                const float2* turn = turns + a.table * T * args.most_pairs;
                if (inputs[NEIGHBOURS]) { // tokens of one sequence see each other's keys
                    for (int i = block; i < tokens * a.kv_heads; i += blocks) {
                        int token = i / a.kv_heads, head = i % a.kv_heads;
                        if (warp == 0) store_key(a, inputs, token, head, turn + token * args.most_pairs, arena);
                        if (warp == 1) store_value(a, inputs, token, head);
                    }
                    barrier();
                }
                switch (a.shape) {
#define CASE(n, d, v, g) case n: Attention<d, v, g>::run(a, inputs, !inputs[NEIGHBOURS], turn, args.most_pairs, arena, block, blocks); break;
                    ATTENTIONS(CASE)
#undef CASE
                }
                break;
            }
            case ARGMAX: {
                const ArgmaxArgs& a = phase.argmax;
                for (int row = 0; row < inputs[OUTPUTS]; row++) argmax_share(a, row, room, block, blocks);
                barrier();
                for (int row = block; row < inputs[OUTPUTS]; row += blocks) argmax_whole(a, row, room, blocks);
                break;
            }
            default: small_phase<THREADS>(phase, inputs, room, block, blocks);
        }
        if (reads) ((Words4*)(window + (p + 3) % WINDOW))[threadIdx.x] = ahead;
        if (p + 1 < args.count) barrier();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) one_launch(const __grid_constant__ StepArgs args) { step<TOKENS_AT_ONCE, DEPTH>(args); }
