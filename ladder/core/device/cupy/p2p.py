"""Exchange between the GPUs of one machine by kernels that load and store in each other's memory.

With peer access (P2P), the memory of all GPUs can be read and written by any of them, over NVLink
or PCIe. So a reduce-scatter is one kernel that reads the shares of the others and adds them up, and
an all-gather one that writes its share into the memory of the others (p2p.cu).

One process has no pointer into another's memory. CUDA's IPC gives one: the owner makes a handle of
an allocation and sends it as bytes; who opens the handle gets an address at which the same memory
lies for it.

https://docs.nvidia.com/cuda/cuda-c-programming-guide/#interprocess-communication
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.expressions import ceil_div
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.peers import MOST_RANKS, address, structure
from ladder.core.contract.rung_file import MOST_BYTES, Rung
from ladder.core.device.cupy.protocol import Gpu

SOURCE = Path(__file__).with_suffix(".cu")
HANDLE_BYTES = 64  # cudaIpcMemHandle_t
BLOCK = 512  # threads of a block, as in p2p.cu

# Blocks of an exchange, each on an SM of its own. So many keep a link of an H200 busy; beside other
# work, the SMs that they take are worth more than the last percents of the link.
BLOCKS, BLOCKS_BESIDE = 32, 16

_FLOAT = np.dtype(np.float32)

Exchange = Callable[[str, bytes], Sequence[bytes]]  # (what, this rank's bytes) -> those of all

_Made = TypeVar("_Made")


def join(gpu: Gpu, exchange: Exchange, rank: int, size: int, beside: bool) -> PeerToPeer:
    """Join the ranks of a machine. Raises LadderError, on all ranks, where one cannot reach the
    memory of another.

    exchange  hands bytes to all ranks, and returns what each of them gave; all call it together
    beside    whether arrays are exchanged while the GPU does other work
    """
    ids = [part.decode() for part in exchange("the GPUs", gpu.device.pci_bus_id.encode())]

    def prepare() -> PeerToPeer:
        _refuse_unreachable(gpu, ids, rank)
        return PeerToPeer(gpu, exchange, rank, size, BLOCKS_BESIDE if beside else BLOCKS)

    peers = _on_all(exchange, "their links", prepare)
    peers.connect()
    return peers


def _on_all(exchange: Exchange, what: str, work: Callable[[], _Made]) -> _Made:
    """What `work` returns. Raises LadderError, on all ranks, where `work` raises one on any: else
    some would go on, and wait for those that do not."""
    made: list[_Made] = []
    reason = ""
    try:
        made.append(work())
    except LadderError as error:
        reason = str(error)
    for rank, problem in enumerate(exchange(what, reason.encode())):
        if problem:
            raise LadderError(
                f"P2P between the GPUs is not possible: rank {rank}: {problem.decode()}"
            )
    return made[0]


def _refuse_unreachable(gpu: Gpu, ids: Sequence[str], rank: int) -> None:
    """Raise LadderError where this GPU cannot reach the memory of all others."""
    runtime = gpu.cupy.cuda.runtime
    if len(ids) > MOST_RANKS:
        raise LadderError(f"there are {len(ids)} ranks, and at most {MOST_RANKS} exchange by P2P")
    if runtime.is_hip:
        raise LadderError("between processes it was written for NVIDIA's GPUs only")
    if len(set(ids)) < len(ids):
        raise LadderError("two ranks are on one GPU")
    for peer, bus in enumerate(ids):
        if peer == rank:
            continue
        try:
            other = runtime.deviceGetByPCIBusId(bus)
        except runtime.CUDARuntimeError:
            raise LadderError(
                f"it does not see the GPU of rank {peer} (CUDA_VISIBLE_DEVICES)"
            ) from None
        if not runtime.deviceCanAccessPeer(gpu.device.id, other):
            raise LadderError(f"its GPU has no access to the memory of rank {peer}'s (P2P)")


class PeerToPeer:
    """This process's part of a group. See `ladder.core.contract.device.Communicator`.

    The first exchange of arrays sends handles to the other processes, through the host. So it must
    not be recorded in a graph; later ones may.

    The kernels of an exchange are between two meetings, at which every rank waits for all others.
    Before the first one, each rank's stream is done with what it had: nobody reads what is not
    there yet, or writes over what a peer still works with. Behind the second one, the kernels of
    all ranks are done: nobody uses what has not come, or changes what is still being read.
    """

    name = "P2P"

    def __init__(self, gpu: Gpu, exchange: Exchange, rank: int, size: int, blocks: int) -> None:
        self._gpu, self._exchange, self._rank, self._size = gpu, exchange, rank, size
        self._blocks = blocks
        self._runtime = gpu.cupy.cuda.runtime
        rung = Rung("p2p", "exchange between ranks", SOURCE, read_text(SOURCE, MOST_BYTES))
        self._kernels = gpu.compile(rung, {}, _FLOAT)
        self._opened: dict[bytes, int] = {}  # handle -> where its memory begins for this process
        self._everywhere: dict[tuple[int, int], list[int]] = {}  # array -> its address for each
        self._kept: list[Any] = []  # arrays that peers reach: their memory must stay what it is
        self._flags = gpu.empty((size,), np.dtype(np.uint32))
        gpu.zero(self._flags)
        gpu.synchronize()  # who has the handle may signal

    def connect(self) -> None:
        """Learn where the flags of the others are. To be called first, by all ranks."""
        self._arrived = structure(self._addresses(self._flags))

    def all_reduce(self, *arrays: Any) -> None:
        self.reduce_scatter(*arrays)
        self.all_gather(*arrays)

    def reduce_scatter(self, *arrays: Any) -> None:
        self._launch_all("reduce_scatter", arrays, unit=_FLOAT.itemsize)

    def all_gather(self, *arrays: Any) -> None:
        self._launch_all("all_gather", arrays, unit=2)

    def _launch_all(self, name: str, arrays: Sequence[Any], unit: int) -> None:
        """A kernel for each array. `unit`: the bytes of what the kernel counts in."""
        everywhere = [structure(self._addresses(array)) for array in arrays]
        launch = Launch(name, (self._blocks, 1, 1), (BLOCK, 1, 1))
        self._meet()
        for array, addresses in zip(arrays, everywhere, strict=True):
            sizes = (array.nbytes // unit, self._share_bytes(array) // unit)
            ranks = (np.int32(self._size), np.int32(self._rank))
            self._kernels[name](launch, (addresses, *ranks, *map(np.uint64, sizes)))
        self._meet()

    def _share_bytes(self, array: Any) -> int:
        """Of a share; the last ones are smaller where the array cannot be cut into equal ones.
        Then all begin at a multiple of 16 bytes, as the kernels' fast loops need it."""
        if array.size % self._size == 0:
            return int(array.nbytes) // self._size
        return ceil_div(array.nbytes, 16 * self._size) * 16

    def _meet(self) -> None:
        threads = self._gpu.warp  # of which R signal and wait
        launch = Launch("meet", (1, 1, 1), (threads, 1, 1))
        self._kernels["meet"](launch, (self._arrived, np.int32(self._size), np.int32(self._rank)))

    def close(self) -> None:
        self._gpu.synchronize()
        self._exchange("the end of the exchanges", b"")
        with self._gpu.device:
            for opened in self._opened.values():
                self._call(self._runtime.ipcCloseMemHandle, opened)
        self._exchange("the end of the handles", b"")  # only now may the memory be freed
        self._kept.clear()

    def _addresses(self, array: Any) -> list[int]:
        """Where each rank's array lies for this process. All ranks call this at the same time."""
        key = (address(array), array.nbytes)
        if key not in self._everywhere:
            handle = _on_all(self._exchange, "memory to share", lambda: self._handle(array))
            parts = self._exchange("a handle of memory", handle)
            self._kept.append(array)
            self._everywhere[key] = _on_all(
                self._exchange,
                "the memory of the others",
                lambda: [
                    key[0] if rank == self._rank else self._open(part)
                    for rank, part in enumerate(parts)
                ],
            )
        return self._everywhere[key]

    def _handle(self, array: Any) -> bytes:
        """What `_open` takes. A handle is that of a whole allocation; the array begins behind."""
        begin = self._gpu.allocation(array)
        handle: bytes = self._call(self._runtime.ipcGetMemHandle, begin)
        return handle + (address(array) - begin).to_bytes(8, "little")

    def _open(self, part: bytes) -> int:
        handle, offset = part[:HANDLE_BYTES], int.from_bytes(part[HANDLE_BYTES:], "little")
        if handle not in self._opened:
            with self._gpu.device:
                self._opened[handle] = self._call(self._runtime.ipcOpenMemHandle, handle)
        return self._opened[handle] + offset

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except self._runtime.CUDARuntimeError as error:
            doing = f"{function.__name__}, for P2P between ranks"
            raise LadderError(
                f"{self._gpu.name}: {error}, in {doing}; --exchange nccl does without them"
            ) from None
