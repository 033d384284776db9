"""What the rungs of an activation keep to beyond the tolerance of its contract."""

import numpy as np
import pytest

from ladder.core.contract.binding import bind
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.device.open import Cpu
from ladder.core.verify.inputs import make_inputs
from ladder.core.verify.tolerance import unit_roundoff
from reference import gelu

HALVES = ["bfloat16", pytest.param("float16", marks=pytest.mark.sweep)]


def kernels(name):
    ladder = find(name)
    return [
        pytest.param(ladder, rung, id=f"{name}-{rung.id}")
        for rung in ladder.rungs
        if rung.path is not None
    ]


def reference(name):
    return pytest.param(find(name), find(name).rung(0), id=f"{name}-0")


def run(device, ladder, rung, dtype, dims, values):
    """What the rung writes, widened to float64, by the name of the argument."""
    real = DTYPES[dtype]
    if not rung.claims(device.target(real)):
        pytest.skip(f"it needs {'; '.join(rung.conditions())}")
    arrays = {a.name: device.empty(a.resolve_shape(dims), real) for a in ladder.op.args}
    for name, value in values.items():
        device.upload(arrays[name], value)
    bind(ladder.op, rung, device, real, dims, arrays)()
    written = (a.name for a in ladder.op.args if a.role == "out")
    return {name: device.download(arrays[name]).astype(np.float64) for name in written}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("ladder", "rung"), [*kernels("matmul_gelu.forward"), reference("matmul_gelu.forward")]
)
def test_the_gelu_is_that_of_pre_as_it_is_stored(ladder, rung, dtype, device):
    device = Cpu() if rung.is_reference else device
    dims = {"N": 40, "C": 64, "OC": 48}
    values = make_inputs(ladder.op, dims, DTYPES[dtype], np.random.default_rng(0))
    results = run(device, ladder, rung, dtype, dims, values)
    pre, out = (results[name].reshape(-1) for name in ("pre", "out"))
    gelu.forward(expected := np.empty(pre.size), pre)
    once = 1.02 * unit_roundoff(DTYPES[dtype]) * np.abs(expected)  # rounded once, and that exactly
    assert (np.abs(out - expected) <= once + 1e-6).all()


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize(("ladder", "rung"), kernels("relu.forward"))
def test_what_is_not_a_number_passes_the_relu(ladder, rung, dtype, device):
    inp = np.tile([np.nan, -np.nan, np.inf, -np.inf, 2, -2, 0, -0.0], 4)
    out = run(device, ladder, rung, dtype, {"N": inp.size}, {"inp": inp})["out"]
    np.testing.assert_array_equal(out, np.maximum(inp, 0))


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize(("ladder", "rung"), kernels("relu.backward"))
@pytest.mark.parametrize("kept", ["output", "input"])
def test_the_gradient_passes_where_output_or_input_is_positive(ladder, rung, dtype, kept, device):
    inp = np.tile([3, -3, 0, -0.0, 1e-6, -1e-6, np.inf, -np.inf], 4)
    dout = np.where(inp > 0, np.arange(inp.size), np.inf)  # no product with 0 may hide it
    values = {"dout": dout, "out": inp if kept == "input" else np.maximum(inp, 0)}
    dinp = run(device, ladder, rung, dtype, {"N": inp.size}, values)["dinp"]
    np.testing.assert_array_equal(dinp, np.where(inp > 0, dout, 0))
