// x of a linear of the fused step of one token, as integers in shared memory: as it is, or normalised.

#pragma once

#include "base/tagged.cuh"
#include "x/integers.cuh"
#include "linear/linear_shape.cuh"
#include "fused_step/ring.cuh"

// x of a phase in shared memory.
struct X {
    u8* bytes;      // [chunk][256], or [chunk][FieldsX::BYTES]
    float* scales;  // [chunk]: the value of integer 1
    float* sums;    // [chunk][8]: sums of 16 columns, for formats with offsets; or [chunk], see X_PLACED
    float* squares; // [warp]: sum of squares of the warp's columns
    float* shares;  // [tile][warp][16 rows], of HELD_TILES tiles

    DEVICE X() {
        u8* arena = shared + Sizes::AT_ARENA;
        bytes = arena, scales = (float*)(arena + Sizes::AT_SCALES), sums = (float*)(arena + Sizes::AT_SUMS);
        shares = (float*)(arena + Sizes::AT_SHARES), squares = (float*)(shared + Sizes::AT_WARP_FLOATS);
    }
};

// The order of x: formats of bits are not mixed with others.
template <class L> DEVICE constexpr XOrder x_order() {
    typedef typename L::A::F F;
    return F::SIGNS ? X_PLANES : L::FIELDS ? X_FIELDS : L::ALIKE && F::PLACED ? X_PLACED : X_BYTES;
}

static_assert(Sizes::HELD_TILES % 2 == 0, "pairs of tiles are held together");
constexpr int SHARE_FLOATS = WARPS * 16 + 16; // per tile; the padding keeps tiles in different banks

// Stores eight values of x, the `part`-th eight of a chunk, as integers in shared memory; sixteen neighbouring threads
// have a chunk.
template <XOrder ORDER> DEVICE void put_x(bool real, const X& x, int chunk, int part, const float (&v)[8]) {
    int sum = 0;
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
    if (ORDER == X_FIELDS) {
        if (real) FieldsX::put(x.bytes + chunk * FieldsX::BYTES, part, v, to_integers(most, most_of(ORDER)));
        return;
    }
    bool four = ORDER == X_PLACED && part / 2 % 2;
    if (real) sum = store_x(x.bytes + chunk * 256, part, v, to_integers(most, most_of(ORDER)) * (four ? 4.f : 1.f));
    if (ORDER == X_PLACED) {
        float all = (float)sum * (four ? 0.25f : 1.f);
#pragma unroll
        for (int step = 8; step > 0; step /= 2) all += __shfl_xor_sync(0xffffffff, all, step);
        if (real && part == 0) x.sums[chunk] = excess_of(scale, all);
    } else if (OFFSET_SUMS) {
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        if (real && part % 2 == 0) x.sums[chunk * 8 + part / 2] = (float)sum;
    }
}

// Prepares the warp's chunks of x, two at a time, times the norm's weights; the norm's factor is applied at the end.
template <class L>
DEVICE void prepare_x(const LinearArgs& a, const Info& info, const X& x, u32 epoch, int lane, int warp) {
    auto chunk_of = [&](int round) { return (round + lane / 16) * WARPS + warp; };
    auto real = [&](int round) { return (L::FULL && L::ROUNDS % 2 == 0) || chunk_of(round) < L::CHUNKS; };
    auto chunk_in_matrix = [&](int round) { return L::MIX ? chunk_of(round) % L::MATRIX_CHUNKS : chunk_of(round); };
    auto chosen_of = [&](int round) {
        return L::MIX ? chunk_of(round) / L::MATRIX_CHUNKS : 0;
    }; // mixed: the index of the chunk's expert
    auto column_in_matrix = [&](int round) { return chunk_in_matrix(round) * 128 + lane % 16 * 8; };
    auto column = [&](int round) { return chosen_of(round) * L::COLS + column_in_matrix(round); };
    auto there = [&](int round) { return real(round) && (L::COLS % 128 == 0 || column_in_matrix(round) < L::COLS); };
    auto expert_factor = [&](int round) {
        int i = min(chosen_of(round), L::USED - 1), expert = choice_of_step().expert[i];
        return choice_of_step().weight[i] * (L::SCALE && a.part[0].scale ? a.part[0].scale[expert] : 1.f);
    };
    const float *from = row_of(a.x, L::GATHER ? info.output_row[0] : 0),
                *norm_weight = a.norm.weight; // in registers: phases are in shared memory
    float squares = 0;
    Awaited<2> awaited;
    float4 w[2];
    auto load = [&](int round) {
        int k = column(round);
        if (L::NORM && there(round))
            w[0] = *(const float4*)(norm_weight + k), w[1] = *(const float4*)(norm_weight + k + 4);
        if (there(round)) awaited.load(from + k);
        else awaited.zero(epoch);
    };
    load(0);
#pragma unroll 1 // code that runs once per phase takes the time of loading it
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
        put_x<x_order<L>()>(real(round), x, chunk_of(round), lane % 16, v);
    }
    if (L::NORM) {
        squares = warp_sum(squares);
        if (lane == 0) x.squares[warp] = squares;
    }
}

// The second step of x, for the orders that have one.
template <class L> DEVICE void finish_x(const X& x, int lane, int warp) {
    __syncwarp();
    if constexpr (x_order<L>() == X_FIELDS) {
#pragma unroll 1
        for (int chunk = warp; chunk < L::CHUNKS; chunk += WARPS)
            FieldsX::convert<typename L::A::F>(x.bytes + chunk * FieldsX::BYTES, x.scales[chunk], lane);
        __syncwarp();
    }
}
