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

APART void step_matrices(const RecurrentArgs& a, int block, int blocks) {
    const Info& info = info_of_step();
    SliceState s = {0, 1, info.state_read, info.state_write};
    int each = (a.cols + 7) / 8;
    for (int item = first_item(block, blocks); item < a.heads * each; item += item_step(blocks)) {
        if (a.skip) advance_token<false, true>(a, s, item / each, item % each * 8, info.epoch);
        else advance_token<true, true>(a, s, item / each, item % each * 8, info.epoch);
    }
}

// A block transforms a span: eight warps have 128 columns each, four per lane, and exchange them through shared memory (ARENA, which
// belongs to the phase). All warps add the squares of the row.
APART void step_transform(const TransformArgs& a, float* scratch, int block, int blocks) {
    const Info& info = info_of_step();
    u32 epoch = info.epoch;
    if (a.outputs_only && info.outputs == 0) return;
    float* span = (float*)(shared + AT_ARENA);
    static_assert(ARENA >= TRANSFORM_SPAN * 4, "a span is in shared memory");
    const float* x = row_of(a.x, a.gather ? info.output_row[0] : 0);
    bool has_norm = a.norm.kind != NORM_NONE, of_row = a.group == a.width;
    if (block * TRANSFORM_SPAN >= a.width) return;
    int thread = threadIdx.x, lane = thread % 32;
    float whole = 1, scale = a.block ? rsqrtf((float)a.block) : 1.f;
    if (has_norm && of_row) {
        float sum = 0;
#pragma unroll 4
        for (int begin = 0; begin < a.width; begin += THREADS * 4) { // the lanes of a warp wait together
            int k = begin + thread * 4;
            float4 v = awaited_floats4(x + min(k, a.width - 4), a.x.mask, epoch);
            if (k < a.width) sum += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
        }
        whole = norm_factor(block_sum<THREADS>(sum, scratch), a.width, a.norm.eps);
    }
    for (int begin = block * TRANSFORM_SPAN; begin < a.width; begin += blocks * TRANSFORM_SPAN) {
        int column = begin + thread * 4;
        if (thread < TRANSFORM_SPAN / 4) {
            bool has = column < a.width;
            int from = !has ? 0 : a.inverse ? column : place_of(a, column);
            float4 at = awaited_floats4(x + from, a.x.mask, epoch), weight = {1, 1, 1, 1}, sign = {1, 1, 1, 1}, gate = {1, 1, 1, 1};
            if (!has) at = {0, 0, 0, 0};
            if (a.act) gate = awaited_floats4(a.gate.at + gate_column(a, from), a.gate.mask, epoch);
            if (has) {
                if (has_norm) weight = *(const float4*)(a.norm.weight + from % a.group);
                if (a.block && !a.inverse) sign = *(const float4*)(a.signs + column % a.group_width);
            }
            float factor = whole;
            if (has_norm && !of_row) {
                float sum = at.x * at.x + at.y * at.y + (at.z * at.z + at.w * at.w);
                for (int step = 1; step < a.group / 4; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
                factor = norm_factor(sum, a.group, a.norm.eps);
            }
            float v[4] = {at.x * factor * weight.x, at.y * factor * weight.y, at.z * factor * weight.z, at.w * factor * weight.w};
            if (a.act) {
                v[0] = activate(a.act - 1, gate.x, v[0], a.limit), v[1] = activate(a.act - 1, gate.y, v[1], a.limit);
                v[2] = activate(a.act - 1, gate.z, v[2], a.limit), v[3] = activate(a.act - 1, gate.w, v[3], a.limit);
            }
            v[0] *= sign.x, v[1] *= sign.y, v[2] *= sign.z, v[3] *= sign.w;
            if (a.block > 1) sum_and_difference(v[0], v[1]), sum_and_difference(v[2], v[3]);
            if (a.block > 2) sum_and_difference(v[0], v[2]), sum_and_difference(v[1], v[3]);
            for (int half = 4; half < min(a.block, 128); half *= 2) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float other = __shfl_xor_sync(0xffffffff, v[i], half / 4);
                    v[i] = lane & half / 4 ? other - v[i] : v[i] + other;
                }
            }
            *(float4*)(span + thread * 4) = {v[0], v[1], v[2], v[3]};
        }
        sync_threads<THREADS>();
        if (thread < 128) {
            float q[8];
#pragma unroll
            for (int c = 0; c < 8; c++) q[c] = span[c * 128 + thread];
            if (a.block > 128) sum_and_difference(q[0], q[1]), sum_and_difference(q[2], q[3]), sum_and_difference(q[4], q[5]), sum_and_difference(q[6], q[7]);
            if (a.block > 256) sum_and_difference(q[0], q[2]), sum_and_difference(q[1], q[3]), sum_and_difference(q[4], q[6]), sum_and_difference(q[5], q[7]);
            if (a.block > 512) sum_and_difference(q[0], q[4]), sum_and_difference(q[1], q[5]), sum_and_difference(q[2], q[6]), sum_and_difference(q[3], q[7]);
#pragma unroll
            for (int c = 0; c < 8; c++) {
                int k = begin + c * 128 + thread;
                if (k >= a.width) continue;
                float y = q[c] * scale * (a.inverse ? a.signs[k % a.group_width] : 1.f);
                store_tagged(a.y.at + (a.inverse ? place_of(a, k) : k), y, a.y.mask, epoch);
            }
        }
        sync_threads<THREADS>();
    }
}
#endif
