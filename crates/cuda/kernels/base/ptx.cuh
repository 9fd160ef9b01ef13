// The instructions of the GPU that C++ has no words for, as inline PTX, and short type names. No toolkit header is
// needed. Nothing else has PTX but Wgmma<N>, which the host writes (src/shared/wgmma.rs), so that other code also runs
// where these functions are emulated (tests/emulated_gpu).

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

enum : int { ARCH = __CUDA_ARCH__ }; // the generation: 900 is 9.0

#define DEVICE __device__ __forceinline__
#define APART __device__ __noinline__ // not inlined: it has its own registers
#define INFINITY __int_as_float(0x7f800000)
#define OFFSET_OF(type, field) __INTADDR__(&((type*)0)->field) // an address that is a constant for NVRTC

// Halves, and fast functions of floats.

DEVICE u16 rounded_half(float x) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

DEVICE u32 rounded_halves(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

DEVICE float to_float(u16 half) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
}

DEVICE u32 half2_add(u32 a, u32 b) {
    u32 c;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}
DEVICE u32 half2_mul(u32 a, u32 b) {
    u32 c;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}
DEVICE u32 half2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// The larger one of each half of a and the magnitude of b, or NaN if either is.
DEVICE u32 larger_magnitude2(u32 a, u32 b) {
    u32 larger;
    asm("{ .reg .b32 t; abs.f16x2 t, %2; max.NaN.f16x2 %0, %1, t; }" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

// The larger magnitude, or NaN if either is: the scale of values that are not finite is not finite, and so is
// everything computed with it.
DEVICE float larger_magnitude(float x, float y) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(x)), "f"(fabsf(y)));
    return larger;
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

// Two e4m3 numbers; the magnitudes are at most 448.
DEVICE u32 to_e4m3(float low, float high) {
    if constexpr (ARCH >= 890) {
        u16 pair;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
        return pair;
    } else {
        auto one = [](float x) {
            u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
            bits &= 0x7fffffff;
            if (bits < 0x3c800000) return sign | (u32)__float2int_rn(fabsf(x) * 512.f); // below 2^-6: multiples of 2^-9
            bits += 0x7ffff + (bits >> 20 & 1); // round to nearest, ties to even
            return sign | min((bits >> 20) - (120 << 3), 0x7eu);
        };
        return one(low) | one(high) << 8;
    }
}

// Bits. The compiler makes two instructions of these if two operands are constants.

// (x & mask) ^ by
DEVICE u32 masked_xor(u32 x, u32 mask, u32 by) {
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(x), "r"(mask), "r"(by));
    return result;
}

// The bits of x in `mask`, and those of `by` that are not.
DEVICE u32 merged(u32 x, u32 mask, u32 by) {
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0x62;" : "=r"(result) : "r"(x), "r"(mask), "r"(by)); // by ? !mask : mask & x
    return result;
}

// The largest and the smallest number of all lanes.
DEVICE u32 largest_of_warp(u32 x) {
    u32 largest;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(largest) : "r"(x));
    return largest;
}
DEVICE u32 smallest_of_warp(u32 x) {
    u32 smallest;
    asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(smallest) : "r"(x));
    return smallest;
}

// The matrix unit.

// c += a * b on one warp: a [16, 32] and b [32, 8] signed bytes, c [16, 8] integers.
// Lane (g = lane / 4, q = lane % 4): a0, a1 = rows g and g + 8, columns 4q .. 4q+3, a2, a3 the same 16 columns on;
// b0, b1 = column g, the same rows; c = rows g and g + 8, columns 2q and 2q + 1.
DEVICE void multiply(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same with bytes of a that have no sign.
DEVICE void multiply_unsigned(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// With 16 columns of a.
DEVICE void multiply(int (&c)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

// c += the number of bits that are set in both a and b, on one warp: a [16, 128], b [128, 8] bits. Lane (g, q): a0, a1
// = rows g and g + 8, b = column g, bits 32q .. 32q + 31; c as above.
DEVICE void count_common(int (&c)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
// With 256 bits: a2, a3 and b1 are the second 128.
DEVICE void count_common(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// c += a * b on one warp: a [16, 16] and b [16, 8] halves, c [16, 8] floats. Lane (g, q): a0, a1 = rows g and g + 8,
// columns 2q and 2q + 1, a2, a3 the same 8 columns on; b0, b1 = column g, the same rows; c as above.
DEVICE void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A sum that the matrix unit has written is read from here on.
DEVICE void after_products(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }

// Transposes 8 by 8 halves: lane (g, q) passes row g, columns 2q and 2q + 1, and gets column g, rows 2q and 2q + 1.
DEVICE u32 transposed(u32 pair) {
    u32 out;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
    return out;
}

DEVICE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Four matrices of 8 by 8 halves: lane l passes the address of row l % 8 of matrix l / 8. Lane (g, q) gets row g,
// columns 2q and 2q + 1 of each, or, if TRANSPOSED, column g, rows 2q and 2q + 1. Other loads may be moved before it or
// after it.
template <bool TRANSPOSED = false> DEVICE void load_matrices(u32 (&to)[4], u32 at) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at));
}

// Memory that several threads read and write.

// Loads of words that another block may be writing.
DEVICE u32 load_shared_word(const void* at) {
    u32 bits;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(at) : "memory");
    return bits;
}
DEVICE void load_shared_words4(u32* bits, const float* at) {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
                 : "l"(at)
                 : "memory");
}
// The same under a condition, without a branch.
DEVICE void load_shared_words4_if(bool condition, u32* bits, const float* at) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(bits[0]), "+r"(bits[1]), "+r"(bits[2]), "+r"(bits[3])
                 : "l"(at), "r"((u32)condition)
                 : "memory");
}

// Stores that another block may be waiting for.
DEVICE void store_shared_half(u16* at, u16 bits) {
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(at), "h"(bits) : "memory");
}
DEVICE void store_shared_word(float* at, u32 bits) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(bits) : "memory");
}
DEVICE void store_shared_words4(float* at, const u32 (&bits)[4]) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(bits[0]), "r"(bits[1]),
                 "r"(bits[2]), "r"(bits[3])
                 : "memory");
}

// Adds one to a counter, after all that the thread has written.
DEVICE void arrive_at(u32* counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// A word in shared memory that says what the thread has written before.
DEVICE void publish_word(u32* at, u32 word) {
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(at)), "r"(word) : "memory");
}
DEVICE u32 published_word(const u32* at) {
    u32 word;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared_address(at)) : "memory");
    return word;
}

// Prefetches into L2.
DEVICE void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// Copies 16 bytes to shared memory asynchronously; `committed` closes a batch, `arrived<N>` waits until only N batches
// are open.
DEVICE void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

DEVICE void committed() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N> DEVICE void arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Copies by the copy engine that follow see this thread's writes to shared memory.
DEVICE void async_after_writes() {
    if constexpr (ARCH >= 900) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
}

// A barrier in shared memory: each round is complete after `count` arrivals.
struct Gate {
    u64 state;

    DEVICE u32 at() const { return (u32)__cvta_generic_to_shared(this); }
    DEVICE void open(int count) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at()), "r"(count) : "memory");
        if constexpr (ARCH >= 900) {
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
    }
    DEVICE void arrive() {
        asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(at()) : "memory");
    }

    // Whether the round of this parity is complete; waits for a limited time if not.
    DEVICE bool try_wait(u32 parity) {
        if constexpr (ARCH >= 900) {
            u32 done;
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(at()), "r"(parity)
                         : "memory");
            return done;
        } else {
            return is_complete(parity);
        }
    }

    DEVICE bool is_complete(u32 parity) {
        u32 done;
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(at()), "r"(parity)
                     : "memory");
        return done;
    }

    DEVICE void wait(u32 parity) {
        while (!try_wait(parity)) {}
    }

    // Copies to shared memory by the copy engine, which one lane asks: it announces the bytes, and copies. Before
    // generation 9.0 a whole warp copies, and says so afterwards. The gate counts COPIERS arrivals, and the round is
    // complete when all bytes have arrived.
    static constexpr int COPIERS = ARCH >= 900 ? 1 : 32;
    DEVICE void expect(int bytes) {
        if constexpr (ARCH >= 900)
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at()), "r"(bytes) : "memory");
    }
    DEVICE void copied() {
        if constexpr (ARCH < 900)
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at()) : "memory");
    }
    DEVICE void copy(void* to, const void* from, int bytes) {
        if constexpr (ARCH >= 900)
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    (u32)__cvta_generic_to_shared(to)),
                "l"(from), "r"(bytes), "r"(at())
                : "memory");
        else
            for (int i = threadIdx.x % 32 * 16; i < bytes; i += 512) copy16((u8*)to + i, (const u8*)from + i);
    }
    // Bytes that are read once per step leave L2 first, so that what blocks pass to each other stays in it.
    DEVICE void copy_once(void* to, const void* from, int bytes) {
        if constexpr (ARCH >= 900) {
            u64 policy;
            asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
                    "r"((u32)__cvta_generic_to_shared(to)),
                "l"(from), "r"(bytes), "r"(at()), "l"(policy)
                : "memory");
        } else {
            copy(to, from, bytes);
        }
    }
};

// Threads, blocks and launches.

// The thread's index, read once: otherwise the compiler reads it again and again, each time as slowly as shared memory.
DEVICE u32 fixed_thread() {
    u32 thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// The first N threads of a block wait for each other.
template <int N> DEVICE void sync_threads() { asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory"); }

// Launches overlap: a block may begin before earlier launches are done. Every block waits for them before it touches
// what they read or write, and before it ends; only then a launch that waits for this one has also waited for those.
DEVICE void wait_for_launches() {
    if constexpr (ARCH >= 900) {
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }
}

// The next launch may begin.
DEVICE void begin_next_launch() {
    if constexpr (ARCH >= 900) {
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    }
}

// The blocks of a cluster wait for each other, in two steps.
DEVICE void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Where a place in shared memory is in another block of the cluster.
DEVICE u32 address_in_block(u32 at, int block) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
    return there;
}
// Stores four floats in another block, whose gate counts their bytes.
DEVICE void send_floats4(u32 to, const float (&v)[4], u32 gate) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(gate)
                 : "memory");
}

// Products of a whole warpgroup, if HAS_WGMMA; the host adds Wgmma<N> for the sizes in use (src/shared/wgmma.rs).
template <int N> struct Wgmma;
template <int N> struct WgmmaBytes;

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// The descriptor of a tile of x at an offset: rows of 128 bytes in groups of eight, exchanged as in half_x.cuh. The
// words are separate: sums of 64 bits would take more instructions than the products, unless the address is in a
// uniform register.
DEVICE u64 matrix_descriptor(u32 tile, int offset) {
    u64 descriptor;
    asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"((tile >> 4) + (1 << 16) + offset / 16), "r"(1 << 30 | 64));
    return descriptor;
}

// The warpgroup takes registers for its threads, or returns some.
template <int COUNT> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void return_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
