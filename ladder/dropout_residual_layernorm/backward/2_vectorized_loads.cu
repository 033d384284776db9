// dropout_residual_layernorm backward, rung 2: vectorized loads, eight elements per Philox call
// Before: in rung 1, every element costs a Philox call of its own, one instruction moves 2 or 4
//         bytes per lane, and the sums of dweight and dbias go through shared memory.
//         residual_layernorm.backward rung 4 loads 16 bytes, and has its sums in registers.
// Change: the kernel of residual_layernorm.backward rung 4, with the mask. A lane takes VECTOR
//         neighbouring channels, and moves them with one 16-byte (128-bit) instruction. In 16 bits
//         these are the eight of one Philox call; in float32 they are four, so two lanes make the
//         same call. The row, its part of dinp, and the sums stay in registers.
// Expect: an eighth of the Philox calls; the three loads of a row are in flight together. 5*N*C
//         elements through memory.
// Needs:  C % vector == 0; ROW_VECTORS * vector <= 32
// Define: ROWS = 4; CHANNELS = C; ROW_VECTORS = ceil_div(C, vector * warp);
//         SLOTS = ROW_VECTORS * vector * warp;
//         BLOCKS = max(2, min(4, 64 // (ROW_VECTORS * vector)));
//         GRID = min(ceil_div(N, ROWS), BLOCKS * multiprocessors); GROUPS = 1024 // warp
// Launch: dropout_residual_layernorm_backward<<<GRID, ROWS * warp>>>
// Launch: dropout_residual_layernorm_backward_finish<<<2 * SLOTS // warp, GROUPS * warp>>>
// Scratch: float32 partial[GRID, 2, SLOTS]
// After:  residual_layernorm.backward 4
// Left:   where C is small, lanes are idle, as in forward rung 2; and a second kernel, for the sums
//         of 2*C columns, that takes a launch -> rung 3.

#include "philox.cuh"
#include "portable.cuh"

// The launch bounds limit the registers of a thread, so that BLOCKS blocks fit on an SM at once.
extern "C" __global__ void __launch_bounds__(ROWS * WARP_SIZE, BLOCKS)
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
    int N, int C, float p, unsigned stream,
    float* __restrict__ partial) {    // (GRID, 2, SLOTS)  dweight and dbias of each block's rows
    C = CHANNELS;  // a compile-time constant: loops unroll, checks that always hold vanish
    unsigned threshold = fminf(rintf(p * 65536.0f), 65535.0f);  // of 65536 half words
    float scale = 1.0f / (1.0f - threshold / 65536.0f);
    __shared__ float sums[2 * SLOTS];  // (2, SLOTS)  of the block's rows
    int lane = lane_id();
    float dw[ROW_VECTORS][VECTOR] = {}, db[ROW_VECTORS][VECTOR] = {};

    for (int row = blockIdx.x * ROWS + warp_id(); row < N; row += gridDim.x * ROWS) {
        const real* dy = dout + (size_t)row * C;  // (C)
        const real* x = inp + (size_t)row * C;    // (C)
        real* dx = dinp + (size_t)row * C;        // (C)
        real* dropped = dbranch + (size_t)row * C;  // (C)
        float m = mean[row], r = rstd[row];

        Vec dys[ROW_VECTORS], xs[ROW_VECTORS], dxs[ROW_VECTORS];
#pragma unroll
        for (int j = 0; j < ROW_VECTORS; j++) {
            int i = (j * WARP_SIZE + lane) * VECTOR;
            if (i >= C) break;  // past the row's end
            dys[j] = load_vec(dy + i);
            xs[j] = load_vec(x + i);
            dxs[j] = load_vec(dx + i);
        }

        float a = 0.0f, b = 0.0f;  // sums, then averages, of dnorm and of dnorm * norm
#pragma unroll
        for (int j = 0; j < ROW_VECTORS; j++) {
            int i = (j * WARP_SIZE + lane) * VECTOR;
            if (i >= C) break;
            Vec w = load_vec(weight + i);
            for (int k = 0; k < VECTOR; k++) {
                float norm = (to_float(xs[j][k]) - m) * r;
                float dnorm = to_float(dys[j][k]) * to_float(w[k]);
                a += dnorm;
                b += dnorm * norm;
            }
        }
        a = warp_sum(a) * (1.0f / CHANNELS);
        b = warp_sum(b) * (1.0f / CHANNELS);

#pragma unroll
        for (int j = 0; j < ROW_VECTORS; j++) {
            int i = (j * WARP_SIZE + lane) * VECTOR;
            if (i >= C) break;
            Vec w = load_vec(weight + i);
            for (int k = 0; k < VECTOR; k++) {
                float norm = (to_float(xs[j][k]) - m) * r;
                float dnorm = to_float(dys[j][k]) * to_float(w[k]);
                dxs[j][k] = to_real(to_float(dxs[j][k]) + (dnorm - a - norm * b) * r);
                dw[j][k] += to_float(dys[j][k]) * norm;
                db[j][k] += to_float(dys[j][k]);
            }
            store_vec(dx + i, dxs[j]);

            Vec kept;
            size_t element = (size_t)row * C + i;
            unsigned words[4] = {(unsigned)(element / 8), stream, rng[2], rng[3]};
            philox4x32(words, rng[0], rng[1]);
            if (VECTOR == 4 && element % 8 == 4) words[0] = words[2], words[1] = words[3];
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                bool keep = half_word(words, k) >= threshold;
                kept[k] = to_real(keep ? to_float(dxs[j][k]) * scale : 0.0f);
            }
            store_vec(dropped + i, kept);
        }
    }

    for (int turn = 0; turn < ROWS; turn++) {
        if (warp_id() == turn) {
#pragma unroll
            for (int j = 0; j < ROW_VECTORS; j++) {
                for (int k = 0; k < VECTOR; k++) {
                    int s = (j * VECTOR + k) * WARP_SIZE + lane;  // a slot, not a channel:
                    sums[s] = turn == 0 ? dw[j][k] : sums[s] + dw[j][k];  // no bank conflicts
                    sums[SLOTS + s] = turn == 0 ? db[j][k] : sums[SLOTS + s] + db[j][k];
                }
            }
        }
        __syncthreads();  // the sums of this warp are written before the next warp adds to them
    }
    for (int s = threadIdx.x; s < 2 * SLOTS; s += ROWS * WARP_SIZE) {
        partial[(size_t)blockIdx.x * 2 * SLOTS + s] = sums[s];
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
    int column = blockIdx.x * WARP_SIZE + lane;  // of (2, SLOTS): dweight, then dbias

    float sum = 0.0f;
    for (int block = group; block < GRID; block += GROUPS) {
        sum += partial[(size_t)block * 2 * SLOTS + column];
    }
    sums[group][lane] = sum;
    __syncthreads();  // all warps have written their sums before the first warp adds them

    int s = column % SLOTS, j = s / (VECTOR * WARP_SIZE), k = s / WARP_SIZE % VECTOR;
    int i = (j * WARP_SIZE + lane) * VECTOR + k;  // the channel of this slot
    if (group > 0 || i >= C) return;
    sum = 0.0f;
    for (int other = 0; other < GROUPS; other++) {
        sum += sums[other][lane];
    }
    if (column < SLOTS) {
        dweight[i] += sum;
    } else {
        dbias[i] += sum;
    }
}
