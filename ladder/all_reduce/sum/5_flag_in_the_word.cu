// all_reduce sum, rung 5: flags within the data, for short vectors (LL)
// Before: in rungs 1 to 4, a vector waits until a barrier has told that it may be read or written.
// Change: a rank reads nothing from peers. It writes its vector into their inboxes, in words of 8
//         bytes of data and 8 of flags. It reads what the peers have written into its own: a word
//         is there as soon as its flags are. So no barrier is needed. NCCL calls this LL.
// Expect: one message to each peer, and no answer: the latency of one store. But twice the bytes
//         of rung 1 cross each link, so long vectors take longer.
// Needs:  R > 1; R <= 8; N * sizeof_real % 8 == 0; N * sizeof_real <= 2097152
// Define: BLOCK = 512; ITEMS = 8 // sizeof_real; WORDS = ceil_div(N, ITEMS);
//         BLOCKS = min(ceil_div(WORDS, BLOCK), max(multiprocessors // R, 1), 32)
// Launch: all_reduce_sum<<<(BLOCKS, R), BLOCK>>>
// Scratch: flag inbox[R, 2, R, WORDS, 4]; flag launches[R, BLOCKS]
// After:  1
// Left:   half of what travels are flags. In NCCL's LL128, 120 of 128 bytes are data, which needs
//         links that never split 128 bytes.

#include "peers.cuh"
#include "portable.cuh"

struct alignas(8) Items {  // what a word carries
    real at[ITEMS];
};

extern "C" __global__ void all_reduce_sum(
    Peers<real> out,             // (R) vectors (N), one in the memory of each rank
    Peers<const real> inp,       // (R) vectors (N)
    int R, int N,
    int first_rank,              // of the ranks on this GPU, which blockIdx.y counts
    Peers<unsigned> inbox,       // (R) arrays (2, R, WORDS, 4): what rank r has sent, by r
    Peers<unsigned> launches) {  // (R) arrays (BLOCKS): how many there were so far
    int rank = first_rank + blockIdx.y;
    // A flag is the number of the launch: nothing has to be reset. Two inboxes take turns: a rank
    // in launch n + 2 has heard from all peers in n + 1, so none of them still reads that of n.
    unsigned flag = launches[rank][blockIdx.x] + 1;
    size_t turn = flag % 2 * R;
    for (int word = blockIdx.x * BLOCK + threadIdx.x; word < WORDS; word += BLOCKS * BLOCK) {
        uint2 own = reinterpret_cast<const uint2*>(inp[rank])[word];
        for (int peer = 0; peer < R; peer++) {
            send_word(inbox[peer] + ((turn + rank) * WORDS + word) * 4, own, flag);
        }
        float sum[ITEMS] = {};
        for (int peer = 0; peer < R; peer++) {
            uint2 data = receive_word(inbox[rank] + ((turn + peer) * WORDS + word) * 4, flag);
            Items items = *reinterpret_cast<const Items*>(&data);
            for (int k = 0; k < ITEMS; k++) sum[k] += to_float(items.at[k]);
        }
        Items total;
        for (int k = 0; k < ITEMS; k++) total.at[k] = to_real(sum[k]);
        reinterpret_cast<uint2*>(out[rank])[word] = *reinterpret_cast<const uint2*>(&total);
    }
    __syncthreads();  // all threads have read the number of the launch
    if (threadIdx.x == 0) launches[rank][blockIdx.x] = flag;
}
