"""The CPU twins of AMD's matrix core instructions, and the one interface for all of them."""

from dataclasses import dataclass

import numpy as np
import pytest

from ladder.core.contract.op import DTYPES
from ladder.core.emulator.emulated import Emulated
from tests.ladder.emulation import array, run, zeros

pytestmark = pytest.mark.emulator

MFMA = """
#include "hip/mfma.cuh"
extern "C" __global__ void k(float* d_out, const uint2* a, const uint2* b) {
    float d[MFMA_SUMS] = {};
    mfma(d, a[threadIdx.x], b[threadIdx.x]);
    for (int i = 0; i < MFMA_SUMS; i++) d_out[threadIdx.x * MFMA_SUMS + i] = d[i];
}
"""
WMMA = """
#include "hip/wmma.cuh"
extern "C" __global__ void k(float* d_out, const unsigned* a, const unsigned* b) {
    unsigned x[WMMA_REGISTERS], y[WMMA_REGISTERS];
    for (int i = 0; i < WMMA_REGISTERS; i++) x[i] = a[threadIdx.x * WMMA_REGISTERS + i];
    for (int i = 0; i < WMMA_REGISTERS; i++) y[i] = b[threadIdx.x * WMMA_REGISTERS + i];
    float d[8] = {};
    wmma(d, x, y);
    for (int i = 0; i < 8; i++) d_out[threadIdx.x * 8 + i] = d[i];
}
"""


@dataclass(frozen=True)
class Layout:
    """One instruction: D (side, side) += A (side, deep) * B (side, deep)^T, by `lanes` lanes.

    part  neighbours of a row of A, and of B, that one lane holds
    run   elements of D that are neighbours of a column, and that one lane holds
    step  rows from one of them to the next
    """

    title: str
    lanes: int
    side: int
    deep: int
    part: int
    run: int
    step: int = 1

    def factors(self, lane: int) -> list[tuple[int, int]]:
        """Row and k of each element of A, or of B, that a lane holds."""
        row, group = lane % self.side, lane // self.side
        return [(row, (group * self.part + i) % self.deep) for i in range(self.part)]

    def sums(self, lane: int) -> list[tuple[int, int]]:
        """Row and column of each element of D that a lane holds."""
        column, group, groups = lane % self.side, lane // self.side, self.lanes // self.side
        if self.step > 1:  # the groups take the rows in turn
            rows = [self.step * i + group for i in range(self.side // groups)]
        else:
            rows = [
                first + group * self.run + i
                for first in range(0, self.side, groups * self.run)
                for i in range(self.run)
            ]
        return [(row, column) for row in rows]


LAYOUTS = {
    "mfma-16": Layout("v_mfma_f32_16x16x16 (CDNA)", 64, 16, 16, 4, 4),
    "mfma-32": Layout("v_mfma_f32_32x32x8 (CDNA)", 64, 32, 8, 4, 4),
    "wmma-rdna3": Layout("v_wmma_f32_16x16x16 (RDNA 3)", 32, 16, 16, 16, 1, 2),
    "wmma-rdna4": Layout("v_wmma_f32_16x16x16 (RDNA 4)", 32, 16, 16, 8, 8),
}
KERNELS = {
    "mfma-16": "#define SIDE 16" + MFMA,
    "mfma-32": "#define SIDE 32" + MFMA,
    "wmma-rdna3": "#define RDNA 3" + WMMA,
    "wmma-rdna4": WMMA,
}


def whole_numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-9, 10, shape).astype(np.float32)


def multiply(folder, name: str, real: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What the lanes hold of D (lanes, elements) where they hold a and b (lanes, elements)."""
    of, real = LAYOUTS[name], DTYPES[real]
    d = zeros(of.lanes, of.side * of.side // of.lanes)
    device, factors = Emulated(warp=of.lanes), (array(a, real), array(b, real))
    run(device, folder, KERNELS[name], 1, of.lanes, d, *factors, real=real)
    return d


@pytest.mark.parametrize("real", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_instruction_multiplies_in_the_layout_that_the_picture_shows(tmp_path, name, real):
    of = LAYOUTS[name]
    a, b = whole_numbers(of.side, of.deep), 2 * whole_numbers(of.side, of.deep)
    lanes = range(of.lanes)
    held = ([[matrix[place] for place in of.factors(lane)] for lane in lanes] for matrix in (a, b))
    d = multiply(tmp_path, name, real, *(np.array(one) for one in held))
    product = a @ b.T
    assert d.tolist() == [[product[place] for place in of.sums(lane)] for lane in lanes]
    places = {place for lane in lanes for place in of.sums(lane)}
    assert len(places) == d.size == of.side**2


def test_on_rdna_3_the_halves_of_a_wave_must_hold_the_same(tmp_path):
    a = np.ones((32, 16), np.float32)
    assert (multiply(tmp_path, "wmma-rdna3", "bfloat16", a, a) == 16).all()
    differs = a.copy()
    differs[16 + 3] = 2  # of row 3, which lane 3 has, too
    d = multiply(tmp_path, "wmma-rdna3", "bfloat16", differs, a)
    rows = np.array([[row for row, _ in LAYOUTS["wmma-rdna3"].sums(lane)] for lane in range(32)])
    assert np.isnan(d[rows == 3]).all() and (d[rows != 3] == 16).all()
