// Recurrent phases of a fused step of one token, and norm, gate and rotation of its row if they are no part of a linear
// (linear.cuh). Blocks share columns and heads. They equal the kernels of launches (convolve.cu, recurrent.cu,
// transform.cu).
//
// Defined by the host: RECURRENT (whether there are such phases).

#pragma once

#include "fused_step/ring.cuh"
#include "recurrent/transform_columns.cuh"
#include "recurrent/conv_column.cuh"
#include "recurrent/state_matrix.cuh"

// Warps of all blocks take turns, so that a few items are on many multiprocessors.
DEVICE int first_item(int block, int blocks) { return fixed_thread() / 32 * blocks + block; }
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

static_assert(COLUMNS_OF_WARP == STEP_STATE_COLUMNS, "the host and the reading warp know who has which columns");

APART void step_matrices(const Phase& phase, int block, int blocks) {
    const RecurrentArgs& a = phase.recurrent;
    block = place_in(phase.range, block, BLOCKS), blocks = count_of(phase.range, blocks);
    const Info& info = info_of_step();
    SliceState s = {0, 1, info.state_read, info.state_write};
    int each = (a.cols + COLUMNS_OF_WARP - 1) / COLUMNS_OF_WARP;
    for (int item = first_item(block, blocks); item < a.heads * each; item += item_step(blocks)) {
        int head = small_quotient(item, each), first = (item - head * each) * COLUMNS_OF_WARP;
        if (a.skip) advance_token<false, true>(a, s, head, first, info.epoch);
        else advance_token<true, true>(a, s, head, first, info.epoch);
    }
}

// A block makes two chunks of the result, each by half of its warps: these have the pieces of CHUNK columns that the
// chunk is made from, four columns per lane, mix the columns of a piece, and pass them through shared memory (ARENA,
// which belongs to the phase). All warps add the squares of the row. What does not need x is done before x is waited
// for, in few instructions: code that runs once per phase takes the time of loading it.
APART void step_transform(const TransformArgs& a, float* scratch, int block, int blocks) {
    constexpr int PIECES = TRANSFORM_SPAN / CHUNK;
    static_assert(!RECURRENT || Sizes::ARENA >= 2 * TRANSFORM_SPAN * 4, "two spans are in shared memory");
    static_assert(2 * PIECES == WARPS && PIECES == 8 && CHUNK == 128, "a warp has a piece");
    const Info& info = info_of_step();
    u32 epoch = info.epoch, mask = a.x.mask;
    if (a.outputs_only && info.outputs == 0) return;
    const float* x = row_of(a.x, a.gather ? info.output_row[0] : 0);
    bool has_norm = a.norm.kind != NORM_NONE, of_row = has_norm && a.group == a.width;
    int thread = fixed_thread(), lane = thread % 32, piece = thread / 32 % PIECES, second = thread / 32 / PIECES,
        in_chunk = thread % (PIECES * 32);
    float* span = (float*)(shared + Sizes::AT_ARENA) + second * TRANSFORM_SPAN;
    int pieces = max(1, a.block / CHUNK); // a power of two
    float scale = a.block ? rsqrtf((float)a.block) : 1.f;
#pragma unroll 1
    for (int pair = place_among(a.first_block, block, blocks); pair * 2 * CHUNK < a.width; pair += blocks) {
        int chunk = 2 * pair + second, own = chunk & pieces - 1, column = (chunk - own + piece) * CHUNK + lane * 4,
            result = chunk * CHUNK + in_chunk;
        bool has = piece < pieces && column < a.width;
        int from = !has || a.inverse ? min(column, a.width - 4) : place_of(a, column);
        Awaited<1> value, gate;
        // all loads first, none after a branch that waits for it: each takes long
        if (!of_row) value.load(x + from);
        const float* gate_at = a.gate.at + (a.act ? gate_column(a, from) : 0);
        if (a.act) gate.load(gate_at);
        Factors weight, signs;
        weight.load_if(has_norm && has, a.norm.weight + (of_row ? from : small_rest(from, a.group)));
        signs.load_if(a.block && !a.inverse && has, a.signs + small_rest(column, a.group_width));
        float sign = 1;
        int to = a.inverse && result < a.width ? place_of(a, result) : result;
        if (a.inverse && a.block && result < a.width) sign = a.signs[small_rest(result, a.group_width)];

        float whole = 1;
        if (of_row) {
            float sum = 0;
#pragma unroll 1
            for (int k = thread * 4; k - thread * 4 < a.width;
                 k += 3 * THREADS * 4) { // the lanes of a warp wait together
                float4 v[4];             // of the row, and the thread's own columns
                awaited_quads(
                    v, [&](int n) { return x + (n == 3 ? from : min(k + n * THREADS * 4, a.width - 4)); }, mask, epoch);
#pragma unroll
                for (int n = 0; n < 3; n++)
                    if (k + n * THREADS * 4 < a.width)
                        sum += v[n].x * v[n].x + v[n].y * v[n].y + (v[n].z * v[n].z + v[n].w * v[n].w);
                value.bits[0] = __float_as_uint(v[3].x), value.bits[1] = __float_as_uint(v[3].y);
                value.bits[2] = __float_as_uint(v[3].z), value.bits[3] = __float_as_uint(v[3].w);
            }
            whole = rsqrtf(block_sum<THREADS>(sum, scratch) / (float)a.width + a.norm.eps);
        } else {
            value.wait(x + from, mask, epoch);
        }
        float v[4], by[4], sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = has ? untagged(value.bits[i], mask) : 0.f, sum += v[i] * v[i];
            by[i] = scale * weight.get(i) * signs.get(i);
        }
        if (a.act) { // a factor of x
            gate.wait(gate_at, a.gate.mask, epoch);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float g = untagged(gate.bits[i], a.gate.mask);
                by[i] *= activate(SIGMOID, g, a.act - 1 == SILU ? g : 1.f, 0.f);
            }
        }
        if (has_norm && !of_row) {
#pragma unroll 1
            for (int step = 1; step < a.group / 4; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
            whole = rsqrtf(sum / (float)a.group + a.norm.eps);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] *= by[i] * whole;
        auto mix = [&](int i, int k) {
            float first = v[i];
            v[i] = first + v[k], v[k] = first - v[k];
        };
        if (a.block > 1) mix(0, 1), mix(2, 3);
        if (a.block > 2) mix(0, 2), mix(1, 3);
#pragma unroll 1
        for (int step = 1; step < min(a.block, CHUNK) / 4; step *= 2) {
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = __shfl_xor_sync(0xffffffff, v[i], step) + (lane & step ? -v[i] : v[i]);
        }
        *(float4*)(span + piece * CHUNK + lane * 4) = {v[0], v[1], v[2],
                                                       v[3]}; // zeros of pieces that the chunk is not made from
        sync_threads<THREADS>();
        if (in_chunk < CHUNK) { // a column each
            u32 minus =
                (u32)(0x963c5af066ccaa00ull >> 8 * own); // bit j: whether j and own have an odd number of common bits
            float y[2] = {0, 0};
#pragma unroll
            for (int j = 0; j < PIECES; j++)
                y[j % 2] += __uint_as_float(__float_as_uint(span[j * CHUNK + in_chunk]) ^ (minus >> j << 31));
            if (result < a.width) store_tagged(a.y.at + to, (y[0] + y[1]) * sign, a.y.mask, epoch);
        }
        if ((pair + blocks) * 2 * CHUNK < a.width) sync_threads<THREADS>(); // the memory is used again
    }
}
