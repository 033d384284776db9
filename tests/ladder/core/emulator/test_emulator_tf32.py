"""TF32 on tensor cores: the CPU twins of mma.sync, wgmma, and what TMA rounds."""

import numpy as np
import pytest

from ladder.core.emulator.emulated import Emulated
from tests.ladder.emulation import array, run, zeros

pytestmark = pytest.mark.emulator


def rounded(x):
    """To TF32, as the instruction does: 10 bits of fraction, ties away from zero."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def factors(M, N, K):
    """A (M, K), B (N, K), and A @ B.T of the rounded factors."""
    rng = np.random.default_rng(0)
    A, B = (array(rng.standard_normal(shape)) for shape in ((M, K), (N, K)))
    return A, B, rounded(A).astype(np.float64) @ rounded(B).astype(np.float64).T


MMA = """\
#include "mma_tf32.cuh"
extern "C" __global__ void k(float* C, const float* A, const float* B) {
    __shared__ alignas(16) float a_tile[16][8];
    int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    for (int i = lane; i < 128; i += 32) a_tile[i / 8][i % 8] = A[i];
    __syncwarp();
    unsigned a[4], b[2];
    ldmatrix_x4(a, &a_tile[lane % 16][lane / 16 * 4]);
    for (int i = 0; i < 4; i++) a[i] = to_tf32(__uint_as_float(a[i]));
    for (int i = 0; i < 2; i++) b[i] = to_tf32(B[g * 8 + t + 4 * i]);
    float d[4] = {};
    mma_m16n8k8_tf32(d, a, b);
    for (int i = 0; i < 4; i++) C[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}
"""


def test_mma_of_tf32_with_fragments_from_ldmatrix(tmp_path):
    A, B, expected = factors(16, 8, 8)
    C = zeros(16, 8)
    run(Emulated(), tmp_path, MMA, 1, 32, C, A, B)
    assert np.allclose(C, expected, rtol=0, atol=2e-6)
    assert not np.allclose(C, A.astype(np.float64) @ B.T, rtol=0, atol=1e-4)


def test_rounding_to_tf32_goes_to_the_nearest_and_ties_go_away_from_zero(tmp_path):
    source = """\
#include "mma_tf32.cuh"
extern "C" __global__ void k(unsigned* out, const float* x) {
    out[threadIdx.x] = to_tf32(x[threadIdx.x]);
}
"""
    words = [0x3F800FFF, 0x3F801000, 0xBF801000, 0x3FFFF000, 0x7F800000, 0x00000FFF, 0x80001000]
    out, x = zeros(7, dtype=np.uint32), array(np.array(words, np.uint32).view(np.float32))
    run(Emulated(), tmp_path, source, 1, 7, out, x)
    nearest = [0x3F800000, 0x3F802000, 0xBF802000, 0x40000000, 0x7F800000, 0, 0x80002000]
    assert [hex(word) for word in out] == [hex(word) for word in nearest]


WGMMA = """\
#include "wgmma_tf32.cuh"
extern "C" __global__ void k(
    float* C, float* D, const __grid_constant__ TensorMap a_map,
    const __grid_constant__ TensorMap b_map) {
    __shared__ alignas(1024) float a[64 * 32];
    __shared__ alignas(1024) float b[128 * 32];
    __shared__ Mbarrier full;
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 1);
        mbarrier_expect(&full, sizeof a + sizeof b);
        tma_load_2d(a, &a_map, &full, 0, 0);
        tma_load_2d(b, &b_map, &full, 0, 0);
    }
    __syncthreads();
    mbarrier_wait(&full, 0);
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float c[64] = {}, d[64] = {};
    unsigned x[4][4];
    for (int k = 0; k < 16; k++) {
        int r = row + k % 2 * 8, column = k / 4 * 8 + k / 2 % 2 * 4 + t;
        x[k / 4][k % 4] = __float_as_uint(a[r * 32 + (column / 4 ^ r % 8) * 4 + t]);
    }
    wgmma_fence();
    for (int k = 0; k < 4; k++) {
        wgmma_m64k8_tf32<128>(c, a + 8 * k, b + 8 * k);
        wgmma_m64k8_tf32_registers<128>(d, x[k], b + 8 * k);
    }
    wgmma_commit();
    wgmma_wait<0>(c, d);
    for (int i = 0; i < 64; i++) {
        int at = (row + i / 2 % 2 * 8) * 128 + i / 4 * 8 + t * 2 + i % 2;
        C[at] = c[i], D[at] = d[i];
    }
}
"""


@pytest.mark.parametrize("tf32", [True, False])
def test_wgmma_of_tf32_from_shared_memory_and_registers(tmp_path, tf32):
    """TMA rounds where the tensor map says so; otherwise wgmma cuts the factors off."""
    A, B, expected = factors(64, 128, 32)
    if not tf32:
        cut_off = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (A, B))
        a, b = (x.astype(np.float64) for x in cut_off)
        expected = a @ b.T
    C, D, device = zeros(64, 128), zeros(64, 128), Emulated(counting=True)
    maps = [device.tensor_map(x, (len(x), 32), tf32=tf32) for x in (A, B)]
    run(device, tmp_path, WGMMA, 1, 128, C, D, *maps)
    assert np.allclose(C, expected, rtol=0, atol=1e-5)
    assert np.array_equal(C, D)
    assert device.report().problems == []
