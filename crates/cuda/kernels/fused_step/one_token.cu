// The fused step of one token (step.cuh).

#include "linear/linear.cuh"
#include "attention/attend.cuh"
#include "experts/route.cuh"
#include "recurrent/step_recurrent.cuh"
#include "fused_step/step.cuh"

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) fused_step(const __grid_constant__ StepArgs args) { step(args); }
