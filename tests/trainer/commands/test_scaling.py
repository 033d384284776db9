"""The table of scaling: ranks are timed in lockstep, and its sums add up."""

import pytest

from tests.trainer.parallel_run import together
from tests.trainer.tiny import add_size
from trainer.commands import scaling
from trainer.flags import Flags


@pytest.fixture(scope="module")
def result():
    flags = Flags(model="d2", batch=2, sequence=5, steps=2, device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        add_size(patch, "d2", layers=2, channels=16, heads=2, vocab=300, padded_vocab=384)
        parts = [
            together(n, lambda group: scaling.measure(flags, group, 2, alone=True))[0]
            for n in (1, 2)
        ]
    return scaling.gather([*parts, *reversed(parts)])


def test_a_row_is_the_mean_of_its_turns():
    def part(ranks, weak):
        common = {"tokens": 10, "most": 2, "exchange_ms": {}, "memory": {}, "zero": ranks - 1}
        common["compute_ms"] = [weak - 1.0 - rank for rank in range(ranks)]
        common["alone_ms"] = [weak - 1.5 * rank for rank in range(ranks)]
        return {"ranks": ranks, "weak_ms": weak, "strong_ms": 2 * weak, **common}

    table = scaling.gather([part(1, 4.0), part(2, 5.0), part(2, 7.0), part(1, 6.0)])
    assert [row["weak_ms"] for row in table["rows"]] == [5.0, 6.0]
    assert table["rows"][1]["weak_ms_of_turns"] == [5.0, 7.0]
    assert table["rows"][1]["weak_efficiency"] == 5 / 6
    assert table["rows"][1]["strong_efficiency"] == 10 / (2 * 12)
    assert table["rows"][1]["compute_ms"] == [5.0, 4.0]  # the slowest rank sets the pace
    assert table["rows"][1]["exposed_ms"] == 1.0
    assert table["rows"][1]["alone_ms"] == [6.0, 4.5]
    assert table["rows"][1]["slowest_efficiency"] == 1.0


def test_the_rows_of_a_result_add_up(result):
    one, two = result["rows"]
    assert (one["ranks"], two["ranks"], result["zero"]) == (1, 2, 1)
    assert one["exchange_ms"] == {}
    assert set(two["exchange_ms"]) == {
        "reduce_scatter gradients",
        "all_gather norms",
        "all_gather parameters",
    }
    assert all(ms > 0 for ms in two["exchange_ms"].values())
    assert one["weak_efficiency"] == one["strong_efficiency"] == 1
    assert two["weak_efficiency"] == pytest.approx(one["weak_ms"] / two["weak_ms"])
    assert two["strong_ms"] == two["weak_ms"]  # the largest group does not accumulate
    assert two["weak_tokens_per_second"] == pytest.approx(1e3 * 2 * 10 / two["weak_ms"])
    assert one["strong_tokens_per_second"] == pytest.approx(1e3 * 2 * 10 / one["strong_ms"])
    assert two["memory"]["moment"] < one["memory"]["moment"]
    assert one["exposed_ms"] == 0 and len(two["compute_ms"]) == 2
    assert one["slowest_efficiency"] == 1 and one["alone_ms"] == [one["weak_ms"]]
    assert two["slowest_efficiency"] == pytest.approx(max(two["alone_ms"]) / two["weak_ms"])
