"""From the name of a device to the device.

Another kind of GPU is a folder beside ladder/core/device/cuda, and one entry of `GPUS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ladder.core.amd.hip import gpu as hip
from ladder.core.amd.hip import installation as hip_installation
from ladder.core.amd.isa.gpu import ARCHITECTURES, Isa
from ladder.core.common.command_line import did_you_mean
from ladder.core.common.errors import LadderError
from ladder.core.common.finding import Finding
from ladder.core.contract.device import Device
from ladder.core.device.cpu import Cpu
from ladder.core.device.cuda import gpu as cuda
from ladder.core.device.cuda import group as cuda_group
from ladder.core.device.cuda import installation as cuda_installation
from ladder.core.emulator.emulated import Emulated


class GpuKind(NamedTuple):
    """What must be known of a kind of GPU.

    open        the GPU of an index; LadderError with the remedy where it cannot be used
    has_driver  whether this machine may have such GPUs
    number      how many of them can be used, 0 where that cannot be known
    findings    what it has for them, for a report
    needed      the findings without which no kernel runs
    visible     variables of the environment that say which GPUs a process sees
    group       several GPUs of this machine as one device; None where that is not written
    """

    open: Callable[[int], Device]
    has_driver: Callable[[], bool]
    number: Callable[[], int]
    findings: Callable[[], list[Finding]]
    needed: tuple[str, ...]
    visible: tuple[str, ...]
    group: Callable[[Sequence[int]], Device] | None = None


GPUS = {
    "cuda": GpuKind(
        cuda.Cuda,
        cuda.has_driver,
        cuda.count,
        cuda_installation.findings,
        cuda_installation.NEEDED,
        cuda.VISIBLE,
        cuda_group.CudaGroup,
    ),
    "hip": GpuKind(
        hip.Hip,
        hip.has_driver,
        hip.count,
        hip_installation.findings,
        hip_installation.NEEDED,
        hip.VISIBLE,
    ),
}


def default_gpu() -> str | None:
    """The name of the first kind of GPU that this machine has a driver for: "cuda", or None."""
    return next((name for name, kind in GPUS.items() if kind.has_driver()), None)


def gpus() -> list[str]:
    """The names of this machine's GPUs, of the first kind that it has a driver for."""
    name = default_gpu()
    return [] if name is None else [f"{name}:{index}" for index in range(GPUS[name].number())]


def default_device() -> str:
    """The name of the best device to run kernels on: a GPU's, or else "emulated"."""
    return default_gpu() or "emulated"


def open_device(name: str) -> Device:
    """The device that a flag names: cpu, emulated (with "emulated:64" one with warps of 64), an
    interpreter of AMD's machine code ("isa:gfx1100"), cuda or hip (with "cuda:1" the second GPU,
    with "cuda:0,1" two as a group, for ops with ranks).

    Raises LadderError with the remedy where the machine cannot serve it.
    """
    if name == "cpu":
        return Cpu()
    if name in ("emulated", "emulated:64"):
        return Emulated(warp=64 if name.endswith("64") else 32)
    kind, colon, index = name.partition(":")
    if kind == Isa.kind and index in ARCHITECTURES:
        return Isa(index)
    group = GPUS[kind].group if kind in GPUS else None
    if group and "," in index and all(part.isdecimal() for part in index.split(",")):
        return group([int(part) for part in index.split(",")])
    if kind in GPUS and (index.isdecimal() or not colon):
        return GPUS[kind].open(int(index or 0))
    known = ["cpu", "emulated", *(f"{Isa.kind}:{arch}" for arch in ARCHITECTURES), *GPUS]
    hint = did_you_mean(name, known)
    raise LadderError(f"no device is named {name!r}{hint}; there are {', '.join(known)}")
