// layernorm forward, rung 10: double buffering in registers, next row prefetched
// Before: in rung 9, a warp loads a row, waits, reduces and stores. Only then does it load the next
//         row.
// Change: double buffering: the warp first starts the loads of the next row, into a second set of
//         registers. Then it works on the current row.
// Expect: every warp always has a row in flight. The memory is never idle while warps compute.
// Needs:  C % vector == 0; ROW_VECTORS <= 16
// Define: ROWS = 8; CHANNELS = C; ROW_VECTORS = ceil_div(C, vector * warp);
//         BLOCKS = max(1, min(4, 14 // ROW_VECTORS))
// Launch: layernorm_forward<<<min(ceil_div(N, ROWS), BLOCKS * multiprocessors), ROWS * warp>>>
// Pays:   no, it gains nothing over rung 9
// After:  9
// Left:   statistics are stored one by one; back to the small blocks of rung 8 -> rung 11.

#include "portable.cuh"

constexpr float EPS = 1e-5f;  // keeps rstd finite where a row is constant

// Starts the loads of this lane's part of the row x (C).
__device__ __forceinline__ void load_row(Vec (&xs)[ROW_VECTORS], const real* x, int C) {
#pragma unroll  // as all loops over j: an array with a run-time index cannot be in registers
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane_id()) * VECTOR;
        if (i >= C) break;  // past the row's end
        xs[j] = load_vec_streaming(x + i);
    }
}

// The launch bounds limit the registers of a thread, so that BLOCKS blocks fit on an SM at once.
extern "C" __global__ void __launch_bounds__(ROWS * WARP_SIZE, BLOCKS) layernorm_forward(
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

    int stride = gridDim.x * ROWS;
    Vec xs[ROW_VECTORS], next[ROW_VECTORS];
    if (row < N) load_row(next, inp + (size_t)row * C, C);
    for (; row < N; row += stride) {
        real* y = out + (size_t)row * C;  // (C)

#pragma unroll
        for (int j = 0; j < ROW_VECTORS; j++) {
            xs[j] = next[j];
        }
        if (row + stride < N) load_row(next, inp + (size_t)(row + stride) * C, C);

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
}
