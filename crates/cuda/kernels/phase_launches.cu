// One or two kernels per phase, for steps of any size. They equal the same ops as the phases of fused_step.cu.
//
// Defined by the host: FORMATS and PAGE_LEN, as for fused_step.cu.

constexpr int TOKEN_SETS = BLOCK_TOKENS / 4; // of a block of `gemm`: the matrix unit takes four tokens
constexpr int ATTEND_WARPS = ATTEND_THREADS / 32;

extern "C" __global__ void __launch_bounds__(PHASE_THREADS) prepare(const __grid_constant__ PrepareArgs p) {
    __shared__ float scratch[32];
    const LinearArgs& a = p.linear;
    int t = blockIdx.x, part = threadIdx.x % 16, row = a.gather ? output_row(p.inputs, t) : t;
    const float* from = a.x.at + row * a.x.stride;
    float factor = 1;
    if (a.norm.kind) {
        float sum = 0;
        for (int k = threadIdx.x; k < a.cols; k += PHASE_THREADS) sum += from[k] * from[k];
        factor = norm_factor(block_sum<PHASE_THREADS>(sum, scratch), a.cols, a.norm.eps);
    }
    for (int k = threadIdx.x * 8; k / 128 / 2 * 2 < a.chunks; k += PHASE_THREADS * 8) { // whole warps
        float v[8], most = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = k + i < a.cols ? from[k + i] : 0.f;
            if (a.norm.kind && k + i < a.cols) v[i] *= factor * a.norm.weight[k + i];
            most = larger_magnitude(most, v[i]);
        }
#pragma unroll
        for (int step = 8; step > 0; step /= 2) most = larger_magnitude(most, __shfl_xor_sync(0xffffffff, most, step));
        long chunk = k / 128;
        int sum = 0;
        u8* to = p.x.bytes + (chunk * p.x.tokens + t / 4 * 4) * 256;
        if (chunk < a.chunks) {
            if (a.signs) store_signs_x(to, 4, t % 4, part, v, most);
            else sum = store_x(to, 4, t % 4, part, v, most);
        }
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        if (chunk >= a.chunks) continue;
        if (part % 2 == 0) p.x.sums[(chunk * p.x.tokens + t) * 8 + part / 2] = (float)sum;
        if (part == 0) p.x.scales[chunk * p.x.tokens + t] = x_scale_of(most, BYTES_MOST);
    }
}

// total += one chunk of a tile, times all tokens of the block.
template <class F> DEVICE void multiply_chunk(float (&total)[TOKEN_SETS][2], const Codes<F>& w, const u8* record, const u8* x,
                                             const float* scales, const float* sums, int lane) {
    int g = lane / 4, q = lane % 4;
    const u32* pairs = (const u32*)(record + F::SCALES_AT) + g * F::GROUPS;
    float part[TOKEN_SETS][2] = {};
    int c[TOKEN_SETS][4] = {};
    auto flush = [&](int group) {
        u32 scale = pairs[group];
        float low = low_half(scale), high = high_half(scale);
#pragma unroll
        for (int n = 0; n < TOKEN_SETS; n++) {
            part[n][0] += low * (float)(c[n][0] * 256 + c[n][1]);
            part[n][1] += high * (float)(c[n][2] * 256 + c[n][3]);
            c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
            if constexpr (F::OFFSETS) {
                u32 offset = pairs[group + 8 * F::GROUPS];
                float sum = 0;
#pragma unroll
                for (int i = 0; i < F::GROUP / 16; i++) sum += sums[(n * 4 + q) * 8 + group * (F::GROUP / 16) + i];
                part[n][0] += low_half(offset) * sum * F::UNIT;
                part[n][1] += high_half(offset) * sum * F::UNIT;
            }
        }
    };
#pragma unroll
    for (int m = 0; m < 2; m++) {
        u32 b[TOKEN_SETS][4];
#pragma unroll
        for (int n = 0; n < TOKEN_SETS; n++) {
            uint4 v = *(const uint4*)(x + n * 1024 + m * 512 + g * 64 + q * 16);
            b[n][0] = v.x, b[n][1] = v.y, b[n][2] = v.z, b[n][3] = v.w;
        }
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int j = 4 * m + 2 * s;
            u32 a0 = w.get(0, j), a1 = w.get(1, j), a2 = w.get(0, j + 1), a3 = w.get(1, j + 1);
            if constexpr (F::GROUP == 16) {
#pragma unroll
                for (int n = 0; n < TOKEN_SETS; n++) multiply(c[n], a0, a1, b[n][2 * s]);
                flush(j);
#pragma unroll
                for (int n = 0; n < TOKEN_SETS; n++) multiply(c[n], a2, a3, b[n][2 * s + 1]);
                flush(j + 1);
            } else {
#pragma unroll
                for (int n = 0; n < TOKEN_SETS; n++) multiply(c[n], a0, a1, a2, a3, b[n][2 * s], b[n][2 * s + 1]);
                if ((j + 2) * 16 % F::GROUP == 0) flush(j * 16 / F::GROUP);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < TOKEN_SETS; n++) {
        float scale = scales[n * 4 + q];
        total[n][0] += scale * part[n][0];
        total[n][1] += scale * part[n][1];
    }
}

struct alignas(16) Stage { u8 bytes[BLOCK_TOKENS * 256]; float scales[BLOCK_TOKENS], sums[BLOCK_TOKENS * 8]; };

// The rows of a tile for all tokens of the block.
template <class F> DEVICE void multiply_tile(float (&total)[TOKEN_SETS][2], const LinearArgs& a, const Part& part, int tile, const IntegerX& x, int first, Stage* stages) {
    int lane = threadIdx.x % 32;
    bool real = tile < part.tiles;
    const u8* record = part.records + (long)tile * a.chunks * F::BYTES;
    auto fetch = [&](int chunk) {
        if (chunk < a.chunks) {
            Stage& stage = stages[chunk % 2];
            const u8* from = x.bytes + ((long)chunk * x.tokens + first) * 256;
            for (int i = threadIdx.x * 16; i < BLOCK_TOKENS * 256; i += PHASE_THREADS * 16) copy16(stage.bytes + i, from + i);
            if (threadIdx.x < BLOCK_TOKENS / 4) copy16(stage.scales + threadIdx.x * 4, x.scales + (long)chunk * x.tokens + first + threadIdx.x * 4);
            if (F::OFFSETS && threadIdx.x < BLOCK_TOKENS * 2) copy16(stage.sums + threadIdx.x * 4, x.sums + ((long)chunk * x.tokens + first) * 8 + threadIdx.x * 4);
        }
        committed();
    };
    fetch(0);
    Codes<F> next;
    if (real) next.load(record, lane);
    for (int chunk = 0; chunk < a.chunks; chunk++) {
        fetch(chunk + 1);
        Codes<F> now = next;
        if (real && chunk + 1 < a.chunks) next.load(record + F::BYTES, lane);
        arrived<1>();
        __syncthreads();
        const Stage& stage = stages[chunk % 2];
        if (real) multiply_chunk<F>(total, now, record, stage.bytes, stage.scales, stage.sums, lane);
        record += F::BYTES;
        __syncthreads();
    }
}

// One part of a phase, or both of a gated one: half of the warps have tiles of the first part, the others of the second.
extern "C" __global__ void __launch_bounds__(PHASE_THREADS) gemm(const __grid_constant__ GemmArgs m) {
    __shared__ union { Stage stages[2]; float tiles[PHASE_WARPS][16][BLOCK_TOKENS + 1]; } scratch;
    const LinearArgs& a = m.linear;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4, first = blockIdx.y * BLOCK_TOKENS;
    int second = a.gated && warp >= PHASE_WARPS / 2, each = a.gated ? PHASE_WARPS / 2 : PHASE_WARPS;
    const Part& part = a.part[a.gated ? second : m.part];
    int tile = blockIdx.x * each + warp % each;
    float total[TOKEN_SETS][2] = {};
    switch (part.format) { // the same for all warps: gated parts have one format
#define CASE(n, ...) case n: multiply_tile<FormatOf<n>::Is>(total, a, part, tile, m.x, first, scratch.stages); break;
        FORMATS(CASE)
#undef CASE
    }
#pragma unroll
    for (int n = 0; n < TOKEN_SETS; n++) {
        scratch.tiles[warp][g][n * 4 + q] = total[n][0];
        scratch.tiles[warp][g + 8][n * 4 + q] = total[n][1];
    }
    __syncthreads();
    const Part& out = a.part[a.gated ? 0 : m.part];
    for (int i = threadIdx.x; i < each * 16 * BLOCK_TOKENS; i += PHASE_THREADS) {
        int r = i % 16, w = i / 16 % each, t = i / 16 / each, row = (blockIdx.x * each + w) * 16 + r;
        if (row >= out.rows || first + t >= m.rows) continue;
        float y = finished(out, scratch.tiles[w][r][t], 1, row);
        if (a.gated) y = activate(a.gated - 1, y) * finished(a.part[1], scratch.tiles[w + PHASE_WARPS / 2][r][t], 1, row);
        if (a.add.at) y += a.add.at[(first + t) * a.add.stride + row];
        out.y[(long)(first + t) * out.y_stride + row] = y;
    }
}

// Any small phase.
extern "C" __global__ void __launch_bounds__(PHASE_THREADS) run_small_phase(const __grid_constant__ PhaseArgs p) {
    __shared__ float scratch[32];
    small_phase<PHASE_THREADS>(p.phase, p.inputs, 0, scratch, blockIdx.x, gridDim.x);
}

// The heads of a token before attention: q after norm and rotation, keys and values stored in pages. One warp per head.
extern "C" __global__ void __launch_bounds__(PHASE_THREADS) make_heads(const __grid_constant__ PhaseArgs p) {
    extern __shared__ __align__(16) u8 shared_bytes[];
    const AttendArgs& a = p.phase.attend;
    int token = blockIdx.x, warp = threadIdx.x / 32;
    float2* turn = (float2*)shared_bytes;
    float* scratch = (float*)(turn + max(a.pairs, 1)) + warp * a.head_dim;
    for (int i = threadIdx.x; i < a.pairs; i += PHASE_THREADS) sincosf((float)position_of(p.inputs, token) * a.freqs[i], &turn[i].y, &turn[i].x);
    __syncthreads();
    for (int i = warp; i < a.heads + 2 * a.kv_heads; i += PHASE_WARPS) {
        if (i < a.heads) {
            float* ready = a.ready.at + token * a.ready.stride + i * a.head_dim;
            make_head<MOST_HEAD_DIM>(a.q, token, i, a, turn, scratch, [&](int k, float v) { ready[k] = v; });
        } else {
            int head = (i - a.heads) % a.kv_heads;
            long slot = slot_of(a, pages_of(p.inputs, token), position_of(p.inputs, token), head);
            u16 *key = a.keys + slot * a.head_dim, *value = a.values + slot * a.v_dim;
            if (i < a.heads + a.kv_heads) {
                bool finite = true; // of the value: if it is not, the key becomes NaN, see score_new in attend.cuh
                for (int k = threadIdx.x % 32; k < a.v_dim; k += 32) finite &= is_finite(row_of(a.v, token)[head * a.v_dim + k]);
                finite = __all_sync(0xffffffff, finite);
                make_head<MOST_HEAD_DIM>(a.k, token, head, a, turn, scratch, [&](int k, float v) { key[k] = finite ? to_half(v) : 0x7fff; });
            } else {
                for (int k = threadIdx.x % 32; k < a.v_dim; k += 32) value[k] = to_half<true>(row_of(a.v, token)[head * a.v_dim + k]);
            }
        }
    }
}

// A block attends with one head of one token: its warps share the keys, and their results are combined at the end.
constexpr int MOST_DIMS = MOST_HEAD_DIM / 32; // a lane's columns of a head

extern "C" __global__ void __launch_bounds__(ATTEND_THREADS) attend(const __grid_constant__ PhaseArgs p) {
    __shared__ float scratch[ATTEND_WARPS][2 + MOST_DIMS * 32];
    const AttendArgs& a = p.phase.attend;
    int token = blockIdx.x, head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int position = position_of(p.inputs, token);
    const u32* pages = pages_of(p.inputs, token);
    const float* q = a.ready.at + token * a.ready.stride + head * a.head_dim;
    float query[MOST_DIMS], sum[MOST_DIMS] = {};
#pragma unroll
    for (int i = 0; i < MOST_DIMS; i++) query[i] = i * 32 + lane < a.head_dim ? q[i * 32 + lane] : 0.f;
    float most = -INFINITY, weight = 0;
    int from = a.window > 0 ? max(0, position + 1 - a.window) : 0;
    for (int at = from + warp; at <= position; at += ATTEND_WARPS) {
        long slot = slot_of(a, pages, at, kv_head);
        const u16* key = a.keys + slot * a.head_dim;
        float score = 0;
#pragma unroll
        for (int i = 0; i < MOST_DIMS; i++)
            if (i * 32 + lane < a.head_dim) score += query[i] * to_float(key[i * 32 + lane]);
        score = warp_sum(score) * a.scale;
        if (a.softcap > 0) score = soft_capped(score, a.softcap);
        float next = fmaxf(most, score), base = next == -INFINITY ? 0.f : next; // all scores so far are -INFINITY
        float keep = expf(most - base), now = expf(score - base);
        const u16* value = a.values + slot * a.v_dim;
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
    for (int w = 0; w < ATTEND_WARPS; w++) total += scratch[w][1] * expf(scratch[w][0] - top);
    for (int d = threadIdx.x; d < a.v_dim; d += ATTEND_THREADS) {
        float y = 0;
        for (int w = 0; w < ATTEND_WARPS; w++) y += scratch[w][2 + d] * expf(scratch[w][0] - top);
        a.y.at[token * a.y.stride + head * a.v_dim + d] = y / total;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) run_argmax_share(const __grid_constant__ PhaseArgs p) {
    __shared__ float scratch[32];
    argmax_share(p.phase.argmax, blockIdx.y, scratch, blockIdx.x, gridDim.x);
}

extern "C" __global__ void __launch_bounds__(THREADS) run_argmax_whole(const __grid_constant__ PhaseArgs p) {
    __shared__ float scratch[32];
    argmax_whole(p.phase.argmax, blockIdx.x, scratch, p.blocks);
}
