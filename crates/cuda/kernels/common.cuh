// What every kernel stands on: short names, halves, and the matrix unit, in inline PTX. No toolkit header is needed.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define INFINITY __int_as_float(0x7f800000)

struct alignas(8) Words2 { u32 x, y; };
struct alignas(16) Words4 { u32 x, y, z, w; };
struct alignas(16) Floats4 { float x, y, z, w; };

// 65504 is the largest half: what is larger must not become infinite.
DEVICE u16 to_half(float x) {
    u16 half;
    x = fminf(fmaxf(x, -65504.f), 65504.f);
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
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

// 2^e for -126 <= e <= 127.
DEVICE float power_of_two(int e) { return __int_as_float((127 + e) << 23); }

// c += a * b on one warp: a [16, 16] halves, b [16, 8] halves, c [16, 8] floats.
// Lane (g = lane / 4, q = lane % 4): a = rows g and g + 8, columns 2q, 2q+1 and 2q+8, 2q+9; b = column g; c = rows g
// and g + 8, columns 2q, 2q+1.
DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else // half as deep, twice
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

DEVICE float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

DEVICE float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
}
