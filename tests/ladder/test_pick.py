"""The picker takes the fastest rung that is right, says why no other, and remembers."""

import sys

import numpy as np
import pytest
from fakes import FakeGpu, ladder, timed_rung

from ladder import timing
from ladder.contract import find
from ladder.device import open_device
from ladder.errors import LadderError
from ladder.pick import pick

DIMS = {"N": 1000}


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path))
    monkeypatch.setattr(timing, "ROTATED_BYTES", 1 << 16)
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0)


def test_the_fastest_right_rung_wins_and_every_other_has_a_reason():
    rungs = (
        timed_rung(1, "slow", 30),
        timed_rung(2, "fast", 10),
        timed_rung(3, "fast and wrong", 5, wrong=True),
        timed_rung(4, "needs more", 5, needs="N % 64 == 0"),
        timed_rung(5, "vendor", 5, library=True),
    )
    choice = pick(ladder(*rungs), FakeGpu(), "float32", DIMS)
    assert choice.rung == 2
    assert choice.seconds == pytest.approx(10e-6)
    assert choice.reasons[2] == "the fastest: 10.0 us"
    assert choice.reasons[1] == "30.0 us, 3.00 x the time of rung 2"
    assert choice.reasons[3].startswith("wrong: c[0] is")
    assert "refused at N=1000: it needs N % 64 == 0" in choice.reasons[4]
    assert choice.reasons[5] == "a library's, which was not asked for"


def test_a_rung_that_is_far_slower_is_not_measured_at_length(monkeypatch):
    measured = []

    def measure(device, calls, seconds):
        measured.append(calls)
        return timing.measure(device, calls, seconds)

    monkeypatch.setattr(sys.modules["ladder.pick"], "measure", measure)
    rungs = (timed_rung(1, "hopeless", 1e6), timed_rung(2, "fast", 10), timed_rung(3, "near", 30))
    choice = pick(ladder(*rungs), FakeGpu(), "float32", DIMS)
    assert choice.rung == 2
    assert choice.reasons[1] == "1000000.0 us, 100000.00 x the time of rung 2"
    assert len(measured) == 2


def test_a_rung_that_is_out_at_a_small_shape_is_not_run_at_a_larger_one():
    slow = timed_rung(1, "out", 1000)
    device, larger = FakeGpu(), {"N": 4000}
    choice = pick(ladder(slow, timed_rung(2, "fast", 10)), device, "float32", larger, DIMS)
    assert choice.rung == 2
    assert choice.reasons[1] == "100 x the time of the fastest at N=1000"
    assert choice.seconds == pytest.approx(20e-6)


def test_a_library_rung_is_chosen_only_when_asked_for():
    rungs = (timed_rung(1, "ours", 10), timed_rung(9, "vendor", 5, library=True))
    assert pick(ladder(*rungs), FakeGpu(), "float32", DIMS).rung == 1
    assert pick(ladder(*rungs), FakeGpu(), "float32", DIMS, library=True).rung == 9


def test_libraries_compete_with_each_other():
    vendors = (timed_rung(100, "one", 7, library=True), timed_rung(101, "two", 5, library=True))
    choice = pick(
        ladder(timed_rung(1, "ours", 10), *vendors), FakeGpu(), "float32", DIMS, library=True
    )
    assert choice.rung == 101
    assert choice.reasons[100] == "7.0 us, 1.40 x the time of rung 101"


def test_only_deterministic_rungs_when_asked_for():
    rungs = (timed_rung(1, "slow", 30), timed_rung(2, "fast", 10, deterministic="no, atomics"))
    choice = pick(ladder(*rungs), FakeGpu(), "float32", DIMS, deterministic=True)
    assert choice.rung == 1
    assert choice.reasons[2] == "not deterministic: no, atomics"


def test_the_times_of_several_shapes_add_up():
    def run(device, arrays, dims, scalars):
        find("start.add").op.compute(list(arrays.values()), dims)
        device.now += 50e-6 if dims["N"] == 10 else 1e-6

    uneven = timed_rung(2, "good at large ones", 0)
    uneven = type(uneven)(2, uneven.idea, run=run)
    even = timed_rung(1, "the same for all", 20)
    assert pick(ladder(even, uneven), FakeGpu(), "float32", DIMS).rung == 2
    assert pick(ladder(even, uneven), FakeGpu(), "float32", DIMS, {"N": 10}).rung == 1
    often = pick(ladder(even, uneven), FakeGpu(), "float32", DIMS, {"N": 10}, DIMS)
    assert often.rung == 2, "a shape counts as often as it is called"
    assert often.reasons[2] == "the fastest: 52.0 us for 3 calls"


def test_a_choice_is_remembered_until_something_changes():
    device, rungs = FakeGpu(), (timed_rung(1, "slow", 30), timed_rung(2, "fast", 10))
    first = pick(ladder(*rungs), device, "float32", DIMS)
    launches = device.launches
    assert pick(ladder(*rungs), device, "float32", DIMS) == first
    assert device.launches == launches, "the second time nothing is measured"

    def changes(**more):
        before = device.launches
        options = {"device": device, "dims": DIMS, "rungs": rungs, "fresh": False, **more}
        pick(
            ladder(*options["rungs"]),
            options["device"],
            "float32",
            options["dims"],
            fresh=options["fresh"],
        )
        return options["device"].launches > (before if options["device"] is device else 0)

    other = FakeGpu()
    other.name = "Fake 9001"
    edited = (rungs[0], type(rungs[1])(2, "fast", source="// new", run=rungs[1].run))
    assert changes(fresh=True)
    assert changes(dims={"N": 1001})
    assert changes(rungs=edited)
    assert changes(device=other)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b"[" * 10**5, b'{"rung": 7, "seconds": 1, "reasons": {"1": "x"}}'],
    ids=["empty", "cut off", "no text", "a list", "deep", "a rung that is not there"],
)
def test_a_choice_that_was_damaged_is_made_again(tmp_path, content):
    device, rungs = FakeGpu(), (timed_rung(1, "slow", 30), timed_rung(2, "fast", 10))
    first = pick(ladder(*rungs), device, "float32", DIMS)
    (known,) = (tmp_path / "picks").iterdir()
    known.write_bytes(content)
    launches = device.launches
    assert pick(ladder(*rungs), device, "float32", DIMS) == first
    assert device.launches > launches
    assert pick(ladder(*rungs), device, "float32", DIMS) == first, "and is remembered"


def test_no_rung_at_all_is_an_error_with_every_reason():
    rungs = (timed_rung(1, "wrong", 1, wrong=True), timed_rung(2, "picky", 1, needs="N > 10**9"))
    with pytest.raises(
        LadderError, match=r"no rung that can run here: rung 1: wrong.*rung 2: refuse"
    ):
        pick(ladder(*rungs), FakeGpu(), "float32", DIMS)


def test_the_emulated_device_picks_nothing():
    with pytest.raises(LadderError, match="says nothing about a GPU"):
        pick(find("start.add"), open_device("emulated"), "float32", DIMS)


def test_the_reference_takes_no_part_beside_kernels():
    rungs = (find("start.add").rung(0), timed_rung(1, "slow", 30))
    choice = pick(ladder(*rungs), FakeGpu(), "float32", DIMS)
    assert choice.rung == 1
    assert choice.reasons[0] == "not for device fake"
    assert np.isfinite(choice.seconds)
