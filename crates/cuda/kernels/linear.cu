// y = x * w^T for codes of a few bits: equals Op::Linear of graph/reference.rs.
//
// A block computes TILES tiles of 16 rows for up to 8 * COLUMNS tokens; its warps share the columns of w, chunk by
// chunk of 128. Codes become halves by a trick of the mantissa: code << p | 0x6400 is the half 1024 + code * 2^p, so a
// pair of weights costs one instruction. The factor 2^p is taken off x beforehand, exactly, and the 1024 by starting
// the sum at minus 1024 times the sum of x; the format's zero point goes the same way.
//
// Defined by the host: ROWS, CHUNKS, BITS, HIGH (bits of a second plane, or 0), GROUP, OFFSETS, ZERO, TILES, WARPS,
// COLUMNS, SLICE (chunks of x in shared memory at a time).

#define GROUPS (128 / GROUP)          // groups a chunk
#define GROUP_STEPS (GROUP / 16)      // matrix products a group
#define FIELDS (16 / BITS)            // codes in each half of a word
#define SHIFT ((BITS >= 4 || HIGH) ? 8 : 10)
#define THREADS (WARPS * 32)
#define TOKENS (COLUMNS * 8)
#define MAGIC 0x64006400u

struct LinearArgs {
    const u32* codes;     // [tile][chunk][lane][2 rows][BITS]
    const u32* high;      // [tile][chunk][lane][2 rows][HIGH]
    const u32* scales;    // [tile][chunk][8][GROUPS] pairs of halves: rows g and g + 8
    const u32* offsets;   // the same, or nothing
    const float* x;       // [tokens][x_stride]
    const float* bias;    // [ROWS], or nothing
    const float* factor;  // one number on the result, or nothing
    float* y;             // [tokens][ROWS]
    float weight_factor;  // on all scales and offsets
    int tokens, cols;
};

// Where in its half a pair's code ends up, of 16 pairs of a lane's 32 codes.
DEVICE constexpr int place(int pair) {
    int at = BITS * (pair % FIELDS);
    return at >= SHIFT ? at - SHIFT : at;
}

// Two weights of one row as halves: 1024 + code * 2^place.
DEVICE u32 weights(const u32* word, const u32* high, int pair) {
    int at = BITS * (pair % FIELDS), p = place(pair);
    u32 w = word[pair / FIELDS];
    if (at >= SHIFT) w >>= SHIFT;
    u32 mask = ((1u << BITS) - 1) << p;
    u32 halves = (w & (mask | mask << 16)) | MAGIC;
#if HIGH
    int from = HIGH * (pair % (16 / HIGH)), to = p + BITS;
    u32 h = high[pair / (16 / HIGH)];
    h = from > to ? h >> (from - to) : h << (to - from);
    u32 top = ((1u << HIGH) - 1) << to;
    halves |= h & (top | top << 16);
#endif
    return halves;
}

struct Item {
    u32 words[2 * BITS];
#if HIGH
    u32 high[2 * HIGH];
#endif
    u32 scales[GROUPS];
#if OFFSETS
    u32 offsets[GROUPS];
#endif
};

template <int N> DEVICE void load(u32* to, const u32* from) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            Words4 v = *(const Words4*)(from + i);
            to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
        }
    } else if constexpr (N % 2 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            Words2 v = *(const Words2*)(from + i);
            to[i] = v.x, to[i + 1] = v.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = from[i];
    }
}

DEVICE void load_item(Item& item, const LinearArgs& a, int tile, int chunk, int lane) {
    long at = (long)tile * CHUNKS + chunk;
    load<2 * BITS>(item.words, a.codes + (at * 32 + lane) * 2 * BITS);
#if HIGH
    load<2 * HIGH>(item.high, a.high + (at * 32 + lane) * 2 * HIGH);
#endif
    load<GROUPS>(item.scales, a.scales + (at * 8 + lane / 4) * GROUPS);
#if OFFSETS
    load<GROUPS>(item.offsets, a.offsets + (at * 8 + lane / 4) * GROUPS);
#endif
}

#define ROW_TILES ((ROWS + 15) / 16)

extern "C" __global__ void __launch_bounds__(THREADS) linear(const LinearArgs a) {
    // x in halves, as lanes want it: [token][chunk][4][4 lanes][8]; a token's pitch is off by 64 bytes, so that tokens
    // fall into different banks
    extern __shared__ u32 shared[];
    constexpr int PITCH = SLICE * 64 + 16;                       // words a token
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    int first_tile = blockIdx.x * TILES;
    int first_token = blockIdx.y * TOKENS;
    int room = min(TOKENS, a.tokens), tokens = min(TOKENS, a.tokens - first_token);
    float* starts = (float*)(shared + room * PITCH);             // [SLICE * GROUPS][TOKENS]
    float* sums = starts + SLICE * GROUPS * TOKENS;              // the same: sums of x, where there are offsets

    float total[TILES][COLUMNS][4] = {};
    for (int slice = 0; slice < CHUNKS; slice += SLICE) {
        int chunks = min(SLICE, CHUNKS - slice);
        Item item;
        bool mine = warp < chunks && first_tile < ROW_TILES;
        if (mine) load_item(item, a, first_tile, slice + warp, lane); // on its way while x is made ready
        if (slice > 0) __syncthreads();

        // four neighbouring threads make 32 values of x ready: 16 columns of each of two matrix products
        int items = tokens * chunks * 16;
        for (int i = threadIdx.x; i < (items + 31) / 32 * 32; i += THREADS) { // whole warps: lanes add up below
            bool real = i < items;
            int part = i % 16, chunk = i / 16 % chunks, token = i / (16 * chunks);
            int j = part / 4, lane_q = part % 4;
            u32 pairs[4];
            float plain[2] = {}, moved[2] = {};
            if (real) {
                const float* row = a.x + (long)(first_token + token) * a.cols;
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    int step = 2 * j + s, k = (slice + chunk) * 128 + step * 16 + lane_q * 4;
                    Floats4 v = {0, 0, 0, 0};
                    if (k < a.cols) v = *(const Floats4*)(row + k);
                    // the places of the two pairs depend on the step alone
                    int at0 = BITS * ((2 * step) % FIELDS), at1 = BITS * ((2 * step + 1) % FIELDS);
                    float f0 = power_of_two(-(at0 >= SHIFT ? at0 - SHIFT : at0));
                    float f1 = power_of_two(-(at1 >= SHIFT ? at1 - SHIFT : at1));
                    u32 low = to_half2(v.x * XSCALE, v.y * XSCALE), high = to_half2(v.z * XSCALE, v.w * XSCALE);
                    float x0 = low_half(low), x1 = high_half(low), x2 = low_half(high), x3 = high_half(high);
                    pairs[2 * s] = to_half2(x0 * f0, x1 * f0);
                    pairs[2 * s + 1] = to_half2(x2 * f1, x3 * f1);
                    plain[s] = x0 + x1 + x2 + x3;
                    moved[s] = low_half(pairs[2 * s]) + high_half(pairs[2 * s]) + low_half(pairs[2 * s + 1]) + high_half(pairs[2 * s + 1]);
                }
            }
            if (real) *(Words4*)(shared + token * PITCH + chunk * 64 + j * 16 + lane_q * 4) = {pairs[0], pairs[1], pairs[2], pairs[3]};
#pragma unroll
            for (int s = 0; s < 2; s++) {
                plain[s] += __shfl_xor_sync(0xffffffff, plain[s], 1);
                plain[s] += __shfl_xor_sync(0xffffffff, plain[s], 2);
                moved[s] += __shfl_xor_sync(0xffffffff, moved[s], 1);
                moved[s] += __shfl_xor_sync(0xffffffff, moved[s], 2);
            }
            // a group of 128 is all 16 threads, one of 64 eight, one of 32 these four, one of 16 each step alone
            if constexpr (GROUP >= 32) {
                plain[0] += plain[1], moved[0] += moved[1];
#pragma unroll
                for (int width = 4; width < GROUP / 8; width *= 2) {
                    plain[0] += __shfl_xor_sync(0xffffffff, plain[0], width);
                    moved[0] += __shfl_xor_sync(0xffffffff, moved[0], width);
                }
                if (real && part % (GROUP / 8) == 0) {
                    int group = chunk * GROUPS + part / (GROUP / 8);
                    starts[group * TOKENS + token] = -1024.f * moved[0] - ZERO * plain[0];
                    if (OFFSETS) sums[group * TOKENS + token] = plain[0];
                }
            } else if (real && lane_q == 0) {
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    int group = chunk * GROUPS + 2 * j + s;
                    starts[group * TOKENS + token] = -1024.f * moved[s] - ZERO * plain[s];
                    if (OFFSETS) sums[group * TOKENS + token] = plain[s];
                }
            }
        }
        __syncthreads();

        for (int chunk = warp; chunk < chunks; chunk += WARPS) {
            u32 b[COLUMNS][8][2];
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    // columns do not mix: those without a token may hold anything
                    Words4 v = *(const Words4*)(shared + min(n * 8 + g, tokens - 1) * PITCH + chunk * 64 + j * 16 + q * 4);
                    b[n][2 * j][0] = v.x, b[n][2 * j][1] = v.y, b[n][2 * j + 1][0] = v.z, b[n][2 * j + 1][1] = v.w;
                }
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                Item now = item;
                int next_tile = tile + 1 < TILES ? tile + 1 : 0, next_chunk = tile + 1 < TILES ? chunk : chunk + WARPS;
                if (next_chunk < chunks && first_tile + next_tile < ROW_TILES) {
                    load_item(item, a, first_tile + next_tile, slice + next_chunk, lane);
                }
                if (first_tile + tile >= ROW_TILES) continue;
#pragma unroll
                for (int group = 0; group < GROUPS; group++) {
                    float c[COLUMNS][4];
#pragma unroll
                    for (int n = 0; n < COLUMNS; n++) {
                        const float* start = starts + (chunk * GROUPS + group) * TOKENS + n * 8 + 2 * q;
                        c[n][0] = c[n][2] = start[0];
                        c[n][1] = c[n][3] = start[1];
                    }
#pragma unroll
                    for (int s = 0; s < GROUP_STEPS; s++) {
                        int step = group * GROUP_STEPS + s;
#if HIGH
                        const u32 *high0 = now.high, *high1 = now.high + HIGH;
#else
                        const u32 *high0 = nullptr, *high1 = nullptr;
#endif
                        u32 w[4] = {
                            weights(now.words, high0, 2 * step), weights(now.words + BITS, high1, 2 * step),
                            weights(now.words, high0, 2 * step + 1), weights(now.words + BITS, high1, 2 * step + 1),
                        };
#pragma unroll
                        for (int n = 0; n < COLUMNS; n++) multiply(c[n], w, b[n][step][0], b[n][step][1]);
                    }
                    float low = low_half(now.scales[group]), high = high_half(now.scales[group]);
#pragma unroll
                    for (int n = 0; n < COLUMNS; n++) {
                        total[tile][n][0] += low * c[n][0];
                        total[tile][n][1] += low * c[n][1];
                        total[tile][n][2] += high * c[n][2];
                        total[tile][n][3] += high * c[n][3];
#if OFFSETS
                        const float* sum = sums + (chunk * GROUPS + group) * TOKENS + n * 8 + 2 * q;
                        float low_off = low_half(now.offsets[group]), high_off = high_half(now.offsets[group]);
                        total[tile][n][0] += low_off * sum[0];
                        total[tile][n][1] += low_off * sum[1];
                        total[tile][n][2] += high_off * sum[0];
                        total[tile][n][3] += high_off * sum[1];
#endif
                    }
                }
            }
        }
    }

    // the warps' shares of each row and token meet in shared memory, in a fixed order
    __syncthreads();
    float* shares = (float*)shared; // [WARPS][TILES * 16][TOKENS]
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
            float* at = shares + ((warp * TILES + tile) * 16 + g) * TOKENS + n * 8 + 2 * q;
            at[0] = total[tile][n][0], at[1] = total[tile][n][1];
            at[8 * TOKENS] = total[tile][n][2], at[8 * TOKENS + 1] = total[tile][n][3];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILES * 16 * tokens; i += THREADS) {
        int row = i % (TILES * 16), token = i / (TILES * 16), out = first_tile * 16 + row;
        if (out >= ROWS) continue;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += shares[(w * TILES * 16 + row) * TOKENS + token];
        sum *= a.weight_factor / XSCALE;
        if (a.factor) sum *= *a.factor;
        if (a.bias) sum += a.bias[out];
        a.y[(long)(first_token + token) * ROWS + out] = sum;
    }
}
