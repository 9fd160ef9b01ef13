// y = norm(x) * w^T for one token, by all blocks of the fused step: equals Op::Norm, Op::Linear, Op::Gated and Op::Add
// of graph/reference.rs in sequence.
//
// Each block has some tiles of 16 rows. The warps of a block share the chunks of a tile: warp w has chunks w, w + 16,
// ... of every tile, so it prepares these chunks of x for itself and waits for no other warp until the warps' partial
// sums of the rows are added.
//
// With experts it equals Op::ExpertLinear, and with Op::Mix after it: the sum of the results of experts times their
// weights is then one product with the values of all experts, each times the weight of its expert.

#pragma once

#include "linear/step_linear.cuh"
#include "recurrent/conv_column.cuh"
#include "x/step_x.cuh"
#include "weights/placed.cuh"

// total += record * chunk of x for rows g and g + 8, as bits: X is PlanesX or FieldsX.
template <class F, class X> DEVICE void multiply_bits(float (&total)[2], const u8* record, const X& x, int lane) {
    u32 scale = ((const u32*)(record + F::SCALES_AT))[lane / 4];
    float sums[2];
    x.count(sums, record, lane);
    total[0] += low_half(scale) * (x.by * sums[0] + x.sum);
    total[1] += high_half(scale) * (x.by * sums[1] + x.sum);
}

// The same as bytes: lane q = 0 gets the sums. `sums` are those of 16 columns of x.
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
            int d[4] = {0, 0, 0, 0}; // for every other step, so that consecutive products are independent
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

// What a lane has of its warp's chunks of x: in registers if they are few.
template <class L> struct XRegisters {
    typedef typename L::A::F F; // of bits: the format of all parts
    static constexpr bool PLANES = x_order<L>() == X_PLANES, PLACED = x_order<L>() == X_PLACED,
                          FIELDS = x_order<L>() == X_FIELDS;
    static constexpr bool REGISTERS = !FIELDS && (PLANES   ? PlanesX<F>::REGISTERS
                                                  : PLACED ? 10
                                                           : 9) *
                                                         L::ROUNDS <=
                                                     24; // more are spilled, and loading those takes longer
    static constexpr int HELD = REGISTERS ? L::ROUNDS : 1;
    PlanesX<F> planes[PLANES ? HELD : 1];
    FieldsX fields;
    u32 b[PLANES ? 1 : HELD][8];
    float scale[PLANES ? 1 : HELD], sum[PLACED ? HELD : 1];

    DEVICE void load(const X& x, int round, int at, int lane, int warp) {
        int chunk = round * WARPS + warp;
        if (!L::FULL && chunk >= L::CHUNKS) return;
        if constexpr (PLANES) {
            planes[at].load(x.bytes + chunk * 256, x.scales[chunk], lane);
        } else if constexpr (FIELDS) {
            fields.load(x.bytes + chunk * FieldsX::BYTES, lane);
        } else {
            load_x(b[at], x.bytes + chunk * 256, lane);
            scale[at] = x.scales[chunk];
            if (PLACED) sum[at] = x.sums[chunk];
        }
    }

    DEVICE XRegisters(const X& x, int lane, int warp) {
        if constexpr (REGISTERS)
#pragma unroll
            for (int round = 0; round < L::ROUNDS; round++) load(x, round, round, lane, warp);
    }
};

// The warp's partial sums of N tiles, one or two, as they come through the ring; `out` gets them by row.
template <class F, class L, int N>
DEVICE void run_tiles(Ring& ring, XRegisters<L>& held, const X& x, float* out, int lane, int warp) {
    int g = lane / 4, q = lane % 4;
    float total[N][2] = {};
    constexpr int SHARES = WARPS / L::SLOT_WARPS; // slots of a round
    int share = SHARES > 1 ? warp / L::SLOT_WARPS : 0, in_slot = SHARES > 1 ? warp % L::SLOT_WARPS : warp;
#pragma unroll(XRegisters<L>::REGISTERS ? (L::PIECES + SHARES - 1) / SHARES : 1)
    for (int piece = 0; piece < L::PIECES; piece += SHARES) {
        int slots = min(SHARES, L::PIECES - piece);
        bool has = L::PIECES % SHARES == 0 || share < slots;
        Ring of[N], mine = SHARES > 1 ? ring.ahead(share * N) : ring;
        const u8* slot[N];
#pragma unroll
        for (int n = 0; n < N; n++, mine = mine.ahead(1))
            of[n] = mine, slot[n] = (has ? mine.wait() : shared) + in_slot * F::BYTES;
        ring = SHARES > 1 ? ring.ahead(slots * N) : mine;
#pragma unroll
        for (int i = 0; i < L::PER_SLOT; i++) {
            int round = piece / SHARES * L::PER_SLOT + i, chunk = round * WARPS + warp,
                at = XRegisters<L>::REGISTERS ? round : 0;
            if (round >= L::ROUNDS || (!L::FULL && chunk >= L::CHUNKS)) break;
            if (!XRegisters<L>::REGISTERS) held.load(x, round, 0, lane, warp);
            auto multiply_by = [&](float (&sum)[2], const u8* records) {
                const u8* record = records + i * WARPS * F::BYTES;
                if constexpr (F::SIGNS) multiply_bits<F>(sum, record, held.planes[at], lane);
                else if constexpr (XRegisters<L>::FIELDS) multiply_bits<F>(sum, record, held.fields, lane);
                else if constexpr (XRegisters<L>::PLACED)
                    multiply_placed<F, 256>(sum, record, held.b[at], held.scale[at], held.sum[at], lane);
                else multiply_record<F>(sum, record, held.b[at], held.scale[at], x.sums + chunk * 8, lane);
            };
#pragma unroll
            for (int n = 0; n < N; n++) multiply_by(total[n], slot[n]);
        }
        __syncwarp();
        if (lane < SHARES && has) // as many arrivals as warps
#pragma unroll
            for (int n = 0; n < N; n++) of[n].empty().arrive();
    }
#pragma unroll
    for (int n = 0; n < N; n++, out += SHARE_FLOATS) {
        if constexpr (F::SIGNS || XRegisters<L>::FIELDS) {
            bool odd = q % 2; // lanes 0 and 2 of a quad get row g, 1 and 3 row g + 8
            float sum = odd ? total[n][1] : total[n][0];
            sum += __shfl_xor_sync(0xffffffff, odd ? total[n][0] : total[n][1], 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            if (q < 2) out[g + 8 * q] = sum;
        } else if (q == 0) {
            out[g] = total[n][0], out[g + 8] = total[n][1];
        }
    }
}

// The sum of all warps' partial sums of a row, in a fixed order, with factor, scale and bias; `expert` has the row. A
// mixed x has the scales of experts already.
template <class L> DEVICE float whole_row(const Part& part, const float* shares, float factor, int row, int expert) {
    return finished < L::SCALE && !L::MIX,
           L::BIAS && !L::MIX > (part, sum_of_warps([&](int w) { return shares[w * 16]; }), factor, row, expert);
}

// The biases of the chosen experts on a row of their sum, times their weights.
template <class L> DEVICE float mixed_bias(const Part& part, int row) {
    float sum = 0;
    const Choice& choice = choice_of_step();
#pragma unroll
    for (int i = 0; i < L::USED; i++) sum += choice.weight[i] * part.bias[(long)choice.expert[i] * part.rows + row];
    return sum;
}

// What is added to the rows that are written first is copied to shared memory, after the partial sums of their tiles:
// a load into a register would be waited for at once, since products need the registers.
template <class L> DEVICE bool copies_added(const LinearArgs& a) { return L::ADD_MASK && (u64)a.add.at % 16 == 0; }
template <class L> DEVICE u32* copied_added(const X& x, int i) {
    return (u32*)(x.shares + i / 16 * L::EACH * SHARE_FLOATS + WARPS * 16 + i % 16);
} // of the i-th row
template <class L> DEVICE void copy_added(const LinearArgs& a, const X& x, int units, int thread) {
    int i = thread * 4, row = L::first_unit() * 16 + i;
    if (copies_added<L>(a) && i < min(units, Sizes::HELD_TILES / L::EACH) * 16 && row < a.part[0].rows)
        copy16(copied_added<L>(x, i), a.add.at + row);
    committed();
}

// Writes the rows of `units` units from the block's unit `from` on. `bias`, of a sum of experts, is already loaded for
// the first row of a thread, and the convolution of that row has begun.
template <class L> DEVICE void write_rows(const LinearArgs& a, int from, int units, const X& x, u32 epoch, float bias,
                                          ConvColumn& conv, int thread) {
    for (int i = thread; i < units * 16; i += THREADS) {
        int r = i % 16, unit = i / 16, tile;
        int n = L::find((from + unit) * L::EACH, tile);
        const Part& part = a.part[n];
        int row = tile * 16 + r, index = 0, expert = 0;
        if (row >= part.rows) continue;
        if (L::USED > 0 && !L::MIX)
            index = L::chosen_of((from + unit) * L::EACH), expert = choice_of_step().expert[index];
        const float* add = a.add.at + row;
        bool again = from > 0 || i >= THREADS;
        Added<L> added;
        if (L::ADD && from == 0 && copies_added<L>(a)) added.bits = *copied_added<L>(x, i);
        else if (L::ADD) added.load(add);
        if (L::MIX && L::BIAS && again) bias = mixed_bias<L>(part, row);
        float factor = 1;
        if (L::NORM) factor = rsqrtf(sum_of_warps([&](int w) { return x.squares[w]; }) * (1.f / L::COLS) + a.norm.eps);
        const float* shares = x.shares + unit * L::EACH * SHARE_FLOATS + r;
        float y = whole_row<L>(part, shares, factor, row, expert);
        if (L::GATED)
            y = activate(L::GATED - 1, y, whole_row<L>(a.part[1], shares + SHARE_FLOATS, factor, row, expert), a.limit);
        if (L::MIX && L::BIAS) y += bias;
        if (L::ADD) y += added.get(add, epoch);
        if (L::CONV && n == 0) {
            const ConvArgs& c = a.conv;
            if (again) conv.begin(c, info_of_step(), row);
            y = conv.end(c, info_of_step(), row, y);
        }
        store_tagged(part.y + index * part.rows + row, y, part.y_mask, epoch);
    }
}

// Runs one phase, from a position of the ring on; returns the position after it.
template <class L> DEVICE Ring linear(int p, Ring ring) {
    const LinearArgs& a = phase_at_hand(p).linear;
    const Info& info = info_of_step();
    int units = L::units();
    int thread = fixed_thread(), lane = thread % 32, warp = thread / 32;
    if (units == 0 || (L::OUTPUTS && info.outputs == 0)) return ring;
    X x;
    u32 epoch = info.epoch;
    if (L::ADD) copy_added<L>(a, x, units, thread);
    int row = L::first_unit() * 16 + thread;
    bool real = thread < units * 16 && row < a.part[0].rows; // most phases have one row per thread
    float bias = L::MIX && L::BIAS && real ? mixed_bias<L>(a.part[0], row) : 0.f;
    ConvColumn conv;
    if constexpr (L::CONV) {
        // of the rows that are written first only: it moves the rows of the state, which must happen once
        constexpr int MOST = L::SHARE + 1, FIRST = Sizes::HELD_TILES / L::EACH;
        int first = MOST > FIRST ? min(units, FIRST) : units;
        int tile, n = L::find(thread / 16, tile), column = tile * 16 + thread % 16;
        if (thread < first * 16 && n == 0 && column < a.part[0].rows) conv.begin(a.conv, info, column);
    }
    prepare_x<L>(a, info, x, epoch, lane, warp);
    finish_x<L>(x, lane, warp);
    XRegisters<L> held(x, lane, warp);
    float* mine = x.shares + warp * 16;
    for (int from = 0; from < units; from += Sizes::HELD_TILES / L::EACH) {
        int now = min(units - from, Sizes::HELD_TILES / L::EACH), tiles = now * L::EACH;
        if (from) sync_threads<THREADS>(); // the memory of the partial sums is used again
        run_units<L>(from, tiles, mine, SHARE_FLOATS, [&](auto format, auto count, float* out) {
            run_tiles<typename decltype(format)::Is, L, decltype(count)::VALUE>(ring, held, x, out, lane, warp);
        });
        if (L::ADD) arrived<0>();
        sync_threads<THREADS>();
        write_rows<L>(a, from, now, x, epoch, bias, conv, thread);
    }
    return ring;
}
