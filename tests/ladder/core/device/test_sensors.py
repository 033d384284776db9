"""What nvidia-smi prints, read from scripts of its name."""

import os
import time

import pytest

from ladder.core.contract.sensors import Reading
from ladder.core.device.cuda import sensors
from ladder.core.device.cuda.sensors import NvidiaSmi, Sample, condition, parse, reading

BUS = "0000:04:00.0"


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """Replaces nvidia-smi by a shell script."""

    def place(script):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return place


def test_what_nvidia_smi_says_of_a_gpu_is_told_in_words(nvidia_smi, monkeypatch):
    nvidia_smi("echo 1980 MHz, 1980 MHz, 412.50 W, 700.00 W, 56, 98 %")
    told = "1980 MHz of 1980 MHz, 412.50 W of 700.00 W, 56 °C, 98 % busy"
    assert condition(BUS) == told
    nvidia_smi("echo No devices were found; exit 6")
    assert condition(BUS) is None
    monkeypatch.setenv("PATH", "")
    assert condition(BUS) is None, "there is no nvidia-smi"


def test_a_line_is_read_as_far_as_it_says_something():
    assert parse("1755, 698.21, 700.00, 61, 0x0000000000000004\n") == Sample(
        1755, 698.21, 700, 61, 4
    )
    assert parse("1755, [N/A], [N/A], 61, [N/A]") == Sample(1755, None, None, 61, None)
    assert parse("1755, nan, inf, [Unknown Error], 0x0") == Sample(1755, None, None, None, 0)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "No devices were found",
        'Field "clocks_event_reasons.active" is not a valid field to query.',
        "1755, 698.21",
        "1, 2, 3, 4, 5, 6",
        "[N/A], [N/A], [N/A], [N/A], [N/A]",
    ],
)
def test_what_is_no_sample_is_left_aside(line):
    assert parse(line) is None


def test_a_reading_has_medians_and_the_share_of_each_reason():
    found = reading(
        [
            Sample(1700, 690, 700, 60, 0x4),
            Sample(1755, None, 700, 62, 0x44),
            Sample(1800, 700, 700, 61, 0x24),
            Sample(None, None, None, 61, 0x1),  # idle is no reason
            Sample(None, None, None, 61, None),
        ]
    )
    slowed = {"power limit": 3 / 4, "temperature": 2 / 4}
    assert found == Reading(5, 1755, 695, 700, 61, slowed)
    assert reading([Sample(1980, None, None, None, 0x1)]) == Reading(1, 1980, slowed={})
    assert reading([Sample(1980, None, None, None, None)]) == Reading(1, 1980, slowed=None)
    assert reading([]) is None


def test_only_samples_of_the_interval_count(monkeypatch):
    asked = NvidiaSmi(BUS)
    monkeypatch.setattr(sensors.time, "monotonic", lambda: now)
    now = 10.0
    assert asked.end() is None
    asked.begin()
    at = {9.9: 100, 10.0: 200, 10.1: 300, 10.2: 400, 10.3: 500, 10.5: 600}
    asked._samples += [(when, Sample(mhz, None, None, None, None)) for when, mhz in at.items()]
    now = 10.4
    found = asked.end()
    # Of those from 10.0 to 10.4, the first may have been taken before it was printed.
    assert (found.samples, found.sm_mhz) == (3, 400)


def test_samples_are_taken_while_something_else_runs(nvidia_smi, monkeypatch):
    nvidia_smi("while :; do echo '1755, 698.5, 700.00, 61, 0x0000000000000004'; sleep 0.01; done")
    with NvidiaSmi(BUS) as asked:
        asked.begin()
        deadline = time.monotonic() + 20
        while (found := asked.end()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
    assert (found.sm_mhz, found.watts, found.limit_watts) == (1755, 698.5, 700)
    assert (found.celsius, found.slowed) == (61, {"power limit": 1.0})
    assert asked._process.returncode is not None and not asked._thread.is_alive()
    assert {f"--id={BUS}", "--loop-ms=100"} <= set(asked._process.args)


@pytest.mark.parametrize(
    "script", ["echo 'No devices were found'; exit 6", "head -c 9999 /dev/urandom", "exit 2"]
)
def test_a_program_that_ends_or_prints_garbage_tells_nothing(nvidia_smi, monkeypatch, script):
    monkeypatch.setattr(sensors, "START_SECONDS", 60.0)
    nvidia_smi(script)
    start = time.monotonic()
    with NvidiaSmi(BUS) as asked:
        asked.begin()
        assert asked.end() is None
    assert time.monotonic() - start < sensors.START_SECONDS, "its end is noticed"


def test_without_nvidia_smi_nothing_is_known(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with NvidiaSmi(BUS) as asked:
        asked.begin()
        assert asked.end() is None


def test_a_program_that_does_not_stop_is_ended(nvidia_smi, monkeypatch):
    monkeypatch.setattr(sensors, "STOP_SECONDS", 0.05)
    nvidia_smi("trap '' TERM\necho '1, 2, 3, 4, 0x0'\nexec sleep 60")
    with NvidiaSmi(BUS) as asked:
        pass
    assert asked._process.returncode not in (None, 0)
