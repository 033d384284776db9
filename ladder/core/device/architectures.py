"""Rungs as machine code of an architecture by its name: "sm_90a" of NVIDIA, "gfx942" of AMD.

No GPU is needed. Each vendor's compiler has its own folder beside this file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ladder.core.amd.hip import compiler as hip
from ladder.core.common.errors import LadderError
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.device.cuda import compiler as cuda


class Compiled(NamedTuple):
    """What a compiler made of a rung file.

    path     a cubin, or a code object
    kernels  by name, for each of them what it spills: bytes on NVIDIA's, registers on AMD's
    warned   whether the compiler warned
    """

    path: Path
    kernels: Mapping[str, int]
    warned: bool


def is_amd(arch: str) -> bool:
    return arch.startswith("gfx")


def typical_target(name: str, real: np.dtype) -> Target:
    """A device to compile for without having it. Raises LadderError for an unknown name."""
    if is_amd(name):
        return hip.typical_target(name, real)
    try:
        return cuda.typical_target(name, real)
    except LadderError as error:
        raise LadderError(f"{error}, {', '.join(hip.TYPICAL)}") from None


def compile_for(rung: Rung, constants: Mapping[str, int], target: Target) -> Compiled:
    """The rung's machine code, from the cache or compiled now. Raises CompileError."""
    if is_amd(target.arch):
        path = hip.compile_code_object(rung, constants, target.real, target.arch, target.warp)
        spills = {name: takes.spill for name, takes in hip.resources(path).items()}
        return Compiled(path, spills, "warning:" in hip.compile_log(path))
    path = cuda.compile_cubin(rung, constants, target.real, target.arch)
    spills = {name: takes.spill for name, takes in cuda.resources(path).items()}
    return Compiled(path, spills, "warning" in cuda.compile_log(path))
