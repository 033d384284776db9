"""Several GPUs of one machine as one device, for ops with ranks (ladder/core/contract/peers.py).

One process drives them all: each rank's row of an array is in the memory of its GPU, and a launch
becomes one on each GPU, of the ranks that it has. Every GPU must have access to the memory of all
others (P2P).

https://docs.nvidia.com/cuda/cuda-c-programming-guide/#peer-to-peer-memory-access
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device, Sensors
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.peers import FirstRank, Rows
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.device.cuda.gpu import Cuda
from ladder.core.device.cupy import nccl
from ladder.core.device.cupy.gpu import CupyKernel

LINK_BYTES = 256 << 20  # of a copy that measures a link
LINK_COPIES = 10
BUSY_BYTES = 512 << 20  # that keep a GPU busy for longer than two submissions take
_ALREADY = 704  # cudaErrorPeerAccessAlreadyEnabled


class CudaGroup(Device):
    """GPUs of one kind. What is the same on all of them is that of the first."""

    kind = "cuda"
    is_gpu = True
    runs_reference = False
    asynchronous = True
    library_rungs = frozenset({"nccl"})

    def __init__(self, indices: Sequence[int]) -> None:
        """Raises LadderError where there is no such GPU, or one has no access to another."""
        if len(set(indices)) < len(indices):
            raise LadderError("a group names each GPU once: --device cuda:0,1")
        self.gpus, self.group_size = [Cuda(index) for index in indices], len(indices)
        first = self.gpus[0]
        self.name = f"{len(indices)} x {first.name}"
        self.bfloat16, self.l2_bytes = first.bfloat16, first.l2_bytes * len(indices)
        runtime = first.cupy.cuda.runtime
        for gpu in self.gpus:
            for other in self.gpus:
                a, b = gpu.device.id, other.device.id
                if a == b:
                    continue
                if not runtime.deviceCanAccessPeer(a, b):
                    raise LadderError(
                        f"cuda:{a} has no access to the memory of cuda:{b} (P2P); nvidia-smi topo "
                        "-p2p r shows which GPUs have"
                    )
                try:
                    with gpu.device:
                        runtime.deviceEnablePeerAccess(b)
                except runtime.CUDARuntimeError as error:
                    if error.status != _ALREADY:
                        raise

    @functools.cached_property
    def group_sum(self) -> nccl.GroupSum:
        return nccl.GroupSum(self.gpus)

    # ---- arrays: one row, or as many rows as there are ranks on it, on each GPU ----

    def owners(self, rows: int) -> Sequence[Cuda]:
        if rows % len(self.gpus):
            raise LadderError(f"{rows} ranks cannot be shared out evenly to {self.name}")
        each = rows // len(self.gpus)
        return [self.gpus[row // each] for row in range(rows)]

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Rows:
        return Rows([owner.empty(shape[1:], dtype) for owner in self.owners(shape[0])])

    def upload(self, array: Rows, host: np.ndarray) -> None:
        for owner, row, content in self._rows(array, host):
            owner.upload(row, content)

    def zero(self, array: Rows) -> None:
        for owner, row in self._rows(array):
            owner.zero(row)

    def copy(self, target: Rows, source: Rows) -> None:
        for owner, to, row in self._rows(target, source.rows):
            owner.copy(to, row)

    def download(self, array: Rows) -> np.ndarray:
        self.synchronize()  # a rank may have written to rows of the others
        return np.stack([owner.download(row) for owner, row in self._rows(array)])

    def _rows(self, array: Rows, *beside: Any) -> Iterator[Any]:
        return zip(self.owners(len(array.rows)), array.rows, *beside, strict=True)

    # ---- kernels and time ----

    def target(self, real: np.dtype) -> Target:
        """Of all GPUs together: a launch's blocks are shared out to them."""
        one = self.gpus[0].target(real)
        return dataclasses.replace(one, multiprocessors=len(self.gpus) * one.multiprocessors)

    def compile(
        self, rung: Rung, defines: Mapping[str, int], real: np.dtype
    ) -> dict[str, GroupKernel]:
        compiled = [gpu.compile(rung, defines, real) for gpu in self.gpus]
        return {name: GroupKernel([kernels[name] for kernels in compiled]) for name in compiled[0]}

    def compile_ahead(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> Path:
        return self.gpus[0].compile_ahead(rung, defines, real)

    def synchronize(self) -> None:
        for gpu in self.gpus:
            gpu.synchronize()

    def free_unused(self) -> None:
        for gpu in self.gpus:
            gpu.free_unused()

    def mark(self) -> list[Any]:
        return [gpu.mark() for gpu in self.gpus]

    def seconds(self, start: list[Any], end: list[Any]) -> float:
        """Of the GPU that began last: the ranks wait for each other, and it did not."""
        return min(self._seconds(start, end))

    def _seconds(self, start: list[Any], end: list[Any]) -> list[float]:
        return [gpu.seconds(*marks) for gpu, *marks in zip(self.gpus, start, end, strict=True)]

    def time(self, work: Callable[[], None]) -> float:
        """All GPUs begin together: they write to memory until everything is submitted."""
        self.synchronize()
        self.zero(self._busy)
        start = self.mark()
        work()
        return self.seconds(start, self.mark())

    @functools.cached_property
    def _busy(self) -> Rows:
        return self.empty((len(self.gpus), BUSY_BYTES), np.dtype(np.uint8))

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A graph for each GPU, all recorded at once and replayed together."""
        replays: list[Callable[[], None]] = []

        def record(gpus: Sequence[Cuda]) -> None:
            if not gpus:
                work()
            else:
                replays.append(gpus[0].capture(lambda: record(gpus[1:])))

        record(self.gpus)

        def replay() -> None:
            for gpu, one in zip(reversed(self.gpus), replays, strict=True):  # the last one is first
                with gpu.device:
                    one()

        return replay

    def link_bandwidth(self) -> float:
        """By copies around the ring of GPUs, all at the same time."""
        rows = [self.empty((len(self.gpus), LINK_BYTES), np.dtype(np.uint8)) for _ in range(2)]
        for array in rows:
            self.zero(array)
        source = Rows([*rows[1].rows[1:], rows[1].rows[0]])
        seconds = []
        for _ in range(LINK_COPIES):
            start = self.mark()
            self.copy(rows[0], source)
            seconds.append(max(self._seconds(start, self.mark())))
        return LINK_BYTES / float(np.median(seconds))

    def memory(self) -> tuple[int, int]:
        sizes = [gpu.memory() for gpu in self.gpus]
        return sum(free for free, _ in sizes), sum(total for _, total in sizes)

    def condition(self) -> str | None:
        return self.gpus[0].condition()

    def sensors(self) -> Sensors:
        return self.gpus[0].sensors()

    def description(self) -> dict[str, str | int]:
        return self.gpus[0].description()

    def annotate(self, name: str) -> AbstractContextManager[Any]:
        return self.gpus[0].annotate(name)


class GroupKernel:
    """A kernel on each GPU of a group, for the ranks that it has."""

    def __init__(self, kernels: Sequence[CupyKernel]) -> None:
        self._kernels = kernels

    def __call__(self, launch: Launch, args: tuple[Any, ...]) -> None:
        x, ranks, z = launch.grid
        each = ranks // len(self._kernels)
        own = dataclasses.replace(launch, grid=(x, each, z))
        for index, kernel in enumerate(self._kernels):
            first = FirstRank(index * each)
            kernel(own, tuple(first if isinstance(arg, FirstRank) else arg for arg in args))
