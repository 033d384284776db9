"""The last block alone, where an array has more elements than an int can count.

No check can fill such an array. But what one block reads and writes of it takes little memory: the
system gives out a page of zeros only when it is touched. So each launch runs its last block, which
has the largest offsets, and an `int` that cannot hold them is an access outside of every buffer.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import bind
from ladder.core.contract.device import Device
from ladder.core.contract.op import DTYPES, Dims, Op, resolve_dtype
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import Emulated, KernelError
from ladder.core.verify.inputs import NORMAL, scalars

MOST_COUNTED = 2**31 - 1  # elements, by an int
MOST_BLOCKS = 1 << 22  # of a grid: the emulator's memory of what they publish is in proportion
SECONDS = 0.5  # of processor time that a launch may take: a block may do the work of all
NEW_PAGES = 64 << 20  # bytes from which on the system gives an array pages of its own
SMS = 1 << 20  # so many that a persistent block has one tile


def out_of_reach(
    op: Op, rung: Rung, device: Device, dtypes: Sequence[str]
) -> tuple[Dims, str, str] | None:
    """What the last block accesses that is in no buffer, at the first measured shape that has such
    an array: the shape, the real type, and the problem.

    None where there is none, or where nobody can tell: there is no such shape or emulator, the
    block waits for others or takes too long, or there is no address space for the arrays.
    """
    if not isinstance(device, Emulated):
        return None
    last = device.variant(
        counting=True, last=True, early=True, time_limit=SECONDS, multiprocessors=SMS
    )
    for dims, dtype in ((dims, dtype) for dims in op.bench.values() for dtype in dtypes):
        sizes = [math.prod(arg.resolve_shape(dims)) for arg in op.args]
        plan = rung.plan(dims, last.target(DTYPES[dtype]))
        blocks = [math.prod(launch.grid) for launch in plan.launches]
        if (
            plan.refusal is None
            and max(sizes) > MOST_COUNTED
            and max(blocks, default=0) <= MOST_BLOCKS
        ):
            outside = _run(op, rung, last, DTYPES[dtype], dims)
            return (dims, dtype, outside) if outside else None
    return None


def _run(op: Op, rung: Rung, last: Emulated, real: np.dtype, dims: Dims) -> str:
    def zeros(shape: tuple[int, ...], dtype: np.dtype) -> Any:
        array = last.empty(shape, dtype)  # new pages hold zeros, and need no filling
        if array.nbytes < NEW_PAGES:
            array.fill(0)
        return array

    try:
        arrays = {
            arg.name: zeros(arg.resolve_shape(dims), resolve_dtype(arg.dtype, real))
            for arg in op.args
        }
        bind(op, rung, last, real, dims, arrays, scalars(op, NORMAL, dims), scratch=zeros)()
    except KernelError as error:
        outside = [problem for problem in error.problems if problem.kind == "out of bounds"]
        return str(KernelError(outside)) if outside else ""
    except (MemoryError, LadderError):
        pass
    return ""
