"""Clock, power and temperature beside step times: of the timed steps, of every rank, if known."""

import dataclasses
import re

import pytest
from rich.console import Console

from ladder.core.contract.device import Device, Reading, Sensors
from ladder.core.measure.roofline import Roof
from tests.trainer.parallel_run import together
from tests.trainer.tiny import add_size
from trainer.commands import gpu_condition, op_timing, step_timing, throughput
from trainer.flags import Flags
from trainer.report import Display

HOT = Reading(20, 1755.0, 698.4, 700.0, 61.0, {"power limit": 0.85})
COOL = Reading(18, 1980.0, 512.0, 700.0, 44.0, {})


class MadeUp(Sensors):
    """Notes what is timed between `begin` and `end`."""

    def __init__(self, seen):
        self.seen = seen

    def begin(self):
        self.seen.append("begin")

    def end(self):
        self.seen.append("end")
        return HOT


@pytest.fixture
def seen(monkeypatch):
    """What happens to a device with made-up sensors, in order."""
    events = []
    time = Device.time
    add_size(monkeypatch, "d2", layers=2, channels=16, heads=2, vocab=300, padded_vocab=384)
    monkeypatch.setattr(Device, "sensors", lambda device: MadeUp(events))
    monkeypatch.setattr(
        Device, "time", lambda device, work: (events.append("timed"), time(device, work))[1]
    )
    monkeypatch.setattr(step_timing, "roof_of", lambda device, real: Roof(1e9, 1e9))
    monkeypatch.setattr(op_timing, "TURNS_SECONDS", 0.0)
    return events


FLAGS = Flags(model="d2", batch=2, sequence=5, steps=3, device="cpu")


def test_the_bench_reads_the_sensors_during_the_timed_steps_only(seen, capsys):
    machine, measurement = throughput.measure(FLAGS)
    begin, end = seen.index("begin"), seen.index("end")
    assert seen[:begin] == ["timed"] * 2, "the warm-up"
    assert seen[begin + 1 : end] == ["timed"] * 6, "three steps, three times the products"
    assert measurement["gpus"] == [dataclasses.asdict(HOT)]
    throughput.show(machine, measurement, Display(Console(), 0))
    (line,) = re.findall("^GPU .*", capsys.readouterr().out, re.M)
    assert re.findall(r"[\d,]*\d", line) == ["1,755", "698", "700", "61", "85", "20"]
    assert "power limit" in line


def entry_of(*readings):
    """The entry that the ranks of these readings make together."""
    return together(len(readings), lambda g: gpu_condition.entry(readings[g.rank], g))[0]


def test_the_reading_of_several_turns_is_their_mean():
    turns = [entry_of(HOT, COOL), {}, entry_of(COOL, None)]
    first, second = gpu_condition.of_turns(turns)["gpus"]
    assert (first["samples"], first["sm_mhz"]) == (38, (1755 + 1980) / 2)
    assert first["slowed"] == {"power limit": 0.85 / 2}
    assert Reading(**second) == COOL
    assert gpu_condition.of_turns([{}, {}]) == {}
