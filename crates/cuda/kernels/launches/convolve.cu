// Convolutions over the rows of each slice, whose last rows are state. Equals Op::Conv of graph/reference/recurrent.rs.

#include "base/tagged.cuh"
#include "base/phase.cuh"
#include "recurrent/slice_state.cuh"

// The value of a sum, with bias and activation.
DEVICE float convolved(const ConvArgs& a, float sum, float bias) {
    sum += bias;
    return a.silu ? sum / (1.f + expf(-sum)) : sum;
}

// A thread computes CONV_TOKENS tokens of one column. What is before a slice is read and what is kept of it is written by the thread
// of its first token alone, which also computes the tokens that need it.
template <int TAPS> DEVICE void convolve_column(const ConvArgs& a, int column) {
    constexpr int OLD = TAPS - 1;
    int tokens = a.inputs[TOKENS], each = (tokens + gridDim.y - 1) / gridDim.y;
    int first = blockIdx.y * each, end = min(first + each, tokens);
    if (first >= end) return wait_for_launches();
    float taps[TAPS], bias = a.bias ? a.bias[column] : 0.f;
#pragma unroll
    for (int j = 0; j < TAPS; j++) taps[j] = a.taps[(long)column * TAPS + j];
    auto x = [&](int token) { return load_float(row_of(a.x, token) + column); };
    auto store = [&](int token, float sum) { row_of(a.y, token)[column] = convolved(a, sum, bias); };
    int slice = a.inputs[a.inputs[SLICES_AT] + first];
    SliceState s = state_of(a.inputs, slice);
    if (s.read >= 0 && first == s.first) {
#pragma unroll
        for (int j = 0; j < OLD; j++) prefetch(a.state + ((long)s.read * OLD + j) * a.width + column);
    }
    wait_for_launches();
    float window[TAPS];
    bool filled = false;
    for (int token = first; token < end; token++) {
        if (token == s.first + s.tokens) s = state_of(a.inputs, ++slice), filled = false;
        int index = token - s.first;
        if (index == 0) {
            float rows[2 * OLD], kept[OLD]; // before the slice, and its first rows
#pragma unroll
            for (int j = 0; j < OLD; j++) {
                rows[j] = s.read < 0 ? 0.f : __ldcg(a.state + ((long)s.read * OLD + j) * a.width + column);
                rows[OLD + j] = j < s.tokens ? x(token + j) : 0.f;
            }
#pragma unroll
            for (int t = 0; t < OLD; t++) {
                float sum = 0;
#pragma unroll
                for (int j = 0; j < TAPS; j++) sum += rows[t + j] * taps[j];
                if (t < s.tokens) store(token + t, sum);
            }
#pragma unroll
            for (int j = 0; j < OLD; j++) {
                int at = s.tokens + j; // of the rows
                if (at >= 2 * OLD) kept[j] = x(s.first + at - OLD);
#pragma unroll
                for (int i = 0; i < 2 * OLD; i++)
                    if (i == at) kept[j] = rows[i];
            }
#pragma unroll
            for (int j = 0; j < OLD; j++) a.state[((long)s.write * OLD + j) * a.width + column] = kept[j];
        }
        if (index < OLD) continue;
#pragma unroll
        for (int j = 0; j < OLD; j++) window[j] = filled ? window[j + 1] : x(token - OLD + j);
        window[OLD] = x(token);
        filled = true;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < TAPS; j++) sum += window[j] * taps[j];
        store(token, sum);
    }
}

// The token of a slice that is decoded, by threads of two columns each. State is read before launches are waited for.
template <int TAPS> DEVICE void convolve_token(const ConvArgs& a) {
    constexpr int OLD = TAPS - 1;
    int token = blockIdx.y, first = blockIdx.x * 2 * CONV_THREADS + threadIdx.x;
    if (token >= a.inputs[TOKENS]) return wait_for_launches();
    SliceState s = state_of(a.inputs, a.inputs[a.inputs[SLICES_AT] + token]);
    float rows[2][TAPS], taps[2][TAPS], bias[2];
    auto state = [&](int slot, int j, int column) { return a.state + ((long)slot * OLD + j) * a.width + column; };
    auto each = [&](auto use) {
#pragma unroll
        for (int n = 0; n < 2; n++)
            if (first + n * CONV_THREADS < a.width) use(n, first + n * CONV_THREADS);
    };
    each([&](int n, int column) {
#pragma unroll
        for (int j = 0; j < OLD; j++) rows[n][j] = s.read < 0 ? 0.f : load_float(state(s.read, j, column));
#pragma unroll
        for (int j = 0; j < TAPS; j++) taps[n][j] = a.taps[(long)column * TAPS + j];
        bias[n] = a.bias ? a.bias[column] : 0.f;
    });
    wait_for_launches();
    each([&](int n, int column) { rows[n][OLD] = load_float(row_of(a.x, token) + column); });
    each([&](int n, int column) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < TAPS; j++) sum += rows[n][j] * taps[n][j];
        row_of(a.y, token)[column] = convolved(a, sum, bias[n]);
#pragma unroll
        for (int j = 0; j < OLD; j++) *state(s.write, j, column) = rows[n][j + 1];
    });
}

// As many tokens of the text before a token as after it. Tokens of one text have one number in the list of slices.
template <int TAPS> DEVICE void convolve_centred(const ConvArgs& a, int column) {
    constexpr int BESIDE = TAPS / 2;
    int tokens = a.inputs[TOKENS], each = (tokens + gridDim.y - 1) / gridDim.y;
    int first = blockIdx.y * each, end = min(first + each, tokens);
    const u32* texts = a.inputs + a.inputs[SLICES_AT];
    float taps[TAPS], bias = a.bias ? a.bias[column] : 0.f;
#pragma unroll
    for (int j = 0; j < TAPS; j++) taps[j] = a.taps[(long)column * TAPS + j];
    wait_for_launches();
    for (int token = first; token < end; token++) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            int at = token + j - BESIDE;
            if (at >= 0 && at < tokens && texts[at] == texts[token]) sum += load_float(row_of(a.x, at) + column) * taps[j];
        }
        row_of(a.y, token)[column] = convolved(a, sum, bias);
    }
}

template <int N> struct Taps { static constexpr int VALUE = N; };

// Code for each number of taps that state may have.
template <class Run> DEVICE void with_taps(const ConvArgs& a, Run run) {
    switch (a.taps_count) {
        case 2: return run(Taps<2>{});
        case 3: return run(Taps<3>{});
        case 4: return run(Taps<4>{});
        case 5: return run(Taps<5>{});
        case 6: return run(Taps<6>{});
        case 7: return run(Taps<7>{});
        default: return run(Taps<8>{});
    }
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS) convolve(const __grid_constant__ ConvArgs a) {
    begin_next_launch();
    int column = blockIdx.x * CONV_THREADS + threadIdx.x;
    if (column >= a.width) return wait_for_launches();
    if (!a.state) {
        switch (a.taps_count) {
            case 3: return convolve_centred<3>(a, column);
            case 5: return convolve_centred<5>(a, column);
            default: return convolve_centred<7>(a, column);
        }
    }
    with_taps(a, [&](auto taps) { convolve_column<decltype(taps)::VALUE>(a, column); });
}

// All slices have one token.
extern "C" __global__ void __launch_bounds__(CONV_THREADS, 10) convolve_decode(const __grid_constant__ ConvArgs a) {
    begin_next_launch();
    with_taps(a, [&](auto taps) { convolve_token<decltype(taps)::VALUE>(a); });
}
