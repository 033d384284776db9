"""What NVML says of a GPU, told by a library that is made up."""

import time
from types import SimpleNamespace
from typing import ClassVar

import pytest

from ladder.core.contract.device import Reading
from ladder.core.device.cuda import sensors
from ladder.core.device.cuda.sensors import Nvml, Sample, condition, reading

BUS = "0000:04:00.0"


class FakeNvml:
    """A GPU at a power limit; `lacks`: what it does not tell."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
    ANSWERS: ClassVar = {
        "ClockInfo": 1755,
        "MaxClockInfo": 1980,
        "PowerUsage": 698_500,
        "EnforcedPowerLimit": 700_000,
        "Temperature": 61,
        "CurrentClocksThrottleReasons": 0x4,
        "TotalEnergyConsumption": 5_000,
        "UtilizationRates": SimpleNamespace(gpu=98),
    }

    class NVMLError(Exception):
        pass

    def __init__(self, lacks=()):
        self.lacks = lacks

    def nvmlDeviceGetHandleByPciBusId(self, bus_id):
        if bus_id != BUS.encode():
            raise self.NVMLError
        return bus_id

    def __getattr__(self, name):
        what = name.removeprefix("nvmlDeviceGet")

        def answer(handle, *more):
            if what in self.lacks:
                raise self.NVMLError
            return self.ANSWERS[what]

        return answer


@pytest.fixture
def nvml(monkeypatch):
    """Replaces NVML by a FakeNvml, or by none."""
    return lambda library: monkeypatch.setattr(sensors, "_library", lambda: library)


def test_the_condition_of_a_gpu_is_told_in_words(nvml):
    nvml(FakeNvml())
    assert condition(BUS) == "1755 of 1980 MHz, 698 of 700 W, 61 °C, 98 % busy"
    assert condition("0000:99:00.0") is None
    nvml(FakeNvml(lacks=("PowerUsage", "Temperature")))
    assert condition(BUS) == "1755 of 1980 MHz, 98 % busy"
    nvml(None)
    assert condition(BUS) is None


def test_a_reading_has_medians_and_the_share_of_each_reason():
    summary = reading(
        [
            Sample(1700, 690, 700, 60, 0x4),
            Sample(1755, None, 700, 62, 0x44),
            Sample(1800, 700, 700, 61, 0x24),
            Sample(None, None, None, 61, 0x1),  # idle is no reason
            Sample(None, None, None, 61, None),
        ]
    )
    slowed = {"power limit": 3 / 4, "temperature": 2 / 4}
    assert summary == Reading(5, 1755, 695, 700, 61, slowed)
    assert reading([Sample(1980, None, None, None, 0x1)]) == Reading(1, 1980, slowed={})
    assert reading([Sample(1980, None, None, None, None)]) == Reading(1, 1980, slowed=None)
    assert reading([]) is None


def test_only_samples_of_the_interval_count(nvml, monkeypatch):
    nvml(FakeNvml())
    asked = Nvml(BUS)
    monkeypatch.setattr(sensors.time, "monotonic", lambda: now)
    now = 10.0
    assert asked.end() is None
    asked.begin()
    at = {9.9: 100, 10.0: 200, 10.1: 300, 10.2: 400, 10.5: 600}
    asked._samples += [(when, Sample(mhz, None, None, None, None)) for when, mhz in at.items()]
    now = 10.4
    summary = asked.end()
    assert (summary.samples, summary.sm_mhz) == (3, 300)


def test_power_is_what_the_counter_says_between_two_of_its_changes(nvml, monkeypatch):
    nvml(FakeNvml())
    asked = Nvml(BUS)
    monkeypatch.setattr(sensors.time, "monotonic", lambda: now)
    now = 10.0
    asked.begin()
    asked._samples += [(10.2, Sample(1980, 500, 700, 60, 0))]
    asked._changes += [(9.95, 0.0), (10.1, 100.0)]
    now = 10.5
    assert asked.counts_energy and asked.end().mean_watts is None
    asked._changes += [(10.2, 169.0), (10.3, 240.0), (10.55, 999.0)]
    assert asked.end().mean_watts == pytest.approx(140 / 0.2)
    nvml(FakeNvml(lacks=("TotalEnergyConsumption",)))
    assert not Nvml(BUS).counts_energy
    nvml(None)
    assert not Nvml(BUS).counts_energy


def test_samples_are_taken_while_something_else_runs(nvml, monkeypatch):
    nvml(FakeNvml())
    monkeypatch.setattr(sensors, "PERIOD_SECONDS", 0.001)
    with Nvml(BUS) as asked:
        asked.begin()
        deadline = time.monotonic() + 20
        while (summary := asked.end()) is None and time.monotonic() < deadline:
            time.sleep(0.001)
    assert (summary.sm_mhz, summary.watts, summary.limit_watts) == (1755, 698.5, 700)
    assert (summary.celsius, summary.slowed) == (61, {"power limit": 1.0})
    assert not asked._thread.is_alive()
