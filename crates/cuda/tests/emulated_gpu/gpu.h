// A GPU in C++: what kernels are compiled with instead of kernels/base/ptx.cuh. The threads of a block are fibers of
// one host thread, which switch when they wait; blocks that wait for each other run in turns, others after each other.
// Copies of the copy engine arrive late, at random times.
//
// It is for tests: an emulated kernel computes what the GPU computes, up to rounding in sums, and is some ten thousand
// times slower.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

namespace {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE inline
#define APART __attribute__((noinline))
#undef INFINITY
#define INFINITY __builtin_inff()
#define OFFSET_OF(type, field) __builtin_offsetof(type, field)
#define __device__
#define __forceinline__
#define __noinline__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// one block after the other has this memory, or a copy of it is exchanged when blocks take turns
#define __shared__ static __attribute__((section("emulated_shared")))
#define HAS_WGMMA 0
enum : int { ARCH = __CUDA_ARCH__ };

struct uint2 {
    u32 x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
struct Dim {
    u32 x, y, z;
};
Dim threadIdx, blockIdx, gridDim, blockDim;

template <class A, class B> constexpr auto min(A a, B b) {
    typedef std::common_type_t<A, B> C;
    return (C)b < (C)a ? (C)b : (C)a;
}
template <class A, class B> constexpr auto max(A a, B b) {
    typedef std::common_type_t<A, B> C;
    return (C)a < (C)b ? (C)b : (C)a;
}

// Fibers.

struct Collective { // lanes of a warp that wait for each other
    u32 mask, arrived, round;
    u32 words[2][32][8];
};

struct Fiber {
    void* stack_pointer;
    const char* waits_for;
    bool done;
};

struct Warp {
    Collective collectives[8];
};

struct Barrier {
    u32 arrived, round;
};

struct Block {
    u32 index_x, index_y, live;
    Barrier all, named;
    std::vector<u8> shared, statics;
    std::vector<Warp> warps;
    std::vector<Fiber> fibers;
};

struct Copy { // in flight
    u8* to;
    const u8* from;
    u32 bytes;
    u64* gate;
};

std::vector<Block> group; // the blocks that run together
Barrier cluster_barrier;
std::vector<Copy> copies;
Block* block;
Fiber* fiber;
void* scheduler;
u8* emulated_shared_memory; // of the block that runs
u64 random_state = 88172645463325252ull;
u64 idle_turns;
void (*kernel)(const void*);
const void* arguments;

u32 random_below(u32 n) {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (u32)(random_state % n);
}

extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.hidden emulated_switch
.globl emulated_switch
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

[[noreturn]] void stop(const char* why) {
    fprintf(stderr, "emulated GPU: %s (block %u %u, thread %u)\n", why, blockIdx.x, blockIdx.y, threadIdx.x);
    for (Block& b : group)
        for (size_t t = 0, same = 0; t < b.fibers.size(); t += same) {
            const Fiber& f = b.fibers[t];
            auto waits = [](const Fiber& f) { return f.done ? "nothing: it has ended" : f.waits_for; };
            for (same = 1; t + same < b.fibers.size() && waits(b.fibers[t + same]) == waits(f); same++) {}
            fprintf(stderr, "block %u %u, threads %zu to %zu wait for %s\n", b.index_x, b.index_y, t, t + same - 1,
                    waits(f));
        }
    abort();
}

// Lets others run.
void wait_a_turn(const char* waits_for) {
    Fiber* mine = fiber;
    mine->waits_for = waits_for;
    emulated_switch(&mine->stack_pointer, scheduler);
}

void fiber_main() {
    kernel(arguments);
    fiber->done = true, block->live--;
    wait_a_turn("nothing");
    stop("a thread that has ended was resumed");
}

void complete_gate(u64& state);

// A copy arrives.
void deliver(size_t i) {
    Copy c = copies[i];
    copies[i] = copies.back(), copies.pop_back();
    memcpy(c.to, c.from, c.bytes);
    if (c.gate) {
        *c.gate -= (u64)c.bytes << 32;
        complete_gate(*c.gate);
    }
}

extern "C" __attribute__((weak)) u8 __start_emulated_shared[], __stop_emulated_shared[];

void enter(Block& next) {
    if (block == &next) return;
    size_t bytes = __start_emulated_shared ? __stop_emulated_shared - __start_emulated_shared : 0;
    if (block && bytes) memcpy(block->statics.data(), __start_emulated_shared, bytes);
    block = &next, emulated_shared_memory = next.shared.data();
    emulated_shared_memory += (-(uintptr_t)emulated_shared_memory) & 1023;
    blockIdx = {next.index_x, next.index_y, 0};
    if (bytes) memcpy(__start_emulated_shared, next.statics.data(), bytes);
}

void run_group(u32 threads) {
    static std::vector<u8> stacks;
    constexpr size_t STACK = 256 * 1024;
    if (stacks.size() < group.size() * threads * STACK) stacks.resize(group.size() * threads * STACK);
    u8* stack = stacks.data();
    for (Block& b : group) {
        b.fibers.resize(threads), b.live = threads, b.warps.assign((threads + 31) / 32, {});
        for (u32 t = 0; t < threads; t++, stack += STACK) {
            void** top = (void**)((uintptr_t)(stack + STACK) & ~(uintptr_t)15);
            *--top = nullptr, *--top = (void*)fiber_main;
            for (int i = 0; i < 6; i++) *--top = nullptr;
            b.fibers[t] = {top, "its begin", false};
        }
    }
    block = nullptr, idle_turns = 0, cluster_barrier = {};
    for (u32 live = 1; live;) {
        live = 0;
        u32 first = random_below((u32)group.size());
        for (u32 n = 0; n < group.size(); n++) {
            Block& b = group[(first + n) % group.size()];
            if (b.live == 0) continue;
            enter(b);
            u32 warps = (threads + 31) / 32, begin = random_below(warps);
            for (u32 w = 0; w < warps; w++)
                for (u32 t = (begin + w) % warps * 32, end = min(t + 32, threads); t < end; t++) {
                    fiber = &b.fibers[t];
                    if (fiber->done) continue;
                    threadIdx = {t, 0, 0};
                    emulated_switch(&scheduler, fiber->stack_pointer);
                }
            live += b.live;
        }
        for (u32 n = (u32)copies.size(); n > 0; n--)
            if (random_below(4) == 0) deliver(random_below((u32)copies.size()));
        if (++idle_turns > 1'000'000) stop("threads wait for ever");
    }
    while (!copies.empty()) deliver(0);
    block = nullptr;
}

extern "C" __attribute__((visibility("default"))) void emulated_launch(void (*entry)(const void*), const void* args,
                                                                       const u32* grid, u32 threads, u32 shared,
                                                                       u32 together) {
    kernel = entry, arguments = args, random_state = 88172645463325252ull;
    gridDim = {grid[0], grid[1], 1}, blockDim = {threads, 1, 1};
    size_t statics = __start_emulated_shared ? __stop_emulated_shared - __start_emulated_shared : 0;
    u32 blocks = grid[0] * grid[1];
    for (u32 first = 0; first < blocks; first += together) {
        group.assign(together, {});
        for (u32 i = 0; i < together; i++) {
            group[i].index_x = (first + i) % grid[0], group[i].index_y = (first + i) / grid[0];
            group[i].shared.assign(shared + 2048, 0xff), group[i].statics.assign(statics, 0xff);
        }
        run_group(threads);
    }
}

// Lanes that wait for each other; gives the words that each has passed.
u32 (&exchanged(u32 mask, std::initializer_list<u32> words))[32][8] {
    u32 lane = threadIdx.x % 32;
    Collective* c = block->warps[threadIdx.x / 32].collectives;
    while (c->mask && c->mask != mask) c++;
    if (c == block->warps[threadIdx.x / 32].collectives + 8) stop("too many masks");
    c->mask = mask;
    u32 round = c->round, n = 0;
    for (u32 word : words) c->words[round % 2][lane][n++] = word;
    if (++c->arrived == (u32)__builtin_popcount(mask)) c->arrived = 0, c->round++;
    else
        while (c->round == round) wait_a_turn("lanes of its warp");
    return c->words[round % 2];
}

template <class T> T from_bits(u32 bits) {
    T v;
    memcpy(&v, &bits, 4);
    return v;
}
template <class T> u32 to_bits(T v) {
    static_assert(sizeof(T) == 4);
    u32 bits;
    memcpy(&bits, &v, 4);
    return bits;
}

template <class T> T shuffled(u32 mask, T v, u32 from) {
    if constexpr (sizeof(T) == 8) {
        u64 bits;
        memcpy(&bits, &v, 8);
        auto& words = exchanged(mask, {(u32)bits, (u32)(bits >> 32)});
        bits = words[from][0] | (u64)words[from][1] << 32;
        memcpy(&v, &bits, 8);
        return v;
    } else {
        return from_bits<T>(exchanged(mask, {to_bits(v)})[from][0]);
    }
}
template <class T> T __shfl_sync(u32 mask, T v, int from) { return shuffled(mask, v, from % 32); }
template <class T> T __shfl_xor_sync(u32 mask, T v, int by) { return shuffled(mask, v, (threadIdx.x % 32) ^ by); }
template <class T> T __shfl_up_sync(u32 mask, T v, int by) {
    u32 lane = threadIdx.x % 32;
    return shuffled(mask, v, lane >= (u32)by ? lane - by : lane);
}
u32 __ballot_sync(u32 mask, bool v) {
    auto& words = exchanged(mask, {v});
    u32 bits = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) bits |= words[i][0] << i;
    return bits;
}
bool __any_sync(u32 mask, bool v) { return __ballot_sync(mask, v) != 0; }
bool __all_sync(u32 mask, bool v) { return __ballot_sync(mask, v) == mask; }
void __syncwarp(u32 mask = 0xffffffff) { exchanged(mask, {}); }

void wait_at(Barrier& b, u32 threads, bool of_live) {
    u32 round = b.round;
    b.arrived++;
    while (b.round == round) {
        if (b.arrived >= (of_live ? block->live : threads)) b.arrived = 0, b.round++;
        else wait_a_turn("threads of its block");
    }
}
void __syncthreads() { wait_at(block->all, 0, true); }
void __threadfence() {}
void __nanosleep(u32) { wait_a_turn("time"); }
void __trap() { stop("trap"); }

float __uint_as_float(u32 x) { return from_bits<float>(x); }
float __int_as_float(int x) { return from_bits<float>((u32)x); }
u32 __float_as_uint(float x) { return to_bits(x); }
int __float_as_int(float x) { return (int)to_bits(x); }
int __float2int_rn(float x) { return (int)lrintf(x); }
u32 __float2uint_rn(float x) { return (u32)llrintf(x); }
float __uint2float_rn(u32 x) { return (float)x; }
template <class T> T __ldcs(const T* at) { return *at; }
int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
    return c;
}
int __popc(u32 x) { return __builtin_popcount(x); }
u32 __brev(u32 x) {
    u32 reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (x >> i & 1) << (31 - i);
    return reversed;
}
u32 __funnelshift_r(u32 low, u32 high, u32 by) { return (u32)((((unsigned long long)high << 32) | low) >> (by & 31)); }
int __ffs(u32 x) { return __builtin_ffs((int)x); }
int __clz(int x) { return x ? __builtin_clz((u32)x) : 32; }
u32 __byte_perm(u32 a, u32 b, u32 selector) {
    u64 bytes = (u64)b << 32 | a;
    u32 r = 0;
    for (int i = 0; i < 4; i++) r |= (u32)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
float __fadd_rn(float x, float y) { return x + y; }
float __fsub_rn(float x, float y) { return x - y; }
float __fmul_rn(float x, float y) { return x * y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
float __fdiv_rn(float x, float y) { return x / y; }
double __dmul_rn(double x, double y) { return x * y; }
u64 __double2ull_ru(double x) { return (u64)ceil(x); }
u64 __double2ull_rd(double x) { return (u64)floor(x); }
float rsqrtf(float x) { return 1.f / sqrtf(x); }
template <class T> T __ldcg(const T* at) { return *at; }
template <class T> T __ldg(const T* at) { return *at; }
template <class T, class U> T atomicAdd(T* at, U by) {
    T old = *at;
    *at += (T)by;
    return old;
}

// The functions of kernels/base/ptx.cuh.

u16 rounded_half(float x) {
    u32 bits = to_bits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (u16)(0x7fff);
    if (magnitude >= 0x477ff000) return (u16)(sign | 0x7c00);
    if (magnitude < 0x38800000)
        return (u16)(sign | (u32)lrintf(fabsf(x) * 16777216.f)); // below 2^-14: multiples of 2^-24
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (u16)(sign | (magnitude - 0x38000000) >> 13);
}
float to_float(u16 half) {
    u32 sign = (u32)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
    if (exponent == 31) return from_bits<float>(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) return from_bits<float>(sign | to_bits((float)fraction / 16777216.f));
    return from_bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
}
u32 rounded_halves(float low, float high) { return rounded_half(low) | (u32)rounded_half(high) << 16; }
template <class F> u32 each_half(F f, u32 a, u32 b, u32 c = 0) {
    auto of = [](u32 pair, int i) { return to_float((u16)(pair >> 16 * i)); };
    return rounded_half(f(of(a, 0), of(b, 0), of(c, 0))) | (u32)rounded_half(f(of(a, 1), of(b, 1), of(c, 1))) << 16;
}
u32 half2_add(u32 a, u32 b) {
    return each_half([](float x, float y, float) { return x + y; }, a, b);
}
u32 half2_mul(u32 a, u32 b) {
    return each_half([](float x, float y, float) { return x * y; }, a, b);
}
u32 half2_fma(u32 a, u32 b, u32 c) {
    return each_half([](float x, float y, float z) { return (float)((double)x * y + z); }, a, b, c);
}
float larger_magnitude(float x, float y) { return x != x || y != y ? __builtin_nanf("") : fmaxf(fabsf(x), fabsf(y)); }
u32 larger_magnitude2(u32 a, u32 b) {
    return each_half([](float x, float y, float) { return x != x || y != y ? __builtin_nanf("") : fmaxf(x, fabsf(y)); },
                     a, b);
}
float exp2_fast(float x) { return exp2f(x); }
float reciprocal(float x) { return 1.f / x; }
u32 to_e4m3(float low, float high) {
    auto one = [](float x) {
        u32 bits = to_bits(x), sign = bits >> 24 & 0x80;
        bits &= 0x7fffffff;
        if (bits < 0x3c800000) return sign | (u32)lrintf(fabsf(x) * 512.f);
        bits += 0x7ffff + (bits >> 20 & 1);
        return sign | min((bits >> 20) - (120 << 3), 0x7eu);
    };
    return one(low) | one(high) << 8;
}
u32 masked_xor(u32 x, u32 mask, u32 by) { return (x & mask) ^ by; }
u32 merged(u32 x, u32 mask, u32 by) { return (by & ~mask) | (~by & mask & x); }
u32 largest_of_warp(u32 x) {
    auto& words = exchanged(0xffffffff, {x});
    for (int i = 0; i < 32; i++) x = max(x, words[i][0]);
    return x;
}
u32 smallest_of_warp(u32 x) {
    auto& words = exchanged(0xffffffff, {x});
    for (int i = 0; i < 32; i++) x = min(x, words[i][0]);
    return x;
}

// c += a * b: `a(row, k)` and `b(k, column)` take their values from the words that lanes have passed.
template <int K, class T, class A, class B> void matrix_product(T (&c)[4], A a, B b) {
    u32 g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    for (u32 i = 0; i < 4; i++)
        for (u32 k = 0; k < K; k++) c[i] += a(g + 8 * (i / 2), k) * b(k, 2 * q + i % 2);
}
template <class Byte> void multiply_bytes(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    auto& w = exchanged(0xffffffff, {a0, a1, a2, a3, b0, b1});
    auto a = [&](u32 r, u32 k) { return (int)(Byte)(w[r % 8 * 4 + k % 16 / 4][r / 8 + k / 16 * 2] >> 8 * (k % 4)); };
    auto b = [&](u32 k, u32 n) { return (int)(signed char)(w[n * 4 + k % 16 / 4][4 + k / 16] >> 8 * (k % 4)); };
    matrix_product<32>(c, a, b);
}
void multiply(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    multiply_bytes<signed char>(c, a0, a1, a2, a3, b0, b1);
}
void multiply_unsigned(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    multiply_bytes<u8>(c, a0, a1, a2, a3, b0, b1);
}
void multiply(int (&c)[4], u32 a0, u32 a1, u32 b0) {
    auto& w = exchanged(0xffffffff, {a0, a1, b0});
    auto a = [&](u32 r, u32 k) { return (int)(signed char)(w[r % 8 * 4 + k / 4][r / 8] >> 8 * (k % 4)); };
    auto b = [&](u32 k, u32 n) { return (int)(signed char)(w[n * 4 + k / 4][2] >> 8 * (k % 4)); };
    matrix_product<16>(c, a, b);
}
void count_common(int (&c)[4], u32 a0, u32 a1, u32 b) {
    auto& w = exchanged(0xffffffff, {a0, a1, b});
    u32 g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    for (u32 i = 0; i < 4; i++)
        for (u32 k = 0; k < 4; k++) c[i] += __builtin_popcount(w[g * 4 + k][i / 2] & w[(2 * q + i % 2) * 4 + k][2]);
}
void count_common(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    count_common(c, a0, a1, b0);
    count_common(c, a2, a3, b1);
}
template <class Value>
void multiply_halves(float (&c)[4], Value value, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    auto& w = exchanged(0xffffffff, {a0, a1, a2, a3, b0, b1});
    auto a = [&](u32 r, u32 k) { return value((u16)(w[r % 8 * 4 + k % 8 / 2][r / 8 + k / 8 * 2] >> 16 * (k % 2))); };
    auto b = [&](u32 k, u32 n) { return value((u16)(w[n * 4 + k % 8 / 2][4 + k / 8] >> 16 * (k % 2))); };
    matrix_product<16>(c, a, b);
}
void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    multiply_halves(c, [](u16 h) { return to_float(h); }, a0, a1, a2, a3, b0, b1);
}
void after_products(float&) {}
u32 transposed(u32 pair) {
    auto& w = exchanged(0xffffffff, {pair});
    u32 g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    auto at = [&](u32 row, u32 column) { return w[row * 4 + column / 2][0] >> 16 * (column % 2) & 0xffff; };
    return at(2 * q, g) | at(2 * q + 1, g) << 16;
}

// Addresses in shared memory are offsets; those of another block of a cluster have its rank above them.
u32 shared_address(const void* at) { return (u32)((const u8*)at - emulated_shared_memory); }
u8* at_shared(u32 address) {
    if (!(address >> 28)) return emulated_shared_memory + address;
    u8* base = group[(address >> 28) - 1].shared.data();
    return base + ((-(uintptr_t)base) & 1023) + (address & 0xfffffff);
}
template <bool TRANSPOSED = false> void load_matrices(u32 (&to)[4], u32 at) {
    auto& w = exchanged(0xffffffff, {at});
    u32 g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    for (u32 m = 0; m < 4; m++) {
        auto half = [&](u32 row, u32 column) { return (u32)((const u16*)at_shared(w[8 * m + row][0]))[column]; };
        to[m] = TRANSPOSED ? half(2 * q, g) | half(2 * q + 1, g) << 16 : half(g, 2 * q) | half(g, 2 * q + 1) << 16;
    }
}

// Others run before each load that may be repeated.
u32 load_shared_word(const void* at) {
    wait_a_turn("a word of another block");
    u32 bits;
    memcpy(&bits, at, 4);
    return bits;
}
void load_shared_words4(u32* bits, const float* at) { memcpy(bits, at, 16); }
void load_shared_words4_if(bool condition, u32* bits, const float* at) {
    wait_a_turn("words of another block");
    if (condition) memcpy(bits, at, 16);
}
void store_shared_half(u16* at, u16 bits) { *at = bits; }
void store_shared_word(float* at, u32 bits) { memcpy(at, &bits, 4); }
void store_shared_words4(float* at, const u32 (&bits)[4]) { memcpy(at, bits, 16); }
void arrive_at(u32* counter) { ++*counter; }
void publish_word(u32* at, u32 word) { *at = word; }
u32 published_word(const u32* at) { return *(volatile const u32*)at; }
void prefetch(const void*) {}

void copy16(void* to, const void* from) { memcpy(to, from, 16); }
void committed() {}
template <int N> void arrived() {}
void async_after_writes() {}

// 32 bits of bytes that are expected, 15 of arrivals that are missing, 15 of all arrivals, and the parity of the round.
void complete_gate(u64& state) {
    if (state >> 32 || state >> 16 & 0x7fff) return;
    u64 count = state >> 1 & 0x7fff;
    state = count << 16 | count << 1 | (~state & 1);
}
struct Gate {
    u64 state;

    u32 at() const { return shared_address(this); }
    void open(int count) { state = (u64)count << 16 | (u64)count << 1; }
    void arrive() { state -= 1 << 16, complete_gate(state); }
    bool is_complete(u32 parity) { return (state & 1) != parity; }
    bool try_wait(u32 parity) {
        if (!is_complete(parity)) wait_a_turn("a gate");
        return is_complete(parity);
    }
    void wait(u32 parity) {
        while (!try_wait(parity)) {}
    }
    static constexpr int COPIERS = ARCH >= 900 ? 1 : 32;
    void expect(int bytes) { state += (u64)bytes << 32, arrive(); }
    void copied() { arrive(); }
    void copy(void* to, const void* from, int bytes) {
        if constexpr (ARCH < 900) {
            for (int i = threadIdx.x % 32 * 16; i < bytes; i += 512) memcpy((u8*)to + i, (const u8*)from + i, 16);
            return;
        }
        if (bytes % 16 || (uintptr_t)to % 16 || (uintptr_t)from % 16) stop("a copy of odd bytes");
        copies.push_back({(u8*)to, (const u8*)from, (u32)bytes, &state});
    }
    void copy_once(void* to, const void* from, int bytes) { copy(to, from, bytes); }
};

// There are no warpgroups (HAS_WGMMA): these are named, and not called.
template <int N> struct Wgmma;
template <int N> struct WgmmaBytes;
void wgmma_fence();
void wgmma_commit();
template <int LEFT> void wgmma_wait();
u64 matrix_descriptor(u32 tile, int offset);
template <int COUNT> void take_registers();
template <int COUNT> void return_registers();

u32 fixed_thread() { return threadIdx.x; }
template <int N> void sync_threads() { wait_at(block->named, N, false); }
void wait_for_launches() {}
void begin_next_launch() {}

void arrive_at_cluster() {
    if (++cluster_barrier.arrived == blockDim.x * group.size()) cluster_barrier.arrived = 0, cluster_barrier.round++;
}
void wait_for_cluster() {
    // a kernel waits once
    while (cluster_barrier.round == 0) wait_a_turn("blocks of its cluster");
}
u32 address_in_block(u32 at, int rank) { return at | (u32)(rank + 1) << 28; }
void send_floats4(u32 to, const float (&v)[4], u32 gate) {
    memcpy(at_shared(to), v, 16);
    u64& state = *(u64*)at_shared(gate);
    state -= (u64)16 << 32, complete_gate(state);
}
