// dropout_residual_layernorm forward, rung 3: half a warp per row
// Before: in rung 2, a warp has one row. With 384 channels in 16 bits that is 48 vectors: all lanes
//         take one, and then half of them a second one, while the others are idle.
// Change: where C is small, half a warp has a row: each of 16 lanes takes 3 of the 48 vectors. The
//         sums of a row are over half of the lanes.
// Expect: at C = 384, three quarters of the instructions, and a third more bytes in flight for each
//         warp instruction. Nothing changes where C is large, as 768 in 16 bits.
// Needs:  C % vector == 0; ROW_VECTORS <= 16
// Define: WARPS = 2; CHANNELS = C; LANES = warp // 2 if C <= 2 * vector * warp else warp;
//         ROWS = WARPS * warp // LANES; ROW_VECTORS = ceil_div(C, vector * LANES)
// Launch: dropout_residual_layernorm_forward<<<ceil_div(N, ROWS), WARPS * warp>>>
// After:  2
// Left:   only the bytes themselves: the product before it could add the row (fusion).

#include "philox.cuh"
#include "portable.cuh"

constexpr float EPS = 1e-5f;  // keeps rstd finite where a row is constant

// The sum over the LANES neighbouring lanes that have a row, returned to each of them.
__device__ __forceinline__ float row_sum(float value) {
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        value += shuffle_xor(value, distance);
    }
    return value;
}

extern "C" __global__ void dropout_residual_layernorm_forward(
    real* __restrict__ residual,      // (N, C)
    real* __restrict__ out,           // (N, C)
    float* __restrict__ mean,         // (N)
    float* __restrict__ rstd,         // (N)  1 / standard deviation
    const real* __restrict__ inp1,    // (N, C)
    const real* __restrict__ inp2,    // (N, C)
    const real* __restrict__ weight,  // (C)
    const real* __restrict__ bias,    // (C)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int N, int C, float p, unsigned stream) {
    C = CHANNELS;  // a compile-time constant: loops unroll, checks that always hold vanish
    unsigned threshold = fminf(rintf(p * 65536.0f), 65535.0f);  // of 65536 half words
    float scale = 1.0f / (1.0f - threshold / 65536.0f);
    int lane = lane_id() % LANES;  // of those that have the row
    int row = blockIdx.x * ROWS + threadIdx.x / LANES;
    size_t start = (size_t)min(row, N - 1) * C;  // past the last row, the last row is loaded again
    const real* before = inp1 + start;           // (C)
    const real* branch = inp2 + start;           // (C)
    real* x = residual + start;                  // (C)
    real* y = out + start;                       // (C)

    // All loops over j are unrolled: an array with a run-time index cannot be in registers.
    Vec xs[ROW_VECTORS], added[ROW_VECTORS];
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * LANES + lane) * VECTOR;
        if (i >= C) break;  // past the row's end
        xs[j] = load_vec_streaming(before + i);
        added[j] = load_vec_streaming(branch + i);
    }

    __shared__ Vec ws[CHANNELS / VECTOR], bs[CHANNELS / VECTOR];  // (C)  weight, bias
    for (int v = threadIdx.x; v < C / VECTOR; v += WARPS * WARP_SIZE) {
        ws[v] = load_vec(weight + v * VECTOR);
        bs[v] = load_vec(bias + v * VECTOR);
    }
    __syncthreads();  // the copies are complete before any warp reads them

    // Half a warp may be past the last row. It goes on, for the shuffles, and stores nothing.
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * LANES + lane) * VECTOR;
        if (i >= C) break;
        unsigned words[4] = {(unsigned)((start + i) / 8), stream, rng[2], rng[3]};
        philox4x32(words, rng[0], rng[1]);
        if (VECTOR == 4 && (start + i) % 8 == 4) words[0] = words[2], words[1] = words[3];
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            bool keep = half_word(words, k) >= threshold;
            float kept = keep ? to_float(added[j][k]) * scale : 0.0f;
            xs[j][k] = to_real(to_float(xs[j][k]) + kept);
            sum += to_float(xs[j][k]);  // rounded: backward needs the mean of what is stored
        }
        if (row < N) store_vec_streaming(x + i, xs[j]);
    }
    float m = row_sum(sum) * (1.0f / CHANNELS);

    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * LANES + lane) * VECTOR;
        if (i >= C) break;
        for (int k = 0; k < VECTOR; k++) {
            float centred = to_float(xs[j][k]) - m;
            squares += centred * centred;
        }
    }
    float r = rsqrtf(row_sum(squares) * (1.0f / CHANNELS) + EPS);

#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * LANES + lane) * VECTOR;
        if (i >= C) break;
        Vec w = ws[i / VECTOR], b = bs[i / VECTOR], ys;
        for (int k = 0; k < VECTOR; k++) {
            float normalised = (to_float(xs[j][k]) - m) * r;
            ys[k] = to_real(normalised * to_float(w[k]) + to_float(b[k]));
        }
        if (row < N) store_vec_streaming(y + i, ys);
    }
    if (lane == 0 && row < N) {
        mean[row] = m;
        rstd[row] = r;
    }
}
