// layernorm forward, rung 5: vectorized (128-bit) loads and stores
// Before: in rung 4, one instruction moves 2 or 4 bytes per lane.
// Change: a lane takes VECTOR neighbouring channels, and moves them with one 16-byte (128-bit)
//         instruction.
// Expect: 4 to 8 times fewer memory instructions for the same sectors. More bytes per warp are in
//         flight (requested and not yet there), which is what hides the latency of memory.
// Needs:  C % vector == 0
// Define: ROWS = 4
// Launch: layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// After:  4
// Left:   the row is read again for the output, and Welford's divisions form a chain -> rung 6.

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
    int lane = lane_id();
    int row = blockIdx.x * ROWS + warp_id();
    if (row >= N) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* x = inp + (size_t)row * C;  // (C)
    real* y = out + (size_t)row * C;        // (C)

    // Of the channels that this lane has read: their number, mean, and squared distances from it.
    float count = 0.0f, lane_mean = 0.0f, squares = 0.0f;
    for (int i = lane * VECTOR; i < C; i += WARP_SIZE * VECTOR) {
        Vec xs = load_vec(x + i);
        for (int k = 0; k < VECTOR; k++) {
            float value = to_float(xs[k]);
            float before = value - lane_mean;
            count += 1.0f;
            lane_mean += before / count;
            squares += before * (value - lane_mean);
        }
    }
    // Of the row: the squared distances within the lanes, plus those of the means of the lanes.
    float m = warp_sum(count * lane_mean) / C;
    squares += count * (lane_mean - m) * (lane_mean - m);
    float r = rsqrtf(warp_sum(squares) / C + EPS);

    for (int i = lane * VECTOR; i < C; i += WARP_SIZE * VECTOR) {
        Vec xs = load_vec(x + i), w = load_vec(weight + i), b = load_vec(bias + i), ys;
        for (int k = 0; k < VECTOR; k++) {
            float normalised = (to_float(xs[k]) - m) * r;
            ys[k] = to_real(normalised * to_float(w[k]) + to_float(b[k]));
        }
        store_vec(y + i, ys);
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}
