// Weights as they lie on the device, and what a warp does with them.
//
// A record is 16 rows by 128 columns (one chunk) of a matrix. Codes are signed, at the top of their byte: BITS in the
// first plane, LOW more in a second. Column 32 s + 16 h + 4 q + i of a chunk is byte i of step s, half h of lane q: what
// the matrix unit wants. A lane has rows g and g + 8; its words lie so that a warp reads 16 bytes a lane at a time. Behind
// the codes come the scales, a pair of halves (rows g and g + 8) a group, and as many offsets where the format has them.
//
// Codes of one bit and of two with a middle, 1-bit and ternary weights, go through the matrix unit as bits (SIGNS), so
// theirs lie otherwise. A word has one bit of 32 neighbouring columns: bit 7 - j of byte i is column 8 i + j. Of one bit,
// lane q has columns 32 q and on. Of two, it has a word of each half of the chunk: the low bits of columns 32 q and on if
// q < 2, the high bits of columns 32 (q - 2) and on if not.

template <int BITS_, int LOW_, int GROUP_, bool OFFSETS_> struct Format {
    static constexpr int BITS = BITS_, LOW = LOW_, GROUP = GROUP_, GROUPS = 128 / GROUP_;
    static constexpr bool OFFSETS = OFFSETS_;
    static constexpr int SCALES_AT = 256 * (BITS + LOW), OFFSETS_AT = SCALES_AT + 32 * GROUPS;
    static constexpr int BYTES = SCALES_AT + 32 * GROUPS * (OFFSETS ? 2 : 1);
    static constexpr bool SIGNS = BITS == 1; // of one bit, a set one is -1; of two, codes are one more than they stand for
    static constexpr int UNIT = SIGNS ? 1 : 1 << (8 - BITS - LOW); // what a code of one is worth as a byte
};

// A plane's words of one lane: B of each of its two rows.
template <int B> DEVICE void load_plane(u32 (&words)[2][B], const u8* plane, int lane) {
    if constexpr (B == 1) {
        uint2 v = *(const uint2*)(plane + lane * 8);
        words[0][0] = v.x, words[1][0] = v.y;
    } else {
#pragma unroll
        for (int m = 0; m < B / 2; m++) {
            uint4 v = *(const uint4*)(plane + m * 512 + lane * 16);
            u32 four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++) words[(m * 4 + i) / B][(m * 4 + i) % B] = four[i];
        }
    }
}

// Four codes of one row as bytes: those of step j / 2, half j % 2.
template <class F> DEVICE u32 codes(const u32* words, const u32* low, int j) {
    constexpr int PER = 8 / F::BITS;
    u32 w = words[j / PER] << (F::BITS * (j % PER));
    if constexpr (F::BITS < 8) w &= 0x01010101u * (0x100u - (1u << (8 - F::BITS)));
    if constexpr (F::LOW > 0) {
        constexpr int PER_LOW = 8 / (F::LOW > 0 ? F::LOW : 1);
        u32 l = low[j / PER_LOW];
        int down = F::BITS - F::LOW * (j % PER_LOW);
        l = down >= 0 ? l >> down : l << -down;
        w |= l & 0x01010101u * (((1u << F::LOW) - 1) << (8 - F::BITS - F::LOW));
    }
    return w;
}

// One record in registers.
template <class F, bool SIGNS = F::SIGNS> struct Codes {
    u32 words[2][F::BITS];
    u32 low[2][F::LOW > 0 ? F::LOW : 1];

    DEVICE void load(const u8* record, int lane) {
        load_plane<F::BITS>(words, record, lane);
        if constexpr (F::LOW > 0) load_plane<F::LOW>(low, record + 256 * F::BITS, lane);
    }

    DEVICE u32 get(int row, int j) const { return codes<F>(words[row], low[row], j); }
};

// The same of bits: byte i of step j / 2, half j % 2 of lane q is column 64 (j / 4) + 32 (q / 2) + 8 i + 4 (q % 2) + j % 4.
template <class F> struct Codes<F, true> {
    u32 words[1 + F::LOW][2][2]; // [bit][half of the chunk][row], those of j % 4 = 0 on top

    DEVICE void load(const u8* record, int lane) {
        int first = lane / 4 * 4 + lane % 4 / 2, up = lane % 2 * 4;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            if constexpr (F::LOW == 0) {
                uint2 half = *(const uint2*)(record + (first + 2 * n) * 8);
                words[0][n][0] = half.x << up, words[0][n][1] = half.y << up;
            } else {
                uint4 bit = *(const uint4*)(record + (first + 2 * n) * 16);
                words[n][0][0] = bit.x << up, words[n][0][1] = bit.y << up;
                words[n][1][0] = bit.z << up, words[n][1][1] = bit.w << up;
            }
        }
    }

    DEVICE u32 get(int row, int j) const {
        u32 code = words[0][j / 4][row] >> (7 - j % 4) & 0x01010101u;
        if constexpr (F::LOW == 0) return code * 0xfeu + 0x01010101u; // a set bit is -1, a clear one 1
        else {
            code |= words[1][j / 4][row] >> (6 - j % 4) & 0x02020202u;
            return ((code | 0x80808080u) - 0x01010101u) ^ 0x80808080u; // one less, byte by byte
        }
    }
};

// x on its way through the matrix unit: 16-bit integers, a scale a chunk and token, the high and the low byte of a
// token in neighbouring columns of b, so that a lane ends up with both for its rows and its token (q).
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

template <class F, int T> DEVICE void multiply_planes(float (&total)[T][2], const u8* record, const PlanesX<F> (&x)[T], int lane) {
    u32 words[1 + F::LOW][2], scales[F::GROUPS];
    if constexpr (F::LOW == 0) {
        uint2 w = *(const uint2*)(record + lane * 8);
        words[0][0] = w.x, words[0][1] = w.y;
    } else {
        uint4 w = *(const uint4*)(record + lane * 16);
        words[0][0] = w.x, words[0][1] = w.y, words[1][0] = w.z, words[1][1] = w.w;
    }
#pragma unroll
    for (int group = 0; group < F::GROUPS; group++) scales[group] = ((const u32*)(record + F::SCALES_AT))[lane / 4 * F::GROUPS + group];
#pragma unroll
    for (int t = 0; t < T; t++)
#pragma unroll
        for (int group = 0; group < F::GROUPS; group++) {
            float sums[2];
            x[t].count(sums, words, group, lane);
            total[t][0] += low_half(scales[group]) * (x[t].by * sums[0] + x[t].sum[group]);
            total[t][1] += high_half(scales[group]) * (x[t].by * sums[1] + x[t].sum[group]);
        }
}

// total += (record) * (chunk of x) for rows g and g + 8 and token q. `sums` are those of each 16 columns of the token.
template <class F> DEVICE void multiply_record(float (&total)[2], const u8* record, const u32 (&b)[8], float x_scale,
                                               const float* sums, int lane) {
    Codes<F> w;
    w.load(record, lane);
    const u32* scales = (const u32*)(record + F::SCALES_AT) + lane / 4 * F::GROUPS;
    float part[2] = {0, 0};
#pragma unroll
    for (int group = 0; group < F::GROUPS; group++) {
        int c[4] = {0, 0, 0, 0};
        if constexpr (F::GROUP == 16) {
            multiply(c, w.get(0, group), w.get(1, group), b[group]);
        } else {
            int d[4] = {0, 0, 0, 0}; // every other step, so that they need not wait for each other
#pragma unroll
            for (int s = 0; s < F::GROUP / 32; s++) {
                int j = 2 * (group * (F::GROUP / 32) + s);
                multiply(s % 2 ? d : c, w.get(0, j), w.get(1, j), w.get(0, j + 1), w.get(1, j + 1), b[j], b[j + 1]);
            }
            if constexpr (F::GROUP > 32) c[0] += d[0], c[1] += d[1], c[2] += d[2], c[3] += d[3];
        }
        u32 scale = scales[group];
        part[0] += low_half(scale) * (float)(c[0] * 256 + c[1]);
        part[1] += high_half(scale) * (float)(c[2] * 256 + c[3]);
        if constexpr (F::OFFSETS) {
            u32 offset = scales[group + 8 * F::GROUPS];
            float sum = 0;
#pragma unroll
            for (int i = 0; i < F::GROUP / 16; i++) sum += sums[group * (F::GROUP / 16) + i];
            sum *= F::UNIT;
            part[0] += low_half(offset) * sum;
            part[1] += high_half(offset) * sum;
        }
    }
    total[0] += x_scale * part[0];
    total[1] += x_scale * part[1];
}

// What the largest value of a chunk becomes: of bit planes one bit less, see PlanesX.
constexpr float BYTES_MOST = 32512.f, PLANES_MOST = 16256.f;

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

// One weight of a record: for embeddings.
template <class F> DEVICE float weight_of(const u8* record, int row, int k) {
    int g = row % 8, second = row / 8, s = k / 32, half = k / 16 % 2, q = k / 4 % 4, i = k % 4, j = 2 * s + half;
    int lane = g * 4 + q;
    if constexpr (F::SIGNS) {
        auto bit = [&](int word) { return (int)(*(const u32*)(record + word * 4 + second * 4) >> (k % 32 / 8 * 8 + 7 - k % 8) & 1); };
        int first = g * 4 + k % 64 / 32, code; // the lane of its low bits, of two
        if constexpr (F::LOW == 0) code = 1 - 2 * bit((g * 4 + k / 32) * 2);
        else code = bit(first * 4 + k / 64 * 2) + 2 * bit((first + 2) * 4 + k / 64 * 2) - 1;
        u32 scale = ((const u32*)(record + F::SCALES_AT))[g * F::GROUPS + k / F::GROUP];
        return code * (second ? high_half(scale) : low_half(scale));
    }
    auto word = [&](int bits, int n, int at) { // word n of the row's plane that begins at `at`
        int index = second * bits + n;
        return bits == 1 ? *(const u32*)(record + at + lane * 8 + index * 4)
                         : *(const u32*)(record + at + index / 4 * 512 + lane * 16 + index % 4 * 4);
    };
    constexpr int PER = 8 / F::BITS;
    u32 w = word(F::BITS, j / PER, 0) << (F::BITS * (j % PER));
    u32 top = w >> (8 * i) & (0x100u - (1u << (8 - F::BITS))) & 0xff;
    if constexpr (F::LOW > 0) {
        constexpr int PER_LOW = 8 / (F::LOW > 0 ? F::LOW : 1);
        u32 l = word(F::LOW, j / PER_LOW, 256 * F::BITS) >> (8 * i) & 0xff;
        l = l >> (8 - F::LOW * (j % PER_LOW + 1)) & ((1u << F::LOW) - 1);
        top |= l << (8 - F::BITS - F::LOW);
    }
    int code = (signed char)top;
    const u32* scales = (const u32*)(record + F::SCALES_AT) + g * F::GROUPS + k / F::GROUP;
    u32 scale = *scales;
    float value = (second ? high_half(scale) : low_half(scale)) * code;
    if constexpr (F::OFFSETS) {
        u32 offset = scales[8 * F::GROUPS];
        value += (second ? high_half(offset) : low_half(offset)) * F::UNIT;
    }
    return value; // times UNIT
}
