// Everything that a step reads from memory, weights, keys and values, comes through a ring of SLOTS slots in shared
// memory: one warp reads, phase after phase, as far ahead as there are free slots, so that memory is read while x is
// prepared and while blocks wait for each other.

#pragma once

#include "weights/record.cuh"
#include "base/tagged.cuh"
#include "base/phase.cuh"
#include "attention/pages.cuh"
#include "phases/small_phases.cuh"
#include "linear/linear_shape.cuh"
#include "host/sizes.cuh"

extern __shared__ __align__(128) u8 shared[]; // copies to slots that do not begin at multiples of 128 bytes are slower

// What every phase needs to know about the step, in shared memory: loading it from the inputs takes as long as a phase
// should.
struct Info {
    int tokens, outputs;
    u32 epoch;
    int window_tables; // words from the page table of a token to that of layers with a window
    const u32* pages[TOKENS_AT_ONCE];
    int position[TOKENS_AT_ONCE], output_row[TOKENS_AT_ONCE];
    int state_read, state_write; // slots of recurrent state: of a step of one token
    int first[TOKENS_AT_ONCE];   // the first position of the token's sequence that this step computes
    int phase;                   // the index of the phase: in a register it would be spilled to memory that is slower

    DEVICE const u32* pages_of(const AttendArgs& a, int token) const {
        return pages[token] + (Sizes::WINDOWS && a.windowed ? window_tables : 0);
    }
};
static_assert((sizeof(Info) + 15) / 16 * 16 == Sizes::INFO, "the host has reserved shared memory for it");
static_assert(Sizes::AT_GATES + 2 * Sizes::SLOTS * (int)sizeof(Gate) <= Sizes::AT_INFO, "two gates per slot");

// The experts that the token has chosen last, in shared memory: written by the phase that routes, in every block.
struct Choice {
    int expert[MOST_USED_EXPERTS];
    float weight[MOST_USED_EXPERTS];
    u32 count; // how many choices this step has made; it is written last
    u32 pad[3];

    // Makes the choice known to the reading warp; by one lane, after all lanes of its warp have written it.
    DEVICE void publish() { publish_word(&count, count + 1); }
    // Waits for the `n`-th choice. It cannot be replaced by the next one while this block has not read what it was made
    // for.
    DEVICE void wait_for(u32 n) const {
        while (published_word(&count) < n) __nanosleep(32);
    }
};
static_assert(sizeof(Choice) == CHOICE_BYTES, "the host has reserved shared memory for it");
DEVICE Choice& choice_of_step() { return *(Choice*)(shared + Sizes::AT_CHOICE); }

DEVICE const Info& info_of_step() { return *(const Info*)(shared + Sizes::AT_INFO); }
DEVICE const Phase& phase_at_hand(int p) { return ((const Phase*)(shared + Sizes::AT_WINDOW))[p % WINDOW]; }

// A position of the ring: the reading warp fills its slot, the others empty it.
struct Ring {
    int at;
    u32 parity; // of the round

    DEVICE Gate& full() const { return ((Gate*)(shared + Sizes::AT_GATES))[at]; }
    DEVICE Gate& empty() const { return ((Gate*)(shared + Sizes::AT_GATES))[Sizes::SLOTS + at]; }
    DEVICE u8* slot() const { return shared + at * Sizes::SLOT; }

    // `slots` further, at most SLOTS.
    DEVICE Ring ahead(int slots) const {
        int to = at + slots;
        bool wraps = to >= Sizes::SLOTS;
        return {wraps ? to - Sizes::SLOTS : to, parity ^ wraps};
    }
    // `slots` before it, fewer than SLOTS.
    DEVICE Ring back(int slots) const {
        bool wraps = at < slots;
        return {at - slots + (wraps ? Sizes::SLOTS : 0), parity ^ wraps};
    }
    DEVICE void skip(int slots) {
        at += slots;
#pragma unroll 1
        for (; at >= Sizes::SLOTS; at -= Sizes::SLOTS) parity ^= 1;
    }

    // Waits until the slot is full.
    DEVICE const u8* wait() const {
        full().wait(parity);
        return slot();
    }

    // Releases a slot that the warp has waited for, also on behalf of warps that do not use it.
    DEVICE void release_for(int warps) const {
        __syncwarp();
        if (threadIdx.x % 32 < warps) empty().arrive();
    }
};

// A unit of attention: some query heads of one key head of one token, over a split of the keys from before this step.
// The last split also has the keys of this step.

struct Unit {
    int token, kv_head, group, split, splits;
    int index, first_split; // of token, key head and group; and the index of their first split
    int from;               // the first key that the token sees
    int begin, end;         // of the split; it begins at a multiple of KEYS

    DEVICE int slots() const { return max(0, end - begin + KEYS - 1) / KEYS; }

    // Bytes between four rows and the next four in a slot, so that they are in different banks (attend.cuh). Of many
    // keys, copies of whole slots count more.
    DEVICE int padding() const { return slots() <= PADDED_SLOTS ? ROWS_PADDING : 0; }
};

// The units of attention, in the order in which blocks take them: all heads of the first split of the first token, of
// its second split, ..., of the next token. Splits of one head are far apart, so that different blocks take them.
struct Units {
    int number = BLOCKS - 1 - blockIdx.x; // the last blocks have the fewest tiles of linears

    static DEVICE int from(const AttendArgs& a, const Info& info, int token) {
        return a.window > 0 ? max(0, info.position[token] + 1 - a.window) : 0;
    }
    // The first key that is read, at the beginning of a slot, and the slots of keys from before this step.
    static DEVICE int base(const AttendArgs& a, const Info& info, int token) {
        return min(from(a, info, token), info.first[token]) / KEYS * KEYS;
    }
    static DEVICE int old_slots(const AttendArgs& a, const Info& info, int token) {
        return (info.first[token] - base(a, info, token) + KEYS - 1) / KEYS;
    }

    // The block's next unit. All lanes of a warp must call it.
    DEVICE bool next(Unit& u, const AttendArgs& a, const Info& info) {
        int heads = a.kv_heads * a.groups, rest = small_quotient(number, heads), head = number - rest * heads;
        int each, all, before = 0; // slots of a split, splits of all tokens, and of the tokens before this one
        if constexpr (TOKENS_AT_ONCE == 1) {
            int old = old_slots(a, info, 0);
            u.token = 0,
            u.splits = all = max(1, min(max(1, BLOCKS / heads), (old * KEYS + SPLIT_KEYS - 1) / SPLIT_KEYS));
            each = all > 1 ? (old + all - 1) / all : old;
        } else { // a split has at most the block's share of all keys
            int lane = threadIdx.x % 32, real = lane < info.tokens, old = real ? old_slots(a, info, lane) : 0;
            each = SPLIT_KEYS / KEYS, all = info.tokens;
            u.token = rest, u.splits = 1, before = rest;
            if (__any_sync(0xffffffff, old > each)) {
                each = max(each, (warp_sum(old) * heads + BLOCKS - 1) / BLOCKS);
                int splits = real ? max(1, (old + each - 1) / each) : 0, sum = splits;
#pragma unroll
                for (int step = 1; step < TOKENS_AT_ONCE; step *= 2) {
                    int other = __shfl_up_sync(0xffffffff, sum, step);
                    if (lane >= step) sum += other;
                }
                all = __shfl_sync(0xffffffff, sum, TOKENS_AT_ONCE - 1);
                u.token = min(__popc(__ballot_sync(0xffffffff, real && sum <= rest)), info.tokens - 1);
                u.splits = __shfl_sync(0xffffffff, splits, u.token),
                before = __shfl_sync(0xffffffff, sum - splits, u.token);
            }
        }
        if (rest >= all) return false;
        number += BLOCKS;
        u.split = rest - before, u.kv_head = head, u.group = 0;
        if (a.groups > 1) u.kv_head = head / a.groups, u.group = head % a.groups;
        u.index = u.token * heads + head, u.first_split = before * heads + head * u.splits;
        u.from = from(a, info, u.token);
        u.begin = base(a, info, u.token) + u.split * each * KEYS,
        u.end = min(info.first[u.token], u.begin + each * KEYS);
        return true;
    }
};

// The work of the reading warp: it reads everything in order. Few slots are in flight at a time: they saturate memory,
// and values that blocks pass to each other do not wait for more.
struct Reader {
    Ring ring;
    u32 filled;  // slots so far
    u32 choices; // the phases so far that choose experts

    // A slot may be filled if it is empty and the slot `flying` before it is full. `number` counts all slots.
    static DEVICE bool may_fill(Ring slot, u32 number, int flying) {
        Ring before = slot.back(flying);
        return slot.empty().is_complete(slot.parity ^ 1) &&
               (number < flying || before.full().is_complete(before.parity));
    }
    static DEVICE void wait_to_fill(Ring slot, u32 number, int flying) {
        Ring before = slot.back(flying);
        slot.empty().wait(slot.parity ^ 1);
        if (number >= flying) before.full().wait(before.parity);
    }
    DEVICE void advance(int slots) { ring = ring.ahead(slots), filled += slots; }

    // Fills `count` slots, at most SLOTS and 32; lane i has the addresses of the i-th: up to two pieces.
    DEVICE void fill(int count, int flying, const void* from, int bytes, const void* more = nullptr,
                     int more_bytes = 0) {
        int lane = threadIdx.x % 32;
        if constexpr (ARCH >= 900) {
            Ring mine = ring.ahead(lane % Sizes::SLOTS);
            u32 open = __ballot_sync(0xffffffff, lane < count);
            while (open) { // wait for the first one; fill the following ones up to the first that is blocked
                int next = __ffs(open) - 1;
                wait_to_fill(ring.ahead(next), filled + next, flying);
                u32 blocked = open & ~__ballot_sync(0xffffffff, may_fill(mine, filled + lane, flying));
                bool ready = open >> lane & 1 && (blocked == 0 || lane < __ffs(blocked) - 1);
                if (ready) {
                    mine.full().expect(bytes + more_bytes);
                    mine.full().copy_once(mine.slot(), from, bytes);
                    if (more_bytes) mine.full().copy_once(mine.slot() + bytes, more, more_bytes);
                }
                open &= ~__ballot_sync(0xffffffff, ready);
            }
            advance(count);
        } else {
            for (int i = 0; i < count; i++, advance(1)) { // the whole warp copies
                wait_to_fill(ring, filled, flying);
                const void* a = (const void*)__shfl_sync(0xffffffff, (u64)from, i);
                const void* b = (const void*)__shfl_sync(0xffffffff, (u64)more, i);
                int a_bytes = __shfl_sync(0xffffffff, bytes, i), b_bytes = __shfl_sync(0xffffffff, more_bytes, i);
                ring.full().copy_once(ring.slot(), a, a_bytes);
                ring.full().copy_once(ring.slot() + a_bytes, b, b_bytes);
                ring.full().copied();
            }
        }
    }

    static constexpr int AT_ONCE = Sizes::SLOTS < 32 ? Sizes::SLOTS : 32;

    template <class L> DEVICE void read_linear(const LinearArgs& a) {
        int slots = L::units() * L::EACH * L::PIECES;
        // weights of norms: each block prefetches some, so that they are in L2 when all blocks read them
        if (L::NORM)
            for (int i = blockIdx.x * 32; i < L::COLS; i += BLOCKS * 32) prefetch(a.norm.weight + i);
        if (L::CONV) prefetch_convolution(a.conv, L::first_unit() * TILE, L::units() * TILE);
        if (L::USED > 0 && slots > 0)
            choice_of_step().wait_for(choices); // no weights are read before the experts are known
        if constexpr (L::MIX) read_mixed<L>(a, slots);
        else read_tiles<L>(a, slots);
    }

    template <class L> DEVICE void read_tiles(const LinearArgs& a, int slots) {
        int lane = threadIdx.x % 32;
        for (int n = 0; n < slots; n += AT_ONCE) {
            int tile, piece, i = L::tile_of_slot(min(n + lane, slots - 1), piece), part = L::find(i, tile),
                             chunk = piece * L::SLOT_CHUNKS;
            int record = L::record_bytes(part), bytes = min(L::CHUNKS - chunk, L::SLOT_CHUNKS) * record;
            if (L::USED > 0) tile += choice_of_step().expert[L::chosen_of(i)] * a.part[part].expert_tiles;
            fill(min(AT_ONCE, slots - n), L::FLYING, a.part[part].records + ((long)tile * L::CHUNKS + chunk) * record,
                 bytes);
        }
    }

    // Tiles whose chunks come from all chosen experts: a slot has several runs of them.
    template <class L> DEVICE void read_mixed(const LinearArgs& a, int slots) {
        constexpr int RECORD = L::A::F::BYTES;
        const Choice& choice = choice_of_step();
        const u8* records = a.part[0].records;
        for (int n = 0; n < slots; n++, advance(1)) {
            int tile, piece;
            L::find(L::tile_of_slot(n, piece), tile);
            int from = piece * L::SLOT_CHUNKS, to = min(L::CHUNKS, from + L::SLOT_CHUNKS), runs = L::runs(from, to);
            auto at = [&](const typename L::Run& run) {
                return records + (((long)choice.expert[run.index] * a.part[0].expert_tiles + tile) * L::MATRIX_CHUNKS +
                                  run.first - run.index * L::MATRIX_CHUNKS) *
                                     RECORD;
            };
            wait_to_fill(ring, filled, L::FLYING);
            if constexpr (ARCH >= 900) {
                if (threadIdx.x % 32 == 0) ring.full().expect((to - from) * RECORD);
                __syncwarp();
                for (int i = threadIdx.x % 32; i < runs; i += 32) {
                    typename L::Run run = L::run_of(from, to, i);
                    ring.full().copy_once(ring.slot() + (run.first - from) * RECORD, at(run),
                                          (run.end - run.first) * RECORD);
                }
                __syncwarp();
            } else {
                for (int i = 0; i < runs; i++) {
                    typename L::Run run = L::run_of(from, to, i);
                    ring.full().copy_once(ring.slot() + (run.first - from) * RECORD, at(run),
                                          (run.end - run.first) * RECORD);
                }
                ring.full().copied();
            }
        }
    }

    // What the block needs of a convolution of some columns: weights, and the rows before the token.
    DEVICE void prefetch_convolution(const ConvArgs& a, int first, int columns) {
        int lane = threadIdx.x % 32, end = min(first + columns, a.width), read = info_of_step().state_read;
        for (int column = first + lane * 32; column < end; column += 32 * 32)
            for (int row = 0; row < a.taps_count - 1 && read >= 0; row++)
                prefetch(a.state + ((long)read * (a.taps_count - 1) + row) * a.width + column);
        for (int i = first * a.taps_count + lane * 32; i < end * a.taps_count; i += 32 * 32) prefetch(a.taps + i);
    }

    // The rows of floats that the block multiplies (few_float_rows).
    DEVICE void prefetch_rows(const FloatLinearArgs& a) {
        for (int row = 2 * place_among(a.first_block, blockIdx.x, BLOCKS), end = min(row + 2, a.rows); row < end; row++)
            for (int k = threadIdx.x % 32 * 32; k < a.cols; k += 32 * 32)
                prefetch((const float*)a.w + (long)row * a.cols + k);
        for (int k = blockIdx.x * 32; a.norm.kind && k < a.cols; k += BLOCKS * 32) prefetch(a.norm.weight + k);
    }

    // The state that the block's warps have (step_recurrent.cuh).
    DEVICE void prefetch_matrices(const RecurrentArgs& a, const BlockRange& range) {
        constexpr int COLUMNS = STEP_STATE_COLUMNS;
        int place = place_in(range, blockIdx.x, BLOCKS), blocks = count_of(range, BLOCKS);
        if (place >= blocks) return;
        int each = (a.cols + COLUMNS - 1) / COLUMNS, read = info_of_step().state_read;
        for (int item = place; item < a.heads * each && read >= 0; item += blocks) {
            int column = item % each * COLUMNS, floats = min(COLUMNS, a.cols - column) * Sizes::STATE_ROWS;
            const float* state = a.state + read * a.slot + ((long)(item / each) * a.cols + column) * Sizes::STATE_ROWS;
            for (int i = threadIdx.x % 32 * 32; i < floats; i += 32 * 32) prefetch(state + i);
        }
        for (int i = threadIdx.x % 32 * 32; i < a.heads; i += 32 * 32) prefetch(a.bias + i), prefetch(a.rate + i);
    }

    // What a transform multiplies with.
    DEVICE void prefetch_factors(const TransformArgs& a) {
        for (int k = (threadIdx.x % 32 * BLOCKS + blockIdx.x) * 32; k < a.width; k += 32 * BLOCKS * 32) {
            if (a.norm.kind && k < a.group) prefetch(a.norm.weight + k);
            if (a.block && k < a.group_width) prefetch(a.signs + k);
        }
    }

    // The rows of a router that this block multiplies.
    DEVICE void prefetch_router(const RouterLinear& r, int experts) {
        for (int row = blockIdx.x; r.w && row < experts; row += BLOCKS)
            for (int k = threadIdx.x % 32 * 32; k < r.cols; k += 32 * 32) prefetch(r.w + (long)row * r.cols + k);
        for (int k = blockIdx.x * 32; r.norm.kind && k < r.cols; k += BLOCKS * 32) prefetch(r.norm.weight + k);
    }

    // Fills a slot with keys and values from a row of the pages on: a lane has four neighbouring rows of either.
    DEVICE void fill_padded(const AttendArgs& a, long row) {
        constexpr int FOURS = KEYS / 4;
        int lane = threadIdx.x % 32, four = lane % FOURS;
        bool values = lane >= FOURS;
        int columns = values ? a.v_dim : a.head_dim, bytes = 4 * columns * 2;
        const u16* from = (values ? a.values : a.keys) + (row + four * 4) * columns;
        u8* to = ring.slot() + (values ? FOURS * (8 * a.head_dim + ROWS_PADDING) : 0) + four * (bytes + ROWS_PADDING);
        wait_to_fill(ring, filled, Sizes::KEYS_FLYING);
        if constexpr (ARCH >= 900) {
            if (lane == 0) ring.full().expect(KEYS * (a.head_dim + a.v_dim) * 2);
            __syncwarp();
            if (lane < 2 * FOURS) ring.full().copy_once(to, from, bytes);
        } else {
            for (int i = 0; i < 2 * FOURS; i++) { // the whole warp copies
                u8* there = (u8*)__shfl_sync(0xffffffff, (u64)to, i);
                ring.full().copy_once(there, (const void*)__shfl_sync(0xffffffff, (u64)from, i),
                                      __shfl_sync(0xffffffff, bytes, i));
            }
            ring.full().copied();
        }
        advance(1);
    }

    DEVICE void read_keys(const AttendArgs& a, const Info& info) {
        Unit u;
        int lane = threadIdx.x % 32;
        for (Units units; units.next(u, a, info);) {
            const u32* pages = info.pages_of(a, u.token);
            auto row = [&](int n) { // of the lane's slot
                int key = u.begin + (n + lane) * KEYS;
                return slot_in(a, key < u.end ? pages[key / PAGE_LEN] : 0, key, u.kv_head);
            };
            long next = row(0);
            if (u.padding()) {
                static_assert(PADDED_SLOTS <= 32, "a lane per slot");
#pragma unroll 1
                for (int n = 0; n < u.slots(); n++) fill_padded(a, __shfl_sync(0xffffffff, next, n));
                continue;
            }
            for (int n = 0; n < u.slots(); n += AT_ONCE) {
                long now = next;
                next = row(n + AT_ONCE);
                fill(min(AT_ONCE, u.slots() - n), Sizes::KEYS_FLYING, a.keys + now * a.head_dim, KEYS * a.head_dim * 2,
                     a.values + now * a.v_dim, KEYS * a.v_dim * 2);
            }
        }
    }

    DEVICE void read(const Phase* phases, int count) {
        Phase& phase = ((Phase*)(shared + Sizes::AT_WINDOW))[WINDOW]; // after the window
        const Info& info = info_of_step();
        constexpr int PIECES = sizeof(Phase) / 16, PER_LANE = (PIECES + 31) / 32;
        int lane = threadIdx.x % 32;
        uint4 next[PER_LANE];
        auto each_piece = [&](auto use) {
#pragma unroll
            for (int i = 0; i < PER_LANE; i++)
                if (i * 32 + lane < PIECES) use(next[i], i * 32 + lane);
        };
        each_piece([&](uint4& piece, int at) { piece = ((const uint4*)phases)[at]; });
        for (int p = 0; p < count; p++) {
            __syncwarp();
            each_piece([&](uint4& piece, int at) {
                ((uint4*)&phase)[at] = piece;
                if (p + 1 < count) piece = ((const uint4*)(phases + p + 1))[at];
            });
            __syncwarp();
            if (phase.kind == ATTEND) read_keys(phase.attend, info);
            if (phase.kind == FLOAT_LINEAR && phase.float_linear.first_block >= 0) prefetch_rows(phase.float_linear);
            if (RECURRENT && phase.kind == RECURRENT_PHASE) prefetch_matrices(phase.recurrent, phase.range);
            if (RECURRENT && phase.kind == TRANSFORM) prefetch_factors(phase.transform);
            if (ROUTES && phase.kind == ROUTE) choices++, prefetch_router(phase.route.router, phase.route.experts);
            if (phase.kind != LINEAR || (phase.linear.outputs_only && info.outputs == 0)) continue;
            switch (phase.shape) {
#define CASE(n, ...) \
    case n: read_linear<__VA_ARGS__>(phase.linear); break;
                LINEARS(CASE)
#undef CASE
            }
        }
    }
};
