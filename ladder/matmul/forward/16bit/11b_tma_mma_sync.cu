// matmul forward, 16bit rung 11b: warp specialization with TMA, products by mma.sync
// Before: in rung 11, all warps spend instructions on copies, and meet at a barrier in every step.
//         GeForce's Blackwell (sm_120) has no wgmma, but it has what rung 13 copies with: the
//         tensor memory accelerator (TMA), and barriers that count its bytes.
// Change: warp specialization. One thread of a third warpgroup, the producer, asks TMA for whole
//         tiles as soon as a stage is empty. The eight consumer warps load fragments and multiply
//         as in rung 11. Each waits for the stage that it needs, and for no other warp. The
//         producer gives registers to the consumers, which would have 168. Rows of TMA's swizzle
//         have 64 channels, so a stage is twice as deep, and 99 KB hold two instead of four.
// Expect: no instructions for copies in the consumers' loop, and no barrier of the block. Products
//         and bytes are those of rung 11.
// Needs:  real in (float16, bfloat16); sm >= 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 256; DEPTH = 64; WARPS = 8; GROUP = 8;
//         STAGES = min(3, shared_bytes // 49152);
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real
// Launch: matmul_forward<<<ceil_div(OC, TILE_COLUMNS) * ceil_div(N, TILE_ROWS), (WARPS + 4) * warp,
//         SHARED>>>
// Tiles:  inp[TILE_ROWS, DEPTH]; weight[TILE_COLUMNS, DEPTH]
// After:  16bit-11
// Left:   no copy runs while a block ends. Hopper has wgmma -> rung 12.

#include "hopper.cuh"
#include "mma_real.cuh"

constexpr int ROWS = 64, COLUMNS = 64;  // outputs of a warp; the warps form a 2 x 4 grid
constexpr int STRIDE = COLUMNS + VECTOR;  // padded: 8 rows of results begin in different banks

// TMA's swizzle: the position of 16-byte piece p of a row in a tile (rows, DEPTH).
__device__ __forceinline__ int place(int row, int p) {
    return row * DEPTH + (p ^ row % 8) * VECTOR;
}

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

// A warp's fragments (what its lanes hold of A and B matrices) of 16 channels.
struct Fragments {
    unsigned a[ROWS / 16][4];     // A matrices
    unsigned b[COLUMNS / 16][4];  // B matrices, in pairs

    // Loads them from a tile of inp and a tile of weight. The warp's rows begin at `y` and at `x`.
    __device__ __forceinline__ void load(const real* tile_a, const real* tile_b, int y, int x,
                                         int k) {
        int lane = lane_id();
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
            ldmatrix_x4(a[i], tile_a + place(y + i * 16 + lane % 16, k / 8 + lane / 16));
        }
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++) {
            int r = x + j * 16 + lane / 16 * 8 + lane % 8;
            ldmatrix_x4(b[j], tile_b + place(r, k / 8 + lane / 8 % 2));
        }
    }

    __device__ __forceinline__ void multiply(float (&sums)[ROWS / 16][COLUMNS / 8][4]) const {
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++) {
                mma_m16n8k16(sums[i][j], a[i], {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]});
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__((WARPS + 4) * WARP_SIZE, 1) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC,
    const __grid_constant__ TensorMap inp_tiles, const __grid_constant__ TensorMap weight_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)     of inp
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS, DEPTH)  of weight
    int high = (N + TILE_ROWS - 1) / TILE_ROWS, wide = (OC + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int top = blockIdx.x / (GROUP * wide) * GROUP, of_group = blockIdx.x % (GROUP * wide);
    int rows = min(GROUP, high - top);  // rows of tiles in this group
    int row = (top + of_group % rows) * TILE_ROWS;  // where the block's tile begins
    int column = of_group / rows * TILE_COLUMNS;
    int y = warp_id() / 4 * ROWS, x = warp_id() % 4 * COLUMNS;  // the warp's, within it
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], WARPS);  // arrivals: the consumer warps
        }
    }
    __syncthreads();  // the barriers are initialized before any thread waits on them

    Stage stage;
    if (warp_id() >= WARPS) {  // the producer warpgroup, of which one thread works
        fewer_registers<24>();  // 4 x 24 + 8 x 240 for 12 warps of 168
        for (int start = 0; start < C && threadIdx.x == WARPS * WARP_SIZE;
             start += DEPTH, stage.next()) {
            Mbarrier* done = &full[stage.index];
            mbarrier_wait(&empty[stage.index], stage.parity ^ 1);  // the consumers have read it
            mbarrier_expect(done, (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof(real));
            tma_load_2d_cta(a + stage.index * TILE_ROWS * DEPTH, &inp_tiles, done, start, row);
            tma_load_2d_cta(b + stage.index * TILE_COLUMNS * DEPTH, &weight_tiles, done, start,
                            column);
        }
        return;
    }
    more_registers<240>();
    float sums[ROWS / 16][COLUMNS / 8][4] = {};  // accumulators: D matrices of 16 x 8
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        int c = column + x + j * 8 + 2 * t;
        if (!bias || c >= OC) break;
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
            sums[i][j][0] = sums[i][j][2] = to_float(bias[c]);
            sums[i][j][1] = sums[i][j][3] = to_float(bias[c + 1]);
        }
    }

    Fragments now, next;
    mbarrier_wait(&full[0], 0);  // the first stage's copies have arrived
    now.load(a, b, y, x, 0);
    for (int start = 0; start < C; start += DEPTH) {
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            if (k + 16 < DEPTH) {
                next.load(a + stage.index * TILE_ROWS * DEPTH,
                          b + stage.index * TILE_COLUMNS * DEPTH, y, x, k + 16);
            } else {
                __syncwarp();  // all lanes have read this stage before it is released
                if (lane == 0) mbarrier_arrive(&empty[stage.index]);
                stage.next();
                if (start + DEPTH < C) {
                    mbarrier_wait(&full[stage.index], stage.parity);  // the next stage has arrived
                    next.load(a + stage.index * TILE_ROWS * DEPTH,
                              b + stage.index * TILE_COLUMNS * DEPTH, y, x, 0);
                }
            }
            now.multiply(sums);
            now = next;
        }
    }

    named_barrier(1, WARPS * WARP_SIZE);  // all have read the tiles before results overwrite them
    real* patch = shared->at + warp_id() * 16 * STRIDE;  // (16, STRIDE)  for each warp
    constexpr int LANES = COLUMNS / VECTOR;              // that store a row together
    int c = column + x + lane % LANES * VECTOR;
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            unsigned* to = reinterpret_cast<unsigned*>(patch + g * STRIDE + j * 8 + 2 * t);
            to[0] = pack(sums[i][j][0], sums[i][j][1]);
            to[8 * STRIDE / 2] = pack(sums[i][j][2], sums[i][j][3]);
        }
        __syncwarp();  // the results are in shared memory before other lanes read them
#pragma unroll
        for (int r = lane / LANES; r < 16; r += WARP_SIZE / LANES) {
            size_t n = row + y + i * 16 + r;
            if (n < N && c < OC) {
                store_vec(out + n * OC + c, load_vec(patch + r * STRIDE + lane % LANES * VECTOR));
            }
        }
        __syncwarp();  // all lanes have read them before the next ones overwrite them
    }
}
