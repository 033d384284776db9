// dropout_residual_layernorm forward, rung 1: fused into one kernel, a warp per row
// Before: the NumPy reference.
// Change: what dropout.forward and residual_layernorm.forward do, in one kernel: the warp that adds
//         a row draws the mask of the branch as it loads it. The dropped branch goes from a
//         register into the sum, and is not stored.
// Expect: 4*N*C elements through memory instead of the 6*N*C of the two kernels, and a launch less.
//         But one Philox call per element, as in dropout.forward's rung 1: bound by arithmetic.
// Needs:  nothing
// Define: ROWS = 4
// Launch: dropout_residual_layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// After:  residual_layernorm.forward 2
// Left:   seven eighths of every Philox call are discarded, loads are 2 or 4 bytes wide,
//         and the row is read back twice -> rung 2.

#include "philox.cuh"
#include "portable.cuh"

constexpr float EPS = 1e-5f;  // keeps rstd finite where a row is constant

// The 16 random bits of element i: one of the eight half words that Philox makes of the counter
// i / 8. As in dropout, i counts through all N * C elements, so that the masks are the same.
__device__ __forceinline__ unsigned random_half(size_t i, const unsigned* rng, unsigned stream) {
    unsigned words[4] = {(unsigned)(i / 8), stream, rng[2], rng[3]};
    philox4x32(words, rng[0], rng[1]);
    // Not words[i % 8 / 2]: an array with a run-time index cannot be kept in registers.
    unsigned even = i & 4 ? words[2] : words[0], odd = i & 4 ? words[3] : words[1];
    return (i & 2 ? odd : even) >> i % 2 * 16 & 0xFFFF;
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
    unsigned threshold = fminf(rintf(p * 65536.0f), 65535.0f);  // of 65536 half words
    float scale = 1.0f / (1.0f - threshold / 65536.0f);
    int lane = lane_id();
    int row = blockIdx.x * ROWS + warp_id();
    if (row >= N) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* before = inp1 + (size_t)row * C;  // (C)
    const real* branch = inp2 + (size_t)row * C;  // (C)
    real* x = residual + (size_t)row * C;         // (C)
    real* y = out + (size_t)row * C;              // (C)

    float sum = 0.0f;
    for (int i = lane; i < C; i += WARP_SIZE) {
        float added = to_float(branch[i]);  // whether it is kept or not: its sector comes anyway
        bool keep = random_half((size_t)row * C + i, rng, stream) >= threshold;
        x[i] = to_real(to_float(before[i]) + (keep ? added * scale : 0.0f));
        sum += to_float(x[i]);  // rounded: backward needs the mean of what is stored
    }
    float m = warp_sum(sum) / C;

    float squares = 0.0f;
    for (int i = lane; i < C; i += WARP_SIZE) {
        float centred = to_float(x[i]) - m;
        squares += centred * centred;
    }
    float r = rsqrtf(warp_sum(squares) / C + EPS);

    for (int i = lane; i < C; i += WARP_SIZE) {
        float normalised = (to_float(x[i]) - m) * r;
        y[i] = to_real(normalised * to_float(weight[i]) + to_float(bias[i]));
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}
