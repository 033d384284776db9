"""An NVIDIA GPU's sensors, as nvidia-smi tells them: once, or while something is timed.

For the latter, one nvidia-smi prints a line every 0.1 s. It runs beside the program; a thread that
sleeps between its lines notes when each came. Nothing is submitted to the GPU. Power is that of the
whole board, on recent ones the average of a second.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple

from ladder.core.contract.sensors import Reading, Sensors

PERIOD_MS = 100
START_SECONDS = 3.0  # at most, until nvidia-smi has found the GPU
STOP_SECONDS = 2.0
CONDITION_SECONDS = 10.0
_CLOCK, _POWER, _CELSIUS = "clocks.sm", ("power.draw", "power.limit"), "temperature.gpu"
MOMENT = (_CLOCK, "clocks.max.sm", *_POWER, _CELSIUS, "utilization.gpu")  # of `condition`
FIELDS = (_CLOCK, *_POWER, _CELSIUS, "clocks_event_reasons.active")  # of a Sample
# Bits of clocks_event_reasons.active (nvmlClocksEventReasons in nvml.h). An idle GPU (1) and
# settings of a display (0x100) are no reason that matters here.
REASONS = {
    0x02: "application clocks",
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature",  # by software
    0x40: "temperature",  # by hardware
    0x80: "power brake",
}


class Sample(NamedTuple):
    """A line of nvidia-smi; None: it says [N/A], or something else that is no number."""

    sm_mhz: float | None
    watts: float | None
    limit_watts: float | None
    celsius: float | None
    reasons: int | None


class NvidiaSmi(Sensors):
    """The sensors of the GPU at a PCI address. A GPU in MIG mode is sampled as a whole."""

    def __init__(self, bus_id: str):
        self._command = _query(bus_id, FIELDS, ",nounits", f"--loop-ms={PERIOD_MS}")
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._samples: list[tuple[float, Sample]] = []
        self._begin = math.inf
        self._started = threading.Event()

    def __enter__(self) -> NvidiaSmi:
        with contextlib.suppress(OSError):  # there is none
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()
            self._started.wait(START_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is None or self._thread is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(STOP_SECONDS)

    def begin(self) -> None:
        self._begin = time.monotonic()

    def end(self) -> Reading | None:
        now = time.monotonic()
        inside = [sample for at, sample in list(self._samples) if self._begin <= at <= now]
        return reading(inside[1:])  # the first may have been taken before it was printed

    def _listen(self) -> None:
        """Note the lines until nvidia-smi ends."""
        assert self._process is not None and self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if (sample := parse(line)) is not None:
                    self._samples.append((time.monotonic(), sample))
                    self._started.set()
        self._started.set()


def condition(bus_id: str) -> str | None:
    """What nvidia-smi says of the GPU at a PCI address; None where it says nothing."""
    command = _query(bus_id, MOMENT)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CONDITION_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    cells = _cells(done.stdout, MOMENT)
    if done.returncode != 0 or cells is None:
        return None
    clock, highest, power, limit, temperature, busy = cells
    return f"{clock} of {highest}, {power} of {limit}, {temperature} °C, {busy} busy"


def parse(line: str) -> Sample | None:
    """A line of nvidia-smi; None where it is none of a GPU, such as a message."""
    if (cells := _cells(line, FIELDS)) is None:
        return None
    *numbers, reasons = cells
    sm, watts, limit, celsius = map(_number, numbers)
    sample = Sample(sm, watts, limit, celsius, _bits(reasons))
    return None if all(value is None for value in sample) else sample


def reading(samples: Sequence[Sample]) -> Reading | None:
    """The medians of some samples, each of those that have the value; None of no samples."""
    if not samples:
        return None
    known = [sample.reasons for sample in samples if sample.reasons is not None]
    slowed = {}
    for name in dict.fromkeys(REASONS.values()):
        mask = sum(bit for bit, reason in REASONS.items() if reason == name)
        if count := sum(bool(bits & mask) for bits in known):
            slowed[name] = count / len(known)
    return Reading(
        samples=len(samples),
        sm_mhz=_median(sample.sm_mhz for sample in samples),
        watts=_median(sample.watts for sample in samples),
        limit_watts=_median(sample.limit_watts for sample in samples),
        celsius=_median(sample.celsius for sample in samples),
        slowed=slowed if known else None,
    )


def _query(bus_id: str, fields: Sequence[str], form: str = "", *more: str) -> list[str]:
    """The command that prints a line of these fields."""
    asked = f"--query-gpu={','.join(fields)}"
    return ["nvidia-smi", f"--id={bus_id}", asked, f"--format=csv,noheader{form}", *more]


def _cells(line: str, fields: Sequence[str]) -> list[str] | None:
    """What a line says of each field; None where it is another line."""
    cells = [cell.strip() for cell in line.split(",")]
    return cells if len(cells) == len(fields) else None


def _median(values: Iterable[float | None]) -> float | None:
    """The median of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _bits(cell: str) -> int | None:
    try:
        return int(cell, 16)
    except ValueError:
        return None
