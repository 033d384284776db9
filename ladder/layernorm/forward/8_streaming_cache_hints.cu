// layernorm forward, rung 8: streaming (evict-first) cache hints
// Before: the rows of rung 7b pass through the caches. What is read or written last stays in them
//         longest, although this kernel does not read it again.
// Change: inp is loaded and out is stored with the streaming hint: the caches evict these lines
//         first. A block keeps rung 7b's two rows.
// Expect: the same bytes. The caches write these lines back early, while there is bandwidth to
//         spare, and not during the next kernel.
// Needs:  C % vector == 0; ROW_VECTORS <= 16
// Define: ROWS = 2; CHANNELS = C; ROW_VECTORS = ceil_div(C, vector * warp)
// Launch: layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// After:  7b
// Left:   a block ends after ROWS rows, and the next one copies weight and bias again -> rung 9.

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
        xs[j] = load_vec_streaming(x + i);
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
        store_vec_streaming(y + i, ys);
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}
