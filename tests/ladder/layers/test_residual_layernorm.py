"""What the check cannot see of the fused op: that it norms the sum as it stores it."""

import numpy as np
import pytest

from ladder.core.contract.binding import bind
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES, resolve_dtype
from ladder.core.device.open import Cpu

LADDER = find("residual_layernorm.forward")
DIMS = {"N": 7, "C": 200}
REAL = DTYPES["bfloat16"]


@pytest.mark.parametrize("rung", LADDER.rungs, ids=lambda rung: rung.id)
def test_the_statistics_are_those_of_the_sum_as_it_is_stored(device, rung):
    device, arrays = Cpu() if rung.is_reference else device, {}
    rng = np.random.default_rng(0)
    for arg in LADDER.op.args:
        shape = arg.resolve_shape(DIMS)
        arrays[arg.name] = device.empty(shape, resolve_dtype(arg.dtype, REAL))
        if arg.role == "in":  # the sums have more digits than a bfloat16
            device.upload(arrays[arg.name], rng.normal(1.0, 1.0, shape))
    bind(LADDER.op, rung, device, REAL, DIMS, arrays)()
    result = {name: device.download(array) for name, array in arrays.items()}
    exact = result["inp1"].astype(np.float64) + result["inp2"].astype(np.float64)
    stored = result["residual"].astype(np.float64)
    np.testing.assert_array_equal(result["residual"], exact.astype(np.float32).astype(REAL))
    np.testing.assert_allclose(result["mean"], stored.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(result["rstd"], 1 / np.sqrt(stored.var(axis=1) + 1e-5), rtol=1e-6)
    assert (np.abs(exact.mean(axis=1) / stored.mean(axis=1) - 1) > 1e-5).any()  # it would be seen
