// dropout_residual_layernorm backward, rung 3: half a warp per row, atomics for the sums
// Before: in rung 2, a warp has one row: with 384 channels in 16 bits, half of its lanes are idle
//         for half of each loop. And a second kernel adds up what every block has summed for
//         dweight and dbias.
// Change: where C is small, half a warp has a row, as in forward rung 3. A block adds its sums to
//         dweight and dbias by atomics, which L2 carries out. A block has 8 warps instead of 4, so
//         that there are half as many sums.
// Expect: three quarters of the instructions at C = 384, and one launch less. The atomics, 2*C for
//         each block, come to some 200,000, and fall together at the end.
// Needs:  C % vector == 0; ROW_VECTORS * vector <= 32; 8 * WARPS * C <= shared_bytes
// Define: WARPS = 8; CHANNELS = C; LANES = warp // 2 if C <= 2 * vector * warp else warp;
//         ROWS = WARPS * warp // LANES; ROW_VECTORS = ceil_div(C, vector * LANES);
//         BLOCKS = max(1, min(2, 64 // (ROW_VECTORS * vector)));
//         GRID = min(ceil_div(N, ROWS), BLOCKS * multiprocessors)
// Launch: dropout_residual_layernorm_backward<<<GRID, WARPS * warp, 8 * WARPS * C>>>
// Deterministic: no, the order of the atomics differs from run to run
// After:  2
// Rewrite: a second kernel goes, and every line that has to do with lanes changes.
// Left:   the bytes, and the end, where no row is left to load while sums are added.

#include "philox.cuh"
#include "portable.cuh"

// The sum over the LANES neighbouring lanes that have a row, returned to each of them.
__device__ __forceinline__ float row_sum(float value) {
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        value += shuffle_xor(value, distance);
    }
    return value;
}

// The sum over all lanes of the warp that have the same channels of different rows.
__device__ __forceinline__ float column_sum(float value) {
    return LANES < WARP_SIZE ? value + shuffle_xor(value, LANES) : value;
}

// The launch bounds limit the registers of a thread, so that BLOCKS blocks fit on an SM at once.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, BLOCKS)
dropout_residual_layernorm_backward(
    real* __restrict__ dinp,          // (N, C)  accumulates
    real* __restrict__ dbranch,       // (N, C)  dropout's gradient of dinp
    float* __restrict__ dweight,      // (C)  accumulates
    float* __restrict__ dbias,        // (C)  accumulates
    const real* __restrict__ dout,    // (N, C)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (C)
    const float* __restrict__ mean,   // (N)
    const float* __restrict__ rstd,   // (N)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int N, int C, float p, unsigned stream) {
    C = CHANNELS;  // a compile-time constant: loops unroll, checks that always hold vanish
    extern __shared__ float sums[];  // (WARPS, 2, C)  of each warp's rows
    unsigned threshold = fminf(rintf(p * 65536.0f), 65535.0f);  // of 65536 half words
    float scale = 1.0f / (1.0f - threshold / 65536.0f);
    int lane = lane_id() % LANES;  // of those that have the row
    float dw[ROW_VECTORS][VECTOR] = {}, db[ROW_VECTORS][VECTOR] = {};

    for (int first = blockIdx.x * ROWS; first < N; first += gridDim.x * ROWS) {
        int row = first + threadIdx.x / LANES;
        // Half a warp may be past the last row. It has nothing to add up, but for the shuffles.
        int end = row < N ? C : 0;
        size_t start = (size_t)row * C;
        float m = mean[min(row, N - 1)], r = rstd[min(row, N - 1)];

        Vec dys[ROW_VECTORS], xs[ROW_VECTORS], dxs[ROW_VECTORS];
#pragma unroll
        for (int j = 0; j < ROW_VECTORS; j++) {
            int i = (j * LANES + lane) * VECTOR;
            if (i >= end) break;
            dys[j] = load_vec(dout + start + i);
            xs[j] = load_vec(inp + start + i);
            dxs[j] = load_vec(dinp + start + i);
        }

        float a = 0.0f, b = 0.0f;  // sums, then averages, of dnorm and of dnorm * norm
#pragma unroll
        for (int j = 0; j < ROW_VECTORS; j++) {
            int i = (j * LANES + lane) * VECTOR;
            if (i >= end) break;
            Vec w = load_vec(weight + i);
            for (int k = 0; k < VECTOR; k++) {
                float norm = (to_float(xs[j][k]) - m) * r;
                float dnorm = to_float(dys[j][k]) * to_float(w[k]);
                a += dnorm;
                b += dnorm * norm;
            }
        }
        a = row_sum(a) * (1.0f / CHANNELS);
        b = row_sum(b) * (1.0f / CHANNELS);

#pragma unroll
        for (int j = 0; j < ROW_VECTORS; j++) {
            int i = (j * LANES + lane) * VECTOR;
            if (i >= end) break;
            Vec w = load_vec(weight + i);
            for (int k = 0; k < VECTOR; k++) {
                float norm = (to_float(xs[j][k]) - m) * r;
                float dnorm = to_float(dys[j][k]) * to_float(w[k]);
                dxs[j][k] = to_real(to_float(dxs[j][k]) + (dnorm - a - norm * b) * r);
                dw[j][k] += to_float(dys[j][k]) * norm;
                db[j][k] += to_float(dys[j][k]);
            }
            store_vec(dinp + start + i, dxs[j]);

            Vec kept;
            unsigned words[4] = {(unsigned)((start + i) / 8), stream, rng[2], rng[3]};
            philox4x32(words, rng[0], rng[1]);
            if (VECTOR == 4 && (start + i) % 8 == 4) words[0] = words[2], words[1] = words[3];
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                bool keep = half_word(words, k) >= threshold;
                kept[k] = to_real(keep ? to_float(dxs[j][k]) * scale : 0.0f);
            }
            store_vec(dbranch + start + i, kept);
        }
    }

    float* own = sums + warp_id() * 2 * C;  // (2, C)
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        for (int k = 0; k < VECTOR; k++) {
            int i = (j * LANES + lane) * VECTOR + k;
            float w = column_sum(dw[j][k]), b = column_sum(db[j][k]);
            if (i < C && lane_id() < LANES) own[i] = w, own[C + i] = b;
        }
    }
    __syncthreads();  // all warps have stored their sums
    for (int i = threadIdx.x; i < 2 * C; i += WARPS * WARP_SIZE) {
        float sum = 0.0f;
        for (int warp = 0; warp < WARPS; warp++) {
            sum += sums[warp * 2 * C + i];
        }
        atomicAdd(i < C ? dweight + i : dbias + i - C, sum);
    }
}
