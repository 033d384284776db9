"""Tensor cores, asynchronous copies, TMA: the CPU twins in ladder/include."""

import ml_dtypes
import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.emulator.emulated import Emulated, KernelError
from tests.ladder.emulation import array, line, run, zeros

pytestmark = pytest.mark.emulator

BFLOAT = np.dtype(ml_dtypes.bfloat16)
REALS = pytest.mark.parametrize("real", (np.dtype(np.float16), BFLOAT), ids=str)


def operands(M, N, K, dtype):
    """A (M, K), B (N, K), and A @ B.T."""
    rng = np.random.default_rng(0)
    A, B = array(rng.standard_normal((M, K)), dtype), array(rng.standard_normal((N, K)), dtype)
    return A, B, A.astype(np.float64) @ B.astype(np.float64).T


# One warp to a 16 x 8 tile of C (M, N) = A (M, K) * B (N, K)^T. A comes through shared memory.
MMA = """\
#include "portable.cuh"
#include "async.cuh"
#include "mma.cuh"
#ifdef REAL_BFLOAT16
#define MMA mma_m16n8k16_bf16
#else
#define MMA mma_m16n8k16_fp16
#endif
extern "C" __global__ void k(float* C, const real* A, const real* B, int N, int K) {
    __shared__ alignas(16) real As[2][16][16];
    int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    const real *a_tile = A + blockIdx.y * 16 * K, *b_tile = B + blockIdx.x * 8 * K;
    float d[4] = {};
    auto start = [&](int stage, int k) {
        int row = lane / 2, column = lane % 2 * 8;
        cp_async_16_or_zero(&As[stage][row][column], a_tile + row * K + k + column, k < K);
        cp_async_commit();
    };
    start(0, 0);
    for (int k = 0; k < K; k += 16) {
        int stage = k / 16 % 2;
        start(stage ^ 1, k + 16);
        cp_async_wait<1>();  // WAIT
        __syncwarp();
        unsigned a[4], b[2];
        ldmatrix_x4(a, &As[stage][lane % 16][lane / 16 * 8]);
        b[0] = *(const unsigned*)&b_tile[g * K + k + 2 * t];
        b[1] = *(const unsigned*)&b_tile[g * K + k + 2 * t + 8];
        MMA(d, a, b);
        __syncwarp();
    }
    for (int i = 0; i < 4; i++)
        C[(blockIdx.y * 16 + g + i / 2 * 8) * N + blockIdx.x * 8 + 2 * t + i % 2] = d[i];
}
"""


def multiply(tmp_path, source, real, device, M=32, N=24, K=96):
    A, B, expected = operands(M, N, K, real)
    C = zeros(M, N)
    grid = (N // 8, M // 16)
    run(device, tmp_path, source, grid, 32, C, A, B, np.int32(N), np.int32(K), real=real)
    return C, expected


@REALS
@pytest.mark.parametrize("counting, seed", ((False, 0), (False, 3), (True, 0), (True, 3)))
def test_mma_with_asynchronous_copies(tmp_path, real, counting, seed):
    device = Emulated(counting=counting, seed=seed)
    C, expected = multiply(tmp_path, MMA, real, device)
    assert np.allclose(C, expected, atol=1e-3)
    assert device.report().problems == []


def test_missing_wait_for_an_asynchronous_copy(tmp_path):
    with pytest.raises(KernelError, match=r"returns while this cp\.async is under way"):
        multiply(tmp_path, MMA.replace("cp_async_wait<1>();", ""), BFLOAT, Emulated())
    # One group too few: the tile is the one before, or nothing yet.
    source = MMA.replace("cp_async_wait<1>();", "cp_async_wait<2>();").replace(
        "for (int i = 0; i < 4", "cp_async_wait<0>(); for (int i = 0; i < 4"
    )
    C, expected = multiply(tmp_path, source, BFLOAT, Emulated())
    assert not np.allclose(C, expected, atol=1e-3)
    with pytest.raises(KernelError) as caught:
        multiply(tmp_path, source, BFLOAT, Emulated(counting=True))
    assert {problem.kind for problem in caught.value.problems} == {"race"}
    assert caught.value.problems[0].line == line(source, "ldmatrix_x4")


@pytest.mark.parametrize("transposed", (False, True))
def test_ldmatrix(tmp_path, transposed):
    suffix = "_trans" if transposed else ""
    source = f"""\
#include "portable.cuh"
#include "mma.cuh"
extern "C" __global__ void k(unsigned* out, const uint4* inp) {{
    __shared__ uint4 rows[32];
    rows[threadIdx.x] = inp[threadIdx.x];
    __syncwarp();
    unsigned four[4], two[2];
    ldmatrix_x4{suffix}(four, &rows[threadIdx.x]);
    ldmatrix_x2{suffix}(two, &rows[16 + threadIdx.x % 16]);
    for (int i = 0; i < 4; i++) out[threadIdx.x * 6 + i] = four[i];
    for (int i = 0; i < 2; i++) out[threadIdx.x * 6 + 4 + i] = two[i];
}}
"""
    matrices = array(np.arange(4 * 8 * 8).reshape(4, 8, 8), np.uint16)
    out = zeros(32, 6, dtype=np.uint32)
    device = Emulated(counting=True)
    run(device, tmp_path, source, 1, 32, out, matrices)
    read = matrices.swapaxes(1, 2) if transposed else matrices
    for lane in range(32):
        for i, matrix in enumerate((0, 1, 2, 3, 2, 3)):
            low, high = (int(read[matrix, lane // 4, lane % 4 * 2 + h]) for h in (0, 1))
            assert out[lane, i] == low | high << 16
    loads = [x for x in device.report().lines if x.buffer == "rows" and x.kind == "read"]
    assert [(x.bytes, x.wavefronts) for x in loads] == [(16, 4), (16, 2)]  # one for each matrix


# Warp 4 loads 64 x 64 tiles by TMA into a ring of STAGES, warps 0 to 3 multiply them.
WGMMA = """\
#include "portable.cuh"
#include "hopper.cuh"
#define STAGES 3
#ifdef REAL_BFLOAT16
#define WGMMA wgmma_m64k16_bf16
#else
#define WGMMA wgmma_m64k16_fp16
#endif
extern "C" __global__ void __launch_bounds__(160) k(
    float* C, const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    int N, int K) {
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    const int TILE = 64 * 64 * sizeof(real);
    if (threadIdx.x == 0)
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(&full[s], 1);
            mbarrier_init(&empty[s], 128);
        }
    __syncthreads();
    if (threadIdx.x >= 128) {
        for (int i = 0; threadIdx.x == 128 && i < K / 64; i++) {
            int s = i % STAGES, phase = i / STAGES % 2;
            unsigned char *a = ring + s * 2 * TILE, *b = a + TILE;
            mbarrier_wait(&empty[s], phase ^ 1);  // EMPTY
            mbarrier_expect(&full[s], 2 * TILE);
            tma_load_2d(a, &a_map, &full[s], i * 64, blockIdx.y * 64);
            tma_load_2d(b, &b_map, &full[s], i * 64, blockIdx.x * 64);
        }
        return;
    }
    float d[32] = {};
    for (int i = 0; i < K / 64; i++) {
        int s = i % STAGES, phase = i / STAGES % 2;
        unsigned char *a = ring + s * 2 * TILE, *b = a + TILE;
        mbarrier_wait(&full[s], phase);  // FULL
        wgmma_fence();
        for (int k = 0; k < 4; k++) WGMMA<64>(d, a + 32 * k, b + 32 * k);
        wgmma_commit();
        wgmma_wait<0>();
        mbarrier_arrive(&empty[s]);
    }
    named_barrier(1, 128);
    int t = threadIdx.x;
    for (int i = 0; i < 32; i++) {
        int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
        if (blockIdx.x * 64 + column < N)
            C[(size_t)(blockIdx.y * 64 + row) * N + blockIdx.x * 64 + column] = d[i];
    }
}
"""


def hopper(tmp_path, source, device, real=BFLOAT, across=False):
    M, N, K = 64, 72, 448  # B's last tile is mostly outside: zeros
    A, B, expected = operands(M, N, K, real)
    if across:
        A, B = (np.ascontiguousarray(x.T) for x in (A, B))
    C = zeros(M, N)
    maps = [device.tensor_map(x, (64, 64)) for x in (A, B)]
    arguments = (C, *maps, np.int32(N), np.int32(K))
    run(device, tmp_path, source, (2, 1), 160, *arguments, shared=7 * 2 * 8192, real=real)
    return C, expected


@REALS
@pytest.mark.parametrize("counting, seed", ((False, 0), (False, 3), (True, 1)))
def test_tma_and_wgmma(tmp_path, real, counting, seed):
    device = Emulated(counting=counting, seed=seed)
    C, expected = hopper(tmp_path, WGMMA, device, real)
    assert np.allclose(C, expected, atol=1e-2)
    assert device.report().problems == []


@REALS
def test_wgmma_sums_over_the_rows_of_tiles_across(tmp_path, real):
    source = (
        WGMMA.replace("i * 64, blockIdx.y * 64);", "blockIdx.y * 64, i * 64);")
        .replace("i * 64, blockIdx.x * 64);", "blockIdx.x * 64, i * 64);")
        .replace(
            "WGMMA<64>(d, a + 32 * k, b + 32 * k)",
            "WGMMA<64, true, TILE>(d, a + 2048 * k, b + 2048 * k)",
        )
    )
    C, expected = hopper(tmp_path, source, Emulated(), real, across=True)
    assert np.allclose(C, expected, atol=1e-2)


@REALS
def test_wgmma_with_the_results_of_another_as_its_factor(tmp_path, real):
    source = """\
#include "mma_real.cuh"
#include "wgmma_real.cuh"
extern "C" __global__ void k(float* D, const real* A, const real* B, const real* C) {
    __shared__ alignas(1024) real a[64 * 64], b[64 * 64], c[64 * 64];
    for (int i = threadIdx.x; i < 64 * 64; i += 128) {
        int at = i / 64 * 64 + (i % 64 / 8 ^ i / 64 % 8) * 8 + i % 8;
        a[at] = A[i], b[at] = B[i], c[at] = C[i];
    }
    tma_store_fence();
    __syncthreads();
    float product[32], d[32] = {};
    wgmma_fence();
    wgmma_m64k16<64, false, 0, false>(product, a, b);  // overwrites what is not there yet
    for (int k = 16; k < 64; k += 16) wgmma_m64k16<64>(product, a + k, b + k);
    wgmma_commit(), wgmma_wait<0>(product);
    for (int k = 0; k < 4; k++) {
        unsigned x[4];
        for (int i = 0; i < 4; i++) x[i] = pack(product[8 * k + 2 * i], product[8 * k + 2 * i + 1]);
        wgmma_fence();
        wgmma_m64k16<64, 8192>(d, x, c + k * 16 * 64);
    }
    wgmma_commit(), wgmma_wait<0>(d);
    for (int i = 0, t = threadIdx.x; i < 32; i++) {
        int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
        D[row * 64 + column] = d[i];
    }
}
"""
    A, B, product = operands(64, 64, 64, real)
    C = operands(64, 64, 64, real)[0]
    D = zeros(64, 64)
    run(Emulated(), tmp_path, source, 1, 128, D, A, B, C, real=real)
    rounded = product.astype(real).astype(np.float64)
    assert np.allclose(D, rounded @ C.astype(np.float64), atol=0.1)
    assert not np.allclose(D, 0, atol=0.1)


@pytest.mark.parametrize("missing", ["wgmma_wait<0>();", "wgmma_commit();"])
def test_products_must_be_waited_for(tmp_path, missing):
    with pytest.raises(KernelError, match="returns while this wgmma is under way"):
        hopper(tmp_path, WGMMA.replace(missing, ""), Emulated())


def test_the_last_product_may_be_under_way_while_another_begins(tmp_path):
    source = WGMMA.replace("wgmma_wait<0>();", "wgmma_wait<1>();")
    last = "named_barrier(1, 128);"
    source = source.replace(last, "wgmma_wait<0>();" + last).replace(
        "#define STAGES 3", "#define STAGES 7"
    )
    C, expected = hopper(tmp_path, source, Emulated())
    assert np.allclose(C, expected, atol=1e-2)


# Fills a tile again and again, and has TMA store it.
STORE = """\
#include "portable.cuh"
#include "hopper.cuh"
extern "C" __global__ void k(const __grid_constant__ TensorMap map) {
    __shared__ alignas(1024) real tile[2][16 * 64];
    for (int i = 0; i < 4; i++) {
        if (threadIdx.x == 0) tma_store_wait<1>();
        __syncthreads();
        for (int at = threadIdx.x; at < 16 * 64; at += 32) tile[i % 2][at] = to_real(i + 1.0f);
        tma_store_fence();
        __syncthreads();
        if (threadIdx.x == 0) {
            tma_store_2d(&map, tile[i % 2], 0, i * 16);
            tma_store_commit();
        }
    }
    if (threadIdx.x == 0) tma_store_wait<0>();
}
"""


def stored(tmp_path, source):
    out = np.full((60, 64), np.nan, BFLOAT)  # the last tile goes past the end
    device = Emulated()
    run(device, tmp_path, source, 1, 32, device.tensor_map(out, (16, 64)), real=BFLOAT)
    return out.astype(np.float32)


def test_tiles_are_stored_by_tma(tmp_path):
    assert (stored(tmp_path, STORE) == np.arange(1, 5).repeat(16)[:60, None]).all()


# Every block adds its tile to the same place.
ADD = """\
#include "portable.cuh"
#include "hopper.cuh"
extern "C" __global__ void k(const __grid_constant__ TensorMap map) {
    __shared__ alignas(1024) float tile[16 * 32];
    for (int at = threadIdx.x; at < 16 * 32; at += 32) tile[at] = blockIdx.x + 1.0f;
    tma_store_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        tma_add_2d(&map, tile, 0, 0);
        tma_store_commit();
        tma_store_wait<0>();
    }
}
"""


def test_tiles_are_added_by_tma(tmp_path):
    out = np.arange(12 * 32, dtype=np.float32).reshape(12, 32)  # the tile goes past the end
    device = Emulated()
    run(device, tmp_path, ADD, 3, 32, device.tensor_map(out, (16, 32)), real=BFLOAT)
    assert (out == np.arange(12 * 32).reshape(12, 32) + 1 + 2 + 3).all()


def test_tiles_of_blocks_that_run_at_the_same_time_are_all_added(tmp_path):
    out = zeros(12, 32)
    device = Emulated(workers=4)
    run(device, tmp_path, ADD, 4000, 32, device.tensor_map(out, (16, 32)), real=BFLOAT)
    assert (out == 4000 * 4001 / 2).all()


# Three blocks of a cluster, each of which adds up what the others have in shared memory.
PEERS = """\
#include "portable.cuh"
#include "hopper.cuh"
constexpr int SIZE = 3;
extern "C" __global__ void __cluster_dims__(SIZE, 1, 1) k(float* out) {
    __shared__ float own[32];
    own[threadIdx.x] = blockIdx.x * 100.0f + threadIdx.x;
    cluster_barrier();
    float sum = 0;
    for (int rank = 0; rank < SIZE; rank++) sum += *cluster_shared(&own[threadIdx.x], rank);
    out[blockIdx.x * 32 + threadIdx.x] = sum;
    cluster_barrier();
}
"""


def test_blocks_of_a_cluster_read_each_others_shared_memory(tmp_path):
    out = zeros(6, 32)
    run(Emulated(), tmp_path, PEERS, 6, 32, out)
    first, second = (3 * np.arange(32) + 100 * sum(blocks) for blocks in ((0, 1, 2), (3, 4, 5)))
    assert (out[:3] == first).all() and (out[3:] == second).all()


# Two blocks of a cluster. Each fetches half of a tile for both, and tells the other when it has
# read what was there.
CLUSTER = """\
#include "portable.cuh"
#include "hopper.cuh"
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(64) k(
    real* out, const __grid_constant__ TensorMap map, int rounds) {
    __shared__ alignas(1024) real tile[64 * 64];
    __shared__ Mbarrier full, empty;
    int rank = cluster_rank();
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 1);
        mbarrier_init(&empty, 2);
    }
    cluster_barrier();
    for (int i = 0; i < rounds; i++) {
        if (threadIdx.x == 0) {
            mbarrier_wait(&empty, i % 2 ^ 1);
            mbarrier_expect(&full, sizeof tile);
            tma_load_2d_multicast(tile + rank * 32 * 64, &map, &full, i * 64, rank * 32, 3);
        }
        mbarrier_wait(&full, i % 2);
        for (int at = threadIdx.x; at < 64 * 64; at += 64) {
            int from = at / 64 * 64 + (at % 64 / 8 ^ at / 64 % 8) * 8 + at % 8;
            out[(blockIdx.x * rounds + i) * 64 * 64 + at] = tile[from];
        }
        __syncthreads();
        if (threadIdx.x < 2) mbarrier_arrive_at(&empty, threadIdx.x);
    }
    cluster_barrier();
}
"""


def cluster(tmp_path, source, device=None, blocks=4):
    device = device or Emulated(time_limit=5)
    rows = np.random.default_rng(0).standard_normal((64, 192)).astype(BFLOAT)
    out = np.full((blocks, 3, 64, 64), np.nan, BFLOAT)
    arguments = (out, device.tensor_map(rows, (32, 64)), np.int32(3))
    run(device, tmp_path, source, blocks, 64, *arguments, real=BFLOAT)
    return out, rows.reshape(64, 3, 64).swapaxes(0, 1)


@pytest.mark.parametrize("counting, seed", ((False, 0), (False, 3), (True, 1)))
def test_blocks_of_a_cluster_copy_to_each_other(tmp_path, counting, seed):
    device = Emulated(counting=counting, seed=seed)
    out, expected = cluster(tmp_path, CLUSTER, device)
    assert all((block == expected).all() for block in out)
    assert device.report().problems == []


def test_a_copy_that_the_other_block_waits_for_is_missed(tmp_path):
    with pytest.raises(KernelError, match="deadlock"):
        cluster(tmp_path, CLUSTER.replace("rank * 32, 3)", "rank * 32, 1 << rank)"))


def test_half_a_cluster_cannot_be_launched(tmp_path):
    with pytest.raises(LadderError, match=r"3 blocks along x.* clusters of 2"):
        cluster(tmp_path, CLUSTER, blocks=3)
