// y = norm(x) * w^T for a few tokens, by all blocks of a step: equals Op::Norm, Op::Linear, Op::Gated and Op::Add of
// graph/reference.rs one after the other.
//
// Each block has some tiles of 16 rows; a tile's chunks are cut into slices, and a task (a slice of a tile) is one warp's.
// Weights do not wait for x: a warp of its own reads them, phase after phase, into a ring of SLOTS slots in shared memory,
// as far ahead as there is room, so that memory is read while x is made and blocks wait for each other.

extern __shared__ __align__(16) u8 shared[];

struct StepArgs {
    const Phase* phases;
    u32* inputs;
    const float* freqs[4]; // rotary tables
    int pairs[4], tables;
    int count; // phases
};

// What every phase wants to know of the step, in shared memory: a trip to the inputs takes as long as a phase should.
struct Info {
    int tokens, outputs, neighbours, pad;
    int position[4], output_row[4];
    const u32* pages[4];
};

// The tiles of a phase that are this block's.
struct Share {
    int first, count; // units: tiles, or pairs of tiles where two parts are gated

    DEVICE Share(const LinearArgs& a) {
        int block = blockIdx.x;
        first = block * a.share + min(block, a.extra);
        count = a.share + (block < a.extra);
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

// A warp's tasks, one after the other: slices of tiles.
struct Tasks {
    int local, slice;

    // `warp / slices` without a division: warps are few
    DEVICE void start(const LinearArgs& a) {
        local = ((threadIdx.x / 32) * a.by_slices) >> 16;
        slice = threadIdx.x / 32 - local * a.slices;
    }

    DEVICE void next(const LinearArgs& a) {
        int step = (WARPS * a.by_slices) >> 16;
        local += step, slice += WARPS - step * a.slices;
        if (slice >= a.slices) slice -= a.slices, local++;
    }
};

// A block's tiles of one part lie one after the other, and so do the slots they are read into: this is such a run.
struct Run {
    const u8* from;
    int tiles, records, bytes, per_slot; // bytes of a record

    // `reciprocal` is 2^31 / per_slot, rounded up: exact for so few records
    DEVICE int slots(u32 reciprocal) const { return (int)((u64)(records + per_slot - 1) * reciprocal >> 31); }
};

// The block's tiles of part i, which begin at its local tile `first`; none if the block has none.
DEVICE Run run_of(const LinearArgs& a, const Share& share, int i, int& first) {
    const Part& part = a.part[i];
    int begin = share.first, count = share.count;
    first = i * count;
    if (!a.gated) { // tiles of all parts are numbered through
        int before = 0;
        for (int n = 0; n < i; n++) before += a.part[n].tiles;
        int end = min(begin + count, before + part.tiles) - before;
        begin = max(begin - before, 0);
        count = max(end - begin, 0);
        first = before + begin - share.first;
    }
    if (count == 0) first = 0; // beyond the block's tiles, or before them
    return {part.records + (long)begin * a.chunks * part.bytes, count, count * a.chunks, part.bytes, part.per_slot};
}

// The ring: what the reading warp has filled, and what the others have used up.
struct Ring {
    Gate* full;
    Gate* empty;

    DEVICE Ring() { full = (Gate*)(shared + AT_GATES), empty = full + SLOTS; }
    DEVICE static u8* slot(u32 n) { return shared + n % SLOTS * SLOT; }
    DEVICE void wait_full(u32 n) { full[n % SLOTS].wait(n / SLOTS % 2); }

    // This warp has no more use for slots from `n` to before `end`. Each must have been full, also those that had nothing
    // for it: else it might be a round ahead of others.
    DEVICE void release(u32& n, u32 end) {
        for (; n < end; n += min(end - n, (u32)SLOTS)) { // a lane a slot; those of the next round wait for these
            u32 i = n + threadIdx.x % 32;
            if (threadIdx.x % 32 < SLOTS && i < end) wait_full(i), empty[i % SLOTS].arrive();
            __syncwarp();
        }
    }

    // Reads all weights of the step, in order: one warp's work.
    DEVICE void read(const Phase* phases, int count, int outputs) {
        Phase& phase = ((Phase*)(shared + AT_WINDOW))[WINDOW]; // behind the others' phases
        constexpr int PIECES = sizeof(Phase) / 16;
        int lane = threadIdx.x % 32;
        uint4 next = lane < PIECES ? ((const uint4*)phases)[lane] : uint4{};
        u32 n = 0;
        for (int p = 0; p < count; p++) {
            __syncwarp();
            if (lane < PIECES) {
                ((uint4*)&phase)[lane] = next;
                if (p + 1 < count) next = ((const uint4*)(phases + p + 1))[lane];
            }
            __syncwarp();
            const LinearArgs& a = phase.linear;
            if (phase.kind != LINEAR || (a.outputs_only && outputs == 0)) continue;
            Share share(a);
            // norms have weights too: each block asks for some, so that they are near when all want them
            if (a.norm.kind)
                for (int i = blockIdx.x * 32; i < a.cols; i += gridDim.x * 32) prefetch(a.norm.weight + i);
            for (int i = 0; i < a.parts; i++) {
                int first;
                Run run = run_of(a, share, i, first);
                for (int left = run.records; left > 0; left -= run.per_slot, n++) {
                    int bytes = min(left, run.per_slot) * run.bytes;
                    if (n >= SLOTS) empty[n % SLOTS].wait((n / SLOTS - 1) % 2);
                    full[n % SLOTS].copy(slot(n), run.from, bytes);
                    run.from += bytes;
                }
            }
        }
    }
};
static_assert(SLOTS <= 32 && sizeof(Phase) <= 512, "a warp reads a phase at once");

// x of a phase in shared memory.
struct X {
    u8* bytes;     // [chunk][256 * T]
    float* scales; // [chunk][T]
    float* sums;   // [chunk][T][8]: of 16 columns each
    float* shares; // [task][16 rows][T]
    float* room;   // a float a warp

    DEVICE X() {
        u8* arena = shared + AT_ARENA;
        bytes = arena, scales = (float*)(arena + AT_SCALES), sums = (float*)(arena + AT_SUMS);
        shares = (float*)(arena + AT_SHARES), room = (float*)(shared + AT_ROOM);
    }
};

// Eight neighbouring floats from column k on; zeros beyond the last.
DEVICE void read_eight(float (&v)[8], const float* from, int k, int cols) {
    float4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
    if (k < cols) low = load_floats4(from + k); // columns are a multiple of four
    if (k + 4 < cols) high = load_floats4(from + k + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

// Eight values of x as integers to their place in shared memory; sixteen neighbouring threads have a chunk.
template <int T> DEVICE void put_x(bool signs, int chunks, const X& x, int t, int k, const float (&v)[8]) {
    int chunk = k / 128, part = threadIdx.x % 16, sum = 0;
    float most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(v[i]));
#pragma unroll
    for (int step = 8; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
    if (chunk < chunks) {
        if (ANY_SIGNS && signs) sum = store_planes(x.bytes + (chunk * T + t) * 256, part, v, most);
        else sum = store_x(x.bytes + chunk * 256 * T, T, t, part, v, most);
        if (part == 0) x.scales[chunk * T + t] = x_scale_of(most);
    }
    if (ANY_SIGNS && signs) { // of the whole chunk
#pragma unroll
        for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
        if (chunk < chunks && part == 0) x.sums[(chunk * T + t) * 8] = (float)sum;
    } else if (OFFSET_SUMS) {
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        if (chunk < chunks && part % 2 == 0) x.sums[(chunk * T + t) * 8 + part / 2] = (float)sum;
    }
}

// A row of x, normalised: it stays in registers between the sum and the result, and weights come with it.
template <int T> DEVICE void prepare_normed(const LinearArgs& a, const float* from, int t, const X& x) {
    float v[NORM_PASSES][8], w[NORM_PASSES][8], mean = 0, sum = 0;
    auto column = [](int pass) { return pass * THREADS * 8 + (int)threadIdx.x * 8; };
#pragma unroll
    for (int pass = 0; pass < NORM_PASSES; pass++) {
        read_eight(v[pass], from, column(pass), a.cols);
        read_eight(w[pass], a.norm.weight, column(pass), a.cols);
    }
    if (a.norm.kind == LAYER) {
#pragma unroll
        for (int pass = 0; pass < NORM_PASSES; pass++)
#pragma unroll
            for (int i = 0; i < 8; i++) sum += v[pass][i];
        mean = block_sum<THREADS>(sum, x.room) / a.cols;
        sync_threads<THREADS>();
        sum = 0;
    }
#pragma unroll
    for (int pass = 0; pass < NORM_PASSES; pass++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[pass][i] = column(pass) + i < a.cols ? v[pass][i] - mean : 0.f;
            sum += v[pass][i] * v[pass][i];
        }
    float factor = norm_factor(block_sum<THREADS>(sum, x.room), a.cols, a.norm.eps);
#pragma unroll
    for (int pass = 0; pass < NORM_PASSES; pass++) {
        float bias[8] = {};
        if (a.norm.bias) read_eight(bias, a.norm.bias, column(pass), a.cols);
#pragma unroll
        for (int i = 0; i < 8; i++) v[pass][i] = v[pass][i] * factor * w[pass][i] + bias[i];
        put_x<T>(a.signs, a.chunks, x, t, column(pass), v[pass]);
    }
}

// x of all tokens, normalised and as integers: every block for itself.
template <int T> DEVICE void prepare_x(const LinearArgs& a, const Info& info, int rows, const X& x) {
    for (int t = 0; t < rows; t++) {
        const float* from = a.x.at + (a.gather ? info.output_row[t] : t) * a.x.stride;
        if (a.norm.kind) {
            prepare_normed<T>(a, from, t, x);
            if (t + 1 < rows) sync_threads<THREADS>(); // `room` is used again
        } else {
            for (int k = threadIdx.x * 8; k / 256 * 2 < a.chunks; k += THREADS * 8) { // whole warps
                float v[8];
                read_eight(v, from, k, a.cols);
                put_x<T>(a.signs, a.chunks, x, t, k, v);
            }
        }
    }
}

// One task: `count` records from number `record` of the run on, whose first slot is `n`; all slots before the last one it
// looks at are released. What a row of them gives for each token goes to `out`.
template <class F, int T> DEVICE void run_task(Ring& ring, u32& released, u32 n, int record, int chunk, int count, const X& x, float* out) {
    constexpr int PER = SLOT / F::BYTES;
    int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, token = min(q, T - 1);
    float total[F::SIGNS ? T : 1][2] = {};
    n += record / (u32)PER, record %= (u32)PER;
    for (; count > 0; n++) {
        ring.release(released, n);
        ring.wait_full(n);
        const u8* at = ring.slot(n) + record * F::BYTES;
        int end = chunk + min(count, PER - record);
        count -= end - chunk, record = 0;
#pragma unroll 4
        for (; chunk < end; chunk++, at += F::BYTES) {
            if constexpr (F::SIGNS) {
                multiply_signs<T>(total, at, x.bytes + chunk * 256 * T, x.scales + chunk * T, x.sums + chunk * T * 8, lane);
            } else {
                u32 b[8];
                load_x<T>(b, x.bytes + chunk * 256 * T, lane);
                multiply_record<F>(total[0], at, b, x.scales[chunk * T + token], x.sums + (chunk * T + token) * 8, lane);
            }
        }
        __syncwarp(); // all lanes are done with the slot before it is released
    }
    if constexpr (F::SIGNS) {
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                total[t][r] += __shfl_xor_sync(0xffffffff, total[t][r], 1);
                total[t][r] += __shfl_xor_sync(0xffffffff, total[t][r], 2);
                if (q == 0) out[(g + 8 * r) * T + t] = total[t][r];
            }
    } else if (q < T) {
        out[g * T + q] = total[0][0], out[(g + 8) * T + q] = total[0][1];
    }
}

// The sum of a row's slices, in a fixed order, and what belongs to its part.
template <int T> DEVICE float whole_row(const Part& part, const float* shares, int slices, int row) {
    float sum = 0;
#pragma unroll 4
    for (int s = 0; s < slices; s++) sum += shares[s * 16 * T];
    return finished(part, sum, row);
}

// One phase; its first slot is `n`. Gives the slot after its last.
template <int T> APART u32 linear(int p, u32 n) {
    const LinearArgs& a = ((const Phase*)(shared + AT_WINDOW))[p % WINDOW].linear;
    const Info& info = *(const Info*)(shared + AT_INFO);
    int rows = a.outputs_only ? info.outputs : info.tokens;
    if (rows == 0) return n;
    X x;
    Share share(a);
    // one output a thread in most phases: what is added to it is asked for now
    int r = threadIdx.x % 16, out = threadIdx.x / 16, tile = 0;
    float add = 0;
    if (a.add.at && out < share.count && rows == 1) {
        const Part& part = share.find(a, out, tile);
        if (tile * 16 + r < part.rows) add = load_float(a.add.at + tile * 16 + r);
    }
    prepare_x<T>(a, info, rows, x);
    sync_threads<THREADS>();
    Ring ring;
    u32 released = n;
    Tasks task;
    task.start(a);
    for (int i = 0; i < a.parts; i++) {
        int first;
        Run run = run_of(a, share, i, first);
        int end = first + run.tiles;
        for (; task.local < end; task.next(a)) {
            int begin = task.slice * a.span, count = min(a.span, a.chunks - begin);
            int record = (task.local - first) * a.chunks + begin;
            float* to = x.shares + (task.local * a.slices + task.slice) * 16 * T;
            switch (a.part[i].format) {
#define CASE(n_, bits, low, group, offsets) case n_: run_task<Format<bits, low, group, offsets>, T>(ring, released, n, record, begin, count, x, to); break;
                FORMATS(CASE)
#undef CASE
            }
        }
        n += run.slots(a.part[i].reciprocal);
    }
    ring.release(released, n);
    sync_threads<THREADS>();

    for (int t = 0; t < rows; t++) {
        for (int local = out; local < share.count; local += THREADS / 16) {
            const Part& part = share.find(a, local, tile);
            int row = tile * 16 + r;
            if (row >= part.rows) continue;
            const float* shares = x.shares + (local * a.slices * 16 + r) * T + t;
            float y = whole_row<T>(part, shares, a.slices, row);
            if (a.gated) y = activate(a.gated - 1, y) * whole_row<T>(a.part[1], shares + share.count * a.slices * 16 * T, a.slices, row);
            if (a.add.at) y += rows == 1 && local == out ? add : load_float(a.add.at + t * a.add.stride + row);
            part.y[t * part.y_stride + row] = y;
        }
    }
    return n;
}
