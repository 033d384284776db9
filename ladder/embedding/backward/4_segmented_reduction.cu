// embedding backward, rung 4: sorted tokens and a segmented reduction, no atomics
// Before: rung 3 adds with atomics, in whatever order the warps arrive.
// Change: sort the tokens, equal ones in the order of their indices. A warp then adds the gradients
//         of one run of equal tokens (a segment): no atomics, and the same bits in every launch.
//         The place of a token in the sorted order is the number of tokens before it: every thread
//         compares its token with all others, which are staged in shared memory.
// Expect: (B * T)^2 comparisons: little work for a few thousand tokens, more than everything else
//         for many. A frequent token is a long run for one warp.
// Needs:  nothing
// Define: BLOCK = 256; RUNS = 4
// Launch: embedding_backward_sort<<<ceil_div(B * T, BLOCK), BLOCK>>>
// Launch: embedding_backward<<<(ceil_div(B * T, RUNS), ceil_div(C, warp)), RUNS * warp>>>
// Launch: embedding_backward_positions<<<T, BLOCK>>>
// Scratch: int32 order[B * T]; int32 sorted[B * T]
// Pays:   no, its sort compares all pairs of tokens; what it gains is the same bits in every launch
// After:  3
// Left:   every token is compared with every other -> rung 5.

#include "portable.cuh"

// Sorts by counting the tokens before each one; order and sorted (B * T) are described below.
extern "C" __global__ void embedding_backward_sort(
    const int* __restrict__ tokens, int B, int T, int C, int V, int P, int* __restrict__ order,
    int* __restrict__ sorted) {
    __shared__ int tile[BLOCK];
    int bt = blockIdx.x * BLOCK + threadIdx.x;
    int token = bt < B * T ? tokens[bt] : 0;
    int place = 0;  // how many tokens come before this one
    for (int start = 0; start < B * T; start += BLOCK) {
        int size = min(BLOCK, B * T - start);
        if (threadIdx.x < size) tile[threadIdx.x] = tokens[start + threadIdx.x];
        __syncthreads();  // the tile is complete before any thread reads it
        for (int j = 0; j < size; j++) {
            place += tile[j] < token || (tile[j] == token && start + j < bt);
        }
        __syncthreads();  // all threads have read the tile before the next one overwrites it
    }
    if (bt >= B * T) return;
    order[place] = bt;
    sorted[place] = token;
}

extern "C" __global__ void embedding_backward(
    float* __restrict__ dwte,        // (V, C)  accumulates
    float* __restrict__ dwpe,        // (P, C)  accumulates
    const real* __restrict__ dout,   // (B, T, C)
    const int* __restrict__ tokens,  // (B, T)
    int B, int T, int C, int V, int P,
    int* __restrict__ order,         // (B * T)  indices of the tokens, sorted by token, then index
    int* __restrict__ sorted) {      // (B * T)  the tokens in that order
    // One warp for WARP_SIZE channels of a run of equal tokens, which its first place identifies.
    int first = blockIdx.x * RUNS + warp_id(), i = blockIdx.y * WARP_SIZE + lane_id();
    if (first >= B * T || i >= C) return;
    int token = sorted[first];
    if (first > 0 && sorted[first - 1] == token) return;  // not the first place of a run

    float sum = 0.0f;
    for (int place = first; place < B * T && sorted[place] == token; place++) {
        sum += to_float(dout[(size_t)order[place] * C + i]);
    }
    dwte[(size_t)token * C + i] += sum;
}

// The gradients of a position lie T rows apart in dout (B, T, C), one in each of the B sequences. A
// thread adds them, in order, to its channel of dwpe (P, C).
extern "C" __global__ void embedding_backward_positions(
    float* __restrict__ dwpe, const real* __restrict__ dout, int B, int T, int C, int V, int P) {
    int t = blockIdx.x;
    for (int i = threadIdx.x; i < C; i += BLOCK) {
        float sum = 0.0f;
        for (int b = 0; b < B; b++) {
            sum += to_float(dout[((size_t)b * T + t) * C + i]);
        }
        dwpe[(size_t)t * C + i] += sum;
    }
}
