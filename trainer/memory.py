"""How much memory a run needs, and how much there is: told before anything is allocated."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ladder.contract import resolve_dtype
from ladder.device import Device
from ladder.errors import LadderError
from reference.gpt2 import GPT2Config, build
from reference.program import Program

GIB = 1 << 30


def needed(program: Program, real: np.dtype) -> int:
    """Bytes of a program's buffers, as the engine allocates them."""
    return sum(
        math.prod(buffer.shape) * resolve_dtype(buffer.dtype, real).itemsize
        for buffer in program.buffers.values()
        if buffer.inside is None and (buffer.kind != "master" or real.itemsize < 4)
    )


def refuse_what_does_not_fit(shape: GPT2Config, B: int, T: int, device: Device, real) -> None:
    """Raise LadderError, with the largest B that fits, where the device lacks the memory."""
    need, free = needed(build(shape, B, T), real), available(device)
    if free is None or need <= free:
        return
    one, two = (needed(build(shape, rows, T), real) for rows in (1, 2))
    largest = 1 + int((free - one) // (two - one))  # every row takes the same
    remedy = (
        f"-b {largest} is the largest that fits" if largest > 0 else "choose a smaller -t or -e"
    )
    raise LadderError(
        f"-b {B} -t {T} needs {need / GIB:.1f} GiB of memory, and {device.name} has "
        f"{free / GIB:.1f} GiB available; {remedy}"
    )


def available(device: Device) -> int | None:
    """Bytes that can still be had on the device; None if unknown."""
    if device.kind == "cuda":
        return device.memory()[0]
    return available_on_host()


def available_on_host() -> int | None:
    """Bytes that this process can still have; a container's limit counts. None if unknown."""
    amounts = []
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
