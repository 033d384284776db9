"""The emulated device: the `.cu` files of the ladders, unmodified, on a CPU.

    device = Emulated()                    # runs kernels, as fast as it can
    device = Emulated(counting=True)       # records every memory access
    device.report().lines                  # sectors and bank conflicts, by source line

doc/emulator.md explains how it works, and what it cannot prove.

    source.py       rewrites `__shared__`, which C++ does not have
    toolchain.py    compiles
    kernel.py       launches, and describes what went wrong
    host.py         calls host code, which launches kernels itself
    include/        CUDA's keywords, types and functions for a C++ compiler
    runtime/        threads as fibers, warps, barriers, the model of memory
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import CompileError, LadderError
from ladder.core.contract.device import Device, Kernel, refuse_tile
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.op import REALS
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.signature import with_c_linkage
from ladder.core.contract.target import Target
from ladder.core.emulator import coverage, source, toolchain
from ladder.core.emulator.host import HostCode
from ladder.core.emulator.kernel import SHARED_BYTES, Record, Settings, load
from ladder.core.emulator.report import Report

INCLUDE = Path(__file__).parents[2] / "include"
MULTIPROCESSORS = 4  # small, so that a persistent kernel has work left for a second round
MANY_MULTIPROCESSORS = 132  # as an H100: so many partial sums that a thread has more than one
ERRORS_SHOWN = 3
WATCHING_SECONDS = 10.0  # time limit of a launch that is watched to explain a failure

# What stands between the place and the message of an error.
_ERROR = re.compile(r" (fatal )?error:( static assertion failed( due to requirement '.*?')?:)?")
_UNKNOWN = re.compile(r"[‘'`]__\w+[’'] was not declared|undeclared identifier '__\w+'")
_NOT_THERE = re.compile(r"\A.*(not declared|undeclared|member|No such file|not found)")
_GUESS = re.compile(r"[‘'`][^’']*\$[^’']*[’'] may be used uninitialized")
_VARIABLE_LENGTH = re.compile(r"\[-Werror.*\bW?vla")
CONSTANT_SIZE = (
    "the size of an array must be a constant, such as one of Define; or declare the array as "
    "extern __shared__, and give its bytes in the launch"
)
LACKING = "; if CUDA has it, the emulator does not: it has those of ladder/core/emulator/include"
_LONG = ("begin", "columns", "rows", "row_bytes")
_SHORT = ("box_columns", "box_rows", "element_bytes", "tf32")
TENSOR_MAP = np.dtype(  # TileMap in runtime/scheduler.h, in 128 bytes
    {"names": _LONG + _SHORT, "formats": ["u8"] * 4 + ["i4"] * 4, "itemsize": 128}
)


class Emulated(Device):
    """An emulated GPU.

    warp        threads in a warp: 32, or 64 as on some AMD GPUs
    seed        0: threads and blocks run in order; else in an order that follows from the seed
    early       asynchronous copies to shared memory land at once, and not as late as they may
    counting    watch every memory access, count them, and find races and accesses out of bounds;
                about 20 times slower, on one processor
    workers     how many blocks run at a time (default: one for each processor)
    time_limit  seconds of processor time that one launch may take
    trace       how many warp requests of each source line `report()` keeps in full
    count_branches  count how often the branches and loops of a rung's file run; on one processor
    multiprocessors  SMs that the device has for what a launch works out (default: 4)

    Arrays are NumPy's, as on the device cpu. Launches are synchronous. A launch that does
    something wrong raises KernelError when it ends.
    """

    kind = "emulated"
    measurable = False

    def __init__(self, count_branches: bool = False, **settings: Any):
        settings |= {"workers": 1} if count_branches else {}
        self._counts_branches = count_branches
        self._counted: dict[Path, list[ctypes.CDLL]] = {}  # libraries by the rung's file
        self._use(Settings(**{"multiprocessors": MULTIPROCESSORS, **settings}))
        self._record = Record()
        self._compiled: dict[tuple[Any, ...], Mapping[str, Kernel]] = {}
        self._warnings: dict[Path, dict[str, None]] = {}  # of the compiler, by the rung's file

    def _use(self, settings: Settings) -> None:
        if settings.warp not in (32, 64):
            raise LadderError(f"a warp has 32 or 64 threads, not {settings.warp}")
        self._settings = settings
        order = f", order {settings.seed}" if settings.seed else ""
        warp = f", warps of {settings.warp}" if settings.warp != 32 else ""
        early = ", early copies" if settings.early else ""
        many = settings.multiprocessors
        sms = f", {many} SMs" if many != MULTIPROCESSORS else ""
        self.name = f"emulated{warp}{sms}{order}{early}"

    def variant(self, **changes: Any) -> Emulated:
        """The same device with other settings; with `zeros`: variables without a value hold 0, and
        not what no result survives; if it counts, with `record`: `report()` has timelines; with
        `last`: of each launch, only the last block runs, or the last cluster."""
        device = Emulated()
        device._use(replace(self._settings, **changes))
        device._warnings = self._warnings
        return device

    @property
    def zeros(self) -> bool:
        """Whether variables without a value hold 0."""
        return self._settings.zeros

    @property
    def watches(self) -> bool:
        """Whether it watches every access to memory, or every branch: as slow as can be."""
        return self._settings.counting or self._counts_branches

    def target(self, real: np.dtype) -> Target:
        warp, sms = self._settings.warp, self._settings.multiprocessors
        return Target("emulated", warp, sms, SHARED_BYTES, np.dtype(real))

    def compile(
        self, rung: Rung, defines: Mapping[str, int], real: np.dtype
    ) -> Mapping[str, Kernel]:
        """The kernels of a rung file by name.

        Raises CompileError with the file's own lines, LadderError where there is no compiler.
        """
        real = np.dtype(real)
        path = Path(os.path.abspath(rung.file))
        key = (path, code_identity(rung, exact=True), real, tuple(defines.items()))
        if key not in self._compiled:
            library, declared = self.compile_ahead(rung, defines, real)
            log = library.with_name(toolchain.LOG)
            if log.exists() and not self._counts_branches:  # which puts code of its own into it
                said = self._warnings.setdefault(path, {})
                said |= dict.fromkeys(_warnings(log.read_text(encoding="utf-8"), path))
            seen = library, path, declared, self._settings, self._record
            self._compiled[key] = {rung.host: HostCode(*seen)} if rung.host else load(*seen)
            if self._counts_branches:
                self._counted.setdefault(path, []).append(ctypes.CDLL(str(library)))
        return self._compiled[key]

    def compile_ahead(
        self, rung: Rung, defines: Mapping[str, int], real: np.dtype
    ) -> tuple[Path, tuple[source.DeclaredKernel, ...]]:
        """The library of a rung file, from the cache or compiled now, and what it declares."""
        real = np.dtype(real)
        if real.name not in REALS:
            raise LadderError(f"kernels compute in {', '.join(REALS)}, not in {real.name}")
        path = Path(os.path.abspath(rung.file))
        macros = [f"REAL_{real.name.upper()}=1", f"WARP_SIZE={self._settings.warp}"]
        macros += [f"{name}={value}" for name, value in defines.items()]
        text = with_c_linkage(rung)
        if self._counts_branches:
            text = coverage.instrument(text)
        text, declared = source.prepare(path, text, [INCLUDE], rung.host)
        try:
            counting, zeros = self._settings.counting, self._settings.zeros
            return toolchain.build_kernel(text, macros, counting, zeros), declared
        except CompileError as error:
            explained = _explain(str(error), path, rung.source)
            if rung.host and _NOT_THERE.search(explained):
                said, *_ = explained.splitlines()[0].split("; did you mean")  # of what is here
                has = "cudaMalloc, cudaMemcpy, malloc, printf, std::cout, torch::empty and the like"
                explained = f"{said}; host code here has {has} (doc/any_kernel.md)"
            raise CompileError(explained) from None

    def tensor_map(self, array: np.ndarray, box: tuple[int, int], tf32: bool = False) -> np.void:
        refuse_tile(array, box)
        value: np.void = np.zeros(1, TENSOR_MAP)[0]
        value["begin"] = array.ctypes.data
        value["rows"], value["columns"] = array.size // array.shape[-1], array.shape[-1]
        value["row_bytes"] = array.shape[-1] * array.itemsize
        value["element_bytes"] = array.itemsize
        value["box_rows"], value["box_columns"] = box
        value["tf32"] = tf32
        return value

    def coverage(self, rung: Rung) -> list[coverage.Spot]:
        """The branches and loops of a rung's file, as often as they have run so far in this
        process; not even once, if the rung has not run."""
        spots, size = coverage.spots_of(rung.source), coverage.COUNTERS
        for library in self._counted.get(Path(os.path.abspath(rung.file)), []):
            library.emulator_coverage.restype = ctypes.POINTER(ctypes.c_longlong)
            counts = library.emulator_coverage()
            spots = [spot.add(counts[i * size : (i + 1) * size]) for i, spot in enumerate(spots)]
        return spots

    def warnings(self, rung: Rung) -> list[str]:
        """What the compiler warned of in a rung's own file, for all that this device and its
        variants have compiled of it in this process."""
        path = Path(os.path.abspath(rung.file))
        said = self._warnings.get(path, ())
        return sorted(said, key=lambda line: int(line.removeprefix(f"{path}:").split(":")[0]))

    def report(self) -> Report:
        """What was seen since the last reset: problems, and in counting mode all accesses."""
        return self._record.report()

    def reset_report(self) -> None:
        self._record.clear()


def _explain(log: str, path: Path, text: str) -> str:
    """The first errors of a compiler's log, each with its source line and a caret.

    Where a brace is missing, a compiler finds fault with the lines after the end of the file, which
    are not the reader's: then the message is about the braces.
    """
    if linker := re.search(r"\S+:\d+: undefined reference to .*", log):
        return f"{linker[0]}: it is declared, and nowhere defined"
    lines = log.splitlines()
    starts = [i for i, line in enumerate(lines) if ": error:" in line or ": fatal error:" in line]
    if not starts:
        return f"{path} does not compile for the CPU:\n{log.strip()}"
    shown = []
    code = source.without_comments(text)
    if (opened := code.count("{")) != (closed := code.count("}")):
        shown.append(f"{path}: {opened} of {{ and {closed} of }}: a brace is missing, or too many")
        starts = [start for start in starts if lines[start].startswith(str(path))]
    for start in starts[:ERRORS_SHOWN]:
        end = start + 1
        while end < len(lines) and lines[end].startswith(" ") and end < start + 3:
            end += 1
        place, _, message = _ERROR.sub("", lines[start]).partition(": ")
        used = _used_at(lines, start, path)
        own = place.startswith(f"{path}:")
        if own and _VARIABLE_LENGTH.search(message):  # in shared memory, its column is not theirs
            used, message = int(place.split(":")[-2]), CONSTANT_SIZE
        if _UNKNOWN.search(message):
            message += LACKING
        if used is None:
            shown += [f"{place}: {message}", *lines[start + 1 : end]]
        elif (said := f"{path}:{used}: {message}") not in shown:
            shown += [said, f"{used:5} | {text.splitlines()[used - 1]}"]
    if len(starts) > ERRORS_SHOWN:
        shown.append(f"({len(starts) - ERRORS_SHOWN} more errors)")
    return "\n".join(shown)


def _used_at(lines: Sequence[str], error: int, path: Path) -> int | None:
    """The line of the reader's file that uses a template of a header in which an error is found;
    None for an error in the file itself. gcc names it above the error, clang below it."""
    if lines[error].startswith(f"{path}:"):
        return None
    use = re.compile(rf"{re.escape(str(path))}:(\d+):\d+:\s+(required from|note: in instantiation)")
    above = itertools.takewhile(lambda line: ": error:" not in line, reversed(lines[:error]))
    below = itertools.takewhile(lambda line: ": error:" not in line, lines[error + 1 :])
    uses = [match for line in above if (match := use.match(line))][-1:]
    uses += [match for line in below if (match := use.match(line))]
    return int(uses[0][1]) if uses else None


def _warnings(log: str, path: Path) -> list[str]:
    """The warnings of a compiler's log that are about the reader's own file.

    gcc splits small arrays into variables of its own, `xs$`, and may not see that two loops end
    alike: where it only guesses, nothing is said. A run finds the true ones, see toolchain.FILL.
    """
    warning = re.compile(rf"({re.escape(str(path))}:\d+)(?::\d+)?: warning: (.*?)(?: \[-W\S+\])?")
    matches = [warning.fullmatch(line) for line in log.splitlines() if not _GUESS.search(line)]
    return [f"{match[1]}: warning: {match[2]}" for match in matches if match]
