// Kernels of CUDA's C++ library as people bring them: a matrix product whose tiles come in through a
// pipeline of two stages, a row sum with a barrier at which arriving and waiting are apart, and a
// sum of rows that are copied while the one before is added.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

namespace cg = cooperative_groups;
using block_barrier = cuda::barrier<cuda::thread_scope_block>;
constexpr int TILE = 16;

// out = inp * weight^T + bias, a tile of TILE x TILE in each block.
template <int STAGES>
__global__ void linear_pipelined(float* out, const float* inp, const float* weight,
                                 const float* bias, int rows, int C, int OC) {
    constexpr auto scope = cuda::thread_scope_block;
    __shared__ float a[STAGES][TILE][TILE];
    __shared__ float b[STAGES][TILE][TILE];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::pipeline_shared_state<scope, STAGES> state;
    cg::thread_block block = cg::this_thread_block();
    auto pipeline = cuda::make_pipeline(block, &state);
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    auto copy = [&](float* to, const float* from, bool inside) {
        if (inside) cuda::memcpy_async(to, from, sizeof(float), pipeline);
        else *to = 0.0f;
    };
    int tiles = (C + TILE - 1) / TILE;
    float sum = 0.0f;
    for (int tile = 0, fetched = 0; tile < tiles; tile++) {
        for (; fetched < tiles && fetched < tile + STAGES; fetched++) {
            int s = fetched % STAGES, k = fetched * TILE + x;
            pipeline.producer_acquire();
            copy(&a[s][y][x], inp + (size_t)row * C + k, row < rows && k < C);
            int oc = blockIdx.x * TILE + y;
            copy(&b[s][y][x], weight + (size_t)oc * C + k, oc < OC && k < C);
            pipeline.producer_commit();
        }
        pipeline.consumer_wait();
        for (int k = 0; k < TILE; k++) sum += a[tile % STAGES][y][k] * b[tile % STAGES][x][k];
        pipeline.consumer_release();
    }
    if (row < rows && column < OC) out[(size_t)row * OC + column] = sum + (bias ? bias[column] : 0.0f);
}

void linear(float* out, const float* inp, const float* weight, const float* bias, int B, int T,
            int C, int OC) {
    dim3 grid((OC + TILE - 1) / TILE, (B * T + TILE - 1) / TILE);
    linear_pipelined<2><<<grid, dim3(TILE, TILE)>>>(out, inp, weight, bias, B * T, C, OC);
}

// dbias[oc] += sum of dout[row][oc]: the warps' sums meet at a barrier, at which the first warp waits
// and the others only arrive.
__global__ void bias_split(float* dbias, const float* dout, int N, int OC) {
    __shared__ block_barrier ready;
    __shared__ float sums[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, oc = blockIdx.x * 32 + lane;
    if (threadIdx.x == 0) init(&ready, blockDim.x);
    __syncthreads();
    float sum = 0.0f;
    for (int row = warp; row < N && oc < OC; row += 8) sum += dout[(size_t)row * OC + oc];
    sums[warp][lane] = sum;
    block_barrier::arrival_token token = ready.arrive();
    if (warp) return;
    ready.wait(std::move(token));
    for (int i = 1; i < 8; i++) sum += sums[i][lane];
    if (oc < OC) dbias[oc] += sum;
}

// out = inp1 + inp2, of which a block's part is copied to shared memory first.
__global__ void residual_copied(float* out, const float* inp1, const float* inp2, int n) {
    __shared__ __align__(16) float first[256], second[256];
    cg::thread_block block = cg::this_thread_block();
    int begin = blockIdx.x * 256, count = min(256, n - begin), i = threadIdx.x;
    cg::memcpy_async(block, first, inp1 + begin, sizeof(float) * count);
    if (i < count) __pipeline_memcpy_async(&second[i], &inp2[begin + i], sizeof(float));
    __pipeline_commit();
    cg::wait(block);
    if (i < count) out[begin + i] = first[i] + second[i];
}
