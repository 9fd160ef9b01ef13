// Attention of many tokens, for one shape of attention.
//
// Defined by the host: PAGE_LEN, HEAD_DIM, V_DIM, V_PART (columns in pages of a value head per block), QUERY_GROUP
// (query heads of a key head), CAPPED (whether scores have a soft cap), IMAGES (whether tokens of an image see each
// other), SLOPED (whether they decrease with the distance of the key), CELLS (what pages hold), and what AttentionTiles
// of src/launch/attention_plan.rs decides: PREFILL_WARPS, PREFILL_ROWS, PREFILL_KEYS, PREFILL_SHARED, DECODE_WARPS,
// DECODE_STAGES and DECODE_SHARED.

#include "attention/paged_attention.cuh"
#include "attention/paged_heads.cuh"

constexpr int HEADS_WARPS = 8;

constexpr int KEY_CELLS = in_cells(HEAD_DIM), VALUE_CELLS = in_cells(V_DIM);
using Prefill = PagedAttention<KEY_CELLS, VALUE_CELLS, V_PART, V_DIM, QUERY_GROUP, CAPPED, CELLS, PREFILL_WARPS,
                               PREFILL_ROWS / PREFILL_WARPS / 16, 1, PREFILL_KEYS, 2>;
using Decode = PagedAttention<KEY_CELLS, VALUE_CELLS, V_PART, V_DIM, QUERY_GROUP, CAPPED, CELLS, 1, 1, DECODE_WARPS, 16,
                              DECODE_STAGES>;
static_assert(Prefill::SHARED == PREFILL_SHARED && Decode::SHARED == DECODE_SHARED,
              "the host has reserved shared memory for it");
static_assert(QUERY_GROUP <= PREFILL_ROWS, "a tile has all heads of a token");

// Grid: [token, 8 heads of all query and key heads]; it may have more tokens than the step. Shared memory: cosine and
// sine of pairs, and a head per warp.
extern "C" __global__ void __launch_bounds__(HEADS_WARPS * 32)
    make_heads_half(const __grid_constant__ PagedAttendArgs p) {
    extern __shared__ __align__(128) u8 shared_bytes[];
    begin_next_launch();
    const AttendArgs& a = p.attend;
    int token = blockIdx.x, warp = threadIdx.x / 32, head = blockIdx.y * HEADS_WARPS + warp;
    float2* turn = (float2*)shared_bytes;
    float* scratch = (float*)(turn + HEAD_DIM / 2) + warp * HEAD_DIM;
    bool real = token < rows_of(p.inputs, false); // the host wrote the inputs: there is no kernel to wait for
    for (int i = threadIdx.x; real && i < a.pairs; i += HEADS_WARPS * 32)
        sincosf(angle_of(p.inputs, a.freqs, a.pairs, a.parted, token, i), &turn[i].y, &turn[i].x);
    bool key = a.v.at && head >= a.heads && head < a.heads + a.kv_heads;
    long slot = real && key
                    ? slot_of(a, pages_of(p.inputs, token, a.windowed), position_of(p.inputs, token), head - a.heads)
                    : 0;
    __syncthreads();
    wait_for_launches();
    if (!real) return;
    using Heads = PagedHeads<HEAD_DIM, V_DIM, CAPPED, CELLS>;
    if (head < a.heads) Heads::query(p, token, head, turn, scratch);
    else if (key) Heads::key_and_value(p, token, head - a.heads, slot, turn, scratch);
}

// Grids: [work item, key head and group of its query heads].
extern "C" __global__ void __launch_bounds__(Prefill::THREADS, Prefill::BLOCKS)
    attend_prefill(const __grid_constant__ PagedAttendArgs p) {
    extern __shared__ __align__(128) u8 shared_bytes[];
    Prefill::run(p, shared_bytes);
}

extern "C" __global__ void __launch_bounds__(Decode::THREADS, Decode::BLOCKS)
    attend_decode(const __grid_constant__ PagedAttendArgs p) {
    extern __shared__ __align__(128) u8 shared_bytes[];
    Decode::run(p, shared_bytes);
}
