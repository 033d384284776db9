"""How much memory a run needs, and how much there is: told before anything is allocated."""

from __future__ import annotations

import bisect
import math
import resource
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ladder.common.errors import LadderError
from ladder.contract.device import Device
from ladder.contract.dtypes import resolve_dtype
from ladder.contract.rung_file import Rung
from trainer.engine.engine import scratch_needed
from trainer.model.program import Program

GIB = 1 << 30


def by_kind(program: Program, real: np.dtype) -> Counter[str]:
    """Bytes of a program's buffers by kind, as the engine allocates them."""
    sizes: Counter[str] = Counter()
    for buffer in program.buffers.values():
        if buffer.inside is None and (buffer.kind != "master" or real.itemsize < 4):
            size = math.prod(buffer.shape) * resolve_dtype(buffer.dtype, real).itemsize
            sizes[buffer.kind] += size
    return sizes


def needed(program: Program, real: np.dtype) -> int:
    """Bytes of all of a program's buffers."""
    return sum(by_kind(program, real).values())


def refuse_what_does_not_fit(
    program: Program,
    device: Device,
    real: np.dtype,
    rebuild: Callable[[int], Program],
    rungs: Mapping[str, Rung] | None = None,
    beside: Program | None = None,
) -> None:
    """Raise LadderError, with the largest B that fits, where the device lacks the memory.

    rebuild  the same program at another B
    rungs    counts their scratch memory too, once they are chosen
    beside   a program that needs memory at the same time, and has the same parameters
    """

    def with_scratch(program: Program) -> int:
        scratch = scratch_needed(program, device, real, rungs) if rungs else {}
        return needed(program, real) + sum(n * dtype.itemsize for dtype, n in scratch.items())

    also = with_scratch(beside) - by_kind(beside, real)["parameter"] if beside else 0

    def total(program: Program) -> int:
        return with_scratch(program) + also

    free = available(device)
    if free is None or (need := total(program)) <= free:
        return
    # total(rebuild(B)) grows with B: 0 fits, program.B does not
    largest = bisect.bisect_right(range(1, program.B), free, key=lambda B: total(rebuild(B)))
    remedy = f"-b {largest} is the largest that fits" if largest else "choose a smaller -t or -e"
    raise LadderError(
        f"-b {program.B} -t {program.T} needs {need / GIB:.1f} GiB of memory, and {device.name} "
        f"has {free / GIB:.1f} GiB available; {remedy}"
    )


def available(device: Device) -> int | None:
    """Bytes that can still be had on the device; None if unknown."""
    if device.kind == "cuda":
        return device.memory()[0]
    return available_on_host()


def available_on_host() -> int | None:
    """Bytes that this process can still have; its own limit and a container's count. None if
    unknown."""
    amounts = []
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)  # ulimit -v
    if limit != resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        amounts.append(max(0, limit - pages * resource.getpagesize()))
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
        pass  # no control groups, or of the first version
    return min(amounts, default=None)
