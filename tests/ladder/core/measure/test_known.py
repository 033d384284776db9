"""Rungs that are far behind by the repository's own measurements are not measured again."""

import json
import re

import pytest
from fakes import FakeGpu, ladder, timed_rung

from ladder.core.contract.device_code import code_identity
from ladder.core.measure import results, timing
from ladder.core.measure.pick import FAR, outclassed, pick

DIMS = {"N": 1000}
FAR_BEHIND = r"^3\.0 .* rung 2 .*Fake 9000.* \(large\)"
RUNGS = (timed_rung(1, "slow", 30), timed_rung(2, "fast", 10), timed_rung(3, "not measured", 20))


class Sister(FakeGpu):
    """A GPU of the architecture that was measured."""

    def description(self):
        return {**super().description(), "arch": "sm_90a"}


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path))
    monkeypatch.setattr(timing, "ROTATED_BYTES", 1 << 16)
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Writes measurements of the fake op: by shape, the microseconds by rung."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)

    def write(shapes, arch="sm_90a", dtype="float32", code=code_identity):
        measurements = [
            {
                "op": ladder(*RUNGS).op.name,
                "dtype": dtype,
                "shape": shape,
                "rows": [
                    {"rung": rung.id, "median_us": times[rung.id], "code": code(rung)}
                    for rung in RUNGS
                    if rung.id in times
                ],
            }
            for shape, times in shapes.items()
        ]
        content = {"device": {"gpu": "Fake 9000", "arch": arch}, "measurements": measurements}
        (tmp_path / "fake-9000.json").write_text(json.dumps(content))
        return outclassed(ladder(*RUNGS), RUNGS, Sister(), "float32")

    return write


def test_a_rung_that_is_far_behind_is_named_with_its_distance(measured):
    ((rung, reason),) = measured({"large": {"1": 30, "2": 10}}).items()
    assert rung == "1" and re.search(FAR_BEHIND, reason)


def test_a_rung_that_is_near_the_fastest_at_one_shape_stays(measured):
    assert measured({"large": {"1": 30, "2": 10}, "small": {"1": 10 * FAR, "2": 10}}) == {}


@pytest.mark.parametrize(
    "other",
    [{"arch": "sm_80"}, {"dtype": "bfloat16"}, {"code": lambda rung: "edited"}],
    ids=["architecture", "type", "code"],
)
def test_measurements_of_another_kind_say_nothing(measured, other):
    assert measured({"large": {"1": 30, "2": 10}}, **other) == {}


def test_the_fastest_is_looked_for_among_the_rungs_that_can_run(measured):
    measured({"large": {"1": 30, "2": 10}})
    assert outclassed(ladder(*RUNGS), RUNGS[::2], Sister(), "float32") == {}


def test_the_picker_leaves_them_out_unless_all_is_measured_again(measured):
    measured({"large": {"1": 30, "2": 10}})
    (choice,) = pick(ladder(*RUNGS), Sister(), "float32", DIMS)
    assert choice.rung == "2"
    assert re.search(FAR_BEHIND, choice.reasons["1"])
    assert "rung 2" in choice.reasons["3"]
    for fresh in (True, False):  # what was measured here counts from then on
        (choice,) = pick(ladder(*RUNGS), Sister(), "float32", DIMS, fresh=fresh)
        assert re.search(r"30\.0 us.* 3\.00 .* rung 2$", choice.reasons["1"])
