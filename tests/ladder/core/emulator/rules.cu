// Kernels that break one rule of the hardware each: `bug` says which one, 0 is the right kernel.
// test_hardware_rules.py has the list. One file, since it is compiled as a whole.
#include "async.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

enum Bug {
    NONE,
    INVISIBLE_BARRIER, NO_INIT, INIT_TWICE, WRONG_COUNT, EXPECT_LESS, EXPECT_MORE, ARRIVE_TWICE,
    NO_FULL_WAIT, WRONG_PARITY, WRONG_BARRIER, EMPTY_BEFORE_READ, NO_EMPTY_WAIT, UNALIGNED_TILE,
    TILE_PAST_END, LAST_COPY_UNUSED,
    NO_PROXY_FENCE, NO_BARRIER, NO_STORE_WAIT, STORE_WAIT_TOO_FEW, NO_STORE_COMMIT,
    NO_WGMMA_FENCE, FENCE_BEFORE_CHANGE, NO_WGMMA_COMMIT, NO_WGMMA_WAIT, READ_IN_FLIGHT,
    OVERWRITTEN_OPERAND, UNALIGNED_OPERAND, OPERAND_PAST_END,
    NO_CLUSTER_BARRIER, NO_LAST_CLUSTER_BARRIER, NO_PEER_BARRIER, TOO_MANY_BLOCKS, LANES_APART,
    NO_COPY_WAIT, NO_BARRIER_AFTER_WAIT, REFILLED_TOO_EARLY, COPY_NEVER_WAITED_FOR, UNALIGNED_COPY,
    BARRIER_OF_TOO_FEW, BARRIER_OF_OTHERS, NO_SYNCWARP,
};

constexpr int STAGES = 2, ROWS = 8, TILE = ROWS * 64;  // rows of 128 bytes

// Thread 32 loads tiles by TMA; warp 0 adds them up: out[c] = sum of column c of all tiles.
extern "C" __global__ void pipeline(float* out, const __grid_constant__ TensorMap map, int rounds,
                                    int bug) {
    __shared__ alignas(1024) real tiles[STAGES][TILE];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(&full[s], bug == WRONG_COUNT ? 2 : 1);  // MAKE
            if (bug != NO_INIT) mbarrier_init(&empty[s], 32);
            if (bug == INIT_TWICE) mbarrier_init(&full[s], 1);  // INIT_TWICE
        }
    }
    if (bug != INVISIBLE_BARRIER) __syncthreads();
    if (threadIdx.x >= 32) {
        for (int i = 0; threadIdx.x == 32 && i < rounds + (bug == LAST_COPY_UNUSED); i++) {
            int s = i % STAGES;
            if (bug != NO_EMPTY_WAIT) mbarrier_wait(&empty[s], i / STAGES % 2 ^ 1);  // EMPTY
            int more = bug == EXPECT_MORE ? 16 : bug == EXPECT_LESS ? -16 : 0;
            mbarrier_expect(&full[s], TILE * sizeof(real) + more);  // EXPECT
            int shift = bug == UNALIGNED_TILE ? 8 : bug == TILE_PAST_END ? TILE / 2 : 0;
            tma_load_2d(tiles[s] + shift, &map, &full[s], 0, i * ROWS);  // LOAD
        }
        return;
    }
    float sums[2] = {};
    for (int i = 0; i < rounds; i++) {
        int s = i % STAGES, parity = i / STAGES % 2 ^ (bug == WRONG_PARITY);
        Mbarrier* waits_for = &full[bug == WRONG_BARRIER ? 0 : s];
        if (bug != NO_FULL_WAIT) mbarrier_wait(waits_for, parity);  // FULL
        if (bug == EMPTY_BEFORE_READ) mbarrier_arrive(&empty[s]);
        for (int c = 0; c < 2; c++) {
            int column = threadIdx.x * 2 + c;
            for (int r = 0; r < ROWS; r++) {
                sums[c] += to_float(tiles[s][r * 64 + (column ^ r * 8)]);  // READ
            }
        }
        if (bug != EMPTY_BEFORE_READ) mbarrier_arrive(&empty[s]);
        if (bug == ARRIVE_TWICE) mbarrier_arrive(&full[s]);  // ARRIVE_TWICE
    }
    for (int c = 0; c < 2; c++) out[threadIdx.x * 2 + c] = sums[c];
}

// Fills tiles and has TMA store them: rows i * ROWS on become i + 1.
extern "C" __global__ void store(const __grid_constant__ TensorMap map, int rounds, int bug) {
    __shared__ alignas(1024) real tiles[2][TILE];
    for (int i = 0; i < rounds; i++) {
        if (threadIdx.x == 0) {
            if (bug == STORE_WAIT_TOO_FEW) tma_store_wait<2>();
            else tma_store_wait<1>();
        }
        __syncthreads();
        for (int at = threadIdx.x; at < TILE; at += 64) {
            tiles[i % 2][at] = to_real(i + 1.0f);  // FILL
        }
        if (bug != NO_PROXY_FENCE) tma_store_fence();
        if (bug != NO_BARRIER) __syncthreads();
        if (threadIdx.x == 0) {
            tma_store_2d(&map, tiles[i % 2], 0, i * ROWS);  // STORE
            if (bug != NO_STORE_COMMIT) tma_store_commit();
        }
    }
    if (threadIdx.x == 0 && bug != NO_STORE_WAIT) tma_store_wait<0>();
}

// out (64, 64) = a (64, 64) @ b (64, 64)^T, twice: the second time with a + a.
extern "C" __global__ void product(float* out, const real* a, const real* b, int bug) {
    __shared__ alignas(1024) real tiles[2][64 * 64];
    auto fill = [&](int which, const real* from, float factor) {
        for (int i = threadIdx.x; i < 64 * 64; i += 128) {
            tiles[which][i / 64 * 64 + (i % 64 ^ i / 64 % 8 * 8)] =
                to_real(to_float(from[i]) * factor);  // FILL_OPERAND
        }
    };
    fill(1, b, 1);
    float d[32];
    for (int round = 0; round < 2; round++) {
        __syncthreads();
        fill(0, a, round + 1.0f);
        if (bug != NO_PROXY_FENCE) tma_store_fence();
        if (bug != NO_BARRIER) __syncthreads();
        if (bug == FENCE_BEFORE_CHANGE && round) wgmma_fence();
        for (int i = 0; i < 32; i++) d[i] = 0;
        if (bug != NO_WGMMA_FENCE && !(bug == FENCE_BEFORE_CHANGE && round)) wgmma_fence();
        const real* x = tiles[0] + (bug == UNALIGNED_OPERAND ? 64 : 0);
        const real* y = tiles[1] + (bug == OPERAND_PAST_END ? 8 * 64 : 0);
        for (int k = 0; k < 64; k += 16) wgmma_m64k16<64>(d, x + k, y + k);  // WGMMA
        if (bug != NO_WGMMA_COMMIT) wgmma_commit();
        if (bug == OVERWRITTEN_OPERAND) {
            __syncthreads();
            tiles[0][threadIdx.x] = to_real(0.0f);  // OVERWRITE
        }
        if (bug == READ_IN_FLIGHT) out[threadIdx.x] = d[5];  // READ_D
        if (bug != NO_WGMMA_WAIT) wgmma_wait<0>(d);
        if (bug == FENCE_BEFORE_CHANGE && !round) wgmma_fence();
    }
    for (int i = 0, t = threadIdx.x; i < 32; i++) {
        int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
        out[row * 64 + column] = d[i];
    }
}

// One product stays in flight; each reads one of `sets` of registers, in turns.
extern "C" __global__ void registers(float* out, int sets) {
    __shared__ alignas(1024) real b[64 * 64];
    for (int i = threadIdx.x; i < 64 * 64; i += 128) b[i] = to_real(1.0f);
    tma_store_fence();
    __syncthreads();
    unsigned a[2][4];
    float d[32] = {};
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 4; i++) a[round % sets][i] = 0x3f803f80 + round;
        wgmma_pin(a), wgmma_pin(d);
        wgmma_fence();
        wgmma_m64k16<64>(d, a[round % sets], b);  // REGISTERS
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>(d);
    out[threadIdx.x] = d[0];
}

// Two blocks. Block 0 fills a tile in both, and each adds what the other has in `own`.
extern "C" __global__ void __cluster_dims__(2, 1, 1) pair(
    float* out, const __grid_constant__ TensorMap map, int bug) {
    __shared__ alignas(1024) real tile[TILE];
    __shared__ float own[64];
    __shared__ Mbarrier full;
    int rank = cluster_rank();
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 1);
        mbarrier_expect(&full, sizeof tile);
    }
    if (bug == NO_CLUSTER_BARRIER) __syncthreads();
    else cluster_barrier();
    if (rank == 0 && threadIdx.x == 0) {
        int blocks = bug == TOO_MANY_BLOCKS ? 7 : 3;
        tma_load_2d_multicast(tile, &map, &full, 0, 0, blocks);  // MULTICAST
    }
    own[threadIdx.x] = rank * 100.0f + threadIdx.x;  // OWN
    if (bug != NO_PEER_BARRIER) cluster_barrier();
    float sum = *cluster_shared(&own[threadIdx.x], rank ^ 1);  // PEER
    mbarrier_wait(&full, 0);
    out[blockIdx.x * 64 + threadIdx.x] = sum + to_float(tile[threadIdx.x]);
    if (bug == LANES_APART && threadIdx.x == 5) mbarrier_wait(&full, 0);  // ALONE
    if (bug != NO_LAST_CLUSTER_BARRIER) cluster_barrier();  // LEAVE
}

// out[i] = inp[i] + inp[i ^ 8], through a double buffer that cp.async fills.
extern "C" __global__ void copies(float* out, const float* inp, int rounds, int bug) {
    __shared__ alignas(16) float tiles[2][256];
    auto start = [&](int i) {
        int at = threadIdx.x * 4 + (bug == UNALIGNED_COPY);
        if (i < rounds) cp_async_16(&tiles[i % 2][at], inp + i * 256 + at);  // COPY
        cp_async_commit();
    };
    start(0);
    for (int i = 0; i < rounds; i++) {
        start(i + 1);
        if (bug == NO_COPY_WAIT) cp_async_wait<2>();
        else if (bug != COPY_NEVER_WAITED_FOR) cp_async_wait<1>();
        if (bug != NO_BARRIER_AFTER_WAIT) __syncthreads();
        for (int k = 0; bug != COPY_NEVER_WAITED_FOR && k < 4; k++) {
            int at = threadIdx.x * 4 + k;
            out[i * 256 + at] = tiles[i % 2][at] + tiles[i % 2][at ^ 8];  // USE
        }
        if (bug != REFILLED_TOO_EARLY) __syncthreads();
    }
}

// Warps 0 and 1 exchange values at a named barrier; then neighbours within a warp.
extern "C" __global__ void named(float* out, int bug) {
    __shared__ float shown[128];
    shown[threadIdx.x] = threadIdx.x;  // SHOW
    if (threadIdx.x >= 64) return;
    bool others = bug == BARRIER_OF_OTHERS && threadIdx.x < 32;
    int count = bug == BARRIER_OF_TOO_FEW ? 32 : others ? 96 : 64;
    named_barrier(1, count);  // NAMED
    float other = shown[threadIdx.x ^ 32];  // SHOWN
    named_barrier(2, 64);
    shown[threadIdx.x] = other;  // NEXT
    if (bug != NO_SYNCWARP) __syncwarp();
    shuffle_xor(other, 1);  // orders no memory
    out[threadIdx.x] = shown[threadIdx.x ^ 1];  // NEIGHBOUR
}

// Block 1 of a cluster multiplies by an MN-major operand of two parts: c (64, 128) = a @ b.
extern "C" __global__ void __cluster_dims__(2, 1, 1) second_block(float* out, const real* a,
                                                                  const real* b) {
    __shared__ alignas(1024) real x[64 * 64], y[2][16 * 64];
    for (int i = threadIdx.x; i < 64 * 16; i += 128) {
        x[i / 16 * 64 + (i % 16 ^ i / 16 % 8 * 8)] = a[i];  // a (64, 16)
    }
    for (int i = threadIdx.x; i < 16 * 128; i += 128) {
        int k = i / 128, column = i % 128;  // b (16, 128)
        y[column / 64][k * 64 + (column % 64 ^ k % 8 * 8)] = b[i];
    }
    tma_store_fence();
    __syncthreads();
    if (cluster_rank() == 0) return;
    float d[64] = {};
    wgmma_fence();
    wgmma_m64k16<128, false, sizeof y[0]>(d, x, y[0]);  // SECOND
    wgmma_commit();
    wgmma_wait<0>(d);
    for (int i = 0, t = threadIdx.x; i < 64; i++) {
        int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
        out[row * 128 + column] = d[i];
    }
}

extern "C" __global__ void fixed_size(float* out) {
    __shared__ float many[12 * 1024 + 1];  // FIXED
    out[0] = many[0] = 1;
}

extern "C" __global__ void all_memory(float* out) {
    __shared__ float few[64];  // FEW
    extern __shared__ float rest[];
    out[0] = few[0] = rest[0] = 1;
}

extern "C" __global__ void unused_memory(float* out, int few) {
    if (few) {
        __shared__ float many[64];  // MANY
        many[0] = 0;
    }
    out[0] = 1;
}
