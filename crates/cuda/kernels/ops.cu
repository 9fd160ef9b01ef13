// The small ops, one kernel each; every one equals the op of its name in graph/reference.rs.

enum FloatKind { F32 = 0, F16 = 1, BF16 = 2 };

DEVICE float read_float(const void* at, long i, int kind) {
    if (kind == F32) return ((const float*)at)[i];
    u16 bits = ((const u16*)at)[i];
    return kind == F16 ? to_float(bits) : __int_as_float((int)bits << 16);
}

struct EmbedFloatArgs { const void* table; const u32* inputs; float* y; float factor; int cols, kind; };

extern "C" __global__ void embed_float(const EmbedFloatArgs a) {
    long row = a.inputs[a.inputs[0] + blockIdx.x];
    for (int k = threadIdx.x; k < a.cols; k += blockDim.x)
        a.y[(long)blockIdx.x * a.cols + k] = read_float(a.table, row * a.cols + k, a.kind) * a.factor;
}

// A warp computes a row of weights for eight tokens at a time.
struct LinearFloatArgs { const void* w; const float *x, *bias, *factor; float* y; int rows, cols, tokens, kind; };

extern "C" __global__ void linear_float(const LinearFloatArgs a) {
    int lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= a.rows) return;
    int first = blockIdx.y * 8, tokens = min(8, a.tokens - first);
    float sums[8] = {};
    for (int k = lane; k < a.cols; k += 32) {
        float w = read_float(a.w, (long)row * a.cols + k, a.kind);
#pragma unroll
        for (int t = 0; t < 8; t++)
            if (t < tokens) sums[t] += w * a.x[(long)(first + t) * a.cols + k];
    }
#pragma unroll
    for (int t = 0; t < 8; t++) {
        float sum = warp_sum(sums[t]);
        if (a.factor) sum *= *a.factor;
        if (a.bias) sum += a.bias[row];
        if (lane == 0 && t < tokens) a.y[(long)(first + t) * a.rows + row] = sum;
    }
}

DEVICE float block_sum(float x, float* room) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) room[warp] = x;
    __syncthreads();
    x = lane < blockDim.x / 32 ? room[lane] : 0.f;
    return warp_sum(x);
}

// A block normalises one run of `group` columns.
struct NormArgs { const float *x, *weight, *bias; float* y; float eps; int group, layer; };

extern "C" __global__ void normalise(const NormArgs a) {
    __shared__ float room[32];
    const float* x = a.x + (long)blockIdx.x * a.group;
    float* y = a.y + (long)blockIdx.x * a.group;
    float mean = 0;
    if (a.layer) {
        for (int i = threadIdx.x; i < a.group; i += blockDim.x) mean += x[i];
        mean = block_sum(mean, room) / a.group;
    }
    float squares = 0;
    for (int i = threadIdx.x; i < a.group; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
    float scale = 1.f / sqrtf(block_sum(squares, room) / a.group + a.eps);
    for (int i = threadIdx.x; i < a.group; i += blockDim.x)
        y[i] = (x[i] - mean) * scale * a.weight[i] + (a.bias ? a.bias[i] : 0.f);
}

// A thread turns one pair, or copies one column that is not turned.
struct RopeArgs { const float *x, *freqs; const u32* inputs; float* y; float magnitude; int width, head_dim, pairs, interleaved; };

extern "C" __global__ void rope(const RopeArgs a) {
    int token = blockIdx.x;
    float position = a.inputs[a.inputs[1] + token];
    int rest = a.head_dim - 2 * a.pairs, items = a.pairs + rest, heads = a.width / a.head_dim;
    for (int i = threadIdx.x; i < heads * items; i += blockDim.x) {
        int item = i % items;
        long head = (long)token * a.width + i / items * a.head_dim;
        if (item >= a.pairs) {
            int k = 2 * a.pairs + item - a.pairs;
            a.y[head + k] = a.x[head + k];
            continue;
        }
        int k0 = a.interleaved ? 2 * item : item, k1 = a.interleaved ? 2 * item + 1 : item + a.pairs;
        float sine, cosine;
        sincosf(position * a.freqs[item], &sine, &cosine);
        float x0 = a.x[head + k0] * a.magnitude, x1 = a.x[head + k1] * a.magnitude;
        a.y[head + k0] = x0 * cosine - x1 * sine;
        a.y[head + k1] = x0 * sine + x1 * cosine;
    }
}

struct ElementArgs { const float *a, *b; float* y; long count; float by; int what; };

enum Element { SILU = 0, GELU = 1, RELU2 = 2, ADD = 3, SCALE = 4, SOFTCAP = 5 };

extern "C" __global__ void elements(const ElementArgs e) {
    for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < e.count; i += (long)gridDim.x * blockDim.x) {
        float x = e.a[i], y = 0;
        if (e.what == SILU) y = x / (1.f + expf(-x)) * e.b[i];
        if (e.what == GELU) y = 0.5f * x * (1.f + tanhf(0.7978846f * x * (1.f + 0.044715f * x * x))) * e.b[i];
        if (e.what == RELU2) y = fmaxf(x, 0.f) * fmaxf(x, 0.f) * e.b[i];
        if (e.what == ADD) y = x + e.b[i];
        if (e.what == SCALE) y = x * e.by;
        if (e.what == SOFTCAP) y = e.by * tanhf(x / e.by);
        e.y[i] = y;
    }
}

struct ColumnsArgs { const float* x; float* y; int width, start, len; };

extern "C" __global__ void columns(const ColumnsArgs a) {
    for (int k = threadIdx.x; k < a.len; k += blockDim.x)
        a.y[(long)blockIdx.x * a.len + k] = a.x[(long)blockIdx.x * a.width + a.start + k];
}

struct OutputsArgs { const float* x; const u32* inputs; float* y; int width; };

extern "C" __global__ void outputs(const OutputsArgs a) {
    long row = a.inputs[a.inputs[3] + blockIdx.x];
    for (int k = threadIdx.x; k < a.width; k += blockDim.x)
        a.y[(long)blockIdx.x * a.width + k] = a.x[row * a.width + k];
}

struct AttendArgs {
    const float *q, *k, *v; // [tokens][heads or kv_heads][dim]
    const u32* inputs;
    u16 *keys, *values;     // [page][kv_head][page_len][dim] halves
    float* y;               // [tokens][heads][v_dim]
    float scale, softcap;
    int heads, kv_heads, head_dim, v_dim, page_len, window;
};

DEVICE const u32* pages_of(const AttendArgs& a, int token) {
    u32 slice = a.inputs[a.inputs[2] + token];
    return a.inputs + a.inputs[4] + slice * a.inputs[5];
}

// Keys and values of the step's tokens into their pages.
extern "C" __global__ void store_kv(const AttendArgs a) {
    int token = blockIdx.x, position = a.inputs[a.inputs[1] + token];
    long page = pages_of(a, token)[position / a.page_len];
    int slot = position % a.page_len;
    for (int i = threadIdx.x; i < a.kv_heads * a.head_dim; i += blockDim.x) {
        int head = i / a.head_dim, d = i % a.head_dim;
        a.keys[((page * a.kv_heads + head) * a.page_len + slot) * a.head_dim + d] = to_half(a.k[(long)token * a.kv_heads * a.head_dim + i]);
    }
    for (int i = threadIdx.x; i < a.kv_heads * a.v_dim; i += blockDim.x) {
        int head = i / a.v_dim, d = i % a.v_dim;
        a.values[((page * a.kv_heads + head) * a.page_len + slot) * a.v_dim + d] = to_half(a.v[(long)token * a.kv_heads * a.v_dim + i]);
    }
}

// A block attends with one head of one token: its warps share the keys, and meet at the end.
#define MOST_DIMS 8 // a lane's columns of a head: heads of up to 256

extern "C" __global__ void __launch_bounds__(128) attend(const AttendArgs a) {
    __shared__ float room[4][2 + MOST_DIMS * 32];
    int token = blockIdx.x, head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int position = a.inputs[a.inputs[1] + token];
    const u32* pages = pages_of(a, token);
    const float* q = a.q + ((long)token * a.heads + head) * a.head_dim;
    float query[MOST_DIMS], sum[MOST_DIMS] = {};
#pragma unroll
    for (int i = 0; i < MOST_DIMS; i++) query[i] = i * 32 + lane < a.head_dim ? q[i * 32 + lane] : 0.f;
    float most = -INFINITY, weight = 0;
    int from = a.window > 0 ? max(0, position + 1 - a.window) : 0;
    for (int at = from + warp; at <= position; at += 4) {
        long slot = ((long)pages[at / a.page_len] * a.kv_heads + kv_head) * a.page_len + at % a.page_len;
        const u16* key = a.keys + slot * a.head_dim;
        float score = 0;
#pragma unroll
        for (int i = 0; i < MOST_DIMS; i++)
            if (i * 32 + lane < a.head_dim) score += query[i] * to_float(key[i * 32 + lane]);
        score = warp_sum(score) * a.scale;
        if (a.softcap > 0) score = a.softcap * tanhf(score / a.softcap);
        float next = fmaxf(most, score), keep = expf(most - next), now = expf(score - next);
        const u16* value = a.values + slot * a.v_dim;
#pragma unroll
        for (int i = 0; i < MOST_DIMS; i++) {
            float v = i * 32 + lane < a.v_dim ? to_float(value[i * 32 + lane]) : 0.f;
            sum[i] = sum[i] * keep + now * v;
        }
        weight = weight * keep + now;
        most = next;
    }
    if (lane == 0) room[warp][0] = most, room[warp][1] = weight;
#pragma unroll
    for (int i = 0; i < MOST_DIMS; i++) room[warp][2 + i * 32 + lane] = sum[i];
    __syncthreads();
    float top = -INFINITY, total = 0;
    for (int w = 0; w < 4; w++) top = fmaxf(top, room[w][0]);
    for (int w = 0; w < 4; w++) total += room[w][1] * expf(room[w][0] - top);
    for (int d = threadIdx.x; d < a.v_dim; d += 128) {
        float y = 0;
        for (int w = 0; w < 4; w++) y += room[w][2 + d] * expf(room[w][0] - top);
        a.y[((long)token * a.heads + head) * a.v_dim + d] = y / total;
    }
}

// The best token of each row, the lowest among equals; a row without a number gives -1.
struct ArgmaxArgs { const float* logits; int* best; int width; };

extern "C" __global__ void __launch_bounds__(1024) argmax(const ArgmaxArgs a) {
    __shared__ float values[32];
    __shared__ int places[32];
    const float* row = a.logits + (long)blockIdx.x * a.width;
    float best = -INFINITY;
    int at = -1;
    for (int i = threadIdx.x; i < a.width; i += blockDim.x)
        if (row[i] > best) best = row[i], at = i;
    for (int step = 16; step > 0; step /= 2) {
        float other = __shfl_xor_sync(0xffffffff, best, step);
        int place = __shfl_xor_sync(0xffffffff, at, step);
        if (other > best || (other == best && (u32)place < (u32)at)) best = other, at = place;
    }
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = best, places[threadIdx.x / 32] = at;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < blockDim.x / 32; w++)
            if (values[w] > best || (values[w] == best && (u32)places[w] < (u32)at)) best = values[w], at = places[w];
        a.best[blockIdx.x] = at;
    }
}
