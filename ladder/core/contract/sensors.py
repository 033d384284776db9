"""What a GPU's sensors said while something was timed: clock, power, temperature, what slowed it.

with device.sensors() as sensors:
    ...             # warm-up
    sensors.begin()
    ...             # what is timed
    reading = sensors.end()  # a Reading; None where nothing is known
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True)
class Reading:
    """Medians of the samples of an interval; None: the GPU does not tell.

    slowed      what held the clock down, and in which share of the samples; empty: nothing did
    mean_watts  by the energy counter: what was used between two of its changes, and their distance
    """

    samples: int
    sm_mhz: float | None = None  # clock of the SMs
    watts: float | None = None
    limit_watts: float | None = None
    celsius: float | None = None
    slowed: dict[str, float] | None = None
    mean_watts: float | None = None


class Sensors:
    """Of a device with no sensors, or none that can be asked."""

    counts_energy = False

    def __enter__(self) -> Sensors:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def begin(self) -> None:
        """Only samples after this count."""

    def end(self) -> Reading | None:
        """What the samples since `begin` say; None where there are none."""
        return None
