"""How far from the reference a result may be."""

import numpy as np
import pytest

from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.verify.inputs import NORMAL, make_inputs
from ladder.core.verify.tolerance import LAMBDA, U32, expect
from reference.layernorm import EPS

REAL = DTYPES["float32"]
ROWS = 2000


def of_normal_inputs(name, dims, case=NORMAL):
    """Inputs, and what to expect of each output."""
    op = find(name).op
    values = make_inputs(op, dims, REAL, np.random.default_rng(0), case)
    return values, {e.arg.name: e for e in expect(op, dims, REAL, values)}


def test_changed_inputs_show_the_condition_of_every_row_of_two():
    values, expected = of_normal_inputs("softmax.forward", {"N": ROWS, "V": 2})
    probs = expected["probs"]
    logits = values["logits"].astype(np.float64)
    derivatives = probs.value.prod(axis=1)  # by either logit, of either probability
    change = U32 * derivatives * np.sqrt(np.sum(logits**2, axis=1))
    assert np.all(probs.tolerance > LAMBDA * np.sqrt(probs.terms) * change[:, None])


@pytest.mark.slow
@pytest.mark.parametrize("case", [NORMAL, "large mean"])
@pytest.mark.parametrize("C", [2, 3, 768])
def test_a_layernorm_in_float32_is_within_the_tolerance(C, case):
    values, expected = of_normal_inputs("layernorm.forward", {"N": ROWS, "C": C}, case)
    mean = values["inp"].mean(axis=1, keepdims=True, dtype=np.float32)
    centred = values["inp"] - mean
    variance = np.mean(centred**2, axis=1, keepdims=True, dtype=np.float32)
    out = centred / np.sqrt(variance + np.float32(EPS)) * values["weight"] + values["bias"]
    assert out.dtype == np.float32
    assert expected["out"].verify(out)[0] is None
    wrong, _ = expected["out"].verify(out * np.float32(1.1))
    assert wrong is not None


def test_statistics_of_a_stored_sum_are_compared_with_what_was_stored():
    op, dims, real = find("residual_layernorm.forward").op, {"N": 9, "C": 33}, DTYPES["bfloat16"]
    values = make_inputs(op, dims, real, np.random.default_rng(0), "rounded sums")
    exact = values["inp1"].astype(np.float64) + values["inp2"].astype(np.float64)
    (residual,) = (one for one in expect(op, dims, real, values) if one.then is not None)
    for near in (exact, exact * (1 + U32), exact * (1 - U32)):
        stored = near.astype(real)
        assert residual.verify(stored)[0] is None
        of_stored = {e.arg.name: e for e in residual.then(stored.tobytes())}
        assert set(of_stored) == {"out", "mean", "rstd"}
        mean = stored.astype(np.float64).mean(axis=1).astype(np.float32)
        assert of_stored["mean"].verify(mean)[0] is None
        assert of_stored["mean"].verify(exact.mean(axis=1).astype(np.float32))[0] is not None
