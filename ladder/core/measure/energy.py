"""Joules of work that a GPU repeats: its mean power by NVML's energy counter, times the seconds of
one repetition.

The driver renews the counter about ten times a second, so a turn takes seconds. Nothing comes
between two repetitions: the host submits one while the GPU works on the one before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ladder.core.contract.device import Device, Streams
from ladder.core.measure.timing import batch

WARM_UP, SETTLE, SECONDS = 1.0, 0.3, 2.5  # parts of a turn


@dataclass(frozen=True)
class Energy:
    """Of one repetition: seconds and joules; meanwhile, the GPU's power and the clock of its
    SMs."""

    seconds: float
    joules: float
    watts: float
    sm_mhz: float | None


def none_on(device: str) -> str:
    """Why there are no joules of a device, for the user."""
    return f"no joules: nothing counts the energy of {device}; NVML does on NVIDIA GPUs"


def forecast(device: Device, turns: int) -> str:
    """How long so many turns take, or why there will be none, for the user."""
    with device.sensors() as sensors:
        if not sensors.counts_energy:
            return none_on(device.name)
    return f"joules: {turns} turns, about {turns * (WARM_UP + SETTLE + SECONDS):,.0f} seconds"


def measure(
    device: Device, work: Callable[[], None], before: Callable[[], None] | None = None
) -> Energy | None:
    """A turn: `before`, or else `work`, for WARM_UP seconds, then `work`, whose last SECONDS count.
    None where nothing counts energy; the work is not done then."""
    with device.sensors() as sensors:
        if not sensors.counts_energy:
            return None
        repeat(device, before or work, WARM_UP)
        repeat(device, work, SETTLE)
        sensors.begin()
        seconds = repeat(device, work, SECONDS)
        reading = sensors.end()
    if reading is None or reading.mean_watts is None:
        return None
    return Energy(seconds, reading.mean_watts * seconds, reading.mean_watts, reading.sm_mhz)


def in_turns(
    device: Device, contenders: Sequence[Sequence[Callable[[], None]]]
) -> list[dict[str, float]]:
    """What rows of results hold of a call of each contender: the mean of two turns. The second ones
    are in the other order, so that a card that warms up favours none. Nothing where nothing counts
    energy."""
    batches = [batch(device, calls) for calls in contenders]
    turns: list[list[tuple[float, float, float]]] = [[] for _ in batches]
    for which in (*range(len(batches)), *reversed(range(len(batches)))):
        replay, calls = batches[which]
        if (turn := measure(device, replay)) is None:
            return []
        turns[which].append((1e3 * turn.joules / calls, turn.watts, turn.sm_mhz or 0.0))
    names = "millijoules", "watts", "sm_mhz"
    means = ([sum(values) / 2 for values in zip(*both, strict=True)] for both in turns)
    return [dict(zip(names, (round(x, 4) for x in mean), strict=True)) for mean in means]


def repeat(device: Streams, work: Callable[[], None], seconds: float) -> float:
    """Repeat work for about so long; returns the mean seconds of a repetition."""
    first = before = device.mark()
    count, end = 0, time.perf_counter() + seconds
    while count < 2 or time.perf_counter() < end:
        work()
        now = device.mark()
        device.seconds(first, before)  # waits for the repetition before
        before, count = now, count + 1
    return device.seconds(first, before) / count
