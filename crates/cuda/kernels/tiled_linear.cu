// A linear phase for many tokens. Defined by the host: FORMAT (an index of FORMATS), TILE_TOKENS, GATE (whether it is gated),
// BLOCKS_PER_PROCESSOR.

typedef TiledLinear<FormatOf<FORMAT>::Is, TILE_TOKENS, GATE> Linear;

extern "C" __global__ void __launch_bounds__(Linear::THREADS_OF_BLOCK, BLOCKS_PER_PROCESSOR) tiled_linear(const __grid_constant__ TiledArgs m) {
    Linear(m).run();
}
