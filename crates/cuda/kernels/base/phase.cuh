// What phases share: access to a step's inputs, and what follows the products of a linear. The structs of arguments are
// defined in src/shared/phase_args.rs.
//
// Defined by the host: FORMATS(X) with X(index, bits, low, group, offsets, bytes of a record) for each format of codes
// in the model.

#pragma once

#include "base/common.cuh"
#include "host/shared.cuh"

DEVICE int rows_of(const u32* inputs, int outputs_only) { return inputs[outputs_only ? OUTPUTS : TOKENS]; }
DEVICE int position_of(const u32* inputs, int token) { return inputs[inputs[POSITIONS_AT] + token]; }
// The angle of a pair, by the position or by a part of it, which follows the frequencies.
DEVICE float angle_of(const u32* inputs, const float* freqs, int pairs, int parted, int token, int pair) {
    int turns =
        parted ? inputs[inputs[TURNS_AT] + 3 * token + ((const int*)freqs)[pairs + pair]] : position_of(inputs, token);
    return (float)turns * freqs[pair];
}
DEVICE int output_row(const u32* inputs, int output) { return inputs[inputs[OUTPUT_ROWS_AT] + output]; }
// `windowed`: of layers with a window, in which entries before the window of the slice's first token are any page.
DEVICE const u32* pages_of(const u32* inputs, int token, int windowed) {
    return inputs + inputs[windowed ? WINDOW_PAGES_AT : PAGES_AT] +
           inputs[inputs[SLICES_AT] + token] * inputs[TABLE_STRIDE];
}
// A token id; a carried one is an output of the step before.
DEVICE u32 token_id(const u32* inputs, const int* chosen, int token) {
    u32 id = inputs[inputs[IDS_AT] + token];
    constexpr u32 CARRIED = 1u << CARRIED_BIT;
    return id & CARRIED ? max(chosen[id & (CARRIED - 1)], 0) : id & ((1u << TYPE_BIT) - 1);
}

// The type of a token: 1 in the second text of a pair.
DEVICE u32 type_of(const u32* inputs, int token) { return inputs[inputs[IDS_AT] + token] >> TYPE_BIT & 1; }

// The i-th expert of a token; NaN is expert 0.
DEVICE int expert_of(const float* route, int experts, int used, int token, int i) {
    return max(0, min((int)load_float(route + (long)token * 2 * used + i), experts - 1));
}

// Applies factor, scale and bias of a part to the sum of one of its rows; SCALE, BIAS: whether it may have them.
template <bool SCALE = true, bool BIAS = true>
DEVICE float finished(const Part& part, float sum, float factor, int row, int expert = 0) {
    sum *= factor * (SCALE && part.scale ? part.factor * part.scale[expert] : part.factor);
    return BIAS && part.bias ? sum + part.bias[(long)expert * part.rows + row] : sum;
}

// The gated value; `limit` is of the clamped ones.
DEVICE float activate(int act, float gate, float up, float limit) {
    auto silu = [](float x, float alpha) {
        return x * reciprocal(1.f + exp2_fast(x * (alpha * -1.4426950408889634f)));
    };
    if (act == SILU) return silu(gate, 1.f) * up;
    if (act == GELU_TANH) return 0.5f * gate * (1.f + tanhf(0.7978846f * gate * (1.f + 0.044715f * gate * gate))) * up;
    if (act == GELU) return 0.5f * gate * (1.f + erff(gate * 0.70710678f)) * up;
    if (act == RELU2) return gate * fmaxf(gate, 0.f) * up;
    if (act == SIGMOID) return up * reciprocal(1.f + exp2_fast(gate * -1.4426950408889634f));
    if (act == PRODUCT) return gate * up;
    if (act == RELU) return (fmaxf(gate, 0.f) + gate * 0.f) * up;
    // what is not finite becomes NaN
    gate = fminf(gate, limit) + gate * 0.f, up = fminf(fmaxf(up, -limit), limit) + up * 0.f;
    return act == SWIGLU_OAI ? silu(gate, 1.702f) * (up + 1.f) : silu(gate, 1.f) * up;
}

// The same with an activation that is known at run time: the code of rare ones is long, and is not repeated for every
// value.
APART float rare_activation(int act, float gate, float up, float limit) { return activate(act, gate, up, limit); }
DEVICE float activate_any(int act, float gate, float up, float limit) {
    if (act == SILU) return activate(SILU, gate, up, limit);
    if (act == SIGMOID) return activate(SIGMOID, gate, up, limit);
    return rare_activation(act, gate, up, limit);
}

// Infinities stay infinite or become NaN: they must not become numbers.
DEVICE float soft_capped(float x, float cap) { return cap * tanhf(x / cap) + x * 0.f; }

// The factor of a norm over `count` columns whose squares have been summed.
DEVICE float norm_factor(float squares, int count, float eps) { return 1.f / sqrtf(squares / count + eps); }
