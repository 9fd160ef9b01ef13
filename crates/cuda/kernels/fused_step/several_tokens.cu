// The fused step of several tokens (step.cuh).

#include "linear/batch_linear.cuh"
#include "attention/attend.cuh"
#include "fused_step/step.cuh"

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) fused_step(const __grid_constant__ StepArgs args) { step(args); }
