"""The picker takes the fastest rung that is right, says why no other, and remembers."""

import dataclasses
import re
import sys
import time

import pytest
from fakes import FakeGpu, ladder, pick, timed_rung

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.rung_file import Rung
from ladder.core.measure import pick_cache, timing
from ladder.core.measure.pick import compiling_ahead
from ladder.core.measure.pick import pick as pick_each

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
    assert choice.rung == "2"
    assert choice.seconds == pytest.approx(10e-6)
    assert "10.0 us" in choice.reasons["2"]
    assert re.search(r"30\.0 us.* 3\.00 .* rung 2$", choice.reasons["1"])
    assert " c[0] " in choice.reasons["3"]
    assert re.search(r" N=1000: .* N % 64 == 0", choice.reasons["4"])
    assert "library" in choice.reasons["5"]


def test_a_rung_that_is_far_slower_is_not_measured_at_length(monkeypatch):
    measured = []

    def compare(device, contenders, seconds):
        measured.extend(contenders)
        return timing.compare(device, contenders, seconds)

    monkeypatch.setattr(sys.modules["ladder.core.measure.pick"], "compare", compare)
    rungs = (timed_rung(1, "hopeless", 1e6), timed_rung(2, "fast", 10), timed_rung(3, "near", 30))
    choice = pick(ladder(*rungs), FakeGpu(), "float32", DIMS)
    assert choice.rung == "2"
    assert "1000000.0 us" in choice.reasons["1"]
    assert len(measured) == 2


def test_a_rung_excluded_at_a_small_shape_is_not_run_at_a_larger_one():
    slow = timed_rung(1, "out", 1000)
    device, larger = FakeGpu(), {"N": 4000}
    rungs = ladder(slow, timed_rung(2, "fast", 10))
    at_larger, at_small = pick_each(rungs, device, "float32", larger, DIMS)
    assert at_larger.rung == at_small.rung == "2"
    assert re.search(r"^100 .* N=1000$", at_larger.reasons["1"])
    assert re.search(r"1000\.0 us.* 100\.00 .* rung 2$", at_small.reasons["1"])


@pytest.mark.parametrize(
    ("more", "without", "allowing"),
    [
        ({"library": True}, {}, {"library": True}),
        ({"deterministic": "no, atomics"}, {"deterministic": True}, {}),
        ({"tf32": "both factors"}, {}, {"tf32": True}),
    ],
)
def test_a_faster_rung_is_taken_only_where_its_kind_is_allowed(more, without, allowing):
    rungs = ladder(timed_rung(1, "slow", 30), timed_rung(9, "fast", 10, **more))
    assert pick(rungs, FakeGpu(), "float32", DIMS, **without).rung == "1"
    assert pick(rungs, FakeGpu(), "float32", DIMS, **allowing).rung == "9"


def test_each_shape_has_its_own_choice():
    def run(device, arrays, dims, scalars):
        find("start.add").op.compute(list(arrays.values()), dims)
        device.now += 50e-6 if dims["N"] == 10 else 1e-6

    uneven = Rung("2", "good at large ones", run=run)
    even = timed_rung(1, "the same for all", 19)
    picky = timed_rung(3, "fits one shape", 5, needs="N % 8 == 2")
    rungs = ladder(even, uneven, picky)
    large, small = pick_each(rungs, FakeGpu(), "float32", DIMS, {"N": 10})
    assert (large.rung, small.rung) == ("2", "3")
    assert re.search(r" N=1000: .* N % 8 == 2", large.reasons["3"])
    assert re.search(r"19\.0 us.* 3\.80 .* rung 3$", small.reasons["1"])


class Count:
    """Tells which rungs have run since it was last asked, and how often inputs were made."""

    def __init__(self, monkeypatch):
        self.ran, self.made = set(), 0
        module = sys.modules["ladder.core.measure.pick"]

        def make(*args):
            self.made += 1
            return timing.BufferSets(*args)

        monkeypatch.setattr(module, "BufferSets", make)

    def rung(self, number, microseconds, **more):
        """A rung that takes so long, and is counted."""
        timed = timed_rung(number, f"idea {number}", microseconds, **more)

        def run(device, arrays, dims, scalars):
            self.ran.add((number, dims["N"]))
            timed.run(device, arrays, dims, scalars)

        return dataclasses.replace(timed, run=run)

    def reset(self):
        self.ran, self.made = set(), 0

    def at(self, size):
        """The rungs that ran at a size."""
        return {number for number, dim in self.ran if dim == size}


@pytest.fixture
def count(monkeypatch):
    return Count(monkeypatch)


def test_cached_rungs_are_not_measured_again(count):
    rungs, gpu = (count.rung(1, 30), count.rung(2, 10)), FakeGpu()
    first = pick(ladder(*rungs), gpu, "float32", DIMS)
    assert count.at(1000) == {1, 2} and count.made == 1
    count.reset()
    assert pick(ladder(*rungs), gpu, "float32", DIMS) == first
    assert not count.ran and not count.made
    assert pick(ladder(*rungs), gpu, "float32", DIMS, deterministic=True) == first
    assert not count.ran and not count.made, "nor for another question about the same"


def test_fresh_checks_and_measures_again_and_once(count):
    rungs, gpu = (count.rung(1, 30), count.rung(2, 10)), FakeGpu()
    pick(ladder(*rungs), gpu, "float32", DIMS)
    count.reset()
    faster = count.rung(1, 3)
    assert pick(ladder(faster, rungs[1]), gpu, "float32", DIMS).rung == "2", (
        "it says it is the same"
    )
    assert pick(ladder(faster, rungs[1]), gpu, "float32", DIMS, fresh=True).rung == "1"
    assert count.at(1000) == {1, 2} and count.at(65536) == {1} and count.made == 1
    count.reset()
    assert pick(ladder(faster, rungs[1]), gpu, "float32", DIMS).rung == "1", "and is remembered"
    assert not count.ran


def test_of_several_shapes_only_the_new_one_is_measured(count):
    rungs = (count.rung(1, 30), count.rung(2, 10))
    pick(ladder(*rungs), FakeGpu(), "float32", DIMS)
    count.reset()
    both = pick_each(ladder(*rungs), FakeGpu(), "float32", DIMS, {"N": 7})
    assert [choice.rung for choice in both] == ["2", "2"]
    assert count.ran == {(1, 7), (2, 7)} and count.made == 1
    count.reset()
    pick(ladder(*rungs), FakeGpu(), "float32", {"N": 7})
    assert not count.ran


def test_only_an_edited_rung_is_checked_and_measured_again(count, monkeypatch):
    monkeypatch.setattr(pick_cache, "code_identity", lambda rung: f"{rung.number}{rung.source}")
    rungs = (count.rung(1, 30), count.rung(2, 10))
    pick(ladder(*rungs), FakeGpu(), "float32", DIMS)
    count.reset()
    edited = dataclasses.replace(count.rung(2, 5), source="// new")
    assert pick(ladder(rungs[0], edited), FakeGpu(), "float32", DIMS).seconds < 6e-6
    assert {number for number, _ in count.ran} == {2} and count.at(1000) and count.at(65536)
    count.reset()
    assert pick(ladder(*rungs), FakeGpu(), "float32", DIMS).rung == "2", "the old one is not lost"
    assert not count.ran


def test_a_rung_that_is_no_longer_hopeless_is_measured_exactly(count):
    slow, middle, fast = count.rung(1, 100), count.rung(2, 50), count.rung(3, 10)
    gpu = FakeGpu()
    pick(ladder(slow, middle, fast), gpu, "float32", DIMS)
    launches = gpu.launches
    count.reset()
    assert pick(ladder(slow, middle), gpu, "float32", DIMS).rung == "2"
    assert (
        count.at(1000) == {1, 2}
        and count.at(65536) == {2}
        and gpu.launches - launches > 2 * timing.FEWEST
    )


def test_another_device_or_driver_has_a_cache_of_its_own(count, monkeypatch):
    rungs = (count.rung(1, 30), count.rung(2, 10))
    pick(ladder(*rungs), FakeGpu(), "float32", DIMS)
    count.reset()
    other = FakeGpu()
    other.name = "Fake 9001"
    pick(ladder(*rungs), other, "float32", DIMS)
    assert count.at(1000) == {1, 2}
    count.reset()
    monkeypatch.setattr(FakeGpu, "description", lambda self: {"driver": "1.1"})
    pick(ladder(*rungs), FakeGpu(), "float32", DIMS)
    assert count.at(1000) == {1, 2}


def test_a_wrong_result_is_cached_and_an_error_is_not(count):
    def broken(device, arrays, dims, scalars):
        raise LadderError("out of memory")

    good, wrong = count.rung(1, 30), count.rung(2, 10, wrong=True)
    unlucky = Rung("3", "unlucky", run=broken)
    first = pick(ladder(good, wrong, unlucky), FakeGpu(), "float32", DIMS)
    assert first.rung == "1" and " c[0] " in first.reasons["2"]
    assert first.reasons["3"] == "out of memory"
    count.reset()
    assert pick(ladder(good, wrong, unlucky), FakeGpu(), "float32", DIMS) == first
    assert not count.ran
    lucky = dataclasses.replace(unlucky, run=count.rung(3, 1).run)
    assert pick(ladder(good, wrong, lucky), FakeGpu(), "float32", DIMS).rung == "3"


def test_no_rung_at_all_is_an_error_with_every_reason():
    rungs = (
        timed_rung(1, "wrong", 1, wrong=True),
        timed_rung(2, "picky", 1, needs="N > 1000000000"),
    )
    with pytest.raises(LadderError, match=r"rung 1: .* c\[0\] .*rung 2: .* N > 1000000000"):
        pick(ladder(*rungs), FakeGpu(), "float32", DIMS)


def test_only_the_fastest_is_checked_and_the_next_one_where_it_is_wrong(count):
    rungs = (count.rung(1, 30), count.rung(2, 20), count.rung(3, 10, wrong=True))
    choice = pick(ladder(*rungs), FakeGpu(), "float32", DIMS)
    assert choice.rung == "2" and " c[0] " in choice.reasons["3"]
    assert re.search(r"30\.0 us.* 1\.50 .* rung 2$", choice.reasons["1"])
    assert count.at(1000) == {1, 2, 3} and count.at(65536) == {2}


def test_what_several_picks_need_is_compiled_ahead(monkeypatch):
    asked = []
    monkeypatch.setattr(
        FakeGpu, "compile_ahead", lambda self, rung, *_: asked.append(rung.path), raising=False
    )
    ladders = [find("relu.forward"), find("gelu.forward")]
    paths = {rung.path for one in ladders for rung in one.rungs if rung.path}
    with compiling_ahead([(one, "float32", [{"N": 4096}]) for one in ladders], FakeGpu()):
        end = time.monotonic() + 10  # what has not begun at the end of the context is dropped
        while set(asked) != paths and time.monotonic() < end:
            time.sleep(0.001)
    assert set(asked) == paths
