// What every kernel stands on: short names, halves, and the matrix unit, in inline PTX. No toolkit header is needed.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define APART __device__ __noinline__ // with registers of its own
#define INFINITY __int_as_float(0x7f800000)

struct alignas(8) Words2 { u32 x, y; };
struct alignas(16) Words4 { u32 x, y, z, w; };
struct alignas(16) Floats4 { float x, y, z, w; };

// Loads that skip the first cache: of what other blocks wrote, or what is read once.
DEVICE Floats4 load_floats4(const float* at) {
    Floats4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(at));
    return v;
}

DEVICE float load_float(const float* at) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(at));
    return v;
}

DEVICE Words4 load_words4(const void* at) {
    Words4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

// 65504 is the largest half: what is larger must not become infinite.
DEVICE u16 to_half(float x) {
    u16 half;
    x = fminf(fmaxf(x, -65504.f), 65504.f);
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE u32 to_half2(float low, float high) {
    u32 pair;
    low = fminf(fmaxf(low, -65504.f), 65504.f);
    high = fminf(fmaxf(high, -65504.f), 65504.f);
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    pair = to_half(low) | (u32)to_half(high) << 16;
#endif
    return pair;
}

DEVICE float to_float(u16 half) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
}

DEVICE float low_half(u32 pair) { return to_float((u16)(pair & 0xffff)); }
DEVICE float high_half(u32 pair) { return to_float((u16)(pair >> 16)); }

DEVICE void multiply(int (&c)[4], u32 a0, u32 a1, u32 b0);

// c += a * b on one warp: a [16, 32] and b [32, 8] signed bytes, c [16, 8] integers.
// Lane (g = lane / 4, q = lane % 4): a0, a1 = rows g and g + 8, columns 4q .. 4q+3, a2, a3 the same 16 columns on;
// b0, b1 = column g, the same rows; c = rows g and g + 8, columns 2q and 2q + 1.
DEVICE void multiply(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    multiply(c, a0, a1, b0);
    multiply(c, a2, a3, b1);
#endif
}

// The same for 16 columns of a.
DEVICE void multiply(int (&c)[4], u32 a0, u32 a1, u32 b0) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b0));
#else // half as high, twice
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(c[0]), "+r"(c[1]) : "r"(a0), "r"(b0));
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(c[2]), "+r"(c[3]) : "r"(a1), "r"(b0));
#endif
}

// 16 bytes on their way to shared memory; `committed` closes a batch, `arrived<N>` waits until only N batches are open.
DEVICE void copy16(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
    *(Words4*)to = *(const Words4*)from;
#endif
}

DEVICE void committed() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N> DEVICE void arrived() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// Every block of the grid gets here before any goes on, and sees what all have written. All blocks must be running.
DEVICE void grid_barrier(u32* counter, u32 target) {
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
        u32 seen;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
        while (seen < target);
    }
    __syncthreads();
}

DEVICE float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

DEVICE float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
}

// The sum of x over a block of THREADS threads; `room` holds a float a warp, and may be used again after a barrier.
template <int THREADS> DEVICE float block_sum(float x, float* room) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = warp_sum(x);
    if (lane == 0) room[warp] = x;
    __syncthreads();
    x = lane < THREADS / 32 ? room[lane] : 0.f;
    return warp_sum(x);
}
