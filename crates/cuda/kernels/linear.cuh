// y = norm(x) * w^T for a few tokens, by all blocks of a step: equals Op::Norm, Op::Linear, Op::Gated and Op::Add of
// graph/reference.rs one after the other.
//
// Each block has some tiles of 16 rows; a tile's chunks are cut into slices, and a task (a slice of a tile) is one warp's.
// Weights do not wait for x: each warp has a ring of slots in shared memory and keeps it full, also over the
// barriers between phases, so that memory is read while x is made.

constexpr int WARPS = 16, THREADS = WARPS * 32;

extern __shared__ __align__(16) u8 shared[];

struct StepArgs {
    const Phase* phases;
    u32* inputs;
    const float* freqs[4]; // rotary tables
    int pairs[4], tables, most_pairs;
    int count; // phases
    // where in shared memory, after the rings: the phases at hand, the rings' states, a float a warp, cosines and sines,
    // the arena of a phase, and inside it what x needs
    int window, states, room, turns, arena, scales, sums, shares;
};

// The tiles of a phase that are this block's, and the tasks they are cut into.
struct Share {
    int first, count; // units: tiles, or pairs of tiles where two parts are gated
    int tiles, tasks;

    DEVICE Share(const LinearArgs& a, int block, int blocks) {
        int units = a.part[0].tiles;
        if (!a.gated)
            for (int i = 1; i < a.parts; i++) units += a.part[i].tiles;
        first = (int)((long)units * block / blocks);
        count = (int)((long)units * (block + 1) / blocks) - first;
        tiles = a.gated ? 2 * count : count;
        tasks = tiles * a.slices;
    }

    // The part and the tile behind one of this block's tiles.
    DEVICE const Part& find(const LinearArgs& a, int local, int& tile) const {
        if (a.gated) {
            int second = local >= count;
            tile = first + local - (second ? count : 0);
            return a.part[second];
        }
        tile = first + local;
        int i = 0;
        while (tile >= a.part[i].tiles) tile -= a.part[i].tiles, i++;
        return a.part[i];
    }
};

// What a warp reads next: runs of records, phase after phase.
struct Reader {
    int phase, task, chunk; // chunk: inside the task

    // The next run, or false if it lies beyond the phases at hand.
    DEVICE bool next(const Phase* window, int end, int outputs, int block, int blocks, int warp, const u8*& from, int& bytes) {
        for (; phase < end; phase++, task = warp, chunk = 0) {
            const Phase& p = window[phase % WINDOW];
            if (p.kind != LINEAR || (p.linear.outputs_only && outputs == 0)) continue;
            const LinearArgs& a = p.linear;
            Share share(a, block, blocks);
            for (; task < share.tasks; task += WARPS, chunk = 0) {
                int local = task / a.slices, begin = (task - local * a.slices) * a.span;
                int left = min(a.span, a.chunks - begin) - chunk;
                if (left <= 0) continue;
                int tile;
                const Part& part = share.find(a, local, tile);
                int count = min(left, part.per_slot);
                from = part.records + ((long)tile * a.chunks + begin + chunk) * part.bytes;
                bytes = count * part.bytes;
                chunk += count;
                return true;
            }
        }
        return false;
    }
};

// A warp's ring of slots: what it reads ahead, oldest first. After every use of a slot exactly one batch of copies is
// closed, empty or not, so that waiting for all but SLOTS - 1 of them is waiting for the oldest slot.
// Its state lies in shared memory between phases: other phases need the registers.
struct RingState {
    int oldest, held, end; // `end`: of the phases at hand
    Reader reader;
};

template <int SLOTS> struct Ring {
    u8* slots;
    const Phase* window;
    RingState* kept;
    int outputs;
    RingState now;

    DEVICE Ring(const StepArgs& step) {
        int warp = threadIdx.x / 32;
        slots = shared + warp * SLOTS * SLOT, window = (const Phase*)(shared + step.window);
        kept = (RingState*)(shared + step.states) + warp, outputs = step.inputs[OUTPUTS];
    }

    DEVICE void start() { now = {0, 0, 0, {0, (int)threadIdx.x / 32, 0}}, put_back(); }
    DEVICE void take() { now = *kept; }
    DEVICE void put_back() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) *kept = now;
        __syncwarp();
    }

    DEVICE void fill() {
        const u8* from;
        int bytes, slot = now.oldest + now.held;
        if (slot >= SLOTS) slot -= SLOTS;
        if (now.reader.next(window, now.end, outputs, blockIdx.x, gridDim.x, threadIdx.x / 32, from, bytes)) {
            for (int i = threadIdx.x % 32 * 16; i < bytes; i += 512) copy16(slots + slot * SLOT + i, from + i);
            now.held++;
        }
        committed();
    }

    DEVICE const u8* wait() const {
        arrived<SLOTS - 1>();
        __syncwarp();
        return slots + now.oldest * SLOT;
    }

    DEVICE void used() {
        __syncwarp();
        now.held--;
        now.oldest = now.oldest + 1 == SLOTS ? 0 : now.oldest + 1;
        fill();
    }
};

// Reads on, now that phases up to `end` are at hand.
template <int SLOTS> APART void read_on(const StepArgs& step, int end) {
    Ring<SLOTS> ring(step);
    ring.take();
    ring.now.end = end;
    for (int i = ring.now.held; i < SLOTS; i++) ring.fill();
    ring.put_back();
}

// x of a phase in shared memory.
struct X {
    u8* bytes;     // [chunk][256 * T]
    float* scales; // [chunk][T]
    float* sums;   // [chunk][T][8]: of 16 columns each
    float* shares; // [task][16 rows][T]
    float* room;   // a float a warp

    DEVICE X(const StepArgs& step) {
        u8* arena = shared + step.arena;
        bytes = arena, scales = (float*)(arena + step.scales), sums = (float*)(arena + step.sums);
        shares = (float*)(arena + step.shares), room = (float*)(shared + step.room);
    }
};

// x of all tokens, normalised and as integers: every block for itself.
template <int T> DEVICE void prepare_x(const LinearArgs& a, const u32* inputs, int rows, const X& x) {
    constexpr int PASSES = NORM_PASSES;
    int part = threadIdx.x % 16;
    for (int t = 0; t < rows; t++) {
        int row = a.gather ? output_row(inputs, t) : t;
        const float* from = a.x.at + row * a.x.stride;
        float kept[PASSES][8], mean = 0, factor = 1;
        auto read = [&](int k, float (&v)[8]) {
            Floats4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
            if (k < a.cols) low = load_floats4(from + k); // columns are a multiple of four
            if (k + 4 < a.cols) high = load_floats4(from + k + 4);
            v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
        };
        if (a.norm.kind) {
            float sum = 0;
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) read(pass * THREADS * 8 + threadIdx.x * 8, kept[pass]);
            if (a.norm.kind == LAYER) {
#pragma unroll
                for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
                    for (int i = 0; i < 8; i++) sum += kept[pass][i];
                mean = block_sum<THREADS>(sum, x.room) / a.cols;
                __syncthreads();
                sum = 0;
            }
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    int k = pass * THREADS * 8 + threadIdx.x * 8 + i;
                    float d = kept[pass][i] - mean;
                    if (k < a.cols) sum += d * d;
                }
            factor = norm_factor(block_sum<THREADS>(sum, x.room), a.cols, a.norm.eps);
        }
        auto put = [&](int k, float (&v)[8]) {
            if (a.norm.kind) {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] = k + i < a.cols ? (v[i] - mean) * factor * a.norm.weight[k + i] + (a.norm.bias ? a.norm.bias[k + i] : 0.f) : 0.f;
            }
            float most = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(v[i]));
#pragma unroll
            for (int step = 8; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
            int chunk = k / 128;
            int sum = 0;
            if (chunk < a.chunks) sum = store_x(x.bytes + chunk * 256 * T, T, t, part, v, most);
            if (OFFSET_SUMS) {
                sum += __shfl_xor_sync(0xffffffff, sum, 1);
                if (chunk < a.chunks && part % 2 == 0) x.sums[(chunk * T + t) * 8 + part / 2] = (float)sum;
            }
            if (chunk < a.chunks && part == 0) x.scales[chunk * T + t] = x_scale_of(most);
        };
        if (a.norm.kind) {
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) put(pass * THREADS * 8 + threadIdx.x * 8, kept[pass]);
        } else {
            for (int k = threadIdx.x * 8; k / 128 / 4 * 4 < a.chunks; k += THREADS * 8) { // whole warps
                float v[8];
                read(k, v);
                put(k, v);
            }
        }
        if (t + 1 < rows) __syncthreads(); // `room` is used again
    }
}

// One task: its records, run after run, out of the ring.
template <class F, int T, int SLOTS>
DEVICE void run_task(float (&total)[2], Ring<SLOTS>& ring, const X& x, int chunk, int count) {
    constexpr int PER = SLOT / F::BYTES;
    int lane = threadIdx.x % 32, token = min(lane % 4, T - 1);
    for (; count > 0; count -= PER) {
        const u8* record = ring.wait();
        for (int i = 0; i < min(count, PER); i++, record += F::BYTES, chunk++) {
            u32 b[8];
            load_x<T>(b, x.bytes + chunk * 256 * T, lane);
            multiply_record<F>(total, record, b, x.scales[chunk * T + token], x.sums + (chunk * T + token) * 8, lane);
        }
        ring.used();
    }
}

template <int T, int SLOTS> APART void linear(const LinearArgs& a, const StepArgs& step) {
    Ring<SLOTS> ring(step);
    const u32* inputs = step.inputs;
    int block = blockIdx.x, blocks = gridDim.x, rows = rows_of(inputs, a.outputs_only);
    if (rows == 0) return;
    X x(step);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    prepare_x<T>(a, inputs, rows, x);
    __syncthreads();
    Share share(a, block, blocks);
    ring.take();
    for (int task = warp; task < share.tasks; task += WARPS) {
        int local = task / a.slices, begin = (task - local * a.slices) * a.span, tile;
        int count = min(a.span, a.chunks - begin);
        if (count <= 0) count = 0;
        const Part& part = share.find(a, local, tile);
        float total[2] = {0, 0};
        switch (part.format) {
#define CASE(n, bits, low, group, offsets) case n: run_task<Format<bits, low, group, offsets>, T>(total, ring, x, begin, count); break;
            FORMATS(CASE)
#undef CASE
        }
        if (q < T) {
            x.shares[(task * 16 + g) * T + q] = total[0];
            x.shares[(task * 16 + g + 8) * T + q] = total[1];
        }
    }
    ring.put_back();
    __syncthreads();

    // the slices of each row meet in a fixed order
    auto result = [&](const Part& part, int local, int r, int t, int row) {
        float sum = 0;
        for (int s = 0; s < a.slices; s++) sum += x.shares[((local * a.slices + s) * 16 + r) * T + t];
        sum *= part.factor;
        if (part.scale) sum *= *part.scale;
        if (part.bias) sum += part.bias[row];
        return sum;
    };
    for (int i = threadIdx.x; i < share.count * 16 * rows; i += THREADS) {
        int r = i % 16, local = i / 16 % share.count, t = i / 16 / share.count, tile;
        const Part& part = share.find(a, local, tile);
        int row = tile * 16 + r;
        if (row >= part.rows) continue;
        float y = result(part, local, r, t, row);
        if (a.gated) y = activate(a.gated - 1, y) * result(a.part[1], local + share.count, r, t, row);
        if (a.add.at) y += load_float(a.add.at + t * a.add.stride + row);
        part.y[(long)t * part.y_stride + row] = y;
    }
}
