// Products of 1-bit weights with 8-bit activations on the tensor cores, alone: a kernel to learn from before one of
// crates/cuda is written. Figures: 2026-11-19.md.
//
//     nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -DGROUP=4 -DSTAGE_COUNT=5 2026-11-19-int8-linear.cu
//
// A block computes 128 rows for TOKENS tokens: two warpgroups of 64 rows each, and four warps that copy. Weights are
// the records of crates/cuda (16 rows by 128 columns: 256 bytes of signs, 16 scales as halves). x is bytes:
// [chunk][token][128], pieces of 16 bytes exchanged by the token, with a scale per token and GROUP chunks.
//
// Sums of products of bytes start at MAGIC, whose bits as a float are 1.5 * 2^23: they are floats without conversion.
// Within a group they go on from chunk to chunk, and each is weighted with the difference of two scales of weights
// (summation by parts). The sums of a row are in units of the scale of x of the group; `ratios` changes the unit, and
// `start` takes off MAGIC in the same instruction.
#include <cstdio>
#include <cstdlib>
#include <cstdint>
#include <cmath>
#include <vector>
#include <algorithm>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
#define DEVICE __device__ __forceinline__

// 64 rows of bytes in registers times N tokens in shared memory
template <int N> struct WgmmaI;
template <> struct WgmmaI<128> {
    static DEVICE void multiply(int (&d)[64], const u32 (&a)[4], u64 b, int add) {
        asm volatile("{ .reg .pred p; setp.ne.s32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                     "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
                     "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
                     "%59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p; }"
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                       "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]),
                       "+r"(d[15]), "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]),
                       "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]),
                       "+r"(d[29]), "+r"(d[30]), "+r"(d[31]), "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]),
                       "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), "+r"(d[39]), "+r"(d[40]), "+r"(d[41]), "+r"(d[42]),
                       "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), "+r"(d[47]), "+r"(d[48]), "+r"(d[49]),
                       "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]), "+r"(d[56]),
                       "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]), "+r"(d[63])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};
template <> struct WgmmaI<160> {
    static DEVICE void multiply(int (&d)[80], const u32 (&a)[4], u64 b, int add) {
        asm volatile(
            "{ .reg .pred p; setp.ne.s32 p, %85, 0; wgmma.mma_async.sync.aligned.m64n160k32.s32.s8.s8 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
            "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
            "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "
            "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, {%80, %81, %82, %83}, %84, p; "
            "}"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
              "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
              "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),
              "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]),
              "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), "+r"(d[39]),
              "+r"(d[40]), "+r"(d[41]), "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), "+r"(d[47]),
              "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]),
              "+r"(d[56]), "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]), "+r"(d[63]),
              "+r"(d[64]), "+r"(d[65]), "+r"(d[66]), "+r"(d[67]), "+r"(d[68]), "+r"(d[69]), "+r"(d[70]), "+r"(d[71]),
              "+r"(d[72]), "+r"(d[73]), "+r"(d[74]), "+r"(d[75]), "+r"(d[76]), "+r"(d[77]), "+r"(d[78]), "+r"(d[79])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE u64 matrix_descriptor(u32 tile, int offset) {
    u64 d;
    asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"((tile >> 4) + (1 << 16) + offset / 16), "r"(1 << 30 | 64));
    return d;
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
struct Gate {
    u64 state;
    DEVICE u32 at() const { return shared_address(this); }
    DEVICE void open(int n) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at()), "r"(n) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    DEVICE void arrive() {
        asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(at()) : "memory");
    }
    DEVICE void wait(u32 parity) {
        u32 done;
        do
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(at()), "r"(parity)
                         : "memory");
        while (!done);
    }
    DEVICE void expect(int bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at()), "r"(bytes) : "memory");
    }
    DEVICE void copy(void* to, const void* from, int bytes) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(to)),
                     "l"(from), "r"(bytes), "r"(at())
                     : "memory");
    }
};

#ifndef STAGE_COUNT
#define STAGE_COUNT 4
#endif
#ifndef TOKENS
#define TOKENS 128
#endif
constexpr int N = TOKENS, RECORD = 288, X = 2 * N * 128, RECORDS = 8 * 2 * RECORD, RATIOS = 2 * N * 4,
              STAGED = 2 * N * 128;
constexpr int STAGE = (X + RECORDS + RATIOS + 1023) / 1024 * 1024, STAGES = STAGE_COUNT;

#ifndef GROUP
#define GROUP 2
#endif
struct Args {
    const u8* w;
    const signed char* x;
    const float* ratios;
    const float* last;
    u16* y;
    int rows, cols, tokens;
    long long* clocks;
};

// eight registers of four signs of a word; set bit: -1
DEVICE void expand(u32 w, u32 (&r)[8]) {
    u32 low = w & 0x77777777u, top = w >> 3 & 0x11111111u;
    u32 low16 = low >> 16, top16 = top >> 16;
    constexpr u32 B0 = GROUP == 2 ? 0xc040c040u : 0xe020e020u, B1 = GROUP == 2 ? 0xc0c04040u : 0xe0e02020u,
                  PLUS = GROUP == 2 ? 0x40404040u : 0x20202020u, MINUS = GROUP == 2 ? 0xc0c0c0c0u : 0xe0e0e0e0u;
    r[0] = __byte_perm(B0, B0, low), r[1] = __byte_perm(B0, B0, low16);
    r[2] = __byte_perm(B1, B1, low), r[3] = __byte_perm(B1, B1, low16);
    r[4] = __byte_perm(PLUS, MINUS, low), r[5] = __byte_perm(PLUS, MINUS, low16);
    r[6] = __byte_perm(B0, B0, top), r[7] = __byte_perm(B0, B0, top16);
}

DEVICE float2 scales_of(u32 h) {
    __half2 v = *(__half2*)&h;
    return __half22float2(v);
}

constexpr int MAGIC = 0x4b400000; // as float 1.5 * 2^23
struct Consumer {
    float sums[N / 2];
    int acc[N / 2];
    u32 a[2][4][4];
    float2 ws[2]; // of the chunk of each set

    // A chunk of a warp's rows: codes as the first operand, and scales.
    template <int P> DEVICE void load(const u8* record, int lane) {
        ws[P] = scales_of(*(const u32*)(record + 256 + lane / 4 * 4));
        uint2 v = *(const uint2*)(record + lane * 8);
        u32 r[8];
        expand(v.x, r);
#pragma unroll
        for (int s = 0; s < 4; s++) a[P][s][0] = r[2 * s], a[P][s][2] = r[2 * s + 1];
        expand(v.y, r);
#pragma unroll
        for (int s = 0; s < 4; s++) a[P][s][1] = r[2 * s], a[P][s][3] = r[2 * s + 1];
    }
    template <int P, bool FIRST> DEVICE void multiply(u32 tile) {
        if (FIRST)
#pragma unroll
            for (int i = 0; i < N / 2; i++) acc[i] = MAGIC;
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; s++) {
            WgmmaI<N>::multiply(acc, a[P][s], matrix_descriptor(tile, 0) + s * 2, 1);
        }
        wgmma_commit();
    }
    template <bool FIRST> DEVICE void scale(float2 ws, float2 start, const float* ratios, int lane) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) asm volatile("" : "+r"(acc[i])::"memory");
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float2 ratio = {1, 1};
            if (FIRST) ratio = *(const float2*)(ratios + 8 * j + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float s = sums[4 * j + i];
                if (FIRST) s = s * (i % 2 ? ratio.y : ratio.x) + (i < 2 ? start.x : start.y);
                sums[4 * j + i] = (i < 2 ? ws.x : ws.y) * __int_as_float(acc[4 * j + i]) + s;
            }
        }
    }
};

extern __shared__ __align__(1024) u8 shared[];

// To halves, [token][64 rows] in shared memory, then out.
DEVICE void finish(Consumer& c, const u8* stage, const Args& m, int row, int token, int lane, int warp) {
    u8* staged = shared + STAGES * STAGE + warp / 4 * (N * 128);
    const float* last = (const float*)(stage + X + RECORDS + N * 4);
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) {
        u32 h[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = 4 * (j + i / 2) + i % 2 * 2; // rows g or g + 8 of tokens 2q, 2q + 1
            float2 f = *(const float2*)(last + 8 * (j + i / 2) + lane % 4 * 2);
            __half2 two = __floats2half2_rn(c.sums[at] * (GROUP == 2 ? 1.f / 64 : 1.f / 32) * f.x,
                                            c.sums[at + 1] * (GROUP == 2 ? 1.f / 64 : 1.f / 32) * f.y);
            h[i] = *(u32*)&two;
        }
        // matrix i: tokens 8 (j + i / 2) .., rows 16 warp + 8 (i % 2) ..; transposed: a token's row has 8 rows
        int i = lane / 8, t = 8 * (j + i / 2) + lane % 8, piece = warp % 4 * 2 + i % 2;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                         shared_address(staged + t * 128 + (piece ^ t % 8) * 16)),
                     "r"(h[0]), "r"(h[1]), "r"(h[2]), "r"(h[3])
                     : "memory");
    }
    asm volatile("bar.sync %0, 128;" ::"r"(4 + warp / 4) : "memory");
    for (int i = threadIdx.x % 128; i < N * 8; i += 128) {
        int t = i / 8, piece = i % 8;
        *(uint4*)(m.y + (long)(token + t) * m.rows + row + piece * 8) =
            *(const uint4*)(staged + t * 128 + (piece ^ t % 8) * 16);
    }
    asm volatile("bar.sync %0, 128;" ::"r"(4 + warp / 4) : "memory");
}

__global__ void __launch_bounds__(384, 1) int8_linear(const __grid_constant__ Args m) {
    long long c0 = clock64(), g0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(g0));
    Gate *full = (Gate*)(shared + STAGES * STAGE + STAGED), *empty = full + STAGES;
    int chunks = m.cols / 128, row_tiles = m.rows / 128, token_tiles = m.tokens / N, tiles = row_tiles * token_tiles;
    if (threadIdx.x < 2 * STAGES) full[threadIdx.x].open(threadIdx.x < STAGES ? 1 : 8);
    __syncthreads();
    constexpr int rank = 0;
    int first = blockIdx.x, step = gridDim.x;
    auto row_tile = [&](int index) { return index / token_tiles; };
    auto token_tile = [&](int index) { return index % token_tiles; };
    int slot = 0;
    u32 round = 0;
    auto next = [&] {
        if (++slot == STAGES) slot = 0, round++;
    };
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x % 32 == 0) {
            int part = threadIdx.x / 32 - 8;
            for (int index = first; index < tiles; index += step)
                for (int chunk = 0; chunk < chunks; chunk += 2, next()) {
                    if (round) empty[slot].wait(round + 1 & 1);
                    u8* at = shared + slot * STAGE;
                    bool end = chunk + 2 >= chunks;
                    const u8* w = m.w + ((long)row_tile(index) * 8 * chunks + chunk) * RECORD;
                    const signed char* x = m.x + ((long)chunk * m.tokens + token_tile(index) * N) * 128;
                    if (part < 2) {
                        if (part == 0) full[slot].expect(X + RECORDS + N * 4 * (end ? 2 : 1));
                        full[slot].copy(at + part * N * 128, x + (long)part * m.tokens * 128, N * 128);
                        if (part == 0)
                            full[slot].copy(at + X + RECORDS,
                                            m.ratios + (long)chunk / 2 * m.tokens + token_tile(index) * N, N * 4);
                        if (part == 1 && end)
                            full[slot].copy(at + X + RECORDS + N * 4, m.last + token_tile(index) * N, N * 4);
                    } else
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            full[slot].copy(at + X + (part * 4 - 8 + i) * 2 * RECORD,
                                            w + (long)(part * 4 - 8 + i) * chunks * RECORD, 2 * RECORD);
                }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        Consumer c;
        if (first < tiles) {
            full[0].wait(0);
            c.load<0>(shared + X + warp * 2 * RECORD, lane);
        }
        for (int index = first; index < tiles; index += step) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) c.sums[i] = 0;
#pragma unroll 1
            for (int chunk = 0; chunk < chunks; chunk += GROUP) {
                float2 start;
                u8* first_stage = shared + __shfl_sync(0xffffffff, slot * STAGE, 0);
#pragma unroll
                for (int i = 0; i < GROUP; i++) {
                    u8* stage = shared + __shfl_sync(0xffffffff, slot * STAGE, 0);
                    u32 tile = shared_address(stage) + i % 2 * N * 128;
                    if (i == 0)
                        c.multiply<0, true>(tile);
                    else if (i % 2 == 0)
                        c.multiply<0, false>(tile);
                    else
                        c.multiply<1, false>(tile);
                    // the next chunk is prepared while this one is multiplied
                    if (i == 0) start = {-12582912.f * c.ws[0].x, -12582912.f * c.ws[0].y};
                    int slot_now = slot;
                    float2 ws = c.ws[i % 2];
                    if (i % 2 == 0)
                        c.load<1>(stage + X + warp * 2 * RECORD + RECORD, lane);
                    else {
                        next();
                        if (i + 1 < GROUP || chunk + GROUP < chunks || index + step < tiles) {
                            full[slot].wait(round & 1);
                            c.load<0>(shared + slot * STAGE + X + warp * 2 * RECORD, lane);
                        }
                    }
                    wgmma_wait<0>();
                    if (i + 1 < GROUP) ws.x -= c.ws[1 - i % 2].x, ws.y -= c.ws[1 - i % 2].y;
                    if (i == 0)
                        c.scale<true>(ws, start, (const float*)(first_stage + X + RECORDS), lane);
                    else
                        c.scale<false>(ws, {}, nullptr, lane);
                    if (i % 2) {
                        if (i + 1 == GROUP && chunk + GROUP >= chunks)
                            finish(c, stage, m, row_tile(index) * 128 + warp / 4 * 64, token_tile(index) * N, lane,
                                   warp);
                        __syncwarp();
                        if (lane == 0) empty[slot_now].arrive();
                    }
                }
            }
        }
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        long long g1;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(g1));
        m.clocks[0] = clock64() - c0, m.clocks[1] = g1 - g0;
    }
}

static u32 rng = 1;
static u32 random32() {
    rng ^= rng << 13;
    rng ^= rng >> 17;
    rng ^= rng << 5;
    return rng;
}
#define OK(x) \
    do { \
        cudaError_t e = (x); \
        if (e) { \
            printf("%s: %s\n", #x, cudaGetErrorString(e)); \
            exit(1); \
        } \
    } while (0)

double run(int rows, int cols, int tokens, bool check) {
    int chunks = cols / 128;
    std::vector<u8> w((size_t)rows / 16 * chunks * RECORD);
    std::vector<signed char> x((size_t)cols * tokens);
    std::vector<float> ratios((size_t)chunks / 2 * tokens), last(tokens), scale((size_t)chunks / 2 * tokens);
    for (auto& b : w) b = random32() >> 7;
    for (size_t r = 0; r < w.size() / RECORD; r++)
        for (int i = 0; i < 16; i++) {
            __half h = __float2half(0.01f + (random32() % 1000) * 1e-5f);
            memcpy(&w[r * RECORD + 256 + i * 2], &h, 2);
        }
    for (auto& b : x) b = (int)(random32() >> 9) % 255 - 127;
    for (auto& s : scale) s = 0.01f + (random32() % 1000) * 1e-5f;
    for (size_t p = 0; p < (size_t)chunks / 2; p++)
        if (p * 2 % GROUP)
            for (int t = 0; t < tokens; t++) scale[p * tokens + t] = scale[(p - 1) * tokens + t];
    for (int t = 0; t < tokens; t++) {
        for (int p = 0; p < chunks / 2; p++)
            ratios[(size_t)p * tokens + t] =
                p ? scale[(size_t)(p - 1) * tokens + t] / scale[(size_t)p * tokens + t] : 1;
        last[t] = scale[(size_t)(chunks / 2 - 1) * tokens + t];
    }
    u8* dw;
    signed char* dx;
    float *dr, *dl;
    u16* dy;
    OK(cudaMalloc(&dw, w.size()));
    OK(cudaMalloc(&dx, x.size()));
    OK(cudaMalloc(&dr, ratios.size() * 4));
    OK(cudaMalloc(&dl, tokens * 4));
    OK(cudaMalloc(&dy, (size_t)rows * tokens * 2));
    OK(cudaMemcpy(dw, w.data(), w.size(), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(dx, x.data(), x.size(), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(dr, ratios.data(), ratios.size() * 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(dl, last.data(), tokens * 4, cudaMemcpyHostToDevice));
    static long long* dc = nullptr;
    if (!dc) OK(cudaMalloc(&dc, 16));
    Args args{dw, dx, dr, dl, dy, rows, cols, tokens, dc};
    int bytes = STAGES * STAGE + STAGED + STAGES * 16 + 64;
    OK(cudaFuncSetAttribute(int8_linear, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    cudaLaunchConfig_t config = {};
    int processors;
    OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    config.gridDim = dim3(std::min(rows / 128 * (tokens / N), processors)), config.blockDim = dim3(384),
    config.dynamicSmemBytes = bytes;
    auto launch = [&] { OK(cudaLaunchKernelEx(&config, int8_linear, args)); };
    launch();
    OK(cudaDeviceSynchronize());
    if (check) {
        std::vector<u16> y((size_t)rows * tokens);
        OK(cudaMemcpy(y.data(), dy, y.size() * 2, cudaMemcpyDeviceToHost));
        double worst = 0, rms = 0;
        int count = 3000;
        for (int n = 0; n < count; n++) {
            int row = random32() % rows, t = random32() % tokens;
            double sum = 0;
            for (int c = 0; c < chunks; c++) {
                const u8* rec = &w[((size_t)(row / 16) * chunks + c) * RECORD];
                int g = row % 8, second = row / 8 % 2;
                __half h;
                memcpy(&h, rec + 256 + g * 4 + second * 2, 2);
                long acc = 0;
                for (int q = 0; q < 4; q++) {
                    u32 word;
                    memcpy(&word, rec + (g * 4 + q) * 8 + second * 4, 4);
                    for (int bit = 0; bit < 32; bit++) {
                        int h16 = bit / 16, nibble = bit % 16 / 4, k = bit % 4;
                        int pos = 32 * k + 16 * h16 + 4 * q + nibble;
                        size_t at = ((size_t)c * tokens + t) * 128 + ((pos / 16 ^ t % 8) * 16 + pos % 16);
                        acc += (word >> bit & 1 ? -1 : 1) * (int)x[at];
                    }
                }
                sum += (double)acc * __half2float(h) * scale[(size_t)(c / 2) * tokens + t];
            }
            double got = __half2float(*(__half*)&y[(size_t)t * rows + row]);
            worst = got == got ? std::max(worst, fabs(got - sum)) : 1e30, rms += sum * sum;
        }
        printf("  check: worst error %.4f of rms %.2f\n", worst, sqrt(rms / count));
    }
    cudaEvent_t a, b;
    cudaEventCreate(&a);
    cudaEventCreate(&b);
    int times = std::max(5, (int)(2e13 / (2.0 * rows * cols * tokens)));
    for (int i = 0; i < times / 4; i++) launch();
    cudaEventRecord(a);
    for (int i = 0; i < times; i++) launch();
    cudaEventRecord(b);
    OK(cudaDeviceSynchronize());
    float ms;
    cudaEventElapsedTime(&ms, a, b);
    double us = ms * 1e3 / times;
    long long hc[2];
    OK(cudaMemcpy(hc, dc, 16, cudaMemcpyDeviceToHost));
    printf("rows %5d cols %5d tokens %4d: %8.1f us, %6.0f TOPS, %.0f MHz\n", rows, cols, tokens, us,
           2.0 * rows * cols * tokens / us * 1e-6, hc[0] * 1e3 / hc[1]);
    cudaFree(dw);
    cudaFree(dx);
    cudaFree(dr);
    cudaFree(dl);
    cudaFree(dy);
    return us;
}
int main() {
    cudaFuncAttributes f;
    cudaFuncGetAttributes(&f, int8_linear);
    printf("%d tokens, groups of %d chunks, %d stages: %d registers, %zu local\n", N, GROUP, STAGES, f.numRegs,
           f.localSizeBytes);
    for (int tokens : {2048 / N * N, 512 / N * N}) {
        double total = run(6144, 4096, tokens, tokens >= 1500) + run(4096, 4096, tokens, false) +
                       run(24576, 4096, tokens, false) + run(4096, 12288, tokens, tokens >= 1500);
        printf("tokens %d: %.2f ms for 36 layers, %.0f tokens/s\n", tokens, total * 36e-3, tokens / (total * 36e-6));
    }
}
