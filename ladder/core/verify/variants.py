"""The devices on which a rung is checked, beside the one that is named."""

import functools
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ladder.core.amd.isa.gpu import Isa
from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import bind
from ladder.core.contract.device import Device
from ladder.core.contract.op import DTYPES, Dims, Op, resolve_dtype
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import MANY_MULTIPROCESSORS, WATCHING_SECONDS, Emulated
from ladder.core.emulator.kernel import KernelError
from ladder.core.verify.inputs import NORMAL, scalars

MOST_COUNTED = 2**31 - 1  # elements, by an int
MOST_BLOCKS = 1 << 22  # of a grid: the emulator's memory of what they publish is in proportion
LAST_SECONDS = 0.5  # of processor time that a launch may take: a block may do the work of all
NEW_PAGES = 64 << 20  # bytes from which on the system gives an array pages of its own
SMS = 1 << 20  # so many that a persistent block has one tile

_COPIES = re.compile(r"async|hopper|wgmma|pipeline")  # in a rung with asynchronous copies


def variants(
    device: Device, brief: bool = False, multiprocessors: int | None = None, wide: bool = True
) -> Sequence[tuple[Device, ...]]:
    """The devices to check a rung on, in groups that must give the same bits.

    brief            one run only
    multiprocessors  SMs of the emulator where it has few, if not as many as usual
    wide             one order of threads has warps of 64

    A GPU runs everything twice. The emulator also changes the order of threads and the width of a
    warp, and watches every memory access; one that watches already is checked as it is.
    """
    if isinstance(device, Isa) or (isinstance(device, Emulated) and device.watches):
        return [(device,)]
    if not isinstance(device, Emulated):
        return [(device, device)]
    groups = _orders(device, multiprocessors, wide)
    return [groups[0][:1]] if brief else groups


@functools.lru_cache(maxsize=64)  # the same devices every time: they keep what they have compiled
def _orders(
    device: Emulated, multiprocessors: int | None, wide: bool
) -> Sequence[tuple[Emulated, ...]]:
    """Both widths of a warp, few and many SMs, threads and blocks in several orders, asynchronous
    copies late and early, and one run more that watches every access: it finds races that did no
    harm, and reads out of bounds. There, variables without a value hold something else. A device
    with warps of 64 has no others."""
    many = {"warp": 64} if wide else {}
    few = device.variant(multiprocessors=multiprocessors) if multiprocessors else device
    return [
        (
            few.variant(seed=1),
            few.variant(seed=2, early=True),
            few.variant(seed=4, counting=True, zeros=True),
        ),
        (few.variant(seed=3, multiprocessors=MANY_MULTIPROCESSORS, **many),),
    ]


@functools.lru_cache(maxsize=64)
def watching(device: Device) -> Emulated | None:
    """The same device, so that it watches every memory access of a kernel and names the line that
    does what it must not. None where it cannot, or does so already."""
    if not isinstance(device, Emulated) or device.watches:
        return None
    return device.variant(counting=True, time_limit=WATCHING_SECONDS)


def name_for(device: Device, rung: Rung) -> str:
    """What a report calls a variant; of early copies only where the rung has asynchronous ones."""
    return device.name if _COPIES.search(rung.source) else device.name.replace(", early copies", "")


def out_of_reach(
    op: Op, rung: Rung, device: Device, dtypes: Sequence[str]
) -> tuple[Dims, str, KernelError] | None:
    """What the last block accesses that is in no buffer, at the first measured shape that has such
    an array: the shape, the real type, and the problems.

    No check can fill an array that has more elements than an int can count. But what one block
    reads and writes of it takes little memory: the system gives out a page of zeros only when it is
    touched. So each launch runs its last block alone, which has the largest offsets, and an `int`
    that cannot hold them is an access outside of every buffer.

    None where there is none, or where nobody can tell: there is no such shape or emulator, the
    block waits for others or takes too long, or there is no address space for the arrays.
    """
    if not isinstance(device, Emulated):
        return None
    last = device.variant(
        counting=True, last=True, early=True, time_limit=LAST_SECONDS, multiprocessors=SMS
    )
    shapes = op.bench.values()
    large = [
        d for d in shapes if any(math.prod(a.resolve_shape(d)) > MOST_COUNTED for a in op.args)
    ]
    for dims, dtype in itertools.product(large, dtypes):
        plan = rung.plan(dims, last.target(DTYPES[dtype]))
        blocks = [math.prod(launch.grid) for launch in plan.launches]
        if plan.refusal is None and max(blocks, default=0) <= MOST_BLOCKS:
            outside = _run(op, rung, last, DTYPES[dtype], dims)
            return (dims, dtype, outside) if outside else None
    return None


def _run(op: Op, rung: Rung, last: Emulated, real: np.dtype, dims: Dims) -> KernelError | None:
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
        return KernelError(outside) if outside else None
    except (MemoryError, LadderError):
        pass
    return None
