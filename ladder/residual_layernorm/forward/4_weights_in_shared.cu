// residual_layernorm forward, rung 4: weights in shared memory while the row is on its way
// Before: rung 3's warps fetch weight and bias for every row, and only once its statistics are
//         known. What they read or write last stays longest in the caches, though nothing asks for
//         it again.
// Change: a block copies weight and bias to shared memory for its ROWS rows. The row's own loads
//         come first: they are under way while the copy, and the barrier behind it, take place.
//         Loads and stores of rows are "streaming": marked as the first to leave the caches.
// Expect: the same bytes; the fetches of weight and bias disappear in a wait that is there anyway.
//         Dirty lines are written back while there is bandwidth to spare.
// Needs:  C % vector == 0; ROW_VECTORS <= 16
// Define: ROWS = 2; CHANNELS = C; ROW_VECTORS = ceil_div(C, vector * warp)
// Launch: residual_layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// After:  3
// Left:   nothing but the bytes: the product before it must add, the one behind it normalise.

#include "portable.cuh"

constexpr float EPS = 1e-5f;  // keeps rstd finite where a row is constant

extern "C" __global__ void residual_layernorm_forward(
    real* __restrict__ residual,      // (N, C)
    real* __restrict__ out,           // (N, C)
    float* __restrict__ mean,         // (N)
    float* __restrict__ rstd,         // (N)  1 / standard deviation
    const real* __restrict__ inp1,    // (N, C)
    const real* __restrict__ inp2,    // (N, C)
    const real* __restrict__ weight,  // (C)
    const real* __restrict__ bias,    // (C)
    int N, int C) {
    C = CHANNELS;  // compiled for this C: loops unroll, bounds that always hold vanish
    int lane = lane_id();
    int row = blockIdx.x * ROWS + warp_id();
    size_t start = (size_t)min(row, N - 1) * C;  // past the last row, that one is loaded once more
    const real* stream = inp1 + start;           // (C)
    const real* branch = inp2 + start;           // (C)
    real* x = residual + start;                  // (C)
    real* y = out + start;                       // (C)

    // Unrolled, as all that follow: an array indexed at run time cannot be in registers.
    Vec xs[ROW_VECTORS], added[ROW_VECTORS];
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane) * VECTOR;
        if (i >= C) break;  // past the row's end
        xs[j] = load_vec_streaming(stream + i);
        added[j] = load_vec_streaming(branch + i);
    }

    __shared__ Vec ws[CHANNELS / VECTOR], bs[CHANNELS / VECTOR];  // (C)  weight, bias
    for (int v = threadIdx.x; v < C / VECTOR; v += ROWS * WARP_SIZE) {
        ws[v] = load_vec(weight + v * VECTOR);
        bs[v] = load_vec(bias + v * VECTOR);
    }
    __syncthreads();  // the copies are complete before any warp reads them

    if (row >= N) return;  // a whole warp leaves, so that no shuffle below misses a lane

    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane) * VECTOR;
        if (i >= C) break;
        for (int k = 0; k < VECTOR; k++) {
            xs[j][k] = to_real(to_float(xs[j][k]) + to_float(added[j][k]));
            sum += to_float(xs[j][k]);  // as rounded: backward must find the mean of what is stored
        }
        store_vec_streaming(x + i, xs[j]);
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
