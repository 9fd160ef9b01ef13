// Convolutions over the rows of each slice, whose last rows are state. Equals Op::Conv of graph/reference/recurrent.rs.

// A thread computes some tokens of one column, CONV_TOKENS of a prompt and one if sequences are decoded. What is before a slice is read and what is kept of it is written by the thread
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
    auto store = [&](int token, float sum) {
        sum += bias;
        if (a.silu) sum /= 1.f + expf(-sum);
        row_of(a.y, token)[column] = sum;
    };
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
        sum += bias;
        if (a.silu) sum /= 1.f + expf(-sum);
        row_of(a.y, token)[column] = sum;
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
    switch (a.taps_count) {
        case 2: return convolve_column<2>(a, column);
        case 3: return convolve_column<3>(a, column);
        case 4: return convolve_column<4>(a, column);
        case 5: return convolve_column<5>(a, column);
        case 6: return convolve_column<6>(a, column);
        case 7: return convolve_column<7>(a, column);
        default: return convolve_column<8>(a, column);
    }
}
