// Matrices per head that a token decays, adds to and reads: the delta rule and Mamba-2 scans. They equal Op::Delta and
// Op::Scan of graph/reference/recurrent.rs.
//
// Sizes: as in state_matrix.cuh, PADDED_STATE_ROWS, and STATE_TILE, bytes of what the tokens of a tile need.

#include "base/tagged.cuh"
#include "base/phase.cuh"
#include "recurrent/slice_state.cuh"
#include "recurrent/state_matrix.cuh"

// A block has STATE_COLUMNS columns of one head's matrix in one slice (state_matrix.cuh). In prefill they stay in
// registers while the tokens of the slice pass, T at a time through shared memory.

// What the tokens of a tile need, in shared memory.
template <int T> struct StateTile {
    static constexpr int PADDED_ROWS = Sizes::PADDED_STATE_ROWS;
    float key[T][PADDED_ROWS], query[T][PADDED_ROWS];
    float value[T][STATE_COLUMNS];
    float decay[T], strength[T];
    float key_factor[T], query_factor[T], product[T]; // norms of key and query, and their product

    // Asynchronously if rows are in whole pieces of 16 bytes.
    DEVICE void load(const RecurrentArgs& a, int token, int tokens, int head, int column) {
        int key_head = key_head_of(a, head);
        const float* from = row_of(a.x, token);
        int columns = min(STATE_COLUMNS, a.cols - column);
        if (a.aligned) {
            for (int i = threadIdx.x; i < tokens * (STATE_ROWS / 4); i += STATE_THREADS) {
                int t = i / (STATE_ROWS / 4), row = i % (STATE_ROWS / 4) * 4;
                copy16(&key[t][row], from + t * a.x.stride + a.key_at + key_head * STATE_ROWS + row);
                copy16(&query[t][row], from + t * a.x.stride + a.query_at + key_head * STATE_ROWS + row);
            }
            for (int i = threadIdx.x; i < tokens * (STATE_COLUMNS / 4); i += STATE_THREADS) {
                int t = i / (STATE_COLUMNS / 4), k = i % (STATE_COLUMNS / 4) * 4;
                if (k < columns) copy16(&value[t][k], from + t * a.x.stride + a.value_at + head * a.cols + column + k);
            }
        } else {
            for (int i = threadIdx.x; i < tokens * STATE_ROWS; i += STATE_THREADS) {
                int t = i / STATE_ROWS, row = i % STATE_ROWS;
                key[t][row] = load_float(from + t * a.x.stride + a.key_at + key_head * STATE_ROWS + row);
                query[t][row] = load_float(from + t * a.x.stride + a.query_at + key_head * STATE_ROWS + row);
            }
            for (int i = threadIdx.x; i < tokens * STATE_COLUMNS; i += STATE_THREADS) {
                int t = i / STATE_COLUMNS, k = i % STATE_COLUMNS;
                if (k < columns)
                    value[t][k] = load_float(from + t * a.x.stride + a.value_at + head * a.cols + column + k);
            }
        }
        committed();
    }

    // Rows after the last one are zero.
    DEVICE void clear() {
        constexpr int REST = PADDED_ROWS - STATE_ROWS;
        for (int i = threadIdx.x; i < T * REST; i += STATE_THREADS)
            key[i / max(REST, 1)][STATE_ROWS + i % max(REST, 1)] =
                query[i / max(REST, 1)][STATE_ROWS + i % max(REST, 1)] = 0.f;
        for (int i = threadIdx.x; i < T * STATE_COLUMNS; i += STATE_THREADS)
            value[i / STATE_COLUMNS][i % STATE_COLUMNS] = 0.f;
    }

    // Norms and products of what has arrived, in the order of advance_token: a token has the lanes of a column.
    template <bool DELTA> DEVICE void measure(const RecurrentArgs& a, int tokens) {
        constexpr int AT_ONCE = STATE_THREADS / Sizes::STATE_LANES;
        int part = threadIdx.x % Sizes::STATE_LANES, own = threadIdx.x / Sizes::STATE_LANES;
        for (int first = 0; first < tokens; first += AT_ONCE) { // the lanes of a warp sum together
            int t = min(first + own, tokens - 1);
            float4 k[QUADS], q[QUADS];
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++) {
                k[quad] = *(const float4*)&key[t][(quad * Sizes::STATE_LANES + part) * 4];
                q[quad] = *(const float4*)&query[t][(quad * Sizes::STATE_LANES + part) * 4];
            }
            float both = product_of(k, q), keys = 1, queries = 1;
            if (DELTA)
                keys = key_factor_of(product_of(k, k), a.eps), queries = query_factor_of(product_of(q, q), a.eps);
            if (part == 0 && first + own < tokens)
                key_factor[t] = keys, query_factor[t] = queries, product[t] = both * keys * queries;
        }
    }
};

static_assert(sizeof(StateTile<STATE_TOKENS>) == Sizes::STATE_TILE && Sizes::STATE_TILE % 16 == 0,
              "the host reserves shared memory for two");

// Decay and strength of a token, by one thread.
struct TokenGate {
    float gate, beta;

    template <bool DELTA> DEVICE void load(const RecurrentArgs& a, int token, int head) {
        gate = load_float(row_of(a.gate, token) + head);
        beta = DELTA ? load_float(row_of(a.beta, token) + head) : 0.f;
    }

    template <bool DELTA, int T> DEVICE void store(const RecurrentArgs& a, StateTile<T>& tile, int t, int head) {
        float2 gates = gates_of<DELTA>(HeadWeights(a, head), gate, beta);
        tile.decay[t] = gates.x, tile.strength[t] = gates.y;
    }
};

template <bool DELTA, int T> DEVICE void advance(const RecurrentArgs& a) {
    extern __shared__ __align__(16) u8 shared_bytes[];
    StateTile<T>* tiles = (StateTile<T>*)shared_bytes; // two
    int slice = blockIdx.y, blocks = (a.cols + STATE_COLUMNS - 1) / STATE_COLUMNS, head = blockIdx.x / blocks;
    if (slice >= a.inputs[SLICE_COUNT]) return wait_for_launches();
    SliceState s = state_of(a.inputs, slice);
    int base = blockIdx.x % blocks * STATE_COLUMNS, part = threadIdx.x % Sizes::STATE_LANES;
    int own = threadIdx.x / Sizes::STATE_LANES * 2, column = base + own; // two columns from here on
    StateColumns state;
    state.load(a, s.read, head, column);
    tiles[0].clear(), tiles[1].clear();
    float skip = DELTA ? 0.f : a.skip[head];
    wait_for_launches();
    __syncthreads();
    tiles[0].load(a, s.first, min(T, s.tokens), head, base);
    TokenGate gate = {};
    if (threadIdx.x < min(T, s.tokens)) gate.load<DELTA>(a, s.first + threadIdx.x, head);
    for (int done = 0; done < s.tokens; done += T) {
        StateTile<T>& tile = tiles[done / T % 2];
        int tokens = min(T, s.tokens - done), next = min(T, s.tokens - done - tokens);
        if (threadIdx.x < tokens) gate.store<DELTA, T>(a, tile, threadIdx.x, head);
        if (next > 0) {
            tiles[(done / T + 1) % 2].load(a, s.first + done + T, next, head, base);
            if (threadIdx.x < next) gate.load<DELTA>(a, s.first + done + T + threadIdx.x, head);
            arrived<1>();
        } else {
            arrived<0>();
        }
        __syncthreads();
        tile.template measure<DELTA>(a, tokens);
        __syncthreads();
        for (int t = 0; t < tokens; t++) {
            float4 key[QUADS], query[QUADS];
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++) {
                key[quad] = *(const float4*)&tile.key[t][(quad * Sizes::STATE_LANES + part) * 4];
                query[quad] = *(const float4*)&tile.query[t][(quad * Sizes::STATE_LANES + part) * 4];
            }
            float known[2] = {}, sum[2] = {};
            if (DELTA) state.dot(known, key);
            state.dot(sum, query);
            float decay = tile.decay[t], strength = tile.strength[t], key_factor = tile.key_factor[t];
            float of_query = decay * tile.query_factor[t], product = tile.product[t];
            float y[2], added[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float value = tile.value[t][own + c];
                float d = DELTA ? strength * (value - decay * key_factor * known[c]) : strength * value;
                y[c] = of_query * sum[c] + product * d;
                if (!DELTA) y[c] += skip * value;
                added[c] = key_factor * d;
            }
            state.add(decay, key, added);
            if (part < 2 && column + part < a.cols)
                row_of(a.y, s.first + done + t)[head * a.cols + column + part] = part ? y[1] : y[0];
        }
        __syncthreads(); // the buffer is free
    }
    state.store(a, s.write, head, column);
}

// Each slice has one token.
template <bool DELTA> DEVICE void decode(const RecurrentArgs& a) {
    int blocks = (a.cols + STATE_COLUMNS - 1) / STATE_COLUMNS;
    if (blockIdx.y >= a.inputs[SLICE_COUNT]) return wait_for_launches();
    advance_token<DELTA, false>(a, state_of(a.inputs, blockIdx.y), blockIdx.x / blocks,
                                blockIdx.x % blocks * STATE_COLUMNS + threadIdx.x / 32 * COLUMNS_OF_WARP, 0);
}

extern "C" __global__ void __launch_bounds__(STATE_THREADS) delta_prefill(const __grid_constant__ RecurrentArgs a) {
    begin_next_launch();
    advance<true, STATE_TOKENS>(a);
}

extern "C" __global__ void __launch_bounds__(STATE_THREADS) delta_decode(const __grid_constant__ RecurrentArgs a) {
    begin_next_launch();
    decode<true>(a);
}

extern "C" __global__ void __launch_bounds__(STATE_THREADS) scan_prefill(const __grid_constant__ RecurrentArgs a) {
    begin_next_launch();
    advance<false, STATE_TOKENS>(a);
}

extern "C" __global__ void __launch_bounds__(STATE_THREADS) scan_decode(const __grid_constant__ RecurrentArgs a) {
    begin_next_launch();
    decode<false>(a);
}
