"""The CPU twins of AMD's matrix core instructions, and the one interface for all of them."""

import numpy as np
import pytest

from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.launch_plan import Launch
from ladder.core.emulator.emulated import Emulated
from ladder.core.show.pictures.matrix_cores import LAYOUTS
from ladder.core.show.pictures.probes import bfloat16, rung

pytestmark = pytest.mark.emulator

MFMA = """
#include "hip/mfma.cuh"
extern "C" __global__ void probe(float* d_out, const uint2* a, const uint2* b) {
    float d[MFMA_SUMS] = {};
    mfma(d, a[threadIdx.x], b[threadIdx.x]);
    for (int i = 0; i < MFMA_SUMS; i++) d_out[threadIdx.x * MFMA_SUMS + i] = d[i];
}
"""
WMMA = """
#include "hip/wmma.cuh"
extern "C" __global__ void probe(float* d_out, const unsigned* a, const unsigned* b) {
    unsigned x[WMMA_REGISTERS], y[WMMA_REGISTERS];
    for (int i = 0; i < WMMA_REGISTERS; i++) x[i] = a[threadIdx.x * WMMA_REGISTERS + i];
    for (int i = 0; i < WMMA_REGISTERS; i++) y[i] = b[threadIdx.x * WMMA_REGISTERS + i];
    float d[8] = {};
    wmma(d, x, y);
    for (int i = 0; i < 8; i++) d_out[threadIdx.x * 8 + i] = d[i];
}
"""
KERNELS = {
    "mfma-16": "#define SIDE 16" + MFMA,
    "mfma-32": "#define SIDE 32" + MFMA,
    "wmma-rdna3": "#define RDNA 3" + WMMA,
    "wmma-rdna4": WMMA,
}


def bits(values: np.ndarray, real: str) -> np.ndarray:
    return bfloat16(values) if real == "bfloat16" else values.astype(np.float16).view(np.uint16)


def whole_numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-9, 10, shape).astype(np.float32)


def multiply(name: str, real: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What the lanes hold of D (lanes, elements) where they hold a and b (lanes, elements)."""
    of = LAYOUTS[name]
    d = np.zeros((of.lanes, of.side * of.side // of.lanes), np.float32)
    kernel = Emulated(warp=of.lanes).compile(rung(KERNELS[name]), {}, DTYPES[real])["probe"]
    kernel(Launch("probe", (1, 1, 1), (of.lanes, 1, 1)), (d, bits(a, real), bits(b, real)))
    return d


@pytest.mark.parametrize("real", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_instruction_multiplies_in_the_layout_that_the_picture_shows(name, real):
    of = LAYOUTS[name]
    a, b = whole_numbers(of.side, of.deep), 2 * whole_numbers(of.side, of.deep)
    lanes = range(of.lanes)
    held = ([[matrix[place] for place in of.factors(lane)] for lane in lanes] for matrix in (a, b))
    d = multiply(name, real, *(np.array(one) for one in held))
    product = a @ b.T
    assert d.tolist() == [[product[place] for place in of.sums(lane)] for lane in lanes]
    places = {place for lane in lanes for place in of.sums(lane)}
    assert len(places) == d.size == of.side**2


def test_on_rdna_3_the_halves_of_a_wave_must_hold_the_same():
    a = np.ones((32, 16), np.float32)
    assert (multiply("wmma-rdna3", "bfloat16", a, a) == 16).all()
    differs = a.copy()
    differs[16 + 3] = 2  # of row 3, which lane 3 has, too
    d = multiply("wmma-rdna3", "bfloat16", differs, a)
    rows = np.array([[row for row, _ in LAYOUTS["wmma-rdna3"].sums(lane)] for lane in range(32)])
    assert np.isnan(d[rows == 3]).all() and (d[rows != 3] == 16).all()
