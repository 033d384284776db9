// all_reduce sum, rung 2: vectorized (128-bit) loads, several in flight
// Before: in rung 1, a thread has 2 or 4 bytes in flight.
// Change: a thread loads IN_FLIGHT vectors of 16 bytes from one peer before it needs the first.
// Expect: the same bytes. By Little's law, a link is busy if bandwidth * latency bytes are in
//         flight. A link has a tenth of the memory's bandwidth: fewer blocks than SMs are enough.
// Needs:  R > 1; R <= 8; N % vector == 0
// Define: BLOCK = 512; IN_FLIGHT = 4; ROUND = BLOCK * IN_FLIGHT * vector;
//         BLOCKS = min(ceil_div(N, ROUND), max(multiprocessors // R, 1), 32)
// Launch: all_reduce_sum<<<(BLOCKS, R), BLOCK>>>
// Scratch: flag arrived[R, BLOCKS, R]
// After:  1
// Left:   every rank computes the whole sum, and R - 1 vectors cross each link -> rungs 3 and 4.

#include "peers.cuh"
#include "portable.cuh"

extern "C" __global__ void all_reduce_sum(
    Peers<real> out,            // (R) vectors (N), one in the memory of each rank
    Peers<const real> inp,      // (R) vectors (N)
    int R, int N,
    int first_rank,             // of the ranks on this GPU, which blockIdx.y counts
    Peers<unsigned> arrived) {  // (R) arrays (BLOCKS, R), for rank_barrier
    int rank = first_rank + blockIdx.y;
    rank_barrier(arrived, R, rank);  // no inp is read before its rank's kernel has begun
    for (size_t start = (size_t)blockIdx.x * ROUND; start < N; start += BLOCKS * ROUND) {
        size_t first = start + threadIdx.x * VECTOR;
        float sum[IN_FLIGHT][VECTOR] = {};
        for (int peer = 0; peer < R; peer++) {
            Vec v[IN_FLIGHT];
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                size_t i = first + j * BLOCK * VECTOR;
                if (i >= N) break;
                v[j] = load_vec(inp[peer] + i);
            }
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                if (first + j * BLOCK * VECTOR >= N) break;
                for (int k = 0; k < VECTOR; k++) sum[j][k] += to_float(v[j][k]);
            }
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            size_t i = first + j * BLOCK * VECTOR;
            if (i >= N) break;
            Vec v;
            for (int k = 0; k < VECTOR; k++) v[k] = to_real(sum[j][k]);
            store_vec(out[rank] + i, v);
        }
    }
    rank_barrier(arrived, R, rank);  // no kernel ends while a peer may still read its inp
}
