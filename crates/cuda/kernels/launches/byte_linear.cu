// A linear phase of a large step with x as bytes, on GPUs whose warpgroups multiply together. Defined by the host:
// FORMAT (an index of FORMATS), TILE_TOKENS, GATE (0, or 1 + the activation of a gated one), and Sizes.

#include "linear/byte_linear.cuh"

#if HAS_WGMMA
extern "C" __global__ void __launch_bounds__(Sizes::THREADS, 1) byte_linear(const __grid_constant__ ByteLinearArgs m) {
    begin_next_launch();
    ByteLinear<FormatOf<FORMAT>::Is, TILE_TOKENS, GATE>(m).run();
}
#endif
