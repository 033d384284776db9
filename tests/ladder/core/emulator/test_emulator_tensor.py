"""Tensor cores and TMA: what the CPU twins in ladder/include promise beyond what the rungs that use
them, and rules.cu, show."""

import ml_dtypes
import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.kernel import KernelError
from tests.ladder.emulation import array, run, zeros

pytestmark = pytest.mark.emulator

BFLOAT = np.dtype(ml_dtypes.bfloat16)


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


STMATRIX = """\
#include "portable.cuh"
#include "mma.cuh"
extern "C" __global__ void k(uint4* out, const unsigned* inp) {
    __shared__ uint4 rows[32];
    unsigned four[4];
    for (int i = 0; i < 4; i++) four[i] = inp[threadIdx.x * 4 + i];
    stmatrix_x4(&rows[threadIdx.x], four);
    __syncwarp();
    out[threadIdx.x] = rows[threadIdx.x ^ 1];
}
"""


def test_stmatrix_stores_what_ldmatrix_loads(tmp_path):
    matrices = np.arange(4 * 8 * 8, dtype=np.uint16).reshape(4, 8, 8)
    fragments = matrices.reshape(4, 32, 2).swapaxes(0, 1).copy().view(np.uint32)
    out, device = zeros(32, 8, dtype=np.uint16), Emulated(counting=True)
    run(device, tmp_path, STMATRIX, 1, 32, out, array(fragments, np.uint32))
    assert (out.reshape(4, 4, 2, 8)[:, :, ::-1].reshape(4, 8, 8) == matrices).all()
    stores = [x for x in device.report().lines if x.buffer == "rows" and x.kind == "write"]
    assert [(x.bytes, x.wavefronts) for x in stores] == [(16, 4)]


def test_a_race_with_stmatrix_is_found(tmp_path):
    source = STMATRIX.replace("    __syncwarp();\n", "")
    out, inp = zeros(32, 8, dtype=np.uint16), zeros(32, 4, dtype=np.uint32)
    with pytest.raises(KernelError) as caught:
        run(Emulated(counting=True), tmp_path, source, 1, 32, out, inp)
    assert "race" in {problem.kind for problem in caught.value.problems}


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


# Every block adds its tile to the same place; the tile goes past the end.
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


def test_tiles_of_blocks_that_run_at_the_same_time_are_all_added(tmp_path):
    out = zeros(12, 32)
    device = Emulated(workers=4)
    run(device, tmp_path, ADD, 4000, 32, device.tensor_map(out, (16, 32)), real=BFLOAT)
    assert (out == 4000 * 4001 / 2).all()


def test_half_a_cluster_cannot_be_launched(tmp_path):
    source = 'extern "C" __global__ void __cluster_dims__(2, 1, 1) k(float* out) {}\n'
    with pytest.raises(LadderError, match=r"\bk .* 3 .* clusters of 2$"):
        run(Emulated(), tmp_path, source, 3, 32, zeros(1))
