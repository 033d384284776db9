// What peer_copies.py needs SMs for. The copies themselves are the work of copy engines.

#include "peers.cuh"
#include "portable.cuh"

// A barrier of all ranks. Launched on a stream of each, it ends when all of them have come to it:
// what their streams had before it, kernels and copies into peers' memory, is then done.
extern "C" __global__ void meet(
    Peers<unsigned> arrived,  // (R) arrays (1, R), for rank_barrier
    int R,
    int first_rank) {         // of the ranks on this GPU, which blockIdx.y counts
    rank_barrier(arrived, R, first_rank + blockIdx.y);
}

constexpr int EACH = 4;  // elements of a thread, whose loads are all in flight at once

// own (N) becomes the sum of all ranks' shares. They are added in the order of ranks, so a run
// gives the same bits as the run before.
extern "C" __global__ void add_shares(
    float* own,             // (N) this rank's
    const float* received,  // (R - 1, stride): the first N of each row are another rank's
    int R, int rank, int N, int stride) {
    int first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
    float sum[EACH] = {};
    for (int peer = 0; peer < R; peer++) {
        const float* row = received + (size_t)(peer - (peer > rank)) * stride;
        const float* share = peer == rank ? own : row;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int i = first + j * blockDim.x;
            if (i < N) sum[j] += share[i];
        }
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = first + j * blockDim.x;
        if (i < N) own[i] = sum[j];
    }
}
