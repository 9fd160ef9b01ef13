// x as integers on its way through the matrix unit: where they lie, and how they get there.
//
// They have 16 bits, a scale a chunk and token, the high and the low byte of a token in neighbouring columns of b, so that a
// lane ends up with both for its rows and its token (q).
//
// A chunk of x for T tokens: [2 step pairs][token][high, low][q][2 steps][2 halves] words, 256 bytes a token.
template <int T> DEVICE void load_x(u32 (&b)[8], const u8* chunk, int lane) {
    int g = lane / 4, q = lane % 4;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        uint4 v = {0, 0, 0, 0};
        if (g < 2 * T) v = *(const uint4*)(chunk + m * T * 128 + g * 64 + q * 16);
        b[4 * m] = v.x, b[4 * m + 1] = v.y, b[4 * m + 2] = v.z, b[4 * m + 3] = v.w;
    }
}

// The same for formats of bits: bit planes of 15-bit integers, [token][plane % 8][q][plane / 8] words; plane 15 is 14 again,
// so that they are 16-bit integers too.
//
// The sum of u x over codes u of one bit is that of the planes' weights 2^p, the last one -2^15, times the bits that u and
// the plane have in common. High bits of u are worth twice that: they meet the plane below, of a half of the chunk, while
// the low bits of the same half meet the plane itself. (The plane below the last one is the sign as well, and twice x has
// it there.) A weight is u times EACH and BASE more, so the sum of x comes in: over a row of which all low bits are set.
//
// A lane ends up with planes 2q and 2q + 1 of both halves of the integers for its rows; a quad is added up at the end.
template <class F> struct PlanesX {
    static constexpr int PARTS = 1 + F::LOW; // of the chunk: all of it, or halves
    static constexpr float EACH = F::LOW ? 1.f : -2.f, BASE = F::LOW ? -1.f : 1.f;
    static constexpr int REGISTERS = 2 * PARTS + 1 + F::GROUPS;
    u32 planes[PARTS][2];
    float by, sum[F::GROUPS]; // what a common bit of its lowest plane is worth, and what there is without any

    DEVICE void load(const u8* token_chunk, float scale, int lane) {
        int g = lane / 4, q = lane % 4;
        bool above = F::LOW && q >= 2; // high bits
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            int from = F::LOW ? (g - above) % 8 * 4 + 2 * part + q % 2 : lane;
            uint2 v = *(const uint2*)(token_chunk + (from & 31) * 8);
            planes[part][0] = above && g == 0 ? 0 : v.x;
            planes[part][1] = above && g == 0 ? v.x : v.y; // below plane 8 is 7
        }
        by = EACH * scale * (q == 0 ? 1.f : q == 1 ? 4.f : q == 2 ? 16.f : 64.f);
        u32 ones = above ? 0u : ~0u, all[PARTS][2];
#pragma unroll
        for (int part = 0; part < PARTS; part++) all[part][0] = all[part][1] = ones;
#pragma unroll
        for (int group = 0; group < F::GROUPS; group++) {
            float sums[2];
            count(sums, all, group, lane);
            sum[group] = BASE / EACH * by * sums[0];
        }
    }

    // The common bits of the planes and two rows in a group, worth what they are.
    DEVICE void count(float (&sums)[2], const u32 (&words)[PARTS][2], int group, int lane) const {
        int top = lane % 4 == 3 ? -512 : 512, low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            if (part * F::GROUPS / PARTS != group) continue;
            count_common(low, words[part][0], words[part][1], planes[part][0]);
            count_common(high, words[part][0], words[part][1], planes[part][1]);
        }
        sums[0] = (float)(low[0] + 2 * low[1] + 256 * high[0] + top * high[1]);
        sums[1] = (float)(low[2] + 2 * low[3] + 256 * high[2] + top * high[3]);
    }
};

// What the largest value of a chunk becomes: of bit planes one bit less, see PlanesX.
constexpr float BYTES_MOST = 32512.f, PLANES_MOST = 16256.f;

// The larger magnitude, or NaN if one of them is: the scale of values that are not finite is not finite either, and so is all
// that is computed with it.
DEVICE float larger_magnitude(float x, float y) {
#if __CUDA_ARCH__ >= 800
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(x)), "f"(fabsf(y)));
    return larger;
#else // the bits of magnitudes are in their order, those of NaN above all
    return __uint_as_float(max(__float_as_uint(fabsf(x)), __float_as_uint(fabsf(y))));
#endif
}

// What to multiply values with for that, and what the integers are worth then; what is next to nothing becomes nothing.
DEVICE float to_integers(float most, float becomes) { return most > 1e-30f ? becomes * reciprocal(most) : 0.f; }
DEVICE float x_scale_of(float most, float becomes) { return most * (1.f / becomes); }

// Eight neighbouring values of x, the `part`-th eight of a chunk whose largest value is `most`: to their places in a
// chunk of T tokens. Gives the sum of the integers.
DEVICE int store_x(u8* chunk, int T, int token, int part, const float (&x)[8], float most) {
    float by = to_integers(most, BYTES_MOST);
    int v[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = __float_as_int(x[i] * by + 12582912.f); // 0x4b400000 + the nearest integer
        sum += v[i] - 0x4b400000;
    }
    int s = part / 4, half = part / 2 % 2, q = part % 2 * 2;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        u32 low = (v[4 * n] & 0xff) | (v[4 * n + 1] & 0xff) << 8 | (v[4 * n + 2] & 0xff) << 16 | (u32)v[4 * n + 3] << 24;
        u32 high = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) high |= (((v[4 * n + i] + 128) >> 8) & 0xff) << (8 * i);
        u8* at = chunk + s / 2 * T * 128 + token * 128 + (q + n) * 16 + s % 2 * 8 + half * 4;
        *(u32*)at = high;
        *(u32*)(at + 64) = low;
    }
    return sum;
}

// Bytes 0 to 3 of x and y as rows of 8 by 8 bits, turned: byte 3 of x then has the top bits, in the rows' order.
DEVICE void turn_bits(u32& x, u32& y) {
    u32 t;
    t = (x ^ x >> 7) & 0x00aa00aau, x ^= t ^ t << 7;
    t = (y ^ y >> 7) & 0x00aa00aau, y ^= t ^ t << 7;
    t = (x ^ x >> 14) & 0x0000ccccu, x ^= t ^ t << 14;
    t = (y ^ y >> 14) & 0x0000ccccu, y ^= t ^ t << 14;
    t = (x & 0xf0f0f0f0u) | (y >> 4 & 0x0f0f0f0fu);
    y = (x << 4 & 0xf0f0f0f0u) | (y & 0x0f0f0f0fu);
    x = t;
}

// Halves of the words of two lanes change places: the other lane gets what `send` picks of a and b, and what comes back is
// put among the rest.
DEVICE void trade(u32& a, u32& b, int lanes, u32 send, u32 keep_a, u32 keep_b) {
    u32 back = __shfl_xor_sync(0xffffffff, __byte_perm(a, b, send), lanes);
    a = __byte_perm(a, back, keep_a), b = __byte_perm(b, back, keep_b);
}

// As store_x, into bit planes. A thread's eight values are one byte of each; four threads trade bytes, so that each has
// whole words of four planes. All threads of a warp come here; only a `real` one has a place.
DEVICE void store_planes(bool real, u8* token_chunk, int part, const float (&x)[8], float most) {
    float by = to_integers(most, PLANES_MOST);
    int v[8], n = part % 4, q = part / 4;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __float_as_int(x[i] * by + 12582912.f);
    u32 word[4]; // byte b of word k: plane 4k + b
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 rows[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 first = __byte_perm(v[4 * i + 1], v[4 * i], half ? 0x51 : 0x40); // row 4i above row 4i + 1
            u32 second = __byte_perm(v[4 * i + 3], v[4 * i + 2], half ? 0x51 : 0x40);
            rows[i] = __byte_perm(second, first, 0x5410);
        }
        turn_bits(rows[0], rows[1]);
        word[2 * half] = rows[1], word[2 * half + 1] = rows[0];
    }
    bool odd = n % 2, upper = n / 2;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        trade(word[k], word[k + 1], 1, odd ? 0x6420 : 0x7531, odd ? 0x3514 : 0x5240, odd ? 0x3716 : 0x7260);
        trade(word[k], word[k + 1], 2, upper ? 0x5410 : 0x7632, upper ? 0x3254 : 0x5410, upper ? 0x3276 : 0x7610);
    }
    if (!real) return;
    uint2* at = (uint2*)token_chunk; // planes n, n + 8 and n + 4, n + 12
    at[n * 4 + q] = make_uint2(word[0], word[2]);
    at[(n + 4) * 4 + q] = make_uint2(word[1], word[3]);
}

// As store_x, in the order of Codes of bits.
DEVICE void store_signs_x(u8* chunk, int T, int token, int part, const float (&x)[8], float most) {
    float by = to_integers(most, BYTES_MOST);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int v = __float_as_int(x[n] * by + 12582912.f), q = part / 4 % 2 * 2 + n / 4;
        u8* at = chunk + part / 8 * T * 128 + token * 128 + q * 16 + n % 4 * 4 + part % 4;
        at[0] = (u8)((v + 128) >> 8);
        at[64] = (u8)v;
    }
}
