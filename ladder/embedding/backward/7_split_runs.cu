// embedding backward, rung 7: long runs split into partial sums (like split-K)
// Before: rung 6 gives each run to one warp. In real text one token may be a tenth of all tokens,
//         and all other warps end long before the warp of that token.
// Change: a warp takes at most PIECE places of a run. The pieces of a longer run write partial sums
//         to scratch memory, and another kernel adds these in order.
// Expect: as fast as before where tokens are evenly distributed, and no slower where they are not.
// Needs:  C % vector == 0
// Define: BLOCK = 256; RUNS = 4; SCAN = 1024; PIECE = 64; WINDOWS = ceil_div(B * T, PIECE)
// Launch: embedding_backward_clear<<<ceil_div(V, BLOCK), BLOCK>>>
// Launch: embedding_backward_count<<<ceil_div(B * T, BLOCK), BLOCK>>>
// Launch: embedding_backward_scan<<<1, SCAN>>>
// Launch: embedding_backward_place<<<ceil_div(B * T, BLOCK), BLOCK>>>
// Launch: embedding_backward_order<<<ceil_div(B * T, BLOCK), BLOCK>>>
// Launch: embedding_backward<<<(ceil_div(B * T, RUNS), ceil_div(C, warp * vector)), RUNS * warp>>>
// Launch: embedding_backward_join<<<(WINDOWS, ceil_div(C, warp * vector)), warp>>>
// Launch: embedding_backward_positions<<<ceil_div(T * C, BLOCK * vector), BLOCK>>>
// Scratch: int32 order[B * T]; int32 sorted[B * T]; int32 ends[V]; int32 unordered[B * T];
//         float32 pieces[2 * WINDOWS, C]
// Pays:   no, where no token repeats often, as in the random tokens of the benchmark; in text it
//         does
// After:  6
// Left:   dout is read twice, for tokens and for positions, and eight launches wait for each other.

#include "portable.cuh"

// address (VECTOR) += sums, in 16-byte instructions.
__device__ void add_to(float* address, const float (&sums)[VECTOR]) {
    float4* quads = reinterpret_cast<float4*>(address);
#pragma unroll
    for (int k = 0; k < VECTOR; k += 4) {
        float4 old = quads[k / 4];
        quads[k / 4] = {old.x + sums[k], old.y + sums[k + 1], old.z + sums[k + 2],
                        old.w + sums[k + 3]};
    }
}

// The row of `pieces` for the piece that starts at place `first`, in a run that starts at `begin`.
// Among the PIECE places of a window, at most one piece continues a run, and at most one starts a
// run of several pieces.
__device__ size_t piece_row(int first, int begin) {
    return (size_t)first / PIECE * 2 + (first == begin);
}

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
    int* __restrict__ unordered,     // (B * T)  like order, but unsorted within a run
    float* __restrict__ pieces) {    // (2 * WINDOWS, C)  partial sums of the pieces of long runs
    // One warp for WARP_SIZE vectors of a piece of a run, which its first place identifies.
    int first = blockIdx.x * RUNS + warp_id();
    int i = (blockIdx.y * WARP_SIZE + lane_id()) * VECTOR;
    if (first >= B * T || i >= C) return;
    int token = sorted[first];
    int begin = token > 0 ? ends[token - 1] : 0, run_end = ends[token];
    if ((first - begin) % PIECE != 0) return;  // not the first place of a piece

    float sums[VECTOR] = {};
    int end = min(first + PIECE, run_end);
#pragma unroll 4
    for (int place = first; place < end; place++) {
        Vec dys = load_vec(dout + (size_t)order[place] * C + i);
        for (int k = 0; k < VECTOR; k++) {
            sums[k] += to_float(dys[k]);
        }
    }
    if (run_end - begin <= PIECE) {
        add_to(dwte + (size_t)token * C + i, sums);
    } else {
        for (int k = 0; k < VECTOR; k++) {
            pieces[piece_row(first, begin) * C + i + k] = sums[k];
        }
    }
}

// Adds to dwte (V, C) the pieces of the run that starts in a window of PIECE places and ends after
// it, if there is one.
extern "C" __global__ void embedding_backward_join(
    float* __restrict__ dwte, int B, int T, int C, int V, int P, const int* __restrict__ sorted,
    const int* __restrict__ ends, const float* __restrict__ pieces) {
    int window = blockIdx.x * PIECE, last = min(window + PIECE, B * T) - 1;
    int i = (blockIdx.y * WARP_SIZE + lane_id()) * VECTOR;
    int token = sorted[last], begin = token > 0 ? ends[token - 1] : 0, end = ends[token];
    if (i >= C || begin < window || end - begin <= PIECE) return;
    float sums[VECTOR] = {};
    for (int first = begin; first < end; first += PIECE) {
        for (int k = 0; k < VECTOR; k++) {
            sums[k] += pieces[piece_row(first, begin) * C + i + k];
        }
    }
    add_to(dwte + (size_t)token * C + i, sums);
}

// The gradients of a position lie T rows apart in dout (B, T, C), one in each of the B sequences. A
// thread adds them, in order, to its vector of channels of dwpe (P, C).
extern "C" __global__ void embedding_backward_positions(
    float* __restrict__ dwpe, const real* __restrict__ dout, int B, int T, int C, int V, int P) {
    int i = (blockIdx.x * BLOCK + threadIdx.x) * VECTOR;  // t * C + channel
    if (i >= T * C) return;
    float sums[VECTOR] = {};
#pragma unroll 4
    for (int b = 0; b < B; b++) {
        Vec dys = load_vec(dout + (size_t)b * T * C + i);
        for (int k = 0; k < VECTOR; k++) {
            sums[k] += to_float(dys[k]);
        }
    }
    add_to(dwpe + i, sums);
}
