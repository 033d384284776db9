// all_reduce sum: every rank begins with its own vector, then that of the next rank
// Needs:  R > 1; R <= 8; N % vector == 0
// Define: BLOCK = 512; IN_FLIGHT = 4; ROUND = BLOCK * IN_FLIGHT * vector;
//         BLOCKS = min(ceil_div(N, R * ROUND), max(multiprocessors // R, 1), 32)
// Launch: all_reduce_sum<<<(BLOCKS, R), BLOCK>>>
// Scratch: flag arrived[R, BLOCKS, R]
// After:  4

#include "peers.cuh"
#include "portable.cuh"

extern "C" __global__ void all_reduce_sum(
    Peers<real> out,            // (R) vectors (N), one in the memory of each rank
    Peers<const real> inp,      // (R) vectors (N)
    int R, int N,
    int first_rank,             // of the ranks on this GPU, which blockIdx.y counts
    Peers<unsigned> arrived) {  // (R) arrays (BLOCKS, R), for rank_barrier
    int rank = first_rank + blockIdx.y;
    size_t part = (size_t)(N / VECTOR + R - 1) / R * VECTOR;
    size_t end = min((rank + 1) * part, (size_t)N);
    rank_barrier(arrived, R, rank);  // no inp is read, no out written, before its kernel has begun
    for (size_t start = rank * part + (size_t)blockIdx.x * ROUND; start < end;
         start += BLOCKS * ROUND) {
        size_t first = start + threadIdx.x * VECTOR;
        float sum[IN_FLIGHT][VECTOR] = {};
        for (int distance = 0; distance < R; distance++) {
            int peer = (rank + distance) % R;
            Vec v[IN_FLIGHT];
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                size_t i = first + j * BLOCK * VECTOR;
                if (i >= end) break;
                v[j] = load_vec(inp[peer] + i);
            }
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                if (first + j * BLOCK * VECTOR >= end) break;
                for (int k = 0; k < VECTOR; k++) sum[j][k] += to_float(v[j][k]);
            }
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            size_t i = first + j * BLOCK * VECTOR;
            if (i >= end) break;
            Vec v;
            for (int k = 0; k < VECTOR; k++) v[k] = to_real(sum[j][k]);
            for (int distance = 0; distance < R; distance++) {
                store_vec(out[(rank + distance) % R] + i, v);
            }
        }
    }
    rank_barrier(arrived, R, rank);  // no kernel ends before all parts of its out are there
}
