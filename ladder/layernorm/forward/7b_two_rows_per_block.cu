// layernorm forward, rung 7b: two rows per block
// Before: in rung 7, four warps wait at a block's barrier for the copies of weight and bias.
// Change: a block has two rows instead of four, so that fewer warps wait for each other.
// Expect: shorter waits at the barrier, which is the reason; but each block copies weight and bias,
//         so they are loaded twice as often, mostly from the L2 cache. Little either way.
// Needs:  C % vector == 0; ROW_VECTORS <= 16
// Define: ROWS = 2; CHANNELS = C; ROW_VECTORS = ceil_div(C, vector * warp)
// Launch: layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// Pays:   no, the warps of other blocks already fill the time at the barrier.
// After:  7
// Left:   every row displaces other data from the caches -> rung 8.

#include "portable.cuh"

constexpr float EPS = 1e-5f;  // keeps rstd finite where a row is constant

extern "C" __global__ void layernorm_forward(
    real* __restrict__ out,           // (N, C)
    float* __restrict__ mean,         // (N)
    float* __restrict__ rstd,         // (N)  1 / standard deviation
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (C)
    const real* __restrict__ bias,    // (C)
    int N, int C) {
    C = CHANNELS;  // a compile-time constant: loops unroll, checks that always hold vanish
    int lane = lane_id();
    int row = blockIdx.x * ROWS + warp_id();

    __shared__ Vec ws[CHANNELS / VECTOR], bs[CHANNELS / VECTOR];  // (C)  weight, bias
    for (int v = threadIdx.x; v < C / VECTOR; v += ROWS * WARP_SIZE) {
        ws[v] = load_vec(weight + v * VECTOR);
        bs[v] = load_vec(bias + v * VECTOR);
    }
    __syncthreads();  // the copies are complete before any warp reads them

    if (row >= N) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* x = inp + (size_t)row * C;  // (C)
    real* y = out + (size_t)row * C;        // (C)

    // All loops over j are unrolled: an array with a run-time index cannot be in registers.
    Vec xs[ROW_VECTORS];
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane) * VECTOR;
        if (i >= C) break;  // past the row's end
        xs[j] = load_vec(x + i);
    }

    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane) * VECTOR;
        if (i >= C) break;
        for (int k = 0; k < VECTOR; k++) {
            sum += to_float(xs[j][k]);
        }
    }
    float m = warp_sum(sum) * (1.0f / CHANNELS);

    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane) * VECTOR;
        if (i >= C) break;
        for (int k = 0; k < VECTOR; k++) {
            float centred = to_float(xs[j][k]) - m;
            squares += centred * centred;
        }
    }
    float r = rsqrtf(warp_sum(squares) * (1.0f / CHANNELS) + EPS);

#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane) * VECTOR;
        if (i >= C) break;
        Vec w = ws[i / VECTOR], b = bs[i / VECTOR], ys;
        for (int k = 0; k < VECTOR; k++) {
            float normalised = (to_float(xs[j][k]) - m) * r;
            ys[k] = to_real(normalised * to_float(w[k]) + to_float(b[k]));
        }
        store_vec(y + i, ys);
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}
