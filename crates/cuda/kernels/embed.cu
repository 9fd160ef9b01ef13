// One row of a table of codes a token: equals Op::Embed of graph/reference.rs. Defined by the host as for linear.cu.

#define GROUPS (128 / GROUP)
#define FIELDS (16 / BITS)

struct EmbedArgs {
    const u32 *codes, *high, *scales, *offsets, *inputs;
    float* y;
    float factor; // on the table's values
    int cols;
};

DEVICE u32 field(const u32* words, int bits, int pair, int odd) {
    int fields = 16 / bits;
    return words[pair / fields] >> (bits * (pair % fields) + 16 * odd) & ((1u << bits) - 1);
}

extern "C" __global__ void embed(const EmbedArgs a) {
    u32 row = a.inputs[a.inputs[0] + blockIdx.x];
    int tile = row / 16, g = row % 8, second = row % 16 / 8;
    for (int k = threadIdx.x; k < a.cols; k += blockDim.x) {
        int chunk = k / 128, in = k % 128, pair = in / 16 * 2 + in % 4 / 2, lane = g * 4 + in % 16 / 4;
        long at = (long)tile * CHUNKS + chunk;
        int code = field(a.codes + ((at * 32 + lane) * 2 + second) * BITS, BITS, pair, k % 2);
#if HIGH
        code |= field(a.high + ((at * 32 + lane) * 2 + second) * HIGH, HIGH, pair, k % 2) << BITS;
#endif
        long group = (at * 8 + g) * GROUPS + in / GROUP;
        u32 scale = a.scales[group];
        float value = (second ? high_half(scale) : low_half(scale)) * (code - ZERO);
#if OFFSETS
        u32 offset = a.offsets[group];
        value += second ? high_half(offset) : low_half(offset);
#endif
        a.y[(long)blockIdx.x * a.cols + k] = value * a.factor;
    }
}
