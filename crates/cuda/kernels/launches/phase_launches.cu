// The phases of a step, one or two launches each, for steps of any size; linears are in tiled_linear.cu. They equal the
// same ops as the phases of fused_step/step.cuh. A grid may be larger than the step: launches are recorded for several
// sizes.
//
// Defined by the host: FORMATS and PAGE_LEN, as for fused_step/step.cuh.

#include "attention/pages.cuh"
#include "phases/small_phases.cuh"
#include "attention/heads.cuh"
#include "phases/argmax.cuh"
#include "x/byte_x.cuh"
#include "x/half_x.cuh"

constexpr int ATTEND_WARPS = ATTEND_THREADS / 32;

// The sum of the squares of a row by the first warps of a block, in the order in which tiled_linear.cuh adds those of a
// value that is passed before its norm: of eight pairs of columns c and c + 8, of 16 columns, of a chunk, of every
// eighth chunk, of all. Columns are whole chunks.
DEVICE float squares_of_chunks(const float* row, int chunks, float* scratch) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0;
#pragma unroll 4
    for (int chunk = warp; warp < NORM_PARTS && chunk < chunks; chunk += NORM_PARTS) {
        const float* at = row + chunk * CHUNK + lane / 4 * TILE + lane % 4 * 2; // four lanes have 16 columns
        float a = load_float(at), b = load_float(at + 1), c = load_float(at + 8), d = load_float(at + 9);
        float of_tile = a * a + c * c + (b * b + d * d), of_chunk = 0;
        of_tile += __shfl_xor_sync(0xffffffff, of_tile, 1);
        of_tile += __shfl_xor_sync(0xffffffff, of_tile, 2);
#pragma unroll
        for (int i = 0; i < CHUNK / TILE; i++) of_chunk += __shfl_sync(0xffffffff, of_tile, i * 4);
        sum += of_chunk;
    }
    if (lane == 0 && warp < NORM_PARTS) scratch[warp] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int part = 0; part < NORM_PARTS; part++) sum += scratch[part];
    return sum;
}

// x of a linear as halves, after its norm: a block makes a row, a thread four positions at a time. x of experts is made
// per pair of a token and an expert (experts.cu): a row is stored for each of them, or has a part for each.
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS) prepare(const __grid_constant__ PrepareArgs p) {
    __shared__ float scratch[32];
    begin_next_launch();
    const LinearArgs& a = p.linear;
    int t = blockIdx.x, positions = a.chunks * CHUNK;
    // the inputs and the norm are no results of launches: read while those are waited for
    const ExpertArgs& e = a.experts;
    int parts = max(1, e.x_parts), copies = max(1, e.used) / parts;
    bool real = t < rows_of(p.inputs, a.outputs_only) * parts;
    const float* from = row_of(a.x, a.gather && real ? output_row(p.inputs, t) : t / parts) + t % parts * a.cols;
    if (a.norm.kind)
        for (int k = threadIdx.x * 32; k < a.cols; k += PREPARE_THREADS * 32) prefetch(a.norm.weight + k);
    wait_for_launches();
    if (!real) return;
    constexpr int HELD = 8; // of a thread: the first ones stay in registers
    float held[HELD][4], sum = 0;
    auto load = [&](float (&v)[4], int position) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int k = column_at(p.x.order, position + i);
            v[i] = k < a.cols ? from[k] : 0.f; // through L1: a warp's columns are whole sectors only together
        }
    };
    auto each = [&](auto held_ones, auto others) {
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            int position = (n * PREPARE_THREADS + threadIdx.x) * 4;
            if (position < positions) held_ones(n, position);
        }
        for (int position = (HELD * PREPARE_THREADS + threadIdx.x) * 4; position < positions;
             position += PREPARE_THREADS * 4)
            others(position);
    };
    auto add = [&](const float (&v)[4]) { sum += v[0] * v[0] + v[1] * v[1] + (v[2] * v[2] + v[3] * v[3]); };
    float factor = p.factor;
    each([&](int n, int position) { load(held[n], position), add(held[n]); },
         [&](int position) {
             float v[4];
             if (a.norm.kind) load(v, position), add(v);
         });
    if (a.norm.kind) {
        bool before = REPRODUCIBLE && p.last_factors; // x is made before its norm
        float squares = before ? squares_of_chunks(from, a.chunks, scratch) : block_sum<PREPARE_THREADS>(sum, scratch);
        float of_norm = norm_factor(squares, a.cols, a.norm.eps),
              last = before ? load_float(p.last_factors + t) : of_norm;
        if (p.norm_factors && threadIdx.x == 0) p.norm_factors[t] = of_norm;
        if (before && threadIdx.x == 0) p.ratios[t] = 1.f / factor * of_norm / last;
        factor *= last;
    }
    auto store = [&](const float (&v)[4], int position) {
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int k = column_at(p.x.order, position + i);
            float weight = a.norm.kind && k < a.cols ? a.norm.weight[k] : 1.f;
            y[i] = REPRODUCIBLE ? v[i] * weight * factor
                                : v[i] * factor * weight; // as values that are passed before their norm
        }
        uint2 halves = {to_half2(y[0], y[1]), to_half2(y[2], y[3])};
        for (int i = 0; i < copies; i++)
            *(uint2*)half_at(p.x, p.rows ? __ldcg(p.rows + t * copies + i) : t, position) = halves;
    };
    each([&](int n, int position) { store(held[n], position); },
         [&](int position) {
             float v[4];
             load(v, position), store(v, position);
         });
}

// x of a linear as bytes, after its norm: a block makes a row, from floats or from halves that were passed.
extern "C" __global__ void __launch_bounds__(BYTES_THREADS, 4)
    prepare_bytes(const __grid_constant__ PrepareBytesArgs p) {
    __shared__ ByteRow<BYTES_THREADS> row;
    begin_next_launch();
    const LinearArgs& a = p.linear;
    int t = blockIdx.x;
    bool real = t < rows_of(p.inputs, a.outputs_only);
    const float* from = row_of(a.x, a.gather && real ? output_row(p.inputs, t) : t);
    if (a.norm.kind)
        for (int k = threadIdx.x * 32; k < a.cols; k += BYTES_THREADS * 32) prefetch(a.norm.weight + k);
    wait_for_launches();
    if (!real) return;
    // loads go through L1, as above
    auto load = [&](float (&v)[BYTES_OF_THREAD], int first, float& squares) {
        if (first >= a.cols) {
#pragma unroll
            for (int i = 0; i < BYTES_OF_THREAD; i++) v[i] = 0;
        } else if (p.passed.at) {
#pragma unroll
            for (int n = 0; n < 2; n++) {
                uint4 eight = *(const uint4*)half_at(p.passed, t, first + n * 8);
                u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
                for (int i = 0; i < 4; i++)
                    v[n * 8 + i * 2] = low_half(pairs[i]), v[n * 8 + i * 2 + 1] = high_half(pairs[i]);
            }
        } else {
#pragma unroll
            for (int n = 0; n < 4; n++) {
                float4 four = *(const float4*)(from + first + n * 4), by = {1, 1, 1, 1};
                if (a.norm.kind) by = *(const float4*)(a.norm.weight + first + n * 4);
                squares += four.x * four.x + four.y * four.y + (four.z * four.z + four.w * four.w);
                v[n * 4] = four.x * by.x, v[n * 4 + 1] = four.y * by.y;
                v[n * 4 + 2] = four.z * by.z, v[n * 4 + 3] = four.w * by.w;
            }
        }
    };
    auto factor = [&](float squares, float* scratch) {
        return a.norm.kind ? norm_factor(block_sum<BYTES_THREADS>(squares, scratch), a.cols, a.norm.eps) : 1.f;
    };
    row.make(p.x, t, a.cols, load, factor);
}

// Any small phase.
extern "C" __global__ void __launch_bounds__(PHASE_THREADS) run_small_phase(const __grid_constant__ PhaseArgs p) {
    __shared__ float scratch[32];
    begin_next_launch();
    wait_for_launches();
    small_phase<PHASE_THREADS>(p.phase, p.inputs, 0, scratch, blockIdx.x, gridDim.x);
}

// Lane i gets the sum of element i of all lanes, in fewer shuffles than a sum for each takes.
template <int HALF = 16> DEVICE float warp_sum_of_lane(float (&v)[32], int lane) {
    bool upper = lane & HALF;
#pragma unroll
    for (int i = 0; i < HALF; i++)
        v[i] = (upper ? v[i + HALF] : v[i]) + __shfl_xor_sync(0xffffffff, upper ? v[i] : v[i + HALF], HALF);
    if constexpr (HALF > 1) return warp_sum_of_lane<HALF / 2>(v, lane);
    return v[0];
}

// Matrices of floats for few tokens: y of the grid is the matrix. A block has FLOAT_ROWS rows for FLOAT_TOKENS tokens:
// all warps share the columns. With fewer rows, blocks would read more from L2 than it can deliver.
extern "C" __global__ void __launch_bounds__(PHASE_THREADS) float_linears(const __grid_constant__ FloatLinearsArgs p) {
    constexpr int VALUES = FLOAT_ROWS * FLOAT_TOKENS; // and after them the squares of tokens
    static_assert(VALUES + FLOAT_TOKENS <= 32, "a lane for each");
    __shared__ float shares[PHASE_WARPS][32];
    if (!p.shares_x) begin_next_launch();
    const FloatLinearArgs& a = p.linear[blockIdx.y];
    int row_tiles = (a.rows + FLOAT_ROWS - 1) / FLOAT_ROWS, first = blockIdx.x % row_tiles * FLOAT_ROWS,
        token = blockIdx.x / row_tiles * FLOAT_TOKENS;
    int tokens = rows_of(p.inputs, a.outputs_only), thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    auto row_at = [&](int r) { return (long)min(first + r, a.rows - 1) * a.cols; };
    auto x_at = [&](int t) { return row_of(a.x, min(token + t, tokens - 1)); };
    if (a.kind == F32) // read before the values of other launches are waited for
        for (int k = thread * 32; k < min(FLOAT_ROWS, a.rows - first) * a.cols; k += PHASE_THREADS * 32)
            prefetch((const float*)a.w + row_at(0) + k);
    wait_for_launches();
    if (p.shares_x) begin_next_launch(); // it need not wait for x
    if (token >= tokens) return;
    float sums[32] = {};
    bool by_four = reads_by_four(a);
#pragma unroll 2
    for (int k = thread * 4; by_four && k < a.cols; k += PHASE_THREADS * 4) {
        float4 w[FLOAT_ROWS], x[FLOAT_TOKENS], by = {1, 1, 1, 1}; // all are loaded before one is used
#pragma unroll
        for (int r = 0; r < FLOAT_ROWS; r++) w[r] = *(const float4*)((const float*)a.w + row_at(r) + k);
        if (a.norm.kind) by = *(const float4*)(a.norm.weight + k);
#pragma unroll
        for (int t = 0; t < FLOAT_TOKENS; t++) x[t] = load_floats4(x_at(t) + k);
#pragma unroll
        for (int t = 0; t < FLOAT_TOKENS; t++) {
            float4& v = x[t];
            sums[VALUES + t] += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
            v = {v.x * by.x, v.y * by.y, v.z * by.z, v.w * by.w};
#pragma unroll
            for (int r = 0; r < FLOAT_ROWS; r++)
                sums[r * FLOAT_TOKENS + t] += w[r].x * v.x + w[r].y * v.y + (w[r].z * v.z + w[r].w * v.w);
        }
    }
#pragma unroll 1
    for (int k = thread; !by_four && k < a.cols; k += PHASE_THREADS) {
        float by = a.norm.kind ? a.norm.weight[k] : 1.f;
#pragma unroll
        for (int t = 0; t < FLOAT_TOKENS; t++) {
            float v = load_float(x_at(t) + k);
            sums[VALUES + t] += v * v;
#pragma unroll
            for (int r = 0; r < FLOAT_ROWS; r++)
                sums[r * FLOAT_TOKENS + t] += read_float(a.w, row_at(r) + k, a.kind) * (v * by);
        }
    }
    shares[warp][lane] = warp_sum_of_lane(sums, lane);
    sync_threads<PHASE_THREADS>();
    if (thread >= VALUES) return;
    auto all = [&](int i) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < PHASE_WARPS; w++) sum += shares[w][i];
        return sum;
    };
    int r = thread / FLOAT_TOKENS, t = thread % FLOAT_TOKENS;
    write_float_row(a, first + r, token + t, tokens, all(thread), all(VALUES + t));
}

// The heads of a token before attention: q after norm and rotation, keys and values stored in pages. One warp per head.
extern "C" __global__ void __launch_bounds__(PHASE_THREADS) make_heads(const __grid_constant__ PhaseArgs p) {
    extern __shared__ __align__(16) u8 shared_bytes[];
    const AttendArgs& a = p.phase.attend;
    begin_next_launch();
    wait_for_launches();
    int token = blockIdx.x, warp = threadIdx.x / 32;
    if (token >= p.inputs[TOKENS]) return;
    float2* turn = (float2*)shared_bytes;
    float* scratch = (float*)(turn + max(a.pairs, 1)) + warp * a.head_dim;
    for (int i = threadIdx.x; i < a.pairs; i += PHASE_THREADS)
        sincosf(angle_of(p.inputs, a.freqs, a.pairs, a.parted, token, i), &turn[i].y, &turn[i].x);
    __syncthreads();
    int stored = a.v.at ? 2 * a.kv_heads : 0;
    for (int i = warp; i < a.heads + stored; i += PHASE_WARPS) {
        if (i < a.heads) {
            float* ready = a.ready.at + token * a.ready.stride + i * a.head_dim;
            make_head<MOST_HEAD_DIM>(a.q, token, i, a, turn, scratch, [&](int k, float v) { ready[k] = v; });
        } else {
            int head = (i - a.heads) % a.kv_heads;
            long slot = slot_of(a, pages_of(p.inputs, token, a.windowed), position_of(p.inputs, token), head);
            u16 *key = a.keys + slot * in_cells(a.head_dim), *value = a.values + slot * in_cells(a.v_dim);
            if (i < a.heads + a.kv_heads) {
                bool finite = true; // of the value: if it is not, the key becomes NaN, see score_new in attend.cuh
                for (int k = threadIdx.x % 32; k < a.v_dim; k += 32)
                    finite &= is_finite(row_of(a.v, token)[head * a.v_dim + k]);
                finite = __all_sync(0xffffffff, finite);
                make_head<MOST_HEAD_DIM>(a.k, token, head, a, turn, scratch,
                                         [&](int k, float v) { key[k] = finite ? to_half(v) : 0x7fff; });
            } else {
                for (int k = threadIdx.x % 32; k < a.v_dim; k += 32)
                    value[k] = to_half<true>(row_of(a.v, token)[head * a.v_dim + k]);
            }
        }
    }
}

// A block attends with one head of one token: its warps share the keys, and their results are combined at the end.
constexpr int MOST_DIMS = MOST_HEAD_DIM / 32; // a lane's columns of a head

extern "C" __global__ void __launch_bounds__(ATTEND_THREADS) attend(const __grid_constant__ PhaseArgs p) {
    __shared__ float scratch[ATTEND_WARPS][2 + MOST_DIMS * 32];
    const AttendArgs& a = p.phase.attend;
    begin_next_launch();
    wait_for_launches();
    if (blockIdx.x >= p.inputs[TOKENS]) return;
    int token = blockIdx.x, head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int position = position_of(p.inputs, token);
    const u32* pages = pages_of(p.inputs, token, a.windowed);
    const float* q = a.ready.at + token * a.ready.stride + head * a.head_dim;
    float query[MOST_DIMS], sum[MOST_DIMS] = {};
#pragma unroll
    for (int i = 0; i < MOST_DIMS; i++) query[i] = i * 32 + lane < a.head_dim ? q[i * 32 + lane] : 0.f;
    float most = -INFINITY, weight = 0, scale = scale_at(a, position);
    int from = a.window > 0 ? max(0, position + 1 - a.window) : 0;
    for (int at = from + warp; at <= position; at += ATTEND_WARPS) {
        long slot = slot_of(a, pages, at, kv_head);
        const u16* key = a.keys + slot * in_cells(a.head_dim);
        float score = 0;
#pragma unroll
        for (int i = 0; i < MOST_DIMS; i++)
            if (i * 32 + lane < a.head_dim) score += query[i] * to_float(key[i * 32 + lane]);
        score = warp_sum(score) * scale;
        if (a.softcap > 0) score = soft_capped(score, a.softcap);
        float next = fmaxf(most, score), base = next == -INFINITY ? 0.f : next; // all scores so far are -INFINITY
        float keep = expf(most - base), now = expf(score - base);
        const u16* value = a.values + slot * in_cells(a.v_dim);
#pragma unroll
        for (int i = 0; i < MOST_DIMS; i++) {
            float v = i * 32 + lane < a.v_dim ? to_float(value[i * 32 + lane]) : 0.f;
            sum[i] = sum[i] * keep + now * v;
        }
        weight = weight * keep + now;
        most = next;
    }
    if (lane == 0) scratch[warp][0] = most, scratch[warp][1] = weight;
#pragma unroll
    for (int i = 0; i < MOST_DIMS; i++) scratch[warp][2 + i * 32 + lane] = sum[i];
    __syncthreads();
    float top = -INFINITY, total = 0;
    for (int w = 0; w < ATTEND_WARPS; w++) top = fmaxf(top, scratch[w][0]);
    if (a.sinks) top = fmaxf(top, a.sinks[head]), total = expf(a.sinks[head] - top);
    for (int w = 0; w < ATTEND_WARPS; w++) total += scratch[w][1] * expf(scratch[w][0] - top);
    for (int d = threadIdx.x; d < a.v_dim; d += ATTEND_THREADS) {
        float y = 0;
        for (int w = 0; w < ATTEND_WARPS; w++) y += scratch[w][2 + d] * expf(scratch[w][0] - top);
        a.y.at[token * a.y.stride + head * a.v_dim + d] = y / total;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) run_argmax_share(const __grid_constant__ PhaseArgs p) {
    __shared__ float scratch[32];
    begin_next_launch();
    wait_for_launches();
    if (blockIdx.y >= p.inputs[OUTPUTS]) return;
    argmax_share(p.phase.argmax, blockIdx.y, scratch, blockIdx.x, gridDim.x);
}

extern "C" __global__ void __launch_bounds__(THREADS) run_argmax_whole(const __grid_constant__ PhaseArgs p) {
    __shared__ float scratch[32];
    begin_next_launch();
    wait_for_launches();
    if (blockIdx.x >= p.inputs[OUTPUTS]) return;
    argmax_whole(p.phase.argmax, blockIdx.x, scratch, p.blocks);
}
