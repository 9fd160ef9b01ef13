// PTX for kernels of many tokens: fragments from shared memory, halves and bytes.

DEVICE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Four matrices of 8 by 8 halves: lane l passes the address of row l % 8 of matrix l / 8. Lane (g, q) gets row g, columns 2q
// and 2q + 1 of each, or, if TRANSPOSED, column g, rows 2q and 2q + 1. Other loads may be moved before it or behind it.
template <bool TRANSPOSED = false> DEVICE void load_matrices(u32 (&to)[4], u32 at) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
}

// Two floats that are in the range of halves, or NaN.
DEVICE u32 small_to_half2(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

DEVICE u32 half2_add(u32 a, u32 b) { u32 c; asm("add.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b)); return c; }
DEVICE u32 half2_mul(u32 a, u32 b) { u32 c; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b)); return c; }
DEVICE u32 half2_fma(u32 a, u32 b, u32 c) { u32 d; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d; }

// Two e4m3 numbers; the magnitudes are at most 448.
DEVICE u32 to_e4m3(float low, float high) {
#if __CUDA_ARCH__ >= 890
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    auto one = [](float x) {
        u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
        bits &= 0x7fffffff;
        if (bits < 0x3c800000) return sign | (u32)__float2int_rn(fabsf(x) * 512.f); // below 2^-6: multiples of 2^-9
        bits += 0x7ffff + (bits >> 20 & 1);                                        // round to nearest, ties to even
        return sign | min((bits >> 20) - (120 << 3), 0x7eu);
    };
    return one(low) | one(high) << 8;
#endif
}
