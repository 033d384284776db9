"""What this machine has for NVIDIA GPUs, and what to do about the rest."""

import importlib.metadata
import re
import subprocess
from collections.abc import Mapping

from ladder.core.common.errors import LadderError
from ladder.core.common.install import Finding, install, pip
from ladder.core.device.cuda import gpu, sensors
from ladder.core.device.cuda.nvrtc import INSTALL, find_nvrtc
from ladder.core.device.cuda.sass import find_nvdisasm
from ladder.core.device.cupy import nccl

NEEDED = ("GPU", "CuPy", "NVRTC", "NVIDIA driver")  # findings without which no kernel runs


def findings() -> list[Finding]:
    """Everything that is looked at, in the order of a report."""
    return [nvrtc(), disassembler(), driver(), cupy(), *gpus(), *several_gpus()]


def nvrtc() -> Finding:
    """NVIDIA's compiler and its headers: a kernel is compiled for a GPU with or without one."""
    version = gpu.driver_version()
    try:
        compiler = find_nvrtc(version // 1000 if version else None)
    except LadderError as error:
        what, _, remedy = str(error).partition(": ")
        return Finding("NVRTC", what, remedy)
    text = f"{compiler.version[0]}.{compiler.version[1]} ({compiler.library})"
    for header in ("cuda_fp16.h", "crt/mma.h"):
        if not any((folder / header).is_file() for folder in compiler.include):
            return Finding("NVRTC", f"{text}, without the header {header}", INSTALL)
    return Finding("NVRTC", text)


def disassembler() -> Finding:
    try:
        return Finding("disassembler", str(find_nvdisasm()))
    except LadderError:
        return Finding("disassembler", "none", f"to look at SASS: {install('compile')}")


def driver() -> Finding:
    version, remedy = gpu.driver_version(), _complaint()
    if version is None:
        remedy = remedy or "only --device cuda needs one, and an NVIDIA GPU"
        return Finding("NVIDIA driver", "none", remedy)
    if version < gpu.OLDEST_DRIVER:
        remedy = f"CuPy needs one for CUDA {gpu.dotted(gpu.OLDEST_DRIVER)} or newer: update it"
    release = gpu.driver_release() or "unknown release"
    return Finding("NVIDIA driver", f"{release}, CUDA {gpu.dotted(version)}", remedy)


def _complaint() -> str | None:
    """What nvidia-smi says of a driver that does not work; None without a fault, or without it."""
    try:
        done = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = (done.stdout + done.stderr).strip().partition("\n")[0]
    return f"nvidia-smi says: {said}" if done.returncode else None


def cupy() -> Finding:
    """The CuPy wheel, against the CUDA version of the driver."""
    version = gpu.driver_version()
    wheels = {
        distribution.name: distribution.version
        for distribution in importlib.metadata.distributions()
        if re.fullmatch(r"cupy(-\w+)*", distribution.name or "")
    }
    versions = ", ".join(f"{name} {release}" for name, release in wheels.items())
    if not wheels:
        extra = "cuda12" if version and version < 13000 else "cuda13"
        return Finding("CuPy", "none", f"--device cuda needs it: {install(extra)}")
    if len(wheels) > 1:
        return Finding("CuPy", versions, "only one can work: uninstall the other")
    made_for = re.fullmatch(r"cupy-cuda(\d+)x", versions.split()[0])
    if version and made_for and version // 1000 < int(made_for.group(1)):
        remedy = "update the driver"
        if version >= 12000:
            remedy += f", or {pip(f'uninstall {made_for.group()}')} and {install('cuda12')}"
        return Finding(
            "CuPy", f"{versions}, but the driver supports CUDA {gpu.dotted(version)}", remedy
        )
    return Finding("CuPy", versions)


def gpus() -> list[Finding]:
    """The GPUs that CUDA lets this process use."""
    per_gpu: list[Finding] = []
    count = 1  # as far as is known before the first one is opened
    while len(per_gpu) < count:
        index = len(per_gpu)
        name = f"GPU cuda:{index}" if index else "GPU"
        try:
            device = gpu.Cuda(index)
        except LadderError as error:
            message = str(error)
            last = max(message.rfind("; "), message.rfind(": "))
            per_gpu.append(Finding(name, message[:last], message[last + 2 :]))
            continue
        count = device.cupy.cuda.runtime.getDeviceCount()
        free, total = (size / 2**30 for size in device.memory())
        text = f"{device.name}, {device.arch}, {free:.1f} of {total:.1f} GiB free"
        per_gpu.append(Finding(name, text))
    return per_gpu


def several_gpus() -> list[Finding]:
    """What training on several GPUs needs; nothing where there is one."""
    try:
        runtime = gpu.Cuda().cupy.cuda.runtime
    except LadderError:
        return []
    if (count := runtime.getDeviceCount()) < 2:
        return []
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    direct = all(runtime.deviceCanAccessPeer(a, b) for a, b in pairs)
    bus_ids = [runtime.deviceGetPCIBusId(index) for index in range(count)]
    return [communication(), links(sensors.links(bus_ids), direct)]


def communication() -> Finding:
    try:
        return Finding("NCCL", nccl.version())
    except LadderError as error:
        what, _, remedy = str(error).partition("; ")
        return Finding("NCCL", what, f"--gpus needs it: {remedy}")


def links(between: Mapping[tuple[int, int], str], direct: bool) -> Finding:
    """How the GPUs are linked.

    between  what lies between each pair, where that is known
    direct   whether each of them can read the memory of every other (P2P)
    """
    kinds = sorted(set(between.values()))
    if len(kinds) == 1:
        text = f"all by {kinds[0]}"
    elif kinds:
        text = ", ".join(f"{a}-{b} {name}" for (a, b), name in between.items())
    else:
        text = "unknown"
    if direct:
        return Finding("GPU links", f"{text}; each reads the others' memory (P2P)")
    remedy = "data parallel training works, but NCCL copies through the host's memory"
    return Finding("GPU links", f"{text}; not all read each other's memory (P2P)", remedy)
