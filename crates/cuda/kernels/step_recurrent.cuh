// Recurrent phases of a fused step of one token, and norm, gate and rotation of its row. Blocks share columns and heads; the values
// have no tags, and a grid barrier precedes each phase. They equal the kernels of launches (convolve.cu, recurrent.cu, transform.cu).
//
// Defined by the host: RECURRENT (whether there are such phases), STATE_ROWS.

#if RECURRENT
// Warps of all blocks take turns, so that a few items are on many multiprocessors.
DEVICE int first_item(int block, int blocks) { return threadIdx.x / 32 * blocks + block; }
DEVICE int item_step(int blocks) { return WARPS * blocks; }

APART void step_conv(const ConvArgs& a, int block, int blocks) {
    SliceState s = state_of(a.inputs, 0);
    int old = a.taps_count - 1;
    for (int item = first_item(block, blocks); item * 32 < a.width; item += item_step(blocks)) {
        int column = item * 32 + threadIdx.x % 32;
        if (column >= a.width) continue;
        float x = load_float(a.x.at + column), sum = 0;
        const float* taps = a.taps + (long)column * a.taps_count;
        const float* from = a.state + (long)max(s.read, 0) * old * a.width + column;
        float* to = a.state + (long)s.write * old * a.width + column;
        float rows[7]; // before the token
#pragma unroll
        for (int j = 0; j < 7; j++) rows[j] = j < old && s.read >= 0 ? load_float(from + (long)j * a.width) : 0.f;
#pragma unroll
        for (int j = 0; j < 7; j++) {
            if (j >= old) break;
            sum += rows[j] * taps[j];
            if (j > 0) to[(long)(j - 1) * a.width] = rows[j];
        }
        sum += x * taps[old];
        to[(long)(old - 1) * a.width] = x;
        if (a.bias) sum += a.bias[column];
        if (a.silu) sum /= 1.f + expf(-sum);
        a.y.at[column] = sum;
    }
}

APART void step_matrices(const RecurrentArgs& a, int block, int blocks) {
    int each = (a.cols + 7) / 8;
    for (int item = first_item(block, blocks); item < a.heads * each; item += item_step(blocks)) {
        if (a.skip) advance_token<false>(a, 0, item / each, item % each * 8);
        else advance_token<true>(a, 0, item / each, item % each * 8);
    }
}

// A block transforms a span: eight warps have 128 columns each, four per lane, and exchange them through shared memory (ARENA, which
// belongs to the phase). All warps add the squares of the row.
APART void step_transform(const TransformArgs& a, const u32* inputs, float* scratch, int block, int blocks) {
    if (a.outputs_only && inputs[OUTPUTS] == 0) return;
    float* span = (float*)(shared + AT_ARENA);
    static_assert(ARENA >= TRANSFORM_SPAN * 4, "a span is in shared memory");
    const float* x = row_of(a.x, a.gather ? output_row(inputs, 0) : 0);
    bool has_norm = a.norm.kind != NORM_NONE, of_row = a.group == a.width;
    if (block * TRANSFORM_SPAN >= a.width) return;
    int thread = threadIdx.x, lane = thread % 32;
    float whole = 1, scale = a.block ? rsqrtf((float)a.block) : 1.f;
    if (has_norm && of_row) {
        float sum = 0;
#pragma unroll 4
        for (int k = thread * 4; k < a.width; k += THREADS * 4) {
            float4 v = load_floats4(x + k);
            sum += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
        }
        whole = norm_factor(block_sum<THREADS>(sum, scratch), a.width, a.norm.eps);
    }
    auto pair = [](float& x, float& y) {
        float sum = x + y, difference = x - y;
        x = sum, y = difference;
    };
    for (int begin = block * TRANSFORM_SPAN; begin < a.width; begin += blocks * TRANSFORM_SPAN) {
        int column = begin + thread * 4;
        if (thread < TRANSFORM_SPAN / 4) {
            bool has = column < a.width;
            int from = a.inverse || !has ? column : place_of(a, column);
            float4 at = {0, 0, 0, 0}, weight = {1, 1, 1, 1}, sign = {1, 1, 1, 1}, gate = {1, 1, 1, 1};
            if (has) {
                at = load_floats4(x + from);
                if (has_norm) weight = *(const float4*)(a.norm.weight + from % a.group);
                if (a.block && !a.inverse) sign = *(const float4*)(a.signs + column % a.group_width);
                if (a.act) gate = load_floats4(a.gate.at + gate_column(a, from));
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
            if (a.block > 1) pair(v[0], v[1]), pair(v[2], v[3]);
            if (a.block > 2) pair(v[0], v[2]), pair(v[1], v[3]);
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
            if (a.block > 128) pair(q[0], q[1]), pair(q[2], q[3]), pair(q[4], q[5]), pair(q[6], q[7]);
            if (a.block > 256) pair(q[0], q[2]), pair(q[1], q[3]), pair(q[4], q[6]), pair(q[5], q[7]);
            if (a.block > 512) pair(q[0], q[4]), pair(q[1], q[5]), pair(q[2], q[6]), pair(q[3], q[7]);
#pragma unroll
            for (int c = 0; c < 8; c++) {
                int k = begin + c * 128 + thread;
                if (k >= a.width) continue;
                if (a.inverse) a.y.at[place_of(a, k)] = q[c] * scale * a.signs[k % a.group_width];
                else a.y.at[k] = q[c] * scale;
            }
        }
        sync_threads<THREADS>();
    }
}
#endif
