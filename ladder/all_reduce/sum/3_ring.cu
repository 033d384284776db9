// all_reduce sum, rung 3: ring, a reduce-scatter and an all-gather
// Before: in rung 2, R - 1 vectors cross the link to each rank.
// Change: the ranks form a ring; each vector is cut into R chunks. In each step a rank sends one
//         chunk to the next rank. For R - 1 steps it adds its own part to what it passes on: then
//         each rank has the whole sum of one chunk (reduce-scatter). For R - 1 more it passes on
//         sums (all-gather). A flag says which step's chunk has arrived.
// Expect: 2 (R - 1) / R * N * sizeof(real) bytes cross each link, which is the floor, and each rank
//         sends to one peer only. A short vector waits for the latency of 2 (R - 1) steps. Sends
//         are stores, which no thread waits for. No barrier is needed at the end: a rank has
//         received all that it is sent, and no peer reads from it.
// Needs:  R > 1; R <= 8; N % vector == 0
// Define: BLOCK = 512;
//         BLOCKS = min(ceil_div(N, R * BLOCK * vector), max(multiprocessors // R, 1), 32)
// Launch: all_reduce_sum<<<(BLOCKS, R), BLOCK>>>
// Scratch: flag arrived[R, BLOCKS, R]; flag received[R, BLOCKS]
// Rounds: partial sums to real, to send them
// After:  2
// Left:   2 (R - 1) steps, one after the other -> rung 4.

#include "peers.cuh"
#include "portable.cuh"

extern "C" __global__ void all_reduce_sum(
    Peers<real> out,             // (R) vectors (N), one in the memory of each rank
    Peers<const real> inp,       // (R) vectors (N)
    int R, int N,
    int first_rank,              // of the ranks on this GPU, which blockIdx.y counts
    Peers<unsigned> arrived,     // (R) arrays (BLOCKS, R), for rank_barrier
    Peers<unsigned> received) {  // (R) arrays (BLOCKS): chunks that the previous rank has sent
    int rank = first_rank + blockIdx.y, next = (rank + 1) % R;
    size_t size = (size_t)(N / VECTOR + R - 1) / R * VECTOR;  // elements of a chunk
    unsigned before = received[rank][blockIdx.x];             // of earlier launches
    rank_barrier(arrived, R, rank);  // the next rank's kernel has begun: its out can be written to

    for (int step = 0; step < 2 * R - 2; step++) {
        int chunk = (rank + 2 * R - step) % R;  // what was received in the step before
        size_t end = min((chunk + 1) * size, (size_t)N);
        bool add = step < R, complete = step >= R - 1;
        if (step > 0) {
            if (threadIdx.x == 0) wait_flag(&received[rank][blockIdx.x], before + step);
            __syncthreads();  // the chunk has arrived for all threads
        }
        size_t first = chunk * size + ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
        for (size_t i = first; i < end; i += BLOCKS * BLOCK * VECTOR) {
            Vec sum = load_vec(step == 0 ? inp[rank] + i : out[rank] + i);
            if (step > 0 && add) {
                Vec own = load_vec(inp[rank] + i);
                for (int k = 0; k < VECTOR; k++) {
                    sum[k] = to_real(to_float(sum[k]) + to_float(own[k]));
                }
            }
            if (add && complete) store_vec(out[rank] + i, sum);
            store_vec(out[next] + i, sum);
        }
        __syncthreads();  // all threads' stores come before the signal
        if (threadIdx.x == 0) signal_flag(&received[next][blockIdx.x], before + step + 1);
    }
    // The last chunk stays here: whatever follows this kernel may read out.
    if (threadIdx.x == 0) wait_flag(&received[rank][blockIdx.x], before + 2 * R - 2);
}
