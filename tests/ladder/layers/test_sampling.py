"""decode.sample over all of GPT-2's vocabulary, and which tokens its check lets pass."""

import numpy as np
import pytest

from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.device.open import open_device
from ladder.core.verify.check import check_case
from ladder.core.verify.tolerance import expect
from ladder.decode.ops import SUM_ERROR

LADDER = find("decode.sample")
GPT2 = {"B": 4, "P": 1, "V": 50257, "Vp": 50304}


@pytest.mark.parametrize("which", [rung.id for rung in LADDER.rungs if rung.path is not None])
def test_sums_over_a_whole_vocabulary_find_the_token(device_name, which):
    # With this seed, a running sum in float32 draws a neighbour of one of the four tokens.
    device = open_device(device_name)
    outcome = check_case(
        LADDER.op, LADDER.rung(which), device, "bfloat16", GPT2, seed=3, brief=True
    )
    assert outcome.status == "passed", outcome.detail


@pytest.mark.parametrize(
    ("coin", "right"),
    [
        (0.5, {1, 2}),
        (0.5 * (1 + SUM_ERROR / 2), {1, 2}),
        (0.5 * (1 - SUM_ERROR / 2), {1, 2}),
        (0.5 * (1 + SUM_ERROR * 2), {2}),
        (0.5 * (1 - SUM_ERROR * 2), {1}),
        (0.6, {2}),
        (1 - 2.0**-24, {3}),
    ],
)
def test_two_tokens_are_right_only_where_the_coin_is_as_near_as_float32_sums(coin, right):
    values = {
        "window": np.zeros((1, 2), np.int32),
        "positions": np.zeros(1, np.int32),
        "logits": np.zeros((1, 4), np.float32),  # four equal shares: token 2 begins at 0.5
        "coins": np.array([[coin]], np.float32),
    }
    dims = {"B": 1, "P": 1, "V": 4, "Vp": 4}
    window, _ = expect(LADDER.op, dims, DTYPES["float32"], values)
    problems = {token: window.verify(np.array([[0, token]]))[0] for token in range(-1, 5)}
    assert {token for token, problem in problems.items() if problem is None} == right
    assert f" {' or '.join(map(str, sorted(right)))};" in problems[-1]
