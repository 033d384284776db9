// matmul backward_weight, float32 rung 9: TF32 by wgmma, one factor transposed beforehand
// Before: in rung 8, all fragments pass through registers, and each is rounded by four warps, or by
//         two. wgmma reads its factors from shared memory, but of TF32 only rows of what is summed
//         over (K-major). Here that are the rows of dout and inp, and both have them as columns.
// Change: dout becomes A, which wgmma takes from registers: a warp's 16 rows of A are columns that
//         lie so in the swizzled tile of dout that a lane's two are one load, and 16 lanes read
//         from all banks. For B, a kernel writes inp.T to memory first. TMA rounds both factors to
//         TF32 while it copies. Blocks compute whole tiles, and share the steps of those that are
//         left over (stream-K). Every part of a sum is added to dweight by TMA, in L2.
// Expect: half the rate of 16bit rung 14; and the time to read inp, and to write inp.T.
// Needs:  real == float32; sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 192; DEPTH = 32; WARPS = 8; STAGES = 4; PATCH = 64 * 32;
//         STEPS = ceil_div(N, DEPTH); WIDE = ceil_div(C, TILE_COLUMNS);
//         TILES = ceil_div(OC, TILE_ROWS) * WIDE;
//         WHOLE = TILES // multiprocessors * multiprocessors;
//         REST = (TILES - WHOLE) * STEPS; SHARE = ceil_div(REST, multiprocessors);
//         SHARED = 4 * (STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH + 4 * PATCH)
// Launch: matmul_backward_weight_transpose<<<(ceil_div(C, 32), STEPS), 256>>>
// Launch: matmul_backward_weight<<<multiprocessors, (WARPS + 1) * warp, SHARED>>>
// Scratch: float32 inp_across[C, STEPS * DEPTH]
// Tiles:  dweight[64, 32]; dout[DEPTH, 32]; inp_across[TILE_COLUMNS, DEPTH]
// Deterministic: no, the parts of a sum are added in any order
// TF32:   both factors, rounded by TMA
// After:  matmul.backward_input float32-9
// Left:   the transpose, which the kernel that writes inp could do on the way.

#include "portable.cuh"
#include "wgmma_tf32.cuh"

struct alignas(8) Pair { float at[2]; };

constexpr int BLOCK = DEPTH * 32;  // elements of a tile of dout

// Writes inp (N, C) as inp.T (C, STEPS * DEPTH), with zeros behind the last row of inp.
extern "C" __global__ void matmul_backward_weight_transpose(
    const real* __restrict__ inp, int N, int C, int OC, float* __restrict__ inp_across,
    const __grid_constant__ TensorMap dweight_tiles, const __grid_constant__ TensorMap dout_tiles,
    const __grid_constant__ TensorMap inp_across_tiles) {
    __shared__ float tile[32][33];  // padded: a column lies in different banks
    int x = threadIdx.x % 32, c = blockIdx.x * 32, n = blockIdx.y * 32;
    for (int y = threadIdx.x / 32; y < 32; y += 8) {
        tile[y][x] = n + y < N && c + x < C ? inp[(size_t)(n + y) * C + c + x] : 0.0f;
    }
    __syncthreads();  // the tile is complete before its columns are read
    for (int y = threadIdx.x / 32; y < 32; y += 8) {
        if (c + y < C) inp_across[(size_t)(c + y) * STEPS * DEPTH + n + x] = tile[x][y];
    }
}

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

// The work of a block: first whole tiles, then SHARE steps of the tiles that are left over.
struct Work {
    int tile, first, last;  // what is next: these steps of this tile
    int whole = blockIdx.x, step = blockIdx.x * SHARE, end = min(step + SHARE, REST);
    __device__ __forceinline__ bool next() {
        if (whole < WHOLE) {
            tile = whole, first = 0, last = STEPS;
            whole += gridDim.x;
            return true;
        }
        tile = WHOLE + step / STEPS, first = step % STEPS, last = min(STEPS, first + end - step);
        step += last - first;
        return first < last;
    }
};

extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ inp_across,  // (C, STEPS * DEPTH)  inp.T
    const __grid_constant__ TensorMap dweight_tiles, const __grid_constant__ TensorMap dout_tiles,
    const __grid_constant__ TensorMap inp_across_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    float* a = shared->at;                          // (STAGES, TILE_ROWS / 32, DEPTH, 32)  of dout
    float* b = a + STAGES * TILE_ROWS * DEPTH;      // (STAGES, TILE_COLUMNS, DEPTH)  of inp.T
    float* patches = b + STAGES * TILE_COLUMNS * DEPTH;  // (2 warpgroups, 2, 64, 32)  of dweight
    int lane = lane_id();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], WARPS);  // arrivals: the consumer warps
        }
    }
    __syncthreads();  // the barriers are initialized before any thread waits on them

    Stage now;
    Work work;
    if (warp_id() == WARPS) {  // the producer warp
        if (lane > 0) return;
        while (work.next()) {
            int row = work.tile / WIDE * TILE_ROWS, column = work.tile % WIDE * TILE_COLUMNS;
            for (int step = work.first; step < work.last; step++, now.next()) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof(float));
                for (int y = 0; y < TILE_ROWS; y += 32) {
                    tma_load_2d(a + now.index * TILE_ROWS * DEPTH + y * DEPTH, &dout_tiles, done,
                                row + y, step * DEPTH);
                }
                tma_load_2d(b + now.index * TILE_COLUMNS * DEPTH, &inp_across_tiles, done,
                            step * DEPTH, column);
            }
        }
        return;
    }

    // Of a tile of dout, 32 columns wide, a warp has 4 of the 8 pieces of 16 bytes in a row, and a
    // lane two neighbouring columns: rows g and g + 8 of A. Lanes of the same row in half a warp
    // read pieces 4 apart: the swizzle puts those of 4 rows into different banks.
    int g = lane / 4, t = lane % 4;
    int piece = warp_id() % 2 * 2 + g / 4 + g / 2 % 2 * 4, block = warp_id() / 2;
    int group = warp_id() / 4, own = block % 2 * 32 + piece * 4 + g % 2 * 2;  // of 64 rows: first
    bool leader = threadIdx.x % 128 == 0;  // of the warpgroup
    while (work.next()) {
        int row = work.tile / WIDE * TILE_ROWS, column = work.tile % WIDE * TILE_COLUMNS;
        float sums[TILE_COLUMNS / 2] = {};  // accumulators: D matrices of 16 x 8
        for (int step = work.first; step < work.last; step++, now.next()) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            const float* from = a + now.index * TILE_ROWS * DEPTH + block * BLOCK + g % 2 * 2;
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
                wgmma_m64k8_tf32_registers<TILE_COLUMNS>(
                    sums, as[k / 8], b + now.index * TILE_COLUMNS * DEPTH + k);
            }
            wgmma_commit();
            wgmma_wait<0>(sums);  // the products are done before their registers are loaded again
            __syncwarp();         // in all lanes, before the stage is released
            if (lane == 0) mbarrier_arrive(&empty[now.index]);
        }

#pragma unroll
        for (int s = 0; s < TILE_COLUMNS / 32; s++) {  // 32 columns at a time
            float* patch = patches + (group * 2 + s % 2) * PATCH;
            if (leader) tma_store_wait<1>();  // the previous store from this patch has read it
            named_barrier(1 + group, 128);  // ... before the warpgroup overwrites it
#pragma unroll
            for (int p = 0; p < 8; p++) {
                int r = own + p % 2, j = s * 4 + p / 2;  // both rows of each D matrix
                float* to = patch + r * 32 + ((p / 2 * 2 + t / 2) ^ r % 8) * 4;  // TMA's swizzle
                const float* two = &sums[4 * j + p % 2 * 2];
                *reinterpret_cast<Pair*>(to + t % 2 * 2) = {two[0], two[1]};
            }
            tma_store_fence();  // makes the patch visible to TMA (async proxy)
            named_barrier(1 + group, 128);  // all of it is written before TMA reads it
            if (leader) {
                tma_add_2d(&dweight_tiles, patch, column + s * 32, row + group * 64);
                tma_store_commit();
            }
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
}
