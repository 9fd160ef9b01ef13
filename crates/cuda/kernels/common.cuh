// What all kernels use: short type names, halves, the matrix unit and barriers, in inline PTX. No toolkit header is needed.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define APART __device__ __noinline__ // not inlined: it has its own registers
#define INFINITY __int_as_float(0x7f800000)

// Loads that bypass L1: for data that other blocks wrote, or that is read once.
DEVICE float4 load_floats4(const float* at) { return __ldcg((const float4*)at); }
DEVICE float load_float(const float* at) { return __ldcg(at); }
DEVICE uint4 load_words4(const void* at) { return __ldcg((const uint4*)at); }

DEVICE bool is_finite(float x) { return fabsf(x) < INFINITY; }

// 65504 is the largest half: larger numbers must not become infinite. A value that is not finite stays so, or becomes a
// number if only numbers are allowed (FINITE).
template <bool FINITE> DEVICE float in_range_of_halves(float x) {
    float clamped = fminf(fmaxf(x, -65504.f), 65504.f);
    return FINITE || is_finite(x) ? clamped : x;
}

template <bool FINITE = false> DEVICE u16 to_half(float x) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(in_range_of_halves<FINITE>(x)));
    return half;
}

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Within two ulp, for numbers that are not extreme.
DEVICE float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <bool FINITE = false> DEVICE u32 to_half2(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(in_range_of_halves<FINITE>(high)), "f"(in_range_of_halves<FINITE>(low)));
    return pair;
}

DEVICE float to_float(u16 half) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
}

DEVICE float low_half(u32 pair) { return to_float((u16)(pair & 0xffff)); }
DEVICE float high_half(u32 pair) { return to_float((u16)(pair >> 16)); }

// c += a * b on one warp: a [16, 32] and b [32, 8] signed bytes, c [16, 8] integers.
// Lane (g = lane / 4, q = lane % 4): a0, a1 = rows g and g + 8, columns 4q .. 4q+3, a2, a3 the same 16 columns on;
// b0, b1 = column g, the same rows; c = rows g and g + 8, columns 2q and 2q + 1.
DEVICE void multiply(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same with bytes of a that have no sign.
DEVICE void multiply_unsigned(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// With 16 columns of a.
DEVICE void multiply(int (&c)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b0));
}

// c += the number of bits that are set in both a and b, on one warp: a [16, 128], b [128, 8] bits. Lane (g, q): a0, a1 = rows g and
// g + 8, b = column g, bits 32q .. 32q + 31; c as above.
DEVICE void count_common(int (&c)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b));
}

// c += a * b on one warp: a [16, 16] and b [16, 8] halves, c [16, 8] floats. Lane (g, q): a0, a1 = rows g and g + 8, columns
// 2q and 2q + 1, a2, a3 the same 8 columns on; b0, b1 = column g, the same rows; c as above.
DEVICE void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Transposes 8 by 8 halves: lane (g, q) passes row g, columns 2q and 2q + 1, and gets column g, rows 2q and 2q + 1.
DEVICE u32 transposed(u32 pair) {
    u32 out;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
    return out;
}

// Copies 16 bytes to shared memory asynchronously; `committed` closes a batch, `arrived<N>` waits until only N batches are
// open.
DEVICE void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

DEVICE void committed() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> DEVICE void arrived() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Waits of blocks for each other take microseconds. One that does not end stops the kernel with an error after about ten
// seconds: the host reports it, and nothing hangs.
struct Patience {
    u32 left = 1u << 26;

    DEVICE void wear() {
        if (--left == 0) __trap();
    }
};

// A barrier in shared memory: each round is complete after `count` arrivals.
struct Gate {
    u64 state;

    DEVICE u32 at() const { return (u32)__cvta_generic_to_shared(this); }
    DEVICE void open(int count) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at()), "r"(count) : "memory");
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    DEVICE void arrive() { asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(at()) : "memory"); }

    // Whether the round of this parity is complete; waits for a limited time if not.
    DEVICE bool try_wait(u32 parity) {
#if __CUDA_ARCH__ >= 900
        u32 done;
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at()), "r"(parity) : "memory");
        return done;
#else
        return is_complete(parity);
#endif
    }

    DEVICE bool is_complete(u32 parity) {
        u32 done;
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at()), "r"(parity) : "memory");
        return done;
    }

    DEVICE void wait(u32 parity) {
        while (!try_wait(parity)) {}
    }

    // Copies to shared memory by one lane, or by a whole warp: announce the bytes, copy, arrive. The gate counts COPIERS
    // arrivals, and the round is complete when all bytes have arrived.
#if __CUDA_ARCH__ >= 900
    static constexpr int COPIERS = 1;
    DEVICE void expect(int bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at()), "r"(bytes) : "memory");
    }
    DEVICE void copy(void* to, const void* from, int bytes) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
            ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes), "r"(at()) : "memory");
    }
#else
    static constexpr int COPIERS = 32;
    DEVICE void copy(void* to, const void* from, int bytes) {
        for (int i = threadIdx.x % 32 * 16; i < bytes; i += 512) copy16((u8*)to + i, (const u8*)from + i);
    }
    DEVICE void copied() { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at()) : "memory"); }
#endif
};

// The thread's index, read once: otherwise the compiler reads it again and again, each time as slowly as shared memory.
DEVICE u32 fixed_thread() {
    u32 thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// The first N threads of a block wait for each other.
template <int N> DEVICE void sync_threads() { asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory"); }

// A barrier of all blocks of the grid, with THREADS threads each: afterwards loads that bypass L1 see what all have written.
// All blocks must be running, and the threads of each have waited for each other since their last writes.
template <int THREADS> DEVICE void grid_barrier_after_sync(u32* counter, u32 target) {
    if (threadIdx.x == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
        u32 seen = 0;
        for (Patience patience; seen < target; patience.wear())
            asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    }
    sync_threads<THREADS>();
}
template <int THREADS> DEVICE void grid_barrier(u32* counter, u32 target) {
    sync_threads<THREADS>();
    grid_barrier_after_sync<THREADS>(counter, target);
}

// Prefetches into L2.
DEVICE void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

template <class N> DEVICE N warp_sum(N x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

template <class N> DEVICE N warp_max(N x) {
    for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
}

// The sum of x over a block of THREADS threads; `scratch` has a float per warp, and may be used again after a barrier.
template <int THREADS> DEVICE float block_sum(float x, float* scratch) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    sync_threads<THREADS>();
    x = lane < THREADS / 32 ? scratch[lane] : 0.f;
    return warp_sum(x);
}

// Launches overlap: a block may begin before earlier launches are done. Every block waits for them before it touches what they
// read or write, and before it ends; only then a launch that waits for this one has also waited for those.
DEVICE void wait_for_launches() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next launch may begin.
DEVICE void begin_next_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Products of a whole warpgroup; the host adds Wgmma<N> for the sizes in use (src/shared/wgmma.rs).
#if __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WGMMA 1
template <int N> struct Wgmma;
#else
#define HAS_WGMMA 0
#endif
