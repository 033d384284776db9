"""What the rungs of the relu do with infinities, zeros and what is not a number."""

import numpy as np
import pytest

from ladder.core.contract.binding import bind
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES

TYPES = ["float32", "bfloat16", pytest.param("float16", marks=pytest.mark.sweep)]


def kernels(name):
    ladder = find(name)
    return [
        pytest.param(ladder, rung, id=f"{name}-{rung.id}")
        for rung in ladder.rungs
        if rung.path is not None
    ]


def run(device, ladder, rung, dtype, dims, values):
    """What the rung writes, widened to float64."""
    real = DTYPES[dtype]
    if not rung.claims(device.target(real)):
        pytest.skip(f"it needs {'; '.join(rung.conditions())}")
    arrays = {a.name: device.empty(a.resolve_shape(dims), real) for a in ladder.op.args}
    for name, value in values.items():
        device.upload(arrays[name], value)
    bind(ladder.op, rung, device, real, dims, arrays)()
    (written,) = (a.name for a in ladder.op.args if a.role == "out")
    return device.download(arrays[written]).astype(np.float64)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("ladder", "rung"), kernels("relu.forward"))
def test_what_is_not_a_number_passes_the_relu(ladder, rung, dtype, device):
    inp = np.tile([np.nan, -np.nan, np.inf, -np.inf, 2, -2, 0, -0.0], 4)
    out = run(device, ladder, rung, dtype, {"N": inp.size}, {"inp": inp})
    np.testing.assert_array_equal(out, np.maximum(inp, 0))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("ladder", "rung"), kernels("relu.backward"))
@pytest.mark.parametrize("kept", ["output", "input"])
def test_the_gradient_passes_where_output_or_input_is_positive(ladder, rung, dtype, kept, device):
    inp = np.tile([3, -3, 0, -0.0, 1e-6, -1e-6, np.inf, -np.inf], 4)
    dout = np.where(inp > 0, np.arange(inp.size), np.inf)  # no product with 0 may hide it
    values = {"dout": dout, "out": inp if kept == "input" else np.maximum(inp, 0)}
    dinp = run(device, ladder, rung, dtype, {"N": inp.size}, values)
    np.testing.assert_array_equal(dinp, np.where(inp > 0, dout, 0))
