"""What the check cannot see of the fused ops: that they norm the sum as they store it, and that
their first rung is the sequence that the program runs without them."""

import numpy as np
import pytest

from ladder.core.contract.binding import bind
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES, resolve_dtype
from ladder.core.device.open import Cpu

DIMS = {"N": 7, "C": 200}
REAL = DTYPES["bfloat16"]


def run(device, op, number, dims=DIMS, **values):
    """The arrays of a call of a rung in bfloat16, of which `values` are given."""
    op = find(op)
    arrays = {}
    for arg in op.op.args:
        arrays[arg.name] = device.empty(arg.resolve_shape(dims), resolve_dtype(arg.dtype, REAL))
        if arg.name in values:
            device.upload(arrays[arg.name], values[arg.name])
    bind(op.op, op.rung(number), device, REAL, dims, arrays)()
    device.synchronize()
    return {name: device.download(array) for name, array in arrays.items()}


@pytest.fixture
def values():
    """The inputs of both ops; the sums have more digits than a bfloat16."""
    rng = np.random.default_rng(0)
    N, C = DIMS["N"], DIMS["C"]
    rows = {name: rng.normal(1.0, 1.0, (N, C)) for name in ("inp1", "inp2", "dout", "dinp")}
    columns = {name: rng.standard_normal(C) for name in ("weight", "bias", "dweight", "dbias")}
    statistics = {"mean": rng.standard_normal(N), "rstd": rng.uniform(0.5, 2, N)}
    return {**rows, **columns, **statistics, "inp": rows["inp1"]}


def pick(values, *names):
    return {name: values[name] for name in names}


@pytest.mark.parametrize("which", [r.id for r in find("residual_layernorm.forward").rungs])
def test_the_statistics_are_those_of_the_sum_as_it_is_stored(device, which, values):
    device = device if which != "0" else Cpu()
    given = pick(values, "inp1", "inp2", "weight", "bias")
    result = run(device, "residual_layernorm.forward", which, **given)
    exact = result["inp1"].astype(np.float64) + result["inp2"].astype(np.float64)
    stored = result["residual"].astype(np.float64)
    np.testing.assert_array_equal(result["residual"], exact.astype(np.float32).astype(REAL))
    np.testing.assert_allclose(result["mean"], stored.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(result["rstd"], 1 / np.sqrt(stored.var(axis=1) + 1e-5), rtol=1e-6)
    assert (np.abs(exact.mean(axis=1) / stored.mean(axis=1) - 1) > 1e-5).any()  # it would be seen
