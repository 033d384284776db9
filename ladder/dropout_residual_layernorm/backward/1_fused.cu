// dropout_residual_layernorm backward, rung 1: fused into one kernel, a warp per row
// Before: the NumPy reference.
// Change: what residual_layernorm.backward and dropout.backward do, in one kernel: the warp that
//         has added an element to dinp draws the mask of the forward pass again, and stores what
//         the branch gets. The sums of dweight and dbias are those of residual_layernorm.backward.
// Expect: 5*N*C elements through memory instead of the 6*N*C of the two kernels, and a launch less.
//         But one Philox call per element, as in dropout.backward's rung 1: bound by arithmetic.
// Needs:  ROWS * 8 * C <= shared_bytes
// Define: ROWS = 4; BLOCKS = 8; GRID = min(ceil_div(N, ROWS), BLOCKS * multiprocessors);
//         GROUPS = 1024 // warp
// Launch: dropout_residual_layernorm_backward<<<GRID, ROWS * warp, ROWS * 8 * C>>>
// Launch: dropout_residual_layernorm_backward_finish<<<ceil_div(2 * C, warp), GROUPS * warp>>>
// Scratch: float32 partial[GRID, 2, C]
// After:  residual_layernorm.backward 2
// Left:   seven eighths of every Philox call are discarded, loads are 2 or 4 bytes wide,
//         and every row loads and stores 2*C sums in shared memory -> rung 2.

#include "philox.cuh"
#include "portable.cuh"

// The 16 random bits of element i: one of the eight half words that Philox makes of the counter
// i / 8. As in dropout, i counts through all N * C elements, so that the masks are the same.
__device__ __forceinline__ unsigned random_half(size_t i, const unsigned* rng, unsigned stream) {
    unsigned words[4] = {(unsigned)(i / 8), stream, rng[2], rng[3]};
    philox4x32(words, rng[0], rng[1]);
    // Not words[i % 8 / 2]: an array with a run-time index cannot be kept in registers.
    unsigned even = i & 4 ? words[2] : words[0], odd = i & 4 ? words[3] : words[1];
    return (i & 2 ? odd : even) >> i % 2 * 16 & 0xFFFF;
}

extern "C" __global__ void dropout_residual_layernorm_backward(
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
    int N, int C, float p, unsigned stream,
    float* __restrict__ partial) {    // (GRID, 2, C)  dweight and dbias of each block's rows
    extern __shared__ float sums[];   // (ROWS, 2, C)  of each warp's rows
    unsigned threshold = fminf(rintf(p * 65536.0f), 65535.0f);  // of 65536 half words
    float scale = 1.0f / (1.0f - threshold / 65536.0f);
    int lane = lane_id();
    float* dw = sums + warp_id() * 2 * C;  // (C)
    float* db = dw + C;                    // (C)
    for (int i = lane; i < C; i += WARP_SIZE) {
        dw[i] = 0.0f;  // no barrier: here and below, only this lane accesses channel i
        db[i] = 0.0f;
    }

    for (int row = blockIdx.x * ROWS + warp_id(); row < N; row += gridDim.x * ROWS) {
        const real* dy = dout + (size_t)row * C;  // (C)
        const real* x = inp + (size_t)row * C;    // (C)
        real* dx = dinp + (size_t)row * C;        // (C)
        real* dropped = dbranch + (size_t)row * C;  // (C)
        float m = mean[row], r = rstd[row];

        float a = 0.0f, b = 0.0f;  // sums, then averages, of dnorm and of dnorm * norm
        for (int i = lane; i < C; i += WARP_SIZE) {
            float norm = (to_float(x[i]) - m) * r;
            float dnorm = to_float(dy[i]) * to_float(weight[i]);
            a += dnorm;
            b += dnorm * norm;
        }
        a = warp_sum(a) / C;
        b = warp_sum(b) / C;

        for (int i = lane; i < C; i += WARP_SIZE) {
            float norm = (to_float(x[i]) - m) * r;
            float dnorm = to_float(dy[i]) * to_float(weight[i]);
            real gradient = to_real(to_float(dx[i]) + (dnorm - a - norm * b) * r);
            dx[i] = gradient;
            bool keep = random_half((size_t)row * C + i, rng, stream) >= threshold;
            dropped[i] = to_real(keep ? to_float(gradient) * scale : 0.0f);
            dw[i] += to_float(dy[i]) * norm;
            db[i] += to_float(dy[i]);
        }
    }

    __syncthreads();  // every warp has added its last row before the sums are read
    for (int i = threadIdx.x; i < 2 * C; i += ROWS * WARP_SIZE) {
        float sum = 0.0f;
        for (int warp = 0; warp < ROWS; warp++) {
            sum += sums[warp * 2 * C + i];
        }
        partial[(size_t)blockIdx.x * 2 * C + i] = sum;
    }
}

// Adds the GRID rows of `partial` to dweight (C) and dbias (C). A block takes WARP_SIZE
// neighbouring columns. Its GROUPS warps share the rows: one thread alone would wait for GRID loads
// in turn.
extern "C" __global__ void dropout_residual_layernorm_backward_finish(
    float* __restrict__ dweight, float* __restrict__ dbias, int N, int C, float p,
    unsigned stream, const float* __restrict__ partial) {
    __shared__ float sums[GROUPS][WARP_SIZE];
    int lane = lane_id(), group = warp_id();
    int column = blockIdx.x * WARP_SIZE + lane;  // of (2, C): dweight, then dbias

    float sum = 0.0f;
    for (int block = group; block < GRID && column < 2 * C; block += GROUPS) {
        sum += partial[(size_t)block * 2 * C + column];
    }
    sums[group][lane] = sum;
    __syncthreads();  // all warps have written their sums before the first warp adds them

    if (group > 0 || column >= 2 * C) return;
    sum = 0.0f;
    for (int other = 0; other < GROUPS; other++) {
        sum += sums[other][lane];
    }
    if (column < C) {
        dweight[column] += sum;
    } else {
        dbias[column - C] += sum;
    }
}
