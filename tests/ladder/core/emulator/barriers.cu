// Kernels of CUDA's C++ library, each of which breaks one rule on request: `bug` says which.
// ROWS rows of 64 numbers come in; a kernel sums them, or adds neighbours.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>
namespace cg = cooperative_groups;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

enum Bug {
    NONE,
    NO_INIT,
    INIT_TWICE,
    INIT_NOT_SEEN,
    COUNT_TOO_LARGE,
    COUNT_TOO_SMALL,
    NO_ARRIVE,
    NO_WAIT,
    ARRIVES_TWICE,
    OLD_TOKEN,
    OTHER_TOKEN,
    NEVER_WAITED,
    READ_TOO_EARLY,
    REFILLED_TOO_EARLY,
    MISALIGNED,
    ODD_SIZE,
    PAST_END,
    NO_COMMIT,
    NO_RELEASE,
    NO_ACQUIRE,
    EARLY_RELEASE,
    WRONG_PRODUCERS,
    NO_BARRIER,
    WAIT_TOO_FEW,
    ODD_PIECE,
};

// Arrive and wait, split: what a thread does in between needs no other thread.
extern "C" __global__ void split(float* out, const float* inp, int rows, int bug) {
    __shared__ Barrier ready;
    __shared__ Barrier used;
    __shared__ float row[64];
    int i = threadIdx.x;
    if (i == 0 && bug != NO_INIT) {
        init(&ready, bug == COUNT_TOO_LARGE ? 65 : bug == COUNT_TOO_SMALL ? 32 : 64);  // MAKE
        init(&used, 64);
        if (bug == INIT_TWICE) init(&used, 64);  // AGAIN
    }
    if (bug != INIT_NOT_SEEN) __syncthreads();
    float sum = 0.0f;
    Barrier::arrival_token first = 0;
    for (int r = 0; r < rows; r++) {
        row[i] = inp[r * 64 + i];  // FILL
        if (bug == NO_ARRIVE && i == 5) return;
        Barrier::arrival_token token = ready.arrive();  // ARRIVE
        if (bug == ARRIVES_TWICE && i == 5) (void)ready.arrive();
        if (r == 0) first = token;
        if (bug == OLD_TOKEN && r == 2) token = first;
        float own = inp[r * 64 + i];
        if (bug == OTHER_TOKEN) used.wait(std::move(token));  // OTHER
        else if (bug != NO_WAIT) ready.wait(std::move(token));  // WAIT
        sum += own + row[(i + 32) % 64];  // READ
        used.arrive_and_wait();
    }
    out[i] = sum;
}

// Threads leave one after the other; those that stay still meet.
extern "C" __global__ void leave(float* out) {
    __shared__ Barrier all;
    if (threadIdx.x == 0) init(&all, blockDim.x);
    __syncthreads();
    int rounds = 0;
    for (; rounds < (int)threadIdx.x % 4; rounds++) all.arrive_and_wait();
    all.arrive_and_drop();
    out[threadIdx.x] = rounds;
}

// Copies that a barrier counts, into two rows by turns.
extern "C" __global__ void counted(float* out, const float* inp, int rows, int bug) {
    __shared__ Barrier ready[2];
    __shared__ __align__(16) float row[2][64];
    cg::thread_block block = cg::this_thread_block();
    int i = threadIdx.x;
    if (i < 2) init(&ready[i], 64);
    block.sync();
    Barrier::arrival_token token[2];
    auto start = [&](int r) {
        const float* from = inp + r * 64 + (bug == MISALIGNED);
        size_t bytes = sizeof(float) * 64 - (bug == ODD_SIZE ? 4 : 0) + (bug == PAST_END ? 16 : 0);
        auto size = cuda::aligned_size_t<16>(bytes);
        cuda::memcpy_async(block, row[r % 2], from, size, ready[r % 2]);  // COPY
        token[r % 2] = ready[r % 2].arrive();
    };
    float sum = 0.0f;
    start(0);
    for (int r = 0; r < rows; r++) {
        if (r + 1 < rows) start(r + 1);
        else if (bug == NEVER_WAITED) break;
        if (bug != READ_TOO_EARLY) ready[r % 2].wait(std::move(token[r % 2]));
        sum += row[r % 2][i] + row[r % 2][i ^ 1];  // READ
        if (bug != REFILLED_TOO_EARLY) block.sync();
    }
    out[i] = sum;
}

// A pipeline of three stages, of which every thread is a producer and a consumer.
extern "C" __global__ void stages(float* out, const float* inp, int rows, int bug) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 3> state;
    __shared__ __align__(16) float row[3][64];
    cg::thread_block block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int i = threadIdx.x, filled = 0;
    float sum = 0.0f;
    for (int r = 0; r < rows; r++) {
        for (; filled < rows && filled < r + 3; filled++) {
            if (bug != NO_ACQUIRE) pipe.producer_acquire();  // ACQUIRE
            cuda::memcpy_async(block, row[filled % 3], inp + filled * 64, 256, pipe);  // COPY
            if (bug != NO_COMMIT || i != 5) pipe.producer_commit();
        }
        if (bug != READ_TOO_EARLY) pipe.consumer_wait();  // WAIT
        if (bug == EARLY_RELEASE) pipe.consumer_release();
        sum += row[r % 3][i] + row[r % 3][i ^ 1];  // READ
        if (bug != EARLY_RELEASE && (bug != NO_RELEASE || i != 5)) pipe.consumer_release();
    }
    out[i] = sum;
}

// Warp 0 copies, warps 1 and 2 add; by the number of producers, or by a role.
extern "C" __global__ void roles(float* out, const float* inp, int rows, int bug, int by_role) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ float row[2][64];
    cg::thread_block block = cg::this_thread_block();
    bool produces = threadIdx.x < 32;
    auto role = produces ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
    auto pipe = by_role ? cuda::make_pipeline(block, &state, role)
                        : cuda::make_pipeline(block, &state, bug == WRONG_PRODUCERS ? 33 : 32);
    int i = threadIdx.x - 32;
    float sum = 0.0f;
    for (int r = 0; r < rows; r++) {
        if (produces) {
            pipe.producer_acquire();  // ACQUIRE
            for (int j = threadIdx.x; j < 64; j += 32)
                cuda::memcpy_async(&row[r % 2][j], &inp[r * 64 + j], sizeof(float), pipe);
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();  // WAIT
            sum += row[r % 2][i] + row[r % 2][i ^ 1];
            pipe.consumer_release();
        }
    }
    if (!produces) out[i] = sum;
}

// A pipeline of each thread: its wait covers its own copies, and a barrier must follow.
extern "C" __global__ void own(float* out, const float* inp, int rows, int bug) {
    __shared__ float row[2][64];
    auto pipe = cuda::make_pipeline();
    int i = threadIdx.x;
    float sum = 0.0f;
    auto start = [&](int r) {
        pipe.producer_acquire();
        if (r < rows) cuda::memcpy_async(&row[r % 2][i], &inp[r * 64 + i], sizeof(float), pipe);  // COPY
        pipe.producer_commit();
    };
    start(0);
    for (int r = 0; r < rows; r++) {
        start(r + 1);
        if (bug == WAIT_TOO_FEW) cuda::pipeline_consumer_wait_prior<2>(pipe);
        else pipe.consumer_wait();
        if (bug != NO_BARRIER) __syncthreads();
        sum += row[r % 2][i] + row[r % 2][i ^ 1];  // READ
        if (bug != REFILLED_TOO_EARLY) __syncthreads();
        pipe.consumer_release();
    }
    out[i] = sum;
}

// The same by cooperative groups: each tile of 32 threads copies its half of a row.
extern "C" __global__ void groups(float* out, const float* inp, int rows, int bug) {
    __shared__ float row[2][64];
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    int i = threadIdx.x, half = i / 32 * 32;
    float sum = 0.0f;
    cg::memcpy_async(tile, row[0] + half, inp + half, sizeof(float) * 32);  // FIRST
    for (int r = 0; r < rows; r++) {
        if (r + 1 < rows) {
            const float* from = inp + (r + 1) * 64 + half;
            cg::memcpy_async(tile, row[(r + 1) % 2] + half, 32, from, 40);  // COPY
            if (bug != NO_WAIT) cg::wait_prior<1>(tile);
        } else if (bug != NEVER_WAITED) {
            cg::wait(tile);
        } else {
            break;
        }
        sum += row[r % 2][i] + row[r % 2][i ^ 1];  // READ
        tile.sync();
    }
    out[i] = sum;
}

// The same by the functions of C; of the last row, 8 bytes of 16 are copied and the others are 0.
extern "C" __global__ void primitives(float* out, const float* inp, int rows, int bug) {
    __shared__ __align__(16) float row[2][256];
    int i = threadIdx.x;
    float sum = 0.0f;
    auto start = [&](int r) {
        if (r < rows)
            __pipeline_memcpy_async(&row[r % 2][4 * i], &inp[r * 64 + i / 4 * 4],  // COPY
                                    bug == ODD_PIECE ? 12 : 16, r == rows - 1 ? 8 : 0);
        __pipeline_commit();
    };
    start(0);
    for (int r = 0; r < rows; r++) {
        start(r + 1);
        __pipeline_wait_prior(bug == WAIT_TOO_FEW ? 2 : 1);
        __syncthreads();
        sum += row[r % 2][4 * i + i % 4] + row[r % 2][4 * (i ^ 1) + (i ^ 1) % 4];  // READ
        __syncthreads();
    }
    out[i] = sum;
}
