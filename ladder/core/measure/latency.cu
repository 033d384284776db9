// The kernels of latency.py. A chain of addresses: where a load reads is what the load before it
// has brought. So a thread waits for every load, and nothing hides the latency.
// latency.py defines AT_ONCE, the loads of 16 bytes that a reading thread has requested at a time.

#include "portable.cuh"

constexpr int LOOK = 64;  // steps between looks at how many blocks have ended

// Goes `steps` steps along the chain. Launched with one thread.
extern "C" __global__ void chase(
    unsigned* position,    // (1)  where it stands, before and after
    const unsigned* next,  // (words)  of some words, the place of the next one
    int steps) {
    unsigned at = *position;
    for (int i = 0; i < steps; i++) {
        at = next[at];
    }
    *position = at;
}

// The same while other blocks read `stream`, each thread AT_ONCE vectors at a time. Block 0 chases,
// by one thread, until all others have ended, or for `most` steps.
extern "C" __global__ void chase_beside_reads(
    unsigned* position,    // (1)
    const unsigned* next,  // (words)
    int most,
    unsigned* counts,      // (2)  blocks that have ended; steps of the chase
    float* unread,         // (1)  is never written, but the compiler does not know that
    const float4* stream,  // (vectors)
    size_t vectors,        // a multiple of what all threads read at once
    int rounds) {
    if (blockIdx.x == 0) {
        if (threadIdx.x > 0) return;
        unsigned at = *position, steps = 0;
        while (steps < most && atomicAdd(&counts[0], 0u) < gridDim.x - 1) {
            for (int i = 0; i < LOOK; i++) {
                at = next[at];
            }
            steps += LOOK;
        }
        *position = at;
        counts[1] = steps;
        return;
    }
    size_t threads = (size_t)(gridDim.x - 1) * blockDim.x;
    size_t i = (size_t)(blockIdx.x - 1) * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int round = 0; round < rounds; round++) {
        float4 v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            v[j] = stream[i + j * threads];
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            sum += v[j].x + v[j].y + v[j].z + v[j].w;
        }
        i += AT_ONCE * threads;
        if (i >= vectors) i -= vectors;
    }
    if (sum < 0.0f) *unread = sum;  // `stream` is 0: without this the loads would be left out
    __syncthreads();  // all warps of the block are done
    if (threadIdx.x == 0) atomicAdd(&counts[0], 1u);
}
