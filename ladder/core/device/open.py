"""From the name of a device to the device, from that of an architecture to machine code for it, and
what this machine has for compiling and running kernels.

Another kind of GPU is a folder beside ladder/core/device/cuda, and one entry of `GPUS`.
"""

import importlib.metadata
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ladder.core.amd.hip import compiler as hip_compiler
from ladder.core.amd.hip import gpu as hip
from ladder.core.amd.isa.gpu import ARCHITECTURES, Isa
from ladder.core.common import cache
from ladder.core.common.command_line import did_you_mean
from ladder.core.common.errors import LadderError
from ladder.core.common.install import Finding, install
from ladder.core.contract.device import Device, Kernel
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.device.cuda import compiler as cuda_compiler
from ladder.core.device.cuda import gpu as cuda
from ladder.core.device.cuda import group as cuda_group
from ladder.core.device.cuda import installation as cuda_installation
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.toolchain import find_compiler


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
        hip.findings,
        hip.NEEDED,
        hip.VISIBLE,
    ),
}


class Cpu(Device):
    """The machine's processor with NumPy: it runs rung 0 of every ladder."""

    name = "cpu"
    kind = "cpu"
    runs_kernels = False

    def target(self, real: np.dtype) -> Target:
        return Target("cpu", 32, 1, 0, np.dtype(real))

    def compile(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> dict[str, Kernel]:
        raise LadderError(
            "device cpu runs the NumPy reference only (rung 0); "
            "--device emulated runs kernels on the CPU, --device cuda on a GPU"
        )


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


def device_findings() -> list[Finding]:
    """What is looked at for compiling and running kernels, in the order of a report."""
    of_gpus = [finding for kind in GPUS.values() for finding in kind.findings()]
    torch = next((one.version for one in importlib.metadata.distributions(name="torch")), "none")
    remedy = f"to compare with it: {install('torch')}" if torch == "none" else None
    return [cache_directory(), cpp_compiler(), *of_gpus, Finding("PyTorch", torch, remedy)]


def cache_directory() -> Finding:
    """Where compiled kernels are kept; a file is written to see that it can be."""
    folder = cache.directory()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Finding("kernel cache", str(folder))
    except OSError as error:
        remedy = f"set {cache.VARIABLE} to a folder that can be written"
        return Finding("kernel cache", f"{folder}: {error.strerror}", remedy)


def cpp_compiler() -> Finding:
    """What the emulator builds kernels with."""
    try:
        compiler = find_compiler()
    except LadderError as error:
        what, _, remedy = str(error).rpartition("; ")
        return Finding("C++ compiler", what, f"--device emulated needs one: {remedy}")
    command = "ziglang" if "ziglang" in compiler.command else shlex.join(compiler.command)
    return Finding("C++ compiler", f"{command}: {compiler.version.splitlines()[0]}")


def typical_target(name: str, real: np.dtype) -> Target:
    """A device to compile for without having it. Raises LadderError for an unknown name."""
    if name.startswith("gfx"):
        return hip_compiler.typical_target(name, real)
    try:
        return cuda_compiler.typical_target(name, real)
    except LadderError as error:
        raise LadderError(f"{error}, {', '.join(hip_compiler.TYPICAL)}") from None
