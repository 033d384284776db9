// layernorm forward, rung 11: coalesced stores of mean and rstd
// Before: rung 8 (9 and 10 do not pay): each warp stores its own mean and its own rstd, 4 bytes
//         each. At C = 768 in 16 bits, these are two of the eight requests of a row, for 1 part in
//         400 of its bytes, and four blocks write to the same sector of 32 bytes.
// Change: the warps of a block leave their statistics in shared memory, and one warp stores all of
//         them, coalesced. A block has three rows.
// Expect: fewer and wider stores. After the barrier, the rows of the block are stored together.
// Needs:  C % vector == 0; ROW_VECTORS <= 16
// Define: ROWS = 3; CHANNELS = C; ROW_VECTORS = ceil_div(C, vector * warp)
// Launch: layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// After:  8
// Left:   the row is written, and read again by the next layer: fuse it with its neighbours.

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

    // A warp past the last row loads the last row again: it must still reach the barrier below.
    const real* x = inp + (size_t)min(row, N - 1) * C;  // (C)
    real* y = out + (size_t)row * C;                    // (C)

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

    __shared__ float means[ROWS], rstds[ROWS];
    if (lane == 0) {
        means[warp_id()] = m;
        rstds[warp_id()] = r;
    }
    __syncthreads();  // all warps have written their statistics before the first warp reads them
    int writer = threadIdx.x, written = blockIdx.x * ROWS + writer;
    if (writer < ROWS && written < N) {
        mean[written] = means[writer];
        rstd[written] = rstds[writer];
    }
    if (row >= N) return;

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
}
