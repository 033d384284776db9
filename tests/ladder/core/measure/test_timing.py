"""Bench on a device whose time is known: medians, roofs, what is refused, and what is written."""

import itertools
import json
import re

import numpy as np
import pytest
from fakes import FakeGpu, ladder, timed_rung

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Reading, Sensors
from ladder.core.contract.ladder import find
from ladder.core.measure import energy, results, timing
from ladder.core.measure.bench import Roofs, bench
from ladder.core.measure.roofline import Roof, copy_bandwidth
from ladder.core.measure.timing import BufferSets, compare, measure
from ladder.core.show import tables

DIMS = {"N": 30_000}  # 360 KB
BYTES = 12 * DIMS["N"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(timing, "ROTATED_BYTES", 1 << 20)
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0)
    monkeypatch.setattr(timing, "SETTLE_SECONDS", 0)


class FixedRoofs(Roofs):
    """100 GB/s: the fake op takes at least 3.6 us."""

    def of(self, op, dims, dtype, tf32=False):
        return Roof(100e9)


def run_bench(*rungs, **options):
    lines = []

    def say(line, wrong):
        lines.append((line, wrong))

    device = FakeGpu()
    (measurement,) = bench(
        ladder(*rungs),
        device,
        shapes={"N=30000": DIMS},
        roofs=FixedRoofs(device),
        say=say,
        **options,
    )
    return measurement, lines


# ---- timing -------------------------------------------------------------------------------------


def test_the_median_of_a_call_is_measured_not_of_a_batch():
    device = FakeGpu()

    def call(seconds):
        def work():
            device.now += seconds

        return work

    assert measure(device, [call(3e-6), call(5e-6)]).median == pytest.approx(4e-6)


def test_the_spread_is_reported_and_repeats_a_noisy_measurement():
    device, calls = FakeGpu(), [0]

    def work():
        calls[0] += 1
        device.now += 1e-3 * (1 + 0.5 * (calls[0] % 10 == 0) - 0.2 * (calls[0] % 10 == 5))

    noisy = measure(device, [work], seconds=60)
    assert noisy.low < noisy.median < noisy.high or noisy.low <= noisy.median
    assert noisy.repetitions > timing.FEWEST

    def steady_work():
        device.now += 1e-3

    steady = measure(device, [steady_work])
    assert steady.repetitions == timing.FEWEST
    assert steady.low == pytest.approx(steady.high)


def test_short_calls_are_timed_in_batches():
    device, calls = FakeGpu(), [0]

    def work():
        calls[0] += 1
        device.now += 1e-6

    measure(device, [work])
    assert calls[0] > timing.FEWEST * timing.BATCH_SECONDS / 1e-6


def test_a_card_is_measured_after_a_warm_up(monkeypatch):
    device = FakeGpu()

    def work():
        device.now += 10e-6 if device.now < 0.5 else 12e-6  # rested, it is faster

    monkeypatch.setattr(timing, "SETTLE_SECONDS", 1.0)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: device.now)
    timed = measure(device, [work])
    assert timed.low == pytest.approx(12e-6)


def test_buffers_take_turns_and_have_the_same_inputs():
    buffers = BufferSets(find("start.add").op, FakeGpu(), np.dtype(np.float32), DIMS)
    assert buffers.bytes >= timing.ROTATED_BYTES
    first, second = (arrays["a"] for arrays in buffers.sets[:2])
    assert np.array_equal(first, second)
    used = []

    def run(device, arrays, dims, scalars):
        used.append(id(arrays["a"]))

    rung = timed_rung(1, "any", 1)
    calls = buffers.bind(type(rung)(1, "any", run=run))
    for call in calls:
        call()
    assert len(set(used)) == len(buffers.sets)


def test_a_card_that_slows_down_slows_every_contender_equally():
    device, replays = FakeGpu(), itertools.count()

    def work():
        device.now += 10e-6 * (1 + 1e-3 * next(replays))

    first, second = compare(device, [[work], [work]], seconds=0.0)
    assert first == pytest.approx(second, rel=0.05)


# ---- measurements -------------------------------------------------------------------------------


def test_a_measurement_holds_times_and_where_they_come_from():
    measurement, lines = run_bench(timed_rung(1, "slow", 40), timed_rung(2, "fast", 10))
    assert [row["median_us"] for row in measurement["rows"]] == [40.0, 10.0]
    assert measurement["bytes"] == BYTES
    assert measurement["roof"] == {"copy_gbps": 100.0, "matrix_tflops": None}
    assert {"commit", "date", "software", "inputs", "in_cache"} <= set(measurement)
    assert lines[0] == ("start.add rung 1 (slow), N=30000, float32: 40.00 us, 9 GB/s", False)
    assert json.loads(json.dumps(measurement)) == measurement


class Counter(Sensors):
    """Says 400 W in the first turn, and 100 more in each one after it."""

    counts_energy = True
    turns = 0

    def end(self):
        Counter.turns += 1
        return Reading(9, 1500.0, mean_watts=300.0 + 100 * Counter.turns)


def test_joules_are_the_mean_of_two_turns_there_and_back(monkeypatch):
    for name in ("WARM_UP", "SETTLE", "SECONDS"):
        monkeypatch.setattr(energy, name, 0.0)
    rungs = timed_rung(1, "slow", 40), timed_rung(2, "fast", 10)
    measurement, lines = run_bench(*rungs, joules=True)
    assert "millijoules" not in measurement["rows"][0]
    assert (energy.none_on("Fake 9000"), False) in lines
    assert " mJ |" not in table_of(measurement, monkeypatch)
    monkeypatch.setattr(FakeGpu, "sensors", lambda device: Counter())
    measurement, lines = run_bench(*rungs, joules=True)
    assert [row["millijoules"] for row in measurement["rows"]] == [22.0, 5.5]  # 550 W both
    assert {row["watts"] for row in measurement["rows"]} == {550.0}
    assert ("start.add rung 2 (fast): 5.5 mJ a call, 550 W", False) in lines
    shown = table_of(measurement, monkeypatch)
    head, _, slow, *_ = shown.splitlines()
    assert head.endswith("| mJ |") and slow.endswith("| 22 |")


def table_of(measurement, monkeypatch):
    """The table on a page, where rungs are those of the fake ladder."""
    fake = ladder(timed_rung(1, "slow", 40), timed_rung(2, "fast", 10))
    monkeypatch.setattr(tables, "find", lambda op: fake)
    monkeypatch.setattr(
        tables, "find_measurement", lambda op: (FakeGpu().description(), measurement)
    )
    return tables.table("start.add", lambda rung: rung.id)


def test_a_wrong_result_is_not_measured():
    measurement, lines = run_bench(timed_rung(1, "wrong", 40, wrong=True))
    assert measurement["rows"] == []
    assert " c[0] " in lines[0][0]
    assert lines[0][1]


def test_a_time_below_the_floor_is_an_error():
    measurement, lines = run_bench(timed_rung(1, "too good", 3))
    assert measurement["rows"] == []
    assert re.search(r" 3\.00 us .* 3\.60 us", lines[0][0])
    assert lines[0][1]


def test_a_refusal_is_reported_and_is_no_error():
    measurement, lines = run_bench(timed_rung(1, "picky", 40, needs="N % 7 == 0"))
    assert measurement["rows"] == []
    assert "N % 7 == 0" in lines[0][0]
    assert not lines[0][1]


def test_the_roof_is_the_smaller_of_memory_and_arithmetic():
    op = find("matmul.forward").op
    dims = {"N": 1024, "C": 1024, "OC": 1024}
    real = np.dtype(np.float32)
    memory = op.least_bytes(dims, real) / 1e12
    assert Roof(1e12).floor(op, dims, real) == memory
    assert Roof(1e12, 1e12).floor(op, dims, real) == op.flops(dims) / 1e12 > memory


def test_the_copy_bandwidth_counts_reads_and_writes(monkeypatch):
    device = FakeGpu()
    monkeypatch.setattr(device, "time", lambda work: 2e-3)
    assert copy_bandwidth(device, size=1 << 20) == pytest.approx((2 << 20) / 2e-3)


# ---- results and what follows from them ---------------------------------------------------------


def test_measuring_again_replaces_the_old_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    device = FakeGpu()
    for microseconds in (40, 20):
        measurement, _ = run_bench(timed_rung(1, "any", microseconds))
        path = results.record(device.description(), measurement)
    assert path.name == "fake-9000.json"
    (only,) = results.load(path)["measurements"]
    assert only["rows"][0]["median_us"] == 20.0
    other = {**measurement, "shape": "another"}
    results.record(device.description(), other)
    assert len(results.load(path)["measurements"]) == 2


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"measurements": [{}]}')
    with pytest.raises(LadderError, match=r"x\.json .*'device'"):
        results.load(tmp_path / "x.json")


def test_the_rows_say_what_follows_from_a_time():
    measurement, _ = run_bench(timed_rung(1, "slow", 40), timed_rung(2, "fast", 10))
    measurement["rows"].append({"peer": "PyTorch eager", "median_us": 20.0})
    slow, fast, peer = tables.measured_rows(measurement)
    assert (slow.gain, fast.gain, peer.gain) == (None, 4.0, None)
    orphan, _ = tables.measured_rows({**measurement, "rows": measurement["rows"][1:]})
    assert orphan.gain is None, "its parent was not measured"
    assert fast.rate == pytest.approx(BYTES / 10e-6 / 1e9)
    assert fast.of_roof == pytest.approx(0.36)
    assert tables.best_baseline(measurement).name == "PyTorch eager"


def test_a_gain_is_against_the_rung_that_one_grew_from():
    measurement, _ = run_bench(timed_rung(1, "slow", 40), timed_rung(2, "fast", 10))
    microseconds = {"8": 60.0, "9": 50.0, "10": 48.0, "11": 40.0}
    rows = [{"rung": rung, "median_us": us, "code": ""} for rung, us in microseconds.items()]
    op = "layernorm.forward"
    (parent,) = find(op).rung(11).header["after"]
    assert parent == "8", "and not the row above"
    *_, last = tables.measured_rows({**measurement, "op": op, "rows": rows})
    assert last.rung == "11" and last.gain == 60 / 40
