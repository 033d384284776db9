// matmul backward_input, float32 rung 9: TF32 by wgmma, the transposed factor in registers
// Before: in rung 8, all fragments pass through registers, and each is rounded by four warps, or by
//         two. wgmma reads its factors from shared memory, but of TF32 only rows of what is summed
//         over (K-major): dout has such rows, weight does not.
// Change: wgmma takes A from registers, in any order in which lanes can load it. So A is weight.T,
//         B is dout, and the block computes a tile of dinp.T. A warp's 16 rows of it are channels
//         that lie so in the swizzled tile of weight that a lane's two channels are one load, and
//         16 lanes read from all banks. TMA rounds both factors to TF32 while it copies.
// Expect: half the rate of 16bit rung 14. Shared memory also delivers weight to the lanes: 4 bytes
//         for 192 products, little beside what wgmma reads.
// Needs:  real == float32; sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_CHANNELS = 128; WIDE = ceil_div(C, TILE_CHANNELS);
//         TILE_ROWS = matmul.tiles.tile_columns(WIDE, N, multiprocessors, 192, 128);
//         DEPTH = 32; WARPS = 8; STAGES = 4; TILES = WIDE * ceil_div(N, TILE_ROWS);
//         SHARED = 4 * STAGES * (TILE_ROWS + TILE_CHANNELS) * DEPTH
// Launch: matmul_backward_input<<<min(TILES, multiprocessors), (WARPS + 1) * warp, SHARED>>>
// Tiles:  dout[TILE_ROWS, DEPTH]; weight[DEPTH, 32]
// TF32:   both factors, rounded by TMA
// After:  16bit-14
// Left:   both warpgroups store at the same time. If one multiplied meanwhile, the tensor cores
//         would never wait.

#include "portable.cuh"
#include "wgmma_tf32.cuh"

struct alignas(8) Pair { float at[2]; };

constexpr int BLOCK = DEPTH * 32;  // elements of a tile of weight

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC,
    const __grid_constant__ TensorMap dout_tiles, const __grid_constant__ TensorMap weight_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    float* a = shared->at;                          // (STAGES, TILE_CHANNELS / 32, DEPTH, 32)
    float* b = a + STAGES * TILE_CHANNELS * DEPTH;  // (STAGES, TILE_ROWS, DEPTH)  of dout
    int lane = lane_id();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], WARPS);  // arrivals: the consumer warps
        }
    }
    __syncthreads();  // the barriers are initialized before any thread waits on them

    Stage now;
    if (warp_id() == WARPS) {  // the producer warp
        if (lane > 0) return;
        for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
            int row = tile / WIDE * TILE_ROWS, channel = tile % WIDE * TILE_CHANNELS;
            for (int start = 0; start < OC; start += DEPTH, now.next()) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + TILE_CHANNELS) * DEPTH * sizeof(float));
                tma_load_2d(b + now.index * TILE_ROWS * DEPTH, &dout_tiles, done, start, row);
                for (int x = 0; x < TILE_CHANNELS; x += 32) {
                    tma_load_2d(a + now.index * TILE_CHANNELS * DEPTH + x * DEPTH, &weight_tiles,
                                done, channel + x, start);
                }
            }
        }
        return;
    }

    // Of a tile of weight, 32 channels wide, a warp has 4 of the 8 pieces of 16 bytes in a row, and
    // a lane two neighbouring channels. Lanes of the same row in half a warp read pieces 4 apart:
    // the swizzle puts those of 4 rows into different banks.
    int g = lane / 4, t = lane % 4;
    int piece = warp_id() % 2 * 2 + g / 4 + g / 2 % 2 * 4, block = warp_id() / 2;
    int own = block * 32 + piece * 4 + g % 2 * 2;  // the lane's first channel, within the tile
    for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
        int row = tile / WIDE * TILE_ROWS, channel = tile % WIDE * TILE_CHANNELS + own;
        float sums[TILE_ROWS / 2] = {};  // accumulators: D matrices of 16 channels x 8 rows
        for (int start = 0; start < OC; start += DEPTH, now.next()) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            const float* from = a + now.index * TILE_CHANNELS * DEPTH + block * BLOCK + g % 2 * 2;
            unsigned as[DEPTH / 8][4];  // A matrices
#pragma unroll
            for (int k = 0; k < DEPTH; k += 4) {
                int place = (k + t) * 32 + (piece ^ (k + t) % 8) * 4;  // TMA's swizzle
                Pair pair = *reinterpret_cast<const Pair*>(from + place);
                as[k / 8][k / 4 % 2 * 2] = __float_as_uint(pair.at[0]);
                as[k / 8][k / 4 % 2 * 2 + 1] = __float_as_uint(pair.at[1]);
            }
            wgmma_pin(as);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 8) {
                wgmma_m64k8_tf32_registers<TILE_ROWS>(sums, as[k / 8],
                                                      b + now.index * TILE_ROWS * DEPTH + k);
            }
            wgmma_commit();
            wgmma_wait<0>(sums);  // the products are done before their registers are loaded again
            __syncwarp();         // in all lanes, before the stage is released
            if (lane == 0) mbarrier_arrive(&empty[now.index]);
        }
        if (channel >= C) continue;
#pragma unroll
        for (int j = 0; j < TILE_ROWS / 4; j++) {
            int n = row + j / 2 * 8 + 2 * t + j % 2;
            if (n >= N) continue;
            const float* two = &sums[j / 2 * 4 + j % 2];  // rows g and g + 8 of a D matrix
            // Four lanes have the 8 channels of a sector.
            *reinterpret_cast<Pair*>(dinp + (size_t)n * C + channel) = {two[0], two[2]};
        }
    }
}
