// All that a step reads from memory, weights and keys and values, comes through a ring of SLOTS slots in shared memory: a
// warp of its own reads, phase after phase, as far ahead as there is room, so that memory is read while x is made and
// blocks wait for each other.

extern __shared__ __align__(16) u8 shared[];

// What every phase wants to know of the step, in shared memory: a trip to the inputs takes as long as a phase should.
struct Info {
    int tokens, outputs;
    u32 epoch;
    int pad;
    int position[MOST_TOKENS], output_row[MOST_TOKENS];
    int first[MOST_TOKENS]; // the position from which on a token's keys are made in this step
    const u32* pages[MOST_TOKENS];
};
static_assert(sizeof(Info) <= INFO_BYTES, "the host has reserved shared memory for it");

DEVICE const Info& info_of_step() { return *(const Info*)(shared + AT_INFO); }
DEVICE const Phase& phase_at_hand(int p) { return ((const Phase*)(shared + AT_WINDOW))[p % WINDOW]; }

// A place in the ring: what the reading warp fills, and the others use up.
struct Ring {
    int at;
    u32 round; // its lowest bit counts

    DEVICE Gate& full() const { return ((Gate*)(shared + AT_GATES))[at]; }
    DEVICE Gate& empty() const { return ((Gate*)(shared + AT_GATES))[SLOTS + at]; }
    DEVICE u8* slot() const { return shared + at * SLOT; }

    DEVICE void next() {
        if (++at == SLOTS) at = 0, round++;
    }
    // So many slots on, at most as many as there are.
    DEVICE Ring ahead(int slots) const {
        int to = at + slots;
        return to < SLOTS ? Ring{to, round} : Ring{to - SLOTS, round + 1};
    }
    // So many slots before it, fewer than there are.
    DEVICE Ring back(int slots) const { return at >= slots ? Ring{at - slots, round} : Ring{at - slots + SLOTS, round - 1}; }
    DEVICE void skip(int slots) {
        at += slots;
#pragma unroll 1
        for (; at >= SLOTS; at -= SLOTS) round++;
    }

    // The slot, when it is full.
    DEVICE const u8* wait() const {
        full().wait(round & 1);
        return slot();
    }

    // A warp is done with a slot that it has waited for, and so are others, which had no use for it.
    DEVICE void release_for(int warps) const {
        __syncwarp();
        if (threadIdx.x % 32 < warps) empty().arrive();
    }
};

// A block's share of attention: some query heads of one key head of one token, over a split of the keys that were there
// before this step. The last split has the keys of this step too.

struct Unit {
    int token, kv_head, group, split, splits;
    int index, room; // of token, key head and group; and of their splits
    int from;       // the first key that the token sees
    int begin, end; // of the split; it begins at a multiple of KEYS

    DEVICE int slots() const { return max(0, end - begin + KEYS - 1) / KEYS; }
};

// The units of attention, in the order in which blocks take them.
struct Units {
    int number = blockIdx.x;

    // The block's next unit that has something to do.
    DEVICE bool next(Unit& u, const AttendArgs& a, const Info& info) {
        int heads = a.kv_heads * a.groups, tokens = TOKENS_AT_ONCE == 1 ? 1 : info.tokens;
        int most_splits = max(1, BLOCKS / (tokens * heads));
        for (; number < tokens * heads * most_splits; number += BLOCKS) {
            // splits of one head lie far apart: with few keys there is one split, and every block's first unit is one
            int rest = number / heads, head = number - rest * heads;
            u.token = 0, u.split = rest, u.kv_head = head, u.group = 0;
            if (tokens > 1) u.split = rest / tokens, u.token = rest % tokens;
            if (a.groups > 1) u.kv_head = head / a.groups, u.group = head % a.groups;
            u.room = (u.token * heads + head) * most_splits, u.index = u.token * heads + head;
            int first = info.first[u.token];
            u.from = a.window > 0 ? max(0, info.position[u.token] + 1 - a.window) : 0;
            int base = min(u.from, first) / KEYS * KEYS, old = (first - base + KEYS - 1) / KEYS, each = old; // in slots
            u.splits = max(1, min(most_splits, (old * KEYS + SPLIT_KEYS - 1) / SPLIT_KEYS));
            if (u.split >= u.splits) continue;
            if (u.splits > 1) each = (old + u.splits - 1) / u.splits;
            u.begin = base + u.split * each * KEYS, u.end = min(first, u.begin + each * KEYS);
            number += BLOCKS;
            return true;
        }
        return false;
    }
};

// Reads everything, in order: one warp's work. Only so many slots are on their way at a time: memory is busy with
// those, and what blocks hand to each other does not have to queue behind more.
struct Reader {
    Ring ring;

    // Whether a slot may be filled: what was in it is used up, and what was asked for `flying` slots before is there.
    static DEVICE bool may_fill(Ring slot, int flying) {
        Ring before = slot.back(flying);
        return slot.empty().is_complete((slot.round & 1) ^ 1) && (is_early(slot, flying) || before.full().is_complete(before.round & 1));
    }
    static DEVICE void wait_to_fill(Ring slot, int flying) {
        Ring before = slot.back(flying);
        slot.empty().wait((slot.round & 1) ^ 1);
        if (!is_early(slot, flying)) before.full().wait(before.round & 1);
    }
    static DEVICE bool is_early(Ring slot, int flying) { return slot.round == 0 && slot.at < flying; }

    // Fills `count` slots, at most SLOTS and 32; lane i has what the i-th is filled with: up to two pieces.
    DEVICE void fill(int count, int flying, const void* from, int bytes, const void* more, int more_bytes) {
        int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
        Ring mine = ring.ahead(lane % SLOTS);
        u32 open = __ballot_sync(0xffffffff, lane < count);
        while (open) { // the first is waited for; those behind it follow as far as each can
            Ring first = {__shfl_sync(0xffffffff, mine.at, __ffs(open) - 1), __shfl_sync(0xffffffff, mine.round, __ffs(open) - 1)};
            wait_to_fill(first, flying);
            u32 blocked = open & ~__ballot_sync(0xffffffff, may_fill(mine, flying));
            bool ready = open >> lane & 1 && (blocked == 0 || lane < __ffs(blocked) - 1);
            if (ready) {
                mine.full().expect(bytes + more_bytes);
                mine.full().copy(mine.slot(), from, bytes);
                if (more_bytes) mine.full().copy(mine.slot() + bytes, more, more_bytes);
            }
            open &= ~__ballot_sync(0xffffffff, ready);
        }
        ring = ring.ahead(count - 1), ring.next();
#else
        for (int i = 0; i < count; i++, ring.next()) { // the whole warp copies
            wait_to_fill(ring, flying);
            const void* a = (const void*)__shfl_sync(0xffffffff, (u64)from, i);
            const void* b = (const void*)__shfl_sync(0xffffffff, (u64)more, i);
            int a_bytes = __shfl_sync(0xffffffff, bytes, i), b_bytes = __shfl_sync(0xffffffff, more_bytes, i);
            ring.full().copy(ring.slot(), a, a_bytes);
            ring.full().copy(ring.slot() + a_bytes, b, b_bytes);
            ring.full().copied();
        }
#endif
    }

    static constexpr int AT_ONCE = SLOTS < 32 ? SLOTS : 32;

    template <class L> DEVICE void read_linear(const LinearArgs& a) {
        int lane = threadIdx.x % 32, slots = L::units() * L::EACH * L::PIECES;
        // norms have weights too: each block asks for some, so that they are near when all want them
        if (L::NORM)
            for (int i = blockIdx.x * 32; i < L::COLS; i += BLOCKS * 32) prefetch(a.norm.weight + i);
        for (int n = 0; n < slots; n += AT_ONCE) {
            int tile, piece, part = L::find(L::tile_of_slot(min(n + lane, slots - 1), piece), tile), chunk = piece * L::PER_SLOT * WARPS;
            int record = L::record_bytes(part), bytes = min(L::CHUNKS - chunk, L::PER_SLOT * WARPS) * record;
            fill(min(AT_ONCE, slots - n), L::FLYING, a.part[part].records + ((long)tile * L::CHUNKS + chunk) * record, bytes, nullptr, 0);
        }
    }

    DEVICE void read_keys(const AttendArgs& a, const Info& info) {
        Unit u;
        int lane = threadIdx.x % 32;
        for (Units units; units.next(u, a, info);) {
            const u32* pages = info.pages[u.token];
            auto page = [&](int n) { // of a lane's slot
                int key = u.begin + (n + lane) * KEYS;
                return key < u.end ? pages[key / PAGE_LEN] : 0;
            };
            u32 next = page(0);
            for (int n = 0; n < u.slots(); n += AT_ONCE) {
                u32 now = next;
                next = page(n + AT_ONCE);
                int key = u.begin + (n + lane) * KEYS;
                long slot = slot_in(a, now, key, u.kv_head);
                fill(min(AT_ONCE, u.slots() - n), KEYS_FLYING, a.keys + slot * a.head_dim, KEYS * a.head_dim * 2, a.values + slot * a.v_dim, KEYS * a.v_dim * 2);
            }
        }
    }

    DEVICE void read(const Phase* phases, int count) {
        Phase& phase = ((Phase*)(shared + AT_WINDOW))[WINDOW]; // behind the others' phases
        const Info& info = info_of_step();
        constexpr int PIECES = sizeof(Phase) / 16;
        int lane = threadIdx.x % 32;
        uint4 next = lane < PIECES ? ((const uint4*)phases)[lane] : uint4{};
        for (int p = 0; p < count; p++) {
            __syncwarp();
            if (lane < PIECES) {
                ((uint4*)&phase)[lane] = next;
                if (p + 1 < count) next = ((const uint4*)(phases + p + 1))[lane];
            }
            __syncwarp();
            if (phase.kind == ATTEND) read_keys(phase.attend, info);
            if (phase.kind != LINEAR || (phase.linear.outputs_only && info.outputs == 0)) continue;
            switch (phase.shape) {
#define CASE(n, ...) case n: read_linear<__VA_ARGS__>(phase.linear); break;
                LINEARS(CASE)
#undef CASE
            }
        }
    }
};
static_assert(sizeof(Phase) <= 512, "a warp reads a phase at once");
