// A value on its way to linears: norm, gate and rotation of its rows, in one launch. Equals Op::Norm, Op::Gated and Op::Rotate of
// graph/reference.rs after each other.
//
// A block takes spans of SPAN columns of a row, a thread eight neighbouring columns of a span. The transform's steps need no order:
// pairs inside a thread, inside a warp, and then through shared memory.

#include "base/tagged.cuh"
#include "base/phase.cuh"
#include "x/half_x.cuh"
#include "recurrent/transform_columns.cuh"

constexpr int SPAN = TRANSFORM_SPAN, OF_THREAD = SPAN / TRANSFORM_THREADS;

static_assert(OF_THREAD == 8 && TRANSFORM_THREADS == 128, "the steps of the transform are written for these");

DEVICE int padded(int column) { return column + column / 32; } // without bank conflicts of columns that are 32 apart

DEVICE void load8(float (&v)[8], const float* from) {
    float4 a = load_floats4(from), b = load_floats4(from + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// a and b of pairs `half` apart become a + b and a - b.
template <int HALF> DEVICE void pairs_of_thread(float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i & HALF) continue;
        float a = v[i], b = v[i + HALF];
        v[i] = a + b, v[i + HALF] = a - b;
    }
}

extern "C" __global__ void __launch_bounds__(TRANSFORM_THREADS) transform(const __grid_constant__ TransformLaunch p) {
    __shared__ float span[SPAN + SPAN / 32], scratch[32];
    begin_next_launch();
    const TransformArgs& a = p.transform;
    int row = blockIdx.x, thread = threadIdx.x, lane = thread % 32;
    bool has_norm = a.norm.kind != NORM_NONE, of_row = a.group == a.width;
    // weights and signs of a thread's columns; those of the first span while launches are waited for
    float weights[8], signs[8];
    auto load_constants = [&](int first) {
        if (!a.wide || first >= a.width) return;
        int from = a.inverse ? first : place_of(a, first);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            weights[i] = has_norm ? a.norm.weight[from % a.group + i] : 1.f;
            signs[i] = a.block ? a.signs[first % a.group_width + i] : 1.f;
        }
    };
    load_constants(blockIdx.y * SPAN + thread * 8);
    // the host wrote the inputs: there is no kernel to wait for
    if (row >= rows_of(p.inputs, a.outputs_only)) return wait_for_launches();
    const float* x = row_of(a.x, a.gather ? output_row(p.inputs, row) : row);
    const float* gate = row_of(a.gate, row);
    if (!p.beside) wait_for_launches();
    float whole = 1, v[8] = {}, g[8];
    auto load_values = [&](int first) {
        if (!a.wide) return;
        if (first >= a.width) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = 0;
            return;
        }
        int from = a.inverse ? first : place_of(a, first);
        load8(v, x + from);
        if (a.act) load8(g, gate + gate_column(a, from));
    };
    load_values(blockIdx.y * SPAN + thread * 8);
    if (has_norm && of_row) {
        float sum = 0;
        if (a.wide) {
#pragma unroll 10
            for (int k = thread * 4; k < a.width; k += TRANSFORM_THREADS * 4) {
                float4 v = load_floats4(x + k);
                sum += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
            }
        } else {
#pragma unroll 1
            for (int k = thread; k < a.width; k += TRANSFORM_THREADS) {
                float v = load_float(x + k);
                sum += v * v;
            }
        }
        whole = norm_factor(block_sum<TRANSFORM_THREADS>(sum, scratch), a.width, a.norm.eps);
    }
    for (int begin = blockIdx.y * SPAN; begin < a.width; begin += gridDim.y * SPAN) {
        int first = begin + thread * 8;
        if (begin != blockIdx.y * SPAN) {
            __syncthreads(); // the last span is read
            load_constants(first), load_values(first);
        }
        if (a.wide) {
            bool has = first < a.width;
            float factor = whole;
            if (has_norm && !of_row) {
                float sum = 0;
#pragma unroll
                for (int i = 0; i < 8; i++) sum += v[i] * v[i];
#pragma unroll 1
                for (int step = 1; step < a.group / 8; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
                factor = norm_factor(sum, a.group, a.norm.eps);
            }
            if (has_norm && has) {
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] *= factor * weights[i];
            }
            if (a.act && has) {
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = activate_any(a.act - 1, g[i], v[i], a.limit);
            }
        } else { // one column after the other: their code is not repeated
#pragma unroll 1
            for (int i = 0; i < 8; i++) {
                float value = 0;
                if (first + i < a.width) {
                    int from = a.inverse ? first + i : place_of(a, first + i);
                    value = load_float(x + from);
                    if (has_norm) value *= whole * a.norm.weight[from];
                    if (a.act) value = activate_any(a.act - 1, load_float(gate + gate_column(a, from)), value, a.limit);
                }
                span[padded(thread * 8 + i)] = value;
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = span[padded(thread * 8 + i)];
                signs[i] = a.block && first + i < a.width ? a.signs[(first + i) % a.group_width] : 1.f;
            }
        }
        if (a.block) {
            auto sign = [&]() {
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] *= signs[i];
            };
            if (!a.inverse) sign();
            if (a.block > 1) pairs_of_thread<1>(v);
            if (a.block > 2) pairs_of_thread<2>(v);
            if (a.block > 4) pairs_of_thread<4>(v);
#pragma unroll 1
            for (int half = 8; half < min(a.block, 256); half *= 2) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    float other = __shfl_xor_sync(0xffffffff, v[i], half / 8);
                    v[i] = lane & half / 8 ? other - v[i] : v[i] + other;
                }
            }
            if (a.inverse && a.block <= 256) sign();
            float scale = rsqrtf((float)a.block);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] *= scale;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) span[padded(thread * 8 + i)] = v[i];
        __syncthreads();
        if (a.block > 256) {
#pragma unroll
            for (int n = 0; n < 2; n++) {
                int k = n * TRANSFORM_THREADS + thread;
                float q[4];
#pragma unroll
                for (int c = 0; c < 4; c++) q[c] = span[padded(c * 256 + k)];
                float s[4] = {q[0] + q[1], q[0] - q[1], q[2] + q[3], q[2] - q[3]};
                if (a.block > 512) q[0] = s[0] + s[2], q[1] = s[1] + s[3], q[2] = s[0] - s[2], q[3] = s[1] - s[3];
                else q[0] = s[0], q[1] = s[1], q[2] = s[2], q[3] = s[3];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    int column = begin + c * 256 + k;
                    if (a.inverse && column < a.width) q[c] *= a.signs[column % a.group_width];
                    span[padded(c * 256 + k)] = q[c];
                }
            }
            __syncthreads();
        }
        if (p.y_half.at) {
            // a thread writes a piece of 16 bytes; columns are whole chunks
            int position = thread * 8;
            if (begin + position >= a.width) continue;
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float low = span[padded(column_at(p.y_half.order, position + 2 * i))], high = span[padded(column_at(p.y_half.order, position + 2 * i + 1))];
                words[i] = to_half2(low * p.y_factor, high * p.y_factor);
            }
            *(uint4*)half_at(p.y_half, row, begin + position) = {words[0], words[1], words[2], words[3]};
        } else {
#pragma unroll 1
            for (int k = thread; k < min(SPAN, a.width - begin); k += TRANSFORM_THREADS)
                row_of(a.y, row)[a.inverse ? place_of(a, begin + k) : begin + k] = span[padded(k)];
        }
    }
    if (p.beside) wait_for_launches(); // what waits for this launch also waits for the one before it
}
