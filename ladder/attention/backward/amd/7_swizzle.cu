// attention backward, amd rung 7: swizzled shared memory
// Before: rung 6 pads rows, so that 8 consecutive ones lie in different banks. But 8 lanes that
//         store have every second row, and lanes that store pairs have rows 8 apart: these share
//         banks.
// Change: no padding. Within each line of 128 bytes, all banks once, the pieces of 16 bytes change
//         places: piece p of line l goes to (p ^ l ^ l / 8) % 8.
// Expect: stores to shared memory in half the time, without bank conflicts; loads have none either.
//         A block has 2 to 3 KB less of shared memory.
// Needs:  real in (float16, bfloat16); cdna >= 2 or rdna >= 3; HS <= 64; HS % vector == 0
// Define: HS = C // NH; WIDTH = ceil_div(HS, warp) * warp; WARPS = 4; TILE = 16 * WARPS;
//         DEPTH = 32; SIDE = 16; ROWS = 4
// Launch: attention_backward_delta<<<(B * NH, ceil_div(T, ROWS)), ROWS * warp>>>
// Launch: attention_backward_dkdv<<<(B * NH, ceil_div(T, TILE)), WARPS * warp>>>
// Launch: attention_backward_dq<<<(B * NH, ceil_div(T, TILE)), WARPS * warp>>>
// Scratch: float32 delta[B, NH, T]
// Rounds: probs and dscores, factors of the gradients
// After:  amd-6
// Left:   the matrix cores starve for data while the next tiles are loaded -> rung 8.

#include "fast_math.cuh"
#include "hip/matrix_core.cuh"

constexpr int PAIRS = DEPTH / 2;  // of neighbouring rows in a tile

struct alignas(RUN * sizeof(real)) Run { real at[RUN]; };  // one store
struct alignas(4) Pair { real low, high; };                // neighbouring rows
struct alignas(16) Floats { float at[4]; };                // one load

// Swizzle: the position of a 16-byte piece of a tile. Eight pieces are a line, all banks once.
__device__ __forceinline__ int swizzle(int piece) {
    int line = piece / 8;
    return (line * 8 + (piece ^ line ^ line / 8) % 8) * VECTOR;
}

// The position of 16-byte piece p of a row in a tile, and in a transposed one.
__device__ __forceinline__ int place(int row, int p) { return swizzle(row * WIDTH / VECTOR + p); }
__device__ __forceinline__ int place_t(int row, int p) { return swizzle(row * DEPTH / VECTOR + p); }

// Computes delta (B, NH, T) = sum of dout * out over the channels.
extern "C" __global__ void attention_backward_delta(
    real* __restrict__ dqkv,        // (B, T, 3, NH, HS)
    const real* __restrict__ dout,  // (B, T, NH, HS)
    const real* __restrict__ qkv,   // (B, T, 3, NH, HS)
    const real* __restrict__ out,   // (B, T, NH, HS)
    const float* __restrict__ lse,  // (B, NH, T)  log-sum-exp of each query's scores
    int B, int T, int C, int NH,
    float* __restrict__ delta) {    // (B, NH, T)
    int query = blockIdx.y * ROWS + warp_id();
    if (query >= T) return;  // whole warps return, so no shuffle below misses a lane
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    size_t at = ((size_t)b * T + query) * C + h * HS;
    float sum = 0.0f;
    for (int i = lane_id(); i < HS; i += WARP_SIZE) {
        sum += to_float(dout[at + i]) * to_float(out[at + i]);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) delta[(size_t)blockIdx.x * T + query] = sum;
}

// Copies DEPTH rows of one head, from row `first` on, to shared memory. Rows past T and channels
// past HS become zeros. A thread has the same channels of two neighbouring rows, which it also
// stores in pairs to `transposed`, unless that is null. There, the rows are in chain_order.
__device__ __forceinline__ void load_tile(real* tile /* (DEPTH, WIDTH) */,
                                          real* transposed /* (WIDTH, DEPTH) */,
                                          const real* head /* (T, HS), rows `step` apart */,
                                          int first, int T, int step) {
#pragma unroll
    for (int t = threadIdx.x; t < PAIRS * WIDTH / VECTOR; t += WARPS * WARP_SIZE) {
        int row = t % PAIRS * 2, i = t / PAIRS * VECTOR;
        Vec v[2] = {};
        for (int r = 0; r < 2; r++) {
            if (first + row + r < T && i < HS) {
                v[r] = load_vec(head + (size_t)(first + row + r) * step + i);
            }
            store_vec(tile + place(row + r, i / VECTOR), v[r]);
        }
        if (!transposed) continue;
        int order = chain_order(row);
        for (int j = 0; j < VECTOR; j++) {
            real* to = transposed + place_t(i + j, order / VECTOR) + order % VECTOR;
            *reinterpret_cast<Pair*>(to) = {v[0][j], v[1][j]};
        }
    }
}

// d (STEP, 16) += tile (STEP, WIDTH) @ b.T, with the rows of the tile from `row` on.
__device__ __forceinline__ void add_rows(Accumulator (&d)[STEP / 16], const real* tile, int row,
                                         const Fragment (&b)[WIDTH / STEP] /* (16, WIDTH) */) {
#pragma unroll
    for (int n = 0; n < STEP / 16; n++) {
#pragma unroll
        for (int i = 0; i < WIDTH / STEP; i++) {
            multiply_add(d[n], load_a<place>(tile, row + n * 16, i * STEP), b[i]);
        }
    }
}

// d (WIDTH, 16) += transposed (WIDTH, STEP) @ b, with b rounded to real, and with the columns of
// the tile from `row` on.
__device__ __forceinline__ void add_channels(Accumulator (&d)[WIDTH / 16], const real* transposed,
                                             int row, const Accumulator (&b)[STEP / 16]) {
    Fragment rounded = chain(b);
#pragma unroll
    for (int c = 0; c < WIDTH / 16; c++) {
        multiply_add(d[c], load_a<place_t>(transposed, c * 16, row), rounded);
    }
}

// Loads 16 rows of one head as fragments of B, STEP channels each. This lane has row `row`. Rows
// past T and channels past HS become zeros.
__device__ __forceinline__ void load_rows(Fragment (&b)[WIDTH / STEP],
                                          const real* head /* (T, HS), rows `step` apart */,
                                          int row, int T, int step) {
#pragma unroll
    for (int i = 0; i < WIDTH / STEP; i++) {
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            int channel = i * STEP + (PIECES == 2 ? p : lane_id() / SIDE) * VECTOR;
            b[i].piece[p] = {};
            if (row < T && channel < HS) {
                const real* from = head + (size_t)row * step + channel;
                b[i].piece[p] = *reinterpret_cast<const uint4*>(from);
            }
        }
    }
}

// Stores d (WIDTH, 16) * factor as rows of one head, of which this lane has row `row`.
__device__ __forceinline__ void store_rows(real* head, const Accumulator (&d)[WIDTH / 16],
                                           float factor, int row, int T, int step) {
    if (row >= T) return;
#pragma unroll
    for (int c = 0; c < WIDTH / 16; c++) {
#pragma unroll
        for (int e = 0; e < EACH; e += RUN) {
            if (c * 16 + d_row(e) >= HS) break;
            Run run;
            for (int j = 0; j < RUN; j++) run.at[j] = to_real(d[c][e + j] * factor);
            *reinterpret_cast<Run*>(head + (size_t)row * step + c * 16 + d_row(e)) = run;
        }
    }
}

// Computes dk and dv of TILE keys.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) attention_backward_dkdv(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, int B, int T, int C, int NH,
    float* __restrict__ delta) {
    __shared__ alignas(16) real q[DEPTH * WIDTH];  // (DEPTH, WIDTH)
    __shared__ alignas(16) real q_t[WIDTH * DEPTH];  // (WIDTH, DEPTH)  transposed
    __shared__ alignas(16) real dy[DEPTH * WIDTH];  // (DEPTH, WIDTH)  of dout
    __shared__ alignas(16) real dy_t[WIDTH * DEPTH];
    __shared__ alignas(16) float log_sums[DEPTH], deltas[DEPTH];  // lse to base 2, and delta
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = blockIdx.y * TILE;                  // blocks with most queries start first
    int key = first + warp_id() * 16 + d_column();  // this lane's
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;   // (T, HS)  q; rows 3 * C apart
    const real* head_out = dout + (size_t)b * T * C + h * HS;  // (T, HS)  dout; rows C apart
    Fragment k[WIDTH / STEP], v[WIDTH / STEP];
    load_rows(k, head + C, key, T, 3 * C);
    load_rows(v, head + 2 * C, key, T, 3 * C);

    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    Accumulator dk[WIDTH / 16] = {}, dv[WIDTH / 16] = {};  // transposed: 16 channels each
    for (int start = first; start < T; start += DEPTH) {  // earlier queries do not see these keys
        load_tile(q, q_t, head, start, T, 3 * C);
        load_tile(dy, dy_t, head_out, start, T, C);
        if (threadIdx.x < DEPTH) {
            int query = start + threadIdx.x;
            size_t row = (size_t)blockIdx.x * T + query;
            log_sums[threadIdx.x] = query < T ? lse[row] * LOG2_E : INFINITY;  // probs = 0
            deltas[threadIdx.x] = query < T ? delta[row] : 0.0f;
        }
        __syncthreads();  // the tiles are complete before any wave reads them

#pragma unroll 1  // unrolled, it would need more registers
        for (int row = 0; row < DEPTH; row += STEP) {  // of the tile
            Floats log_sum, row_delta;  // of four neighbouring queries
            Accumulator probs[STEP / 16] = {}, dscores[STEP / 16] = {};  // 16 queries each
            add_rows(probs, q, row, k);
            add_rows(dscores, dy, row, v);
#pragma unroll
            for (int n = 0; n < STEP / 16; n++) {
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    int query = row + n * 16 + d_row(e);  // within the tile
                    if (e % 4 == 0) {
                        log_sum = *reinterpret_cast<const Floats*>(log_sums + query);
                        row_delta = *reinterpret_cast<const Floats*>(deltas + query);
                    }
                    float exponent = probs[n][e] * scale - log_sum.at[e % 4];
                    float prob = key <= start + query ? fast_exp2(exponent) : 0.0f;
                    probs[n][e] = prob;
                    dscores[n][e] = prob * (dscores[n][e] - row_delta.at[e % 4]);
                }
            }
            add_channels(dv, dy_t, row, probs);
            add_channels(dk, q_t, row, dscores);
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }
    real* gradient = dqkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  dq; rows 3 * C apart
    store_rows(gradient + C, dk, rsqrtf(HS), key, T, 3 * C);
    store_rows(gradient + 2 * C, dv, 1.0f, key, T, 3 * C);
}

// Computes dq of TILE queries.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) attention_backward_dq(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, int B, int T, int C, int NH,
    float* __restrict__ delta) {
    __shared__ alignas(16) real k[DEPTH * WIDTH];  // (DEPTH, WIDTH)
    __shared__ alignas(16) real k_t[WIDTH * DEPTH];  // (WIDTH, DEPTH)  transposed
    __shared__ alignas(16) real v[DEPTH * WIDTH];  // (DEPTH, WIDTH)
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = (gridDim.y - 1 - blockIdx.y) * TILE;    // blocks with most keys start first
    int query = first + warp_id() * 16 + d_column();    // this lane's
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  q; rows 3 * C apart
    Fragment q[WIDTH / STEP], dy[WIDTH / STEP];
    load_rows(q, head, query, T, 3 * C);
    load_rows(dy, dout + (size_t)b * T * C + h * HS, query, T, C);
    size_t row = (size_t)blockIdx.x * T + min(query, T - 1);
    float log_sum = lse[row] * LOG2_E, row_delta = delta[row];

    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    Accumulator dq[WIDTH / 16] = {};    // transposed: 16 channels each
    int end = min(first + TILE, T);
    for (int start = 0; start < end; start += DEPTH) {  // later keys are in the future
        load_tile(k, k_t, head + C, start, T, 3 * C);
        load_tile(v, nullptr, head + 2 * C, start, T, 3 * C);
        __syncthreads();  // the tiles are complete before any wave reads them

#pragma unroll 1  // unrolled, it would need more registers
        for (int row = 0; row < DEPTH; row += STEP) {  // of the tile
            Accumulator scores[STEP / 16] = {}, dscores[STEP / 16] = {};  // 16 keys each
            add_rows(scores, k, row, q);
            add_rows(dscores, v, row, dy);
#pragma unroll
            for (int n = 0; n < STEP / 16; n++) {
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    int key = start + row + n * 16 + d_row(e);
                    float prob = key <= query ? fast_exp2(scores[n][e] * scale - log_sum) : 0.0f;
                    dscores[n][e] = prob * (dscores[n][e] - row_delta);
                }
            }
            add_channels(dq, k_t, row, dscores);
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }
    store_rows(dqkv + (size_t)b * T * 3 * C + h * HS, dq, rsqrtf(HS), query, T, 3 * C);
}
