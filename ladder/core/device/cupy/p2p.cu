// The kernels of p2p.py, by which ranks exchange vectors: they load and store in the memory of the
// other ranks' GPUs. Unlike rung 4 of all_reduce, which they follow, they work in place.

#include "peers.cuh"
#include "portable.cuh"

constexpr int BLOCK = 512;    // threads of a block, as in p2p.py
constexpr int IN_FLIGHT = 8;  // vectors of 16 bytes that a thread has requested at once
constexpr int ROUND = BLOCK * IN_FLIGHT;

// A barrier of all ranks. Launched on a stream of each, it ends when all of them have come to it:
// what their streams had before it is then done.
extern "C" __global__ void meet(
    Peers<unsigned> arrived,  // (R) arrays (1, R), for rank_barrier
    int R,
    int first_rank) {         // of the ranks on this GPU, which blockIdx.y counts
    rank_barrier(arrived, R, first_rank + blockIdx.y);
}

// The part of a vector that belongs to a rank.
struct Share {
    size_t first, count;  // elements
    size_t vectors;       // of 16 bytes, which come first; 0 if the share does not begin at one
};

__device__ Share share_of(int rank, size_t N, size_t part, size_t vector) {
    size_t first = min(rank * part, N), count = min(part, N - first);
    return {first, count, first % vector == 0 ? count / vector : 0};
}

// Share r of rank r becomes the sum of all ranks' shares r. Rank r adds its own share first, then
// that of rank r + 1, and so on: so not all of them read from one rank at once.
extern "C" __global__ void __launch_bounds__(BLOCK) reduce_scatter(
    Peers<float> at,          // (R) vectors (N)
    int R, int first_rank,
    size_t N, size_t part) {  // elements of a share; the last ones may be smaller
    int rank = first_rank + blockIdx.y;
    Share share = share_of(rank, N, part, 4);
    size_t stride = (size_t)gridDim.x * ROUND;
    auto own = reinterpret_cast<float4*>(at[rank] + share.first);
    for (size_t i = (size_t)blockIdx.x * ROUND + threadIdx.x; i < share.vectors; i += stride) {
        float4 sum[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            if (i + j * BLOCK < share.vectors) sum[j] = own[i + j * BLOCK];
        }
        for (int step = 1; step < R; step++) {
            auto other = reinterpret_cast<const float4*>(at[(rank + step) % R] + share.first);
            float4 v[IN_FLIGHT];
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                if (i + j * BLOCK < share.vectors) v[j] = other[i + j * BLOCK];
            }
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                sum[j] = {sum[j].x + v[j].x, sum[j].y + v[j].y, sum[j].z + v[j].z,
                          sum[j].w + v[j].w};
            }
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            if (i + j * BLOCK < share.vectors) own[i + j * BLOCK] = sum[j];
        }
    }
    for (size_t i = share.vectors * 4 + blockIdx.x * BLOCK + threadIdx.x; i < share.count;
         i += gridDim.x * BLOCK) {
        float sum = at[rank][share.first + i];
        for (int step = 1; step < R; step++) sum += at[(rank + step) % R][share.first + i];
        at[rank][share.first + i] = sum;
    }
}

// Share r becomes on every rank what it is on rank r, which writes it there.
extern "C" __global__ void __launch_bounds__(BLOCK) all_gather(
    Peers<unsigned short> at,  // (R) vectors (N) of words of 16 bits, whatever their type is
    int R, int first_rank,
    size_t N, size_t part) {   // words of a share; the last ones may be smaller
    int rank = first_rank + blockIdx.y;
    Share share = share_of(rank, N, part, 8);
    size_t stride = (size_t)gridDim.x * ROUND;
    auto own = reinterpret_cast<const uint4*>(at[rank] + share.first);
    for (size_t i = (size_t)blockIdx.x * ROUND + threadIdx.x; i < share.vectors; i += stride) {
        uint4 v[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            if (i + j * BLOCK < share.vectors) v[j] = own[i + j * BLOCK];
        }
        for (int step = 1; step < R; step++) {
            auto other = reinterpret_cast<uint4*>(at[(rank + step) % R] + share.first);
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                if (i + j * BLOCK < share.vectors) other[i + j * BLOCK] = v[j];
            }
        }
    }
    for (size_t i = share.vectors * 8 + blockIdx.x * BLOCK + threadIdx.x; i < share.count;
         i += gridDim.x * BLOCK) {
        for (int step = 1; step < R; step++) {
            at[(rank + step) % R][share.first + i] = at[rank][share.first + i];
        }
    }
}
