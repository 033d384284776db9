"""An NVIDIA GPU's sensors by NVML, the library behind nvidia-smi, also while something is timed.

A thread then asks every 0.1 s beside the program. Nothing is submitted to the GPU. Power
is that of the whole board, on recent ones the average of a second. The energy counter is read more
often: it changes about ten times a second, and counts from one of its changes to another.
https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ladder.core.contract.device import Reading, Sensors

PERIOD_SECONDS = 0.1
COUNTER_SECONDS = 0.005
# nvmlClocksEventReasons. An idle GPU (1) and settings of a display (0x100) are none that matters.
REASONS = {
    0x02: "application clocks",
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature",  # by software
    0x40: "temperature",  # by hardware
    0x80: "power brake",
}
# What lies between two GPUs (nvmlGpuTopologyLevel), where it is no NVLink; the slowest last.
BETWEEN = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "PCIe and the CPU",
    40: "PCIe and the CPU's own interconnect",
    50: "the interconnect between CPUs",
}


class Sample(NamedTuple):
    """What the sensors say at a moment; None: the GPU does not tell."""

    sm_mhz: float | None
    watts: float | None
    limit_watts: float | None
    celsius: float | None
    reasons: int | None


class Nvml(Sensors):
    """The sensors of the GPU at a PCI address. A GPU in MIG mode is sampled as a whole."""

    def __init__(self, bus_id: str) -> None:
        self._gpu = gpu_at(bus_id)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples: list[tuple[float, Sample]] = []
        self._changes: list[tuple[float, float]] = []  # of the energy counter, and its joules
        self.counts_energy = self._gpu is not None and self._gpu.joules() is not None
        self._begin = math.inf

    def __enter__(self) -> Nvml:
        if self._gpu is not None:
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def begin(self) -> None:
        self._begin = time.monotonic()

    def end(self) -> Reading | None:
        now = time.monotonic()
        summary = reading([what for at, what in list(self._samples) if self._begin <= at <= now])
        changes = [change for change in list(self._changes) if self._begin <= change[0] <= now]
        if summary is None or len(changes) < 2:
            return summary
        (start, before), (end, after) = changes[0], changes[-1]
        return dataclasses.replace(summary, mean_watts=(after - before) / (end - start))

    def _listen(self) -> None:
        """Ask again and again until the end."""
        assert self._gpu is not None
        due, joules = time.monotonic() + PERIOD_SECONDS, self._gpu.joules()
        while not self._stop.wait(min(PERIOD_SECONDS, COUNTER_SECONDS)):
            now, before, joules = time.monotonic(), joules, self._gpu.joules()
            if joules is not None and joules != before:
                self._changes.append((now, joules))
            if now >= due:
                self._samples.append((now, self._gpu.sample()))
                due = now + PERIOD_SECONDS


class _Gpu:
    """One GPU as NVML sees it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def ask(self, what: str, *more: Any) -> Any:
        """The result of nvmlDeviceGet<what>; None where this GPU or driver does not tell."""
        function: Callable[..., Any] = getattr(self._nvml, f"nvmlDeviceGet{what}")
        try:
            return function(self._handle, *more)
        except self._nvml.NVMLError:
            return None

    def joules(self) -> float | None:
        """What it has used since the driver was loaded."""
        return _thousandth(self.ask("TotalEnergyConsumption"))

    def sample(self) -> Sample:
        return Sample(
            self.ask("ClockInfo", self._nvml.NVML_CLOCK_SM),
            _thousandth(self.ask("PowerUsage")),
            _thousandth(self.ask("EnforcedPowerLimit")),
            self.ask("Temperature", self._nvml.NVML_TEMPERATURE_GPU),
            self.ask("CurrentClocksThrottleReasons"),  # its name before CUDA 12.2
        )

    def link_to(self, other: _Gpu) -> str | None:
        """What lies between it and another GPU: "NVLink (18 links)"."""
        nvml = self._nvml
        if self.ask("P2PStatus", other._handle, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0:
            states = (self.ask("NvLinkState", link) for link in range(nvml.NVML_NVLINK_MAX_LINKS))
            return f"NVLink ({sum(state == 1 for state in states)} links)"
        return BETWEEN.get(self.ask("TopologyCommonAncestor", other._handle))


def condition(bus_id: str) -> str | None:
    """Clock, power, temperature and use of a GPU in words; None where it cannot be asked."""
    if (gpu := gpu_at(bus_id)) is None:
        return None
    sample, nvml = gpu.sample(), _library()
    highest = gpu.ask("MaxClockInfo", nvml.NVML_CLOCK_SM)
    busy = gpu.ask("UtilizationRates")
    limit = math.nan if sample.limit_watts is None else sample.limit_watts
    said = [
        sample.sm_mhz is not None and f"{sample.sm_mhz} of {highest} MHz",
        sample.watts is not None and f"{sample.watts:.0f} of {limit:.0f} W",
        sample.celsius is not None and f"{sample.celsius} °C",
        busy is not None and f"{busy.gpu} % busy",
    ]
    return ", ".join(part for part in said if part) or None


def links(bus_ids: Sequence[str]) -> Mapping[tuple[int, int], str]:
    """For each pair of GPUs what lies between them, as far as NVML tells."""
    gpus = [gpu_at(bus_id) for bus_id in bus_ids]
    between = {}
    for a, one in enumerate(gpus):
        for b, other in enumerate(gpus[:a]):
            if one is not None and other is not None and (name := other.link_to(one)):
                between[b, a] = name
    return between


def gpu_at(bus_id: str) -> _Gpu | None:
    """The GPU at a PCI address; None where NVML, or its package, does not know it."""
    if (nvml := _library()) is None:
        return None
    try:
        return _Gpu(nvml, nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode()))
    except nvml.NVMLError:
        return None


@functools.cache
def _library() -> Any:
    """NVML, ready to be asked; None where there is none."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


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


def _median(values: Iterable[float | None]) -> float | None:
    """The median of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _thousandth(number: int | None) -> float | None:
    return None if number is None else number / 1e3
