// Recurrent phases of a fused step of one token, and norm, gate and rotation of its row if they are no part of a linear (linear.cuh).
// Blocks share columns and heads. They equal the kernels of launches (convolve.cu, recurrent.cu, transform.cu).
//
// Defined by the host: RECURRENT (whether there are such phases), STATE_ROWS.

#if RECURRENT
// Warps of all blocks take turns, so that a few items are on many multiprocessors.
DEVICE int first_item(int block, int blocks) { return threadIdx.x / 32 * blocks + block; }
DEVICE int item_step(int blocks) { return WARPS * blocks; }

APART void step_conv(const ConvArgs& a, int block, int blocks) {
    const Info& info = info_of_step();
    for (int item = first_item(block, blocks); item * 32 < a.width; item += item_step(blocks)) {
        int column = min(item * 32 + (int)threadIdx.x % 32, a.width - 1); // the lanes of a warp wait together
        bool real = item * 32 + (int)threadIdx.x % 32 < a.width;
        ConvColumn conv;
        if (real) conv.begin(a, info, column);
        float x = awaited_float(a.x.at + column, a.x.mask, info.epoch);
        if (real) store_tagged(a.y.at + column, conv.end(a, info, column, x), a.y.mask, info.epoch);
    }
}

static_assert(COLUMNS_OF_WARP == Reader::STATE_COLUMNS_OF_WARP, "the reading warp prefetches what the others have");

APART void step_matrices(const RecurrentArgs& a, int block, int blocks) {
    const Info& info = info_of_step();
    SliceState s = {0, 1, info.state_read, info.state_write};
    int each = (a.cols + COLUMNS_OF_WARP - 1) / COLUMNS_OF_WARP;
    for (int item = first_item(block, blocks); item < a.heads * each; item += item_step(blocks)) {
        if (a.skip) advance_token<false, true>(a, s, item / each, item % each * COLUMNS_OF_WARP, info.epoch);
        else advance_token<true, true>(a, s, item / each, item % each * COLUMNS_OF_WARP, info.epoch);
    }
}

// A block makes chunks of the result: warps have the pieces of CHUNK columns that a chunk is made from, four columns per lane, and pass
// them through shared memory (ARENA, which belongs to the phase). All warps add the squares of the row. What does not need x is done
// before x is waited for, in few instructions: code that runs once per phase takes the time of loading it.
APART void step_transform(const TransformArgs& a, float* scratch, int block, int blocks) {
    const Info& info = info_of_step();
    u32 epoch = info.epoch, mask = a.x.mask;
    int first = place_among(a.first_block, block, blocks);
    if ((a.outputs_only && info.outputs == 0) || first * CHUNK >= a.width) return;
    float *span = (float*)(shared + AT_ARENA), *crossed = span + TRANSFORM_SPAN;
    static_assert(ARENA >= (TRANSFORM_SPAN + CHUNK) * 4, "a span is in shared memory");
    static_assert(TRANSFORM_SPAN / CHUNK <= WARPS && CHUNK == 128, "a warp has a piece, and a thread a column");
    const float* x = row_of(a.x, a.gather ? info.output_row[0] : 0);
    bool has_norm = a.norm.kind != NORM_NONE, of_row = has_norm && a.group == a.width;
    int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, pieces = max(1, a.block / CHUNK);
    float scale = a.block ? rsqrtf((float)a.block) : 1.f;
#pragma unroll 1
    for (int chunk = first; chunk * CHUNK < a.width; chunk += blocks) {
        int column = (chunk / pieces * pieces + warp) * CHUNK + lane * 4, own = chunk % pieces, result = chunk * CHUNK + thread;
        bool has = warp < pieces && column < a.width;
        int from = !has || a.inverse ? min(column, a.width - 4) : place_of(a, column);
        float by[4] = {scale, scale, scale, scale};
        auto apply = [&](const float* factors) {
            float4 f = *(const float4*)factors;
            by[0] *= f.x, by[1] *= f.y, by[2] *= f.z, by[3] *= f.w;
        };
        if (has_norm && has) apply(a.norm.weight + from % a.group);
        if (a.block && !a.inverse && has) apply(a.signs + column % a.group_width);
        if (a.act && warp < pieces) { // a factor of x
            float4 gate = awaited_floats4(a.gate.at + gate_column(a, from), a.gate.mask, epoch);
            by[0] *= activate_any(a.act - 1, gate.x, 1.f, 0.f), by[1] *= activate_any(a.act - 1, gate.y, 1.f, 0.f);
            by[2] *= activate_any(a.act - 1, gate.z, 1.f, 0.f), by[3] *= activate_any(a.act - 1, gate.w, 1.f, 0.f);
        }
        float sign = 1;
        int to = a.inverse && result < a.width ? place_of(a, result) : result;
        if (a.inverse && a.block && result < a.width) sign = a.signs[result % a.group_width];

        float whole = 1;
        float4 value;
        if (of_row) {
            float sum = 0;
#pragma unroll 1
            for (int k = thread * 4; k - thread * 4 < a.width; k += 3 * THREADS * 4) { // the lanes of a warp wait together
                float4 v[4]; // of the row, and the thread's value
                awaited_quads(v, [&](int n) { return n == 3 ? x + from : x + min(k + n * THREADS * 4, a.width - 4); }, mask, epoch);
#pragma unroll
                for (int n = 0; n < 3; n++)
                    if (k + n * THREADS * 4 < a.width) sum += v[n].x * v[n].x + v[n].y * v[n].y + (v[n].z * v[n].z + v[n].w * v[n].w);
                value = v[3];
            }
            whole = rsqrtf(block_sum<THREADS>(sum, scratch) / (float)a.width + a.norm.eps);
        } else {
            value = awaited_floats4(x + from, mask, epoch);
        }
        if (warp < pieces) {
            float v[4] = {value.x, value.y, value.z, value.w}, sum = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = has ? v[i] : 0.f, sum += v[i] * v[i];
            if (has_norm && !of_row) {
#pragma unroll 1
                for (int step = 1; step < a.group / 4; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
                whole = rsqrtf(sum / (float)a.group + a.norm.eps);
            }
            *(float4*)(span + thread * 4) = {v[0] * by[0] * whole, v[1] * by[1] * whole, v[2] * by[2] * whole, v[3] * by[3] * whole};
        }
        sync_threads<THREADS>();
        if (thread < CHUNK) { // a column each
            int others = min(a.block, CHUNK) / 32 - 1; // bits of the numbers of warps whose columns are added
            float y = 0;
#pragma unroll 1
            for (int j = 0; j < pieces; j++) y += __popc(j & own) % 2 ? -span[j * CHUNK + thread] : span[j * CHUNK + thread];
#pragma unroll 1
            for (int half = 1; half < min(a.block, 32); half *= 2) y = __shfl_xor_sync(0xffffffff, y, half) + (lane & half ? -y : y);
            if (others > 0) {
                crossed[thread] = y;
                asm volatile("bar.sync 2, 128;" ::: "memory"); // of these threads
                y = 0;
#pragma unroll 1
                for (int w = 0; w <= others; w++) y += __popc(w & warp) % 2 ? -crossed[((warp & ~others) | w) * 32 + lane] : crossed[((warp & ~others) | w) * 32 + lane];
            }
            if (result < a.width) store_tagged(a.y.at + to, y * sign, a.y.mask, epoch);
        }
        if (chunk + blocks < (a.width + CHUNK - 1) / CHUNK) sync_threads<THREADS>(); // the memory is used again
    }
}
#endif
