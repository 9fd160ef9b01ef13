// A linear phase for many tokens. Defined by the host: FORMAT (an index of FORMATS), TILE_TOKENS, GATE (0, or 1 + the
// activation of a gated one), OF_EXPERTS (whether it is of experts), and Sizes.

#include "linear/tiled_linear.cuh"

typedef TiledLinear<FormatOf<FORMAT>::Is, TILE_TOKENS, GATE, OF_EXPERTS> Linear;

extern "C" __global__ void __launch_bounds__(Sizes::THREADS, Sizes::BLOCKS_PER_PROCESSOR)
    tiled_linear(const __grid_constant__ TiledArgs m) {
    begin_next_launch();
    Linear(m).run();
}
