"""How exact the functions of include/hip/hip_math.h are, against float64.

The file is compiled for the CPU. What is one instruction of the GPU is there the exact result,
rounded to float32, and then moved by up to one unit in the last place: the error that AMD's ISA
documents allow v_exp_f32, v_rcp_f32 and v_rsq_f32.
"""

import ctypes

import numpy as np
import pytest

from ladder.core.amd.hip.compiler import HEADERS
from ladder.core.emulator.toolchain import find_compiler

TWIN = r"""
#include <math.h>
#include <string.h>
#define __device__
#define __forceinline__ inline
static int moved = 0;  // units in the last place that an instruction is off
static float move(double exact) {
    float x = (float)exact;
    if (x == 0 || !__builtin_isfinite(x)) return x;
    int bits;
    memcpy(&bits, &x, 4);
    bits += moved;
    memcpy(&x, &bits, 4);
    return x;
}
#define __builtin_amdgcn_rsqf(x) move(1 / sqrt((double)(x)))
#define __builtin_amdgcn_rcpf(x) move(1 / (double)(x))
#define __builtin_amdgcn_exp2f(x) move(exp2((double)(x)))
#define __builtin_expf(x) move(exp((double)(x)))
namespace hip {
#include "hip/hip_math.h"
}
#define EACH(NAME)                                                                      \
    extern "C" void NAME##_all(int by, int n, const float* x, const float*, float* y) { \
        moved = by;                                                                     \
        for (int i = 0; i < n; i++) y[i] = hip::NAME(x[i]);                             \
    }
EACH(tanhf) EACH(rsqrtf) EACH(__expf)
extern "C" void __fdividef_all(int by, int n, const float* x, const float* z, float* y) {
    moved = by;
    for (int i = 0; i < n; i++) y[i] = hip::__fdividef(x[i], z[i]);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("hip") / "math.so"
    arguments = ["-O1", "-fno-builtin", "-ffp-contract=off", "-fPIC", "-shared", f"-I{HEADERS}"]
    find_compiler().build([*arguments, "-xc++", "-", "-lm"], path, TWIN)
    return ctypes.CDLL(str(path))


def between(low, high, count=40_000):
    """Floats of both signs whose sizes are spread evenly over their bits, from low to high."""
    bits = np.linspace(*np.array([low, high], np.float32).view(np.uint32), count).astype(np.uint32)
    sizes = bits.view(np.float32)
    return np.concatenate([sizes, -sizes])


def error(library, name, x, exact, other=None):
    """The largest error of a function, in units in the last place of the exact result."""
    worst = 0.0
    other = x if other is None else other
    for moved in (-1, 0, 1):
        y = np.empty_like(x)
        arrays = [ctypes.c_void_p(array.ctypes.data) for array in (x, other, y)]
        getattr(library, f"{name}_all")(moved, x.size, *arrays)
        unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
        worst = max(worst, float(np.max(np.abs(y - exact) / unit)))
    return worst


@pytest.mark.emulator
def test_tanhf_is_off_by_less_than_three_units(library):
    x = between(1e-30, 20)
    assert error(library, "tanhf", x, np.tanh(x.astype(np.float64))) < 3


@pytest.mark.emulator
def test_tanhf_of_zeros_infinities_and_nan(library):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    y = np.empty_like(x)
    arrays = [ctypes.c_void_p(array.ctypes.data) for array in (x, x, y)]
    library.tanhf_all(0, x.size, *arrays)
    np.testing.assert_array_equal(y, np.array([0.0, -0.0, 1, -1, np.nan], np.float32))
    assert np.signbit(y[1])


@pytest.mark.emulator
def test_rsqrtf_is_off_by_less_than_two_units(library):
    x = np.abs(between(1.2e-38, 3e38))
    assert error(library, "rsqrtf", x, 1 / np.sqrt(x.astype(np.float64))) < 2


@pytest.mark.emulator
def test_fast_exp_loses_a_unit_for_each_doubling_of_its_argument(library):
    """x * log2(e) is rounded: near 2^k that is an error of 2^(k - 24) in the exponent."""
    x = between(1e-6, 1)
    assert error(library, "__expf", x, np.exp(x.astype(np.float64))) < 3
    x = between(1, 87)
    assert 30 < error(library, "__expf", x, np.exp(x.astype(np.float64))) < 130


@pytest.mark.emulator
def test_fast_division_is_off_by_less_than_four_units(library):
    x, y = between(1e-3, 1e3), between(1e-3, 1e3)[::-1].copy()
    exact = x.astype(np.float64) / y.astype(np.float64)
    assert error(library, "__fdividef", x, exact, y) < 4
