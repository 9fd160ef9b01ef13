// x of a linear of the fused step of one token, as integers in shared memory: as it is, normalised, or transformed.

// x of a phase in shared memory.
struct X {
    u8* bytes;      // [chunk][256]
    float* scales;  // [chunk]: the value of integer 1
    float* sums;    // [chunk][8]: sums of 16 columns, for formats with offsets; or [chunk], see X_PLACED
    float* squares; // [warp]: sum of squares of the warp's columns
    float* shares;  // [tile][warp][16 rows], of HELD_TILES tiles

    DEVICE X() {
        u8* arena = shared + AT_ARENA;
        bytes = arena, scales = (float*)(arena + AT_SCALES), sums = (float*)(arena + AT_SUMS);
        shares = (float*)(arena + AT_SHARES), squares = (float*)(shared + AT_WARP_FLOATS);
    }
};

// The order of x: formats of bits are not mixed with others.
template <class L> DEVICE constexpr XOrder x_order() {
    typedef typename L::A::F F;
    return F::SIGNS ? X_PLANES : L::ALIKE && F::PLACED ? X_PLACED : X_BYTES;
}

static_assert(HELD_TILES % 2 == 0, "pairs of tiles are held together");
constexpr int SHARE_FLOATS = WARPS * 16 + 16; // per tile; the padding keeps tiles in different banks

// Stores eight values of x as integers in shared memory; sixteen neighbouring threads have a chunk.
template <XOrder ORDER> DEVICE void put_x(bool real, const X& x, int chunk, const float (&v)[8]) {
    int part = threadIdx.x % 16, sum = 0;
    float most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) most = larger_magnitude(most, v[i]);
#pragma unroll
    for (int step = 8; step > 0; step /= 2) most = larger_magnitude(most, __shfl_xor_sync(0xffffffff, most, step));
    float scale = x_scale_of(most, most_of(ORDER));
    if (real && part == 0) x.scales[chunk] = scale;
    if (ORDER == X_PLANES) {
        store_planes(real, x.bytes + chunk * 256, part, v, most);
        return;
    }
    bool four = ORDER == X_PLACED && part / 2 % 2;
    if (real) sum = store_x(x.bytes + chunk * 256, part, v, to_integers(most, most_of(ORDER)) * (four ? 4.f : 1.f));
    if (ORDER == X_PLACED) {
        float all = (float)sum * (four ? 0.25f : 1.f);
#pragma unroll
        for (int step = 8; step > 0; step /= 2) all += __shfl_xor_sync(0xffffffff, all, step);
        if (real && part == 0) x.sums[chunk] = -128.f * scale * all; // twice the sum, as codes are times 64
    } else if (OFFSET_SUMS) {
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        if (real && part % 2 == 0) x.sums[chunk * 8 + part / 2] = (float)sum;
    }
}

// Prepares the warp's chunks of x, two at a time, times the norm's weights; the norm's factor is applied at the end.
template <class L> DEVICE void prepare_x(const LinearArgs& a, const Info& info, const X& x, u32 epoch) {
    // of experts, the columns of all shapes would otherwise be held across phases
    u32 thread = L::USED > 0 ? fixed_thread() : threadIdx.x;
    int lane = thread % 32, warp = thread / 32;
    auto chunk_of = [&](int round) { return (round + lane / 16) * WARPS + warp; };
    auto real = [&](int round) { return (L::FULL && L::ROUNDS % 2 == 0) || chunk_of(round) < L::CHUNKS; };
    auto chunk_in_matrix = [&](int round) { return L::MIX ? chunk_of(round) % L::MATRIX_CHUNKS : chunk_of(round); };
    auto chosen_of = [&](int round) { return L::MIX ? chunk_of(round) / L::MATRIX_CHUNKS : 0; }; // mixed: the index of the chunk's expert
    auto column_in_matrix = [&](int round) { return chunk_in_matrix(round) * 128 + lane % 16 * 8; };
    auto column = [&](int round) { return chosen_of(round) * L::COLS + column_in_matrix(round); };
    auto there = [&](int round) { return real(round) && (L::COLS % 128 == 0 || column_in_matrix(round) < L::COLS); };
    auto expert_factor = [&](int round) {
        int i = min(chosen_of(round), L::USED - 1), expert = choice_of_step().expert[i];
        return choice_of_step().weight[i] * (L::SCALE && a.part[0].scale ? a.part[0].scale[expert] : 1.f);
    };
    const float *from = row_of(a.x, L::GATHER ? info.output_row[0] : 0), *norm_weight = a.norm.weight; // in registers: phases are in shared memory
    float squares = 0;
    Awaited<2> awaited;
    float4 w[2];
    auto load = [&](int round) {
        int k = column(round);
        if (L::NORM && there(round)) w[0] = *(const float4*)(norm_weight + k), w[1] = *(const float4*)(norm_weight + k + 4);
        if (there(round)) awaited.load(from + k);
        else awaited.zero(epoch);
    };
    load(0);
#pragma unroll
    for (int round = 0; round < L::ROUNDS; round += 2) {
        float v[8], by[8] = {w[0].x, w[0].y, w[0].z, w[0].w, w[1].x, w[1].y, w[1].z, w[1].w};
        float mix = L::MIX ? expert_factor(round) : 1.f;
        awaited.wait(from + column(round), L::X_MASK, epoch);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = there(round) ? untagged(awaited.bits[i], L::X_MASK) : 0.f;
            if (L::MIX && there(round)) v[i] *= mix;
            if (L::NORM) {
                squares += v[i] * v[i];
                v[i] = there(round) ? v[i] * by[i] : 0.f;
            }
        }
        if (round + 2 < L::ROUNDS) load(round + 2); // loaded meanwhile
        put_x<x_order<L>()>(real(round), x, chunk_of(round), v);
    }
    if (L::NORM) {
        squares = warp_sum(squares);
        if (lane == 0) x.squares[warp] = squares;
    }
}

// Eight neighbouring values of a lane, of a vector of factors.
DEVICE void multiply8(float (&v)[8], const float* by) {
    float4 a = *(const float4*)by, b = *(const float4*)(by + 4);
    v[0] *= a.x, v[1] *= a.y, v[2] *= a.z, v[3] *= a.w, v[4] *= b.x, v[5] *= b.y, v[6] *= b.z, v[7] *= b.w;
}

// a and b become a + b and a - b.
DEVICE void sum_and_difference(float& a, float& b) {
    float sum = a + b;
    b = a - b, a = sum;
}

// Prepares a transformed x: equals Op::Norm, Op::Gated and Op::Rotate of graph/reference.rs after each other, where the factor of a norm
// of whole rows is applied at the end. A warp has pieces of 256 columns, a lane eight neighbouring ones; the steps between the pieces of
// a span go through shared memory. Everything that x is multiplied with is loaded before x is waited for. Other warps read the
// chunks: a barrier follows.
//
// Its loops are not unrolled: code that runs once per phase takes the time of loading it, and the code of a step must fit into the
// cache of instructions.
template <XOrder ORDER> APART void prepare_transformed(const LinearArgs& a, const X& x) {
    static_assert(TRANSFORM_SPAN == 4 * 256, "a span has four pieces");
    const TransformArgs& t = a.transform;
    const Info& info = info_of_step();
    u32 epoch = info.epoch, mask = a.x.mask;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, block = t.block;
    const float* row = row_of(a.x, a.gather ? info.output_row[0] : 0);
    float squares = 0, scale = block ? rsqrtf((float)block) : 1.f;
    float* exchanged = (float*)(shared + AT_ARENA + AT_EXCHANGE); // [warp][256]
#pragma unroll 1
    for (int first = 0; first < a.chunks * CHUNK; first += WARPS * 256) {
        int column = first + warp * 256 + lane * 8;
        bool any = first + warp * 256 < a.chunks * CHUNK, has = column < t.width; // of the warp, of the lane
        float v[8];
        if (any) {
            int place = has ? place_of(t, column) : 0;
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = has ? scale : 0.f;
            if (a.norm.kind) multiply8(v, a.norm.weight + place);
            if (t.norm.kind) multiply8(v, t.norm.weight + place % t.group);
            if (block) multiply8(v, t.signs + (has ? column % t.group_width : 0));
            Awaited<2> awaited;
            if (t.act) {
                const float* gate = t.gate.at + gate_column(t, place);
                awaited.load(gate);
                awaited.wait(gate, t.gate.mask, epoch);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    float z = untagged(awaited.bits[i], t.gate.mask);
                    v[i] *= (t.act - 1 == SILU ? z : 1.f) * reciprocal(1.f + exp2_fast(z * -1.4426950408889634f));
                }
            }
            awaited.load(row + place);
            awaited.wait(row + place, mask, epoch);
            float sum = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float value = has ? untagged(awaited.bits[i], mask) : 0.f;
                sum += value * value;
                v[i] *= value;
            }
            squares += sum;
            if (t.norm.kind) { // of heads
#pragma unroll 1
                for (int step = 1; step < t.group / 8; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
                float factor = rsqrtf(sum / (float)t.group + t.norm.eps);
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] *= factor;
            }
#pragma unroll
            for (int half = 1; half < 8; half *= 2)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (!(i & half) && block > half) sum_and_difference(v[i], v[i + half]);
#pragma unroll 1
            for (int half = 8; half < min(block, 256); half *= 2) {
                float sign = lane & half / 8 ? -1.f : 1.f;
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = __shfl_xor_sync(0xffffffff, v[i], half / 8) + sign * v[i];
            }
        }
        if (block > 256) {
            float4* mine = (float4*)(exchanged + threadIdx.x * 8);
            if (any) mine[0] = {v[0], v[1], v[2], v[3]}, mine[1] = {v[4], v[5], v[6], v[7]};
            sync_threads<THREADS>();
            int others = block / 256 - 1; // bits in which the numbers of pieces differ that are added
#pragma unroll 1
            for (int by = 1; any && by <= others; by++) {
                // pieces p and p ^ by: the sign of each is that of its common bits with this piece
                float sign = __popc(warp & (warp ^ by) & others) % 2 ? -1.f : 1.f, own = by == 1 && __popc(warp & others) % 2 ? -1.f : 1.f;
                const float4* other = (const float4*)(exchanged + (threadIdx.x ^ by * 32) * 8);
                float4 low = other[0], high = other[1];
                v[0] = own * v[0] + sign * low.x, v[1] = own * v[1] + sign * low.y, v[2] = own * v[2] + sign * low.z, v[3] = own * v[3] + sign * low.w;
                v[4] = own * v[4] + sign * high.x, v[5] = own * v[5] + sign * high.y, v[6] = own * v[6] + sign * high.z, v[7] = own * v[7] + sign * high.w;
            }
            sync_threads<THREADS>(); // before the next pieces
        }
        if (any) put_x<ORDER>(column / CHUNK < a.chunks, x, column / CHUNK, v);
    }
    if (a.norm.kind) {
        squares = warp_sum(squares);
        if (lane == 0) x.squares[warp] = squares;
    }
}
