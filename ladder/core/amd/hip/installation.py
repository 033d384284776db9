"""What this machine has for AMD's GPUs, and what to do about the rest."""

import importlib.metadata
import os

from ladder.core.amd.hip import gpu
from ladder.core.amd.hip.compiler import find_clang
from ladder.core.common.errors import LadderError
from ladder.core.common.install import Finding, pip

NEEDED = ("AMD GPU", "CuPy for ROCm", "ROCm", "AMD compiler", "AMD driver")  # to run a kernel


def findings() -> list[Finding]:
    """Everything that is looked at; without a driver, only what needs no GPU."""
    if not gpu.has_driver():
        return [compiler(), driver()]
    return [compiler(), driver(), rocm(), cupy(), card()]


def compiler() -> Finding:
    """clang: a kernel is compiled for a GPU with or without one."""
    try:
        found = find_clang()
    except LadderError as error:
        what, _, remedy = str(error).rpartition(": ")
        return Finding("AMD compiler", what, f"to compile for AMD's GPUs: {remedy}")
    return Finding("AMD compiler", f"clang {found.version} ({found.program})")


def driver() -> Finding:
    if not gpu.has_driver():
        return Finding("AMD driver", "none", "only --device hip needs one, and an AMD GPU")
    if not os.access(gpu.DRIVER, os.R_OK | os.W_OK):
        remedy = "sudo usermod --append --groups render,video $USER, and log in again"
        return Finding("AMD driver", f"{gpu.DRIVER} cannot be opened by this user", remedy)
    return Finding("AMD driver", str(gpu.DRIVER))


def rocm() -> Finding:
    """ROCm's libraries, which CuPy's wheel uses; its compiler is not needed."""
    release = gpu.release()
    if release is None:
        remedy = "install ROCm 7: https://rocm.docs.amd.com/projects/install-on-linux"
        return Finding("ROCm", f"none ({gpu.RELEASE} is missing)", remedy)
    if not release.startswith("7."):
        return Finding("ROCm", release, "CuPy's wheel is made for ROCm 7: install that")
    return Finding("ROCm", release)


def cupy() -> Finding:
    names = [distribution.name for distribution in importlib.metadata.distributions()]
    wheels = sorted(name for name in names if name and name.startswith("cupy"))
    if not wheels:
        return Finding("CuPy for ROCm", "none", f"--device hip needs it: {gpu.INSTALL}")
    if len(wheels) > 1:
        found = ", ".join(wheels)
        return Finding("CuPy for ROCm", found, "only one can work: uninstall the others")
    if not wheels[0].startswith("cupy-rocm"):
        remedy = f"{pip(f'uninstall {wheels[0]}')}, and {gpu.INSTALL}"
        return Finding("CuPy for ROCm", f"{wheels[0]} is for NVIDIA's GPUs", remedy)
    return Finding("CuPy for ROCm", f"{wheels[0]} {importlib.metadata.version(wheels[0])}")


def card() -> Finding:
    """The first AMD GPU."""
    try:
        found = gpu.Hip()
    except LadderError as error:
        what, _, remedy = str(error).partition("; ")
        return Finding("AMD GPU", what, remedy or "see the lines above")
    text = f"{found.name} ({found.arch}), waves of {found.warp}"
    return Finding("AMD GPU", f"{text}: no AMD GPU has been tried; doc/amd.md says what to send")
