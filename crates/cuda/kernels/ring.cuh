// All that a step reads from memory, weights and keys and values, comes through a ring of SLOTS slots in shared memory: a
// warp of its own reads, phase after phase, as far ahead as there is room, so that memory is read while x is made and
// blocks wait for each other.

extern __shared__ __align__(16) u8 shared[];

struct StepArgs {
    const Phase* phases;
    u32* inputs;
    const float* freqs[4]; // rotary tables
    int pairs[4], tables;
    int count; // phases
    u32 mark;  // of this step's values
};

// What every phase wants to know of the step, in shared memory: a trip to the inputs takes as long as a phase should.
struct Info {
    int tokens, outputs;
    u32 mark;
    int pad;
    int position[4], output_row[4];
    int first[4]; // the position from which on a token's keys are made in this step
    const u32* pages[4];
};

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

    // A warp is done with a slot that it has waited for.
    DEVICE void release() const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) empty().arrive();
    }

    // The same for so many warps, where others had no use for the slot.
    DEVICE void release_for(int warps) const {
        __syncwarp();
        if (threadIdx.x % 32 < warps) empty().arrive();
    }
};

// The tiles of a phase that are this block's, in the order in which they come through the ring: a block has some units,
// which are tiles, or pairs of tiles where two parts are gated.
struct Tiles {
    int first, units; // of the block
    int part, tile, left;

    DEVICE Tiles(const LinearArgs& a) {
        int block = blockIdx.x;
        first = block * a.share + min(block, a.extra);
        units = a.share + (block < a.extra);
        left = a.gated ? 2 * units : units;
        part = 0, tile = first;
        if (!a.gated && units) find(a, first, part, tile);
    }

    // The part and its tile behind one of the phase's tiles.
    static DEVICE void find(const LinearArgs& a, int number, int& part, int& tile) {
        part = 0, tile = number;
        while (tile >= a.part[part].tiles) tile -= a.part[part].tiles, part++;
    }

    DEVICE void next(const LinearArgs& a) {
        left--;
        if (a.gated) part ^= 1, tile += part == 0;
        else if (++tile == a.part[part].tiles) tile = 0, part++;
    }
};

// A block's share of attention: some query heads of one key head of one token, over a split of the keys that were there
// before this step. The last split has the keys of this step too.
constexpr int SPLIT_KEYS = 512; // fewer are not worth a second block
constexpr int KEYS = 16;        // in a slot

struct Unit {
    int token, kv_head, group, split, splits, index; // index: of token, key head and group
    int from;       // the first key that the token sees
    int begin, end; // of the split; it begins at a multiple of KEYS

    DEVICE int slots() const { return max(0, end - begin + KEYS - 1) / KEYS; }
};

// The units of attention, in the order in which blocks take them.
struct Units {
    int heads, most_splits, number;

    DEVICE Units(const AttendArgs& a, const Info& info) {
        heads = a.kv_heads * a.groups;
        most_splits = max(1, (int)gridDim.x / (info.tokens * heads));
        number = blockIdx.x;
    }

    // The block's next unit that has something to do.
    DEVICE bool next(Unit& u, const AttendArgs& a, const Info& info) {
        for (; number < info.tokens * heads * most_splits; number += gridDim.x) {
            // splits of one head lie far apart: with few keys there is one split, and every block's first unit is one
            int head = number % heads, rest = number / heads;
            u.token = rest % info.tokens, u.split = rest / info.tokens;
            u.kv_head = head / a.groups, u.group = head % a.groups, u.index = u.token * heads + head;
            int first = info.first[u.token];
            u.from = a.window > 0 ? max(0, info.position[u.token] + 1 - a.window) : 0;
            int base = min(u.from, first) / KEYS * KEYS, old = (first - base + KEYS - 1) / KEYS; // in slots
            u.splits = max(1, min(most_splits, (old * KEYS + SPLIT_KEYS - 1) / SPLIT_KEYS));
            if (u.split >= u.splits) continue;
            int each = (old + u.splits - 1) / u.splits * KEYS;
            u.begin = base + u.split * each, u.end = min(first, u.begin + each);
            number += gridDim.x;
            return true;
        }
        return false;
    }
};

// Reads everything, in order: one warp's work.
struct Reader {
    Ring ring;

    // The next slot, empty.
    DEVICE u8* begin(int bytes) {
        ring.empty().wait((ring.round & 1) ^ 1);
        ring.full().expect(bytes);
        return ring.slot();
    }

    DEVICE void end() { ring.full().copied(), ring.next(); }

    DEVICE void read_linear(const LinearArgs& a) {
        // norms have weights too: each block asks for some, so that they are near when all want them
        if (a.norm.kind)
            for (int i = blockIdx.x * 32; i < a.cols; i += gridDim.x * 32) prefetch(a.norm.weight + i);
        for (Tiles tiles(a); tiles.left; tiles.next(a)) {
            const Part& part = a.part[tiles.part];
            const u8* from = part.records + (long)tiles.tile * a.chunks * part.bytes;
            for (int chunk = 0; chunk < a.chunks; chunk += part.per_slot * WARPS) {
                int bytes = min(a.chunks - chunk, part.per_slot * WARPS) * part.bytes;
                ring.full().copy(begin(bytes), from, bytes);
                from += bytes;
                end();
            }
        }
    }

    DEVICE void read_keys(const AttendArgs& a, const Info& info) {
        Unit u;
        int lane = threadIdx.x % 32, page = 0;
        for (Units units(a, info); units.next(u, a, info);) {
            const u32* pages = info.pages[u.token];
            int first_page = u.begin / PAGE_LEN;
            for (int i = 0; i < u.slots(); i++) {
                int key = u.begin + i * KEYS, at = key / PAGE_LEN - first_page;
                if (at % 32 == 0 && key % PAGE_LEN == (i == 0 ? u.begin % PAGE_LEN : 0)) { // the next 32 pages
                    int mine = first_page + at + lane;
                    page = mine * PAGE_LEN < u.end ? pages[mine] : 0;
                }
                long slot = ((long)__shfl_sync(0xffffffff, page, at % 32) * a.kv_heads + u.kv_head) * PAGE_LEN + key % PAGE_LEN;
                int k_bytes = KEYS * a.head_dim * 2, v_bytes = KEYS * a.v_dim * 2;
                u8* to = begin(k_bytes + v_bytes);
                ring.full().copy(to, a.keys + slot * a.head_dim, k_bytes);
                ring.full().copy(to + k_bytes, a.values + slot * a.v_dim, v_bytes);
                end();
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
            if (phase.kind == LINEAR && (!phase.linear.outputs_only || info.outputs > 0)) read_linear(phase.linear);
            if (phase.kind == ATTEND) read_keys(phase.attend, info);
        }
    }
};
static_assert(SLOTS <= 64 && sizeof(Phase) <= 512, "a warp reads a phase at once");
