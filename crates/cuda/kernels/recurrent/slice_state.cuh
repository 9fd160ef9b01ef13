// The state of a slice of a step: it names the slot that holds the state before its first token and the slot that gets the state
// after its last one. State may be read before earlier launches are waited for: of a step, one launch touches it.

#pragma once

#include "base/common.cuh"
#include "host/shared.cuh"

struct SliceState {
    int first, tokens, read, write;
};

DEVICE SliceState state_of(const u32* inputs, int slice) {
    const u32* words = inputs + inputs[STATES_AT] + slice * STATE_WORDS;
    return {(int)words[0], (int)words[1], (int)words[2], (int)words[3]};
}
