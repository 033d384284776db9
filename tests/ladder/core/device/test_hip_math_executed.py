"""How exact machine code of AMD's GPUs computes functions of <math.h>, against float64.

Most of a function is one instruction of the transcendental unit, whose error AMD's ISA documents
limit to one unit in the last place (ulp). The interpreter rounds it correctly. Here its result is
also moved by one ulp up and down, so that it is off by up to 1.5 ulp. The bounds follow from that.
"""

import math

import numpy as np
import pytest

from ladder.core.amd.hip import compiler
from ladder.core.amd.isa import program, vector
from ladder.core.contract import rung_file
from ladder.core.contract.launch_plan import Launch
from tests.ladder.core.device.isa_programs import THREE, of_code
from tests.ladder.core.device.test_hip_compiler import needs_clang

pytestmark = [needs_clang, pytest.mark.nvrtc, pytest.mark.slow]

UNIT = ("v_exp_f32", "v_log_f32", "v_rcp_f32", "v_rsq_f32", "v_sqrt_f32")
OFF = 1.5  # ulp that the unit is off at most: one, and half a one of the rounding before
LN2 = math.log(2)

# The bounds, in ulp of the exact result, where that is a normal number:
#   expf    x log2(e) is split into an integer and a part of at most 1/2, rounded by 2^-26
#   logf    log2(x) of the unit, times ln(2): its ulp is up to twice that of the product
#   tanhf   1 - 2 / (expf(2x) + 1) from 0.625 on: four roundings, the worst just above expf(2x) = 4,
#           where the derivative is 0.08 and an ulp of expf is 8 of the result; below 0.625, as
#           Cephes says of its polynomial, less
#   __expf  x log2(e) is rounded once, by up to 2^-18, and log2(e) is off by 1.34e-8 of itself
EXACT_AND_BOUND = {
    "expf": (np.exp, OFF + LN2 / 4),
    "exp2f": (np.exp2, OFF),
    "logf": (np.log, 2 * LN2 * OFF + 0.5),
    "log2f": (np.log2, OFF),
    "rintf": (np.rint, 0),
    "sqrtf": (np.sqrt, 0.5),  # rounded correctly, whatever the unit says
    "rsqrtf": (lambda x: 1 / np.sqrt(x), OFF),
    "tanhf": (np.tanh, 0.08 * 8 * (OFF + LN2 / 4) + 0.32 + 0.25 + 0.5),
    "__expf": (np.exp, OFF + LN2 * (2**-18 + 127 * 1.34e-8) * 2**24),
}
FLUSH = ("rsqrtf", "__expf")  # subnormal arguments and results are taken for 0

KERNEL = """
extern "C" __global__ void {name}_all(float* y, const float* x, const float* z) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = {expression};
}}
"""
HEADER = "// start math, rung 1: functions\n// Launch: expf_all<<<1, 256>>>\n"
EDGES = np.array(
    [
        *(0, np.inf, np.nan, 1e-45, 1.1754942e-38, 1.1754944e-38, 0.625, 1, 3.4028235e38),
        *(87.33655, 88.72283, 88.72284, 103.27893, 103.97208, 104),  # of exp
        *(126, 127.99999, 128, 149, 150, 151),  # of exp2
    ],
    np.float32,
)
SMALLEST = float(np.finfo(np.float32).tiny)


@pytest.fixture(scope="module", params=THREE)
def evaluate(request, tmp_path_factory):
    """(name, x, z, ulp by which the unit's results are moved) -> y, by machine code."""
    path = tmp_path_factory.mktemp("math") / "math.cu"
    kernels = [KERNEL.format(name=name, expression=f"{name}(x[i])") for name in EXACT_AND_BOUND]
    kernels.append(KERNEL.format(name="quotient", expression="x[i] / z[i]"))
    kernels.append(KERNEL.format(name="fast_quotient", expression="__fdividef(x[i], z[i])"))
    path.write_text(HEADER + '#include "portable.cuh"\n' + "".join(kernels))
    arch, real = request.param, np.dtype(np.float32)
    rung = rung_file.parse(path, "expf_all")
    lanes = compiler.TYPICAL[arch].warp
    codes = program.load(compiler.compile_code_object(rung, {}, real, arch, lanes), path)
    whole = dict(vector.VECTOR)

    def run(name, x, z, moved):
        unit = {of: whole[of]._replace(function=shifted(whole[of].function, moved)) for of in UNIT}
        with pytest.MonkeyPatch.context() as patch:
            for of, meaning in unit.items():
                patch.setitem(vector.VECTOR, of, meaning)
            kernel = of_code(codes[f"{name}_all"], ["y", "x", "z"], arch)
        y = np.full_like(x, -7)
        kernel(Launch("math", (len(x) // 256, 1, 1), (256, 1, 1)), (y, x, z))
        return y

    return run


def shifted(function, moved):
    """The function with its normal results moved by so many units in the last place."""

    def compute(x):
        y = function(x)
        normal = np.isfinite(y) & (np.abs(y) > SMALLEST)
        return np.where(normal, (y.view(np.int32) + moved).view(np.float32), y)

    return compute


def samples(seed=0):
    """Floats of both signs: all sizes, those where exp neither vanishes nor overflows, those around
    1, and edges."""
    sizes = np.linspace(0, 0x7F7FFFFF, 4096).astype(np.uint32).view(np.float32)
    rng = np.random.default_rng(seed)
    exponents = rng.uniform(1e-4, 104, 3840).astype(np.float32)
    ones = np.linspace(0.5, 2, 2048, dtype=np.float32)
    edges = np.resize(EDGES, 256)
    x = np.concatenate([sizes, exponents, ones, edges])
    return np.concatenate([x, -x])


def ulp(exact):
    return np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)


@pytest.mark.parametrize("name", EXACT_AND_BOUND)
def test_a_function_is_as_exact_as_its_instructions_allow(evaluate, name):
    function, bound = EXACT_AND_BOUND[name]
    x = samples()
    with np.errstate(all="ignore"):
        exact = function(x.astype(np.float64))
        rounded = exact.astype(np.float32)
        taken = ~((np.abs(x) < SMALLEST) & (x != 0)) if name in FLUSH else np.ones(len(x), bool)
        finite = np.isfinite(rounded) & taken
        normal = finite & (np.abs(exact) >= SMALLEST)
        small = finite & ~normal
        for moved in (-1, 0, 1):
            y = evaluate(name, x, x, moved)
            error = np.abs(y - exact) / ulp(exact)
            worst = np.argmax(np.where(normal, error, 0))
            assert error[worst] <= bound, (float(x[worst]), moved)
            # Infinities, NaN and what overflows: exactly, but for a result next to the largest.
            outside = taken & ~finite
            np.testing.assert_array_equal(y[outside], rounded[outside])
            if name in FLUSH:
                assert np.all(np.abs(y[small]) <= SMALLEST)
            else:  # subnormal: one more rounding, of what has at most half as large units
                assert np.all(np.abs(y - exact)[small] <= (bound / 2 + 0.5) * ulp(exact)[small])
            zero = x == 0
            assert np.array_equal(np.signbit(y[zero]), np.signbit(rounded[zero]))


def test_a_quotient_is_rounded_correctly_whatever_the_unit_says(evaluate):
    x = samples(1)
    z = np.random.default_rng(2).permutation(samples(3))
    with np.errstate(all="ignore"):
        exact = x / z
        for moved in (-1, 0, 1):
            np.testing.assert_array_equal(evaluate("quotient", x, z, moved), exact)


def test_a_fast_quotient_is_off_by_less_than_four_units(evaluate):
    """The reciprocal by up to 1.5 ulp, which a product may double, and its own rounding."""
    x = np.geomspace(1e-3, 1e3, 4096, dtype=np.float32)
    z = x[::-1].copy()
    exact = x.astype(np.float64) / z
    for moved in (-1, 0, 1):
        assert np.all(np.abs(evaluate("fast_quotient", x, z, moved) - exact) < 4 * ulp(exact))


def test_rsqrtf_takes_a_subnormal_number_for_zero(evaluate):
    x = np.full(256, 1e-40, np.float32)
    assert np.all(np.isposinf(evaluate("rsqrtf", x, x, 0)))
