// all_reduce sum, rung 1: one-shot, every rank reads all vectors
// Before: the NumPy reference.
// Change: every rank reads the vectors of all ranks, element by element, and adds them in the order
//         of ranks. A barrier of all ranks comes before: a peer's vector may not be there yet. A
//         second one comes after: once a peer's kernel has ended, its vector may be overwritten.
// Expect: (R - 1) * N * sizeof(real) bytes cross the link to each rank, R / 2 times the floor of
//         2 (R - 1) / R. A load over a link takes longer than one from its own memory, and a thread
//         has one of 2 or 4 bytes in flight at a time.
// Needs:  R > 1; R <= 8
// Define: BLOCK = 512; BLOCKS = min(ceil_div(N, BLOCK), max(multiprocessors // R, 1), 32)
// Launch: all_reduce_sum<<<(BLOCKS, R), BLOCK>>>
// Scratch: flag arrived[R, BLOCKS, R]
// Left:   too few bytes are in flight for a link -> rung 2.

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
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < N; i += BLOCKS * BLOCK) {
        float sum = 0.0f;
        for (int peer = 0; peer < R; peer++) {
            sum += to_float(inp[peer][i]);
        }
        out[rank][i] = to_real(sum);
    }
    rank_barrier(arrived, R, rank);  // no kernel ends while a peer may still read its inp
}
