"""The memory that a program needs and the memory available, before anything is allocated."""

import bisect
import math
import resource
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import ALIGNMENT, Device
from ladder.core.contract.expressions import ceil_div
from ladder.core.contract.ladder import find
from ladder.core.contract.op import resolve_dtype
from ladder.core.contract.rung_file import Rung
from trainer.engine.rung_map import rung_of
from trainer.model.calls import Call
from trainer.model.program import Program

GIB = 1 << 30


Arena = tuple[str, np.dtype]  # a kind of buffers, and their type
SCRATCH = "rungs' scratch"

# Inputs of all types share an arena of bytes: what changes between two passes goes to the device in
# one copy.
INPUTS: Arena = ("input", np.dtype(np.uint8))


@dataclass(frozen=True)
class Layout:
    """Where a program's buffers lie in memory: those of a kind and type in one arena.

    places  name of a buffer -> its arena and its first element there; parts of others left out
    sizes   elements of each arena
    """

    places: Mapping[str, tuple[Arena, int]]
    sizes: Mapping[Arena, int]

    def bytes_of(self, kinds: Collection[str]) -> dict[Arena, int]:
        """The bytes of each arena of these kinds."""
        return {a: n * a[1].itemsize for a, n in self.sizes.items() if a[0] in kinds}


def borrowed(program: Program, lender: Program) -> set[str]:
    """The buffers that a program uses of another one of the same model, instead of its own: its
    parameters, and the key-value cache where the other one has it."""
    kinds = ("parameter", "cache")
    return {
        name
        for name, buffer in program.buffers.items()
        if buffer.kind in kinds and name in lender.buffers
    }


def lay_out(program: Program, real: np.dtype, lender: Program | None = None) -> Layout:
    """The layout of a program's buffers; `lender`: without those that are `borrowed` of it.

    A type of 32 bits or more is exact enough to be its own master copy.
    """
    left_out = borrowed(program, lender) if lender is not None else set()
    no_masters = lender is not None or real.itemsize >= 4
    sizes: Counter[Arena] = Counter()
    places = {}
    for name, buffer in program.buffers.items():
        if (no_masters and buffer.kind == "master") or name in left_out:
            continue
        if buffer.inside is None and buffer.pieces is None:  # no part of others
            dtype = resolve_dtype(buffer.dtype, real)
            arena = INPUTS if buffer.kind == INPUTS[0] else (buffer.kind, dtype)
            places[name] = arena, sizes[arena]
            size = padded(math.prod(buffer.shape), dtype) * dtype.itemsize
            sizes[arena] += size // arena[1].itemsize
    return Layout(places, sizes)


def padded(n: int, dtype: np.dtype) -> int:
    """Elements that n of them take up where each array starts at a multiple of ALIGNMENT bytes."""
    step = ALIGNMENT // dtype.itemsize
    return ceil_div(n, step) * step


def scratch_needed(
    calls: Iterable[Call], device: Device, real: np.dtype, rungs: Mapping[str, Rung]
) -> Counter[np.dtype]:
    """Elements of scratch memory by dtype. Calls run one after the other, so all share the same;
    but not with those of another stream (`Program.streams`)."""
    most: Counter[np.dtype] = Counter()
    for call in set(calls):
        rung, needed = rung_of(rungs, call), Counter[np.dtype]()
        if rung.path is not None:
            own_real = find(call.op).op.real_in(real)
            for buffer in rung.plan(call.dims, device.target(own_real)).scratch:
                dtype = resolve_dtype(buffer.dtype, own_real)
                needed[dtype] += padded(math.prod(buffer.shape), dtype)
        most |= needed  # for each dtype, the larger of both
    return most


def by_kind(
    program: Program,
    real: np.dtype,
    device: Device | None = None,
    rungs: Mapping[str, Rung] | None = None,
    lender: Program | None = None,
) -> Counter[str]:
    """Bytes that an engine allocates for a program, by kind: those of its buffers and, where the
    rungs on a device are known, their scratch memory. `lender` as in `lay_out`."""
    sizes: Counter[str] = Counter()
    for (kind, dtype), count in lay_out(program, real, lender).sizes.items():
        sizes[kind] += count * dtype.itemsize
    if device is not None and rungs is not None:
        for calls in program.streams:
            scratch = scratch_needed(calls, device, real, rungs)
            sizes[SCRATCH] += sum(count * dtype.itemsize for dtype, count in scratch.items())
    return sizes


def refuse_what_does_not_fit(
    program: Program,
    device: Device,
    real: np.dtype,
    rebuild: Callable[[int], Program],
    rungs: Mapping[str, Rung] | None = None,
    beside: Callable[[int], Program | None] = lambda B: None,
    sharers: int = 1,
    takes: Collection[str] = ("-b", "-t"),
) -> None:
    """Raise LadderError, with the largest B that fits, where the device lacks the memory.

    rebuild  the same program at another B
    rungs    counts their scratch memory too, once they are chosen
    beside   a program that needs memory at the same time, and borrows the weights of this one, by
             this one's B
    sharers  processes of this machine that will need as much, where the memory is the host's
    takes    the flags for B and T that the command has; a size without one follows from its data
    """

    def total(program: Program) -> int:
        needed, also = by_kind(program, real, device, rungs).total(), beside(program.B)
        return needed + (by_kind(also, real, device, rungs, program).total() if also else 0)

    of_device, each = device.memory(), ""
    free = available_on_host() if of_device is None else of_device[0]
    if free is not None and of_device is None and sharers > 1:
        free, each = free // sharers, f" for each of {sharers} ranks"
    if free is None or (need := total(program)) <= free:
        return
    # total(rebuild(B)) grows with B: 0 fits, program.B does not
    largest = bisect.bisect_right(range(1, program.B), free, key=lambda B: total(rebuild(B)))
    remedy = f"choose a smaller {'-t or -e' if '-t' in takes else '-e'}"
    if largest and "-b" in takes:
        remedy = f"-b {largest} is the largest that fits"
    B = f"-b {program.B}" if "-b" in takes else f"B={program.B}"
    T = f"-t {program.T}" if "-t" in takes else f"T={program.T}"
    raise LadderError(
        f"{B} {T} needs {need / GIB:.1f} GiB of memory, and {device.name} "
        f"has {free / GIB:.1f} GiB available{each}; {remedy}"
    )


def available_on_host() -> int | None:
    """Bytes that this process can still have; its own limit and a container's count. None if
    unknown."""
    amounts = []
    most, _ = resource.getrlimit(resource.RLIMIT_AS)  # ulimit -v, which macOS does not keep
    if most != resource.RLIM_INFINITY and (statm := Path("/proc/self/statm")).exists():
        pages = int(statm.read_text().split()[0])
        amounts.append(max(0, most - pages * resource.getpagesize()))
    info = Path("/proc/meminfo")
    if info.exists():
        lines = info.read_text().splitlines()
        amounts += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")]
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit.isdigit():
            amounts.append(max(0, int(limit) - used))
    except (OSError, ValueError):
        pass  # no control groups, or version 1
    return min(amounts, default=None)
