// embedding backward, rung 5: counting sort (histogram, prefix sum, scatter)
// Before: rung 4 compares every token with every other.
// Change: counting sort: count how often each token occurs (a histogram). A running sum of the
//         counts (a prefix sum, or scan) gives the place where each token's run begins. Every token
//         takes a place in its run with an atomic (a scatter), and then compares its index only
//         with those of its run.
// Expect: five small kernels with almost no work in each. The end of a run is now known in
//         advance, so its loads need not wait for each other.
// Needs:  nothing
// Define: BLOCK = 256; RUNS = 4; SCAN = 1024
// Launch: embedding_backward_clear<<<ceil_div(V, BLOCK), BLOCK>>>
// Launch: embedding_backward_count<<<ceil_div(B * T, BLOCK), BLOCK>>>
// Launch: embedding_backward_scan<<<1, SCAN>>>
// Launch: embedding_backward_place<<<ceil_div(B * T, BLOCK), BLOCK>>>
// Launch: embedding_backward_order<<<ceil_div(B * T, BLOCK), BLOCK>>>
// Launch: embedding_backward<<<(ceil_div(B * T, RUNS), ceil_div(C, warp)), RUNS * warp>>>
// Launch: embedding_backward_positions<<<T, BLOCK>>>
// Scratch: int32 order[B * T]; int32 sorted[B * T]; int32 ends[V]; int32 unordered[B * T]
// After:  4
// Left:   loads are 2 or 4 bytes wide -> rung 6.

#include "portable.cuh"

// Sets ends (V), which will first hold counts, to 0.
extern "C" __global__ void embedding_backward_clear(
    int B, int T, int C, int V, int P, int* __restrict__ ends) {
    int token = blockIdx.x * BLOCK + threadIdx.x;
    if (token < V) ends[token] = 0;
}

// Histogram: counts in ends (V) how often each token occurs in tokens (B, T).
extern "C" __global__ void embedding_backward_count(
    const int* __restrict__ tokens, int B, int T, int C, int V, int P, int* __restrict__ ends) {
    int bt = blockIdx.x * BLOCK + threadIdx.x;
    if (bt < B * T) atomicAdd(&ends[tokens[bt]], 1);  // integers: the same result in any order
}

// Prefix sum (scan) of ends (V): each count becomes the sum of all counts before it, the place
// where its run starts. In one block, every thread adds its share of the counts, the block scans
// the sums of the shares, and every thread walks over its share again.
extern "C" __global__ void embedding_backward_scan(
    int B, int T, int C, int V, int P, int* __restrict__ ends) {
    __shared__ int sums[SCAN];  // prefix sums: of all shares up to that of each thread
    int share = (V + SCAN - 1) / SCAN, t = threadIdx.x;
    int begin = min(t * share, V), end = min(begin + share, V);
    int sum = 0;
    for (int token = begin; token < end; token++) {
        sum += ends[token];
    }
    sums[t] = sum;
    __syncthreads();  // the sum of every share is written before other threads read it
    for (int distance = 1; distance < SCAN; distance *= 2) {
        int before = t >= distance ? sums[t - distance] : 0;
        __syncthreads();  // all threads have read before any sum is overwritten
        sums[t] += before;
        __syncthreads();  // this step's sums are written before the next step reads them
    }
    int start = sums[t] - sum;
    for (int token = begin; token < end; token++) {
        int count = ends[token];
        ends[token] = start;
        start += count;
    }
}

// Scatter: every token takes the next free place of its run, and writes its index there, in
// unordered (B * T). That turns the start of each run, in ends (V), into its end.
extern "C" __global__ void embedding_backward_place(
    const int* __restrict__ tokens, int B, int T, int C, int V, int P, int* __restrict__ ends,
    int* __restrict__ unordered) {
    int bt = blockIdx.x * BLOCK + threadIdx.x;
    if (bt < B * T) unordered[atomicAdd(&ends[tokens[bt]], 1)] = bt;
}

// The atomics above came in any order. Here every run of unordered (B * T) is sorted by index,
// which gives order (B * T), and the tokens in that order, sorted (B * T).
extern "C" __global__ void embedding_backward_order(
    const int* __restrict__ tokens, int B, int T, int C, int V, int P, int* __restrict__ order,
    int* __restrict__ sorted, const int* __restrict__ ends, const int* __restrict__ unordered) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= B * T) return;
    int bt = unordered[i], token = tokens[bt];
    int begin = token > 0 ? ends[token - 1] : 0, place = begin;
    for (int j = begin; j < ends[token]; j++) {
        place += unordered[j] < bt;
    }
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
    int* __restrict__ sorted,        // (B * T)  the tokens in that order
    int* __restrict__ ends,          // (V)  where each token's run ends
    int* __restrict__ unordered) {   // (B * T)  like order, but unsorted within a run
    // One warp for WARP_SIZE channels of a run of equal tokens, which its first place identifies.
    int first = blockIdx.x * RUNS + warp_id(), i = blockIdx.y * WARP_SIZE + lane_id();
    if (first >= B * T || i >= C) return;
    int token = sorted[first];
    if (first > 0 && sorted[first - 1] == token) return;  // not the first place of a run

    float sum = 0.0f;
    int end = ends[token];
    for (int place = first; place < end; place++) {
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
