"""An AMD GPU whose machine code is executed on the CPU, one instruction after the other.

    device = Isa("gfx1100")
    device.compile(rung, plan.constants, real)      kernels, as on a GPU

It runs what clang made of a rung for that architecture, and stops at what a GPU would not notice:
a register that is used before its load was waited for, an address outside of all arrays, LDS that
another wave has written without a barrier. doc/amd.md says what it does not model.

    program.py    reads clang's assembly
    translate.py  makes a step of each instruction: what it computes is in scalar.py and vector.py
                  (tables, in the terms of meaning.py and operands.py, with floats.py), in lanes.py,
                  parts.py and access.py
    waves.py      registers and masks, and what waves share; waits.py, what they wait for;
                  memory.py, what they address
    kernel.py     a launch, and lets its waves run
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.amd.hip import compiler
from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device, Kernel
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.signature import parameters
from ladder.core.contract.target import Target

ARCHITECTURES = tuple(compiler.TYPICAL)
MULTIPROCESSORS = 4  # few, so that a persistent kernel has work left for a second round


class Isa(Device):
    """
    arch        one of ARCHITECTURES
    time_limit  seconds that one launch may take
    """

    kind = "isa"
    measurable = False

    def __init__(self, arch: str, time_limit: float = 300.0):
        if arch not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise LadderError(f"machine code of {arch!r} is not interpreted, but that of {known}")
        self.arch, self._time_limit = arch, time_limit
        self.name = f"{arch}, interpreted"
        self.warp, self._lds_bytes = compiler.TYPICAL[arch].warp, compiler.TYPICAL[arch].lds
        self._compiled: dict[Path, dict[str, Kernel]] = {}

    def target(self, real: np.dtype) -> Target:
        return Target(self.arch, self.warp, MULTIPROCESSORS, self._lds_bytes, np.dtype(real))

    def compile(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> dict[str, Kernel]:
        """The kernels of a rung file by name. Raises CompileError, LadderError where there is no
        compiler, or for an instruction that is not interpreted."""
        from ladder.core.amd.isa import kernel, program  # large tables, which few commands need

        module = self.compile_ahead(rung, defines, real)
        if module not in self._compiled:
            how = self.arch, self.warp, self._lds_bytes, self._time_limit
            self._compiled[module] = {
                name: kernel.InterpretedKernel(code, self._names(rung, code), *how)
                for name, code in program.load(module, Path(os.path.abspath(rung.file))).items()
            }
        return self._compiled[module]

    def compile_ahead(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> Path:
        """The rung's code object, from the cache or compiled now."""
        return compiler.compile_code_object(rung, defines, real, self.arch, self.warp)

    @staticmethod
    def _names(rung: Rung, code: Any) -> list[str]:
        """What the source calls the kernel's parameters."""
        count = sum(not argument.kind.startswith("hidden_") for argument in code.arguments)
        declared: Sequence[Any] = parameters(rung.source, code.name) or ()
        if len(declared) != count:
            return [f"argument {number + 1}" for number in range(count)]
        return [name for _, name, _ in declared]
