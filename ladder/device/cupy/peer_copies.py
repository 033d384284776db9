"""Exchange between the GPUs of one machine by copies into each other's memory.

A GPU has copy engines beside its SMs: they move bytes over NVLink or PCIe while all SMs compute.
NCCL's collectives are kernels and take some of the SMs away from the kernels beside them; here a
rank copies each share to the peer whose share it is, and the SMs only wait for flags, one block
long, and add up (peer_copies.cu).

One process has no pointer into another's memory. CUDA's IPC gives one: the owner makes a handle of
an allocation and sends it as bytes; who opens the handle gets an address at which the same memory
lies for it.

https://docs.nvidia.com/cuda/cuda-c-programming-guide/#interprocess-communication
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from ladder.common.errors import LadderError
from ladder.common.files import read_text
from ladder.contract.expressions import ceil_div
from ladder.contract.launch_plan import Launch
from ladder.contract.peers import MOST_RANKS, structure
from ladder.contract.rung_file import MOST_BYTES, Rung

SOURCE = Path(__file__).with_suffix(".cu")
HANDLE_BYTES = 64  # cudaIpcMemHandle_t
ADDERS, EACH = 256, 4  # threads of a block of add_shares, elements of each; as in peer_copies.cu

_FLOAT = np.dtype(np.float32)

Exchange = Callable[[str, bytes], Sequence[bytes]]  # (what, this rank's bytes) -> those of all

_Made = TypeVar("_Made")


class Gpu(Protocol):
    """What copies need of a GPU (gpu.py): `cupy`, `device` and `stream` are CuPy's."""

    cupy: Any
    device: Any
    stream: Any
    name: str
    warp: int

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any: ...
    def zero(self, array: Any) -> None: ...
    def synchronize(self) -> None: ...
    def compile(self, rung: Rung, defines: dict[str, int], real: np.dtype) -> Any: ...
    def allocation(self, array: Any) -> int: ...


def join(gpu: Gpu, exchange: Exchange, rank: int, size: int) -> PeerCopies:
    """Join the ranks of a machine. Raises LadderError, on all ranks, where one cannot reach the
    memory of another.

    exchange  hands bytes to all ranks, and returns what each of them gave; all call it together
    """
    ids = [part.decode() for part in exchange("the GPUs", gpu.device.pci_bus_id.encode())]

    def prepare() -> PeerCopies:
        _refuse_unreachable(gpu, ids, rank)
        return PeerCopies(gpu, exchange, rank, size)

    copies = _on_all(exchange, "their links", prepare)
    copies.connect()
    return copies


def _on_all(exchange: Exchange, what: str, work: Callable[[], _Made]) -> _Made:
    """What `work` returns. Raises LadderError, on all ranks, where `work` raises one on any: else
    some would go on, and wait for those that do not."""
    made: list[_Made] = []
    reason = ""
    try:
        made.append(work())
    except LadderError as error:
        reason = str(error)
    for rank, found in enumerate(exchange(what, reason.encode())):
        if found:
            raise LadderError(
                f"copies between GPUs are not possible: rank {rank}: {found.decode()}"
            )
    return made[0]


def _refuse_unreachable(gpu: Gpu, ids: Sequence[str], rank: int) -> None:
    """Raise LadderError where this GPU cannot copy into the memory of all others."""
    runtime = gpu.cupy.cuda.runtime
    if len(ids) > MOST_RANKS:
        raise LadderError(
            f"there are {len(ids)} ranks, and at most {MOST_RANKS} exchange by copies"
        )
    if runtime.is_hip:
        raise LadderError("copies were written for NVIDIA's GPUs only")
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


class PeerCopies:
    """This process's part of a group. See `ladder.contract.device.Communicator`.

    The first exchange of arrays sends handles to the other processes, through the host. So it must
    not be recorded in a graph; later ones may.

    The copies of an exchange are between two meetings, at which every rank waits for all others.
    Before the first one, each rank's stream is done with what it had: nobody writes over memory
    that a peer still works with. Behind the second one, all copies have come: nobody reads what is
    not there, and nobody changes what is still being copied.
    """

    name = "copies"

    def __init__(self, gpu: Gpu, exchange: Exchange, rank: int, size: int) -> None:
        self._gpu, self._exchange, self._rank, self._size = gpu, exchange, rank, size
        self._runtime = gpu.cupy.cuda.runtime
        rung = Rung("copies", "copies between ranks", SOURCE, read_text(SOURCE, MOST_BYTES))
        self._kernels = gpu.compile(rung, {}, _FLOAT)
        self._opened: dict[bytes, int] = {}  # handle -> where its memory begins for this process
        self._everywhere: dict[tuple[int, int], list[int]] = {}  # array -> its address for each
        self._kept: list[Any] = []  # arrays that peers reach: their memory must stay what it is
        self._received: Any = None  # room for what peers send
        self._room = 0  # elements of it
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
        """Each rank copies share r to rank r, which adds up what it received."""
        others = self._size - 1
        parts = [self._share(array, 0)[1] for array in arrays]  # no share is larger
        rooms = self._make_room(others * sum(parts))
        starts = [others * sum(parts[:index]) for index in range(len(parts))]
        self._meet()
        for array, part, start in zip(arrays, parts, starts, strict=True):
            for peer in self._others():
                first, count = self._share(array, peer)
                row = self._rank - (self._rank > peer)
                to = rooms[peer] + _FLOAT.itemsize * (start + row * part)
                self._copy(to, _at(array, first), count * _FLOAT.itemsize)
        self._meet()
        for array, part, start in zip(arrays, parts, starts, strict=True):
            first, count = self._share(array, self._rank)
            blocks = ceil_div(count, ADDERS * EACH)
            launch = Launch("add_shares", (blocks, 1, 1), (ADDERS, 1, 1))
            own, received = array[first : first + count], self._received[start:]
            numbers = (np.int32(n) for n in (self._size, self._rank, count, part))
            if count:
                self._kernels["add_shares"](launch, (own, received, *numbers))

    def all_gather(self, *arrays: Any) -> None:
        """Each rank copies its share into the same place of all others."""
        everywhere = [self._addresses(array) for array in arrays]
        self._meet()
        for array, addresses in zip(arrays, everywhere, strict=True):
            first, count = self._share(array, self._rank)
            offset, size = first * array.itemsize, count * array.itemsize
            for peer in self._others():
                self._copy(addresses[peer] + offset, _at(array, first), size)
        self._meet()

    def close(self) -> None:
        self._gpu.synchronize()
        self._exchange("the end of the copies", b"")
        with self._gpu.device:
            for address in self._opened.values():
                self._call(self._runtime.ipcCloseMemHandle, address)
        self._exchange("the end of the handles", b"")  # only now may the memory be freed
        self._kept.clear()
        self._received = None

    def _others(self) -> Iterator[int]:
        """The other ranks, for each rank in another order, so that not all write to one at once."""
        return ((self._rank + step) % self._size for step in range(1, self._size))

    def _share(self, array: Any, rank: int) -> tuple[int, int]:
        """First element and size of a rank's share; the last ones are smaller where the array
        cannot be cut into equal ones."""
        part = ceil_div(array.size, self._size)
        first = min(rank * part, array.size)
        return first, min(part, array.size - first)

    def _meet(self) -> None:
        threads = self._gpu.warp  # of which R signal and wait
        launch = Launch("meet", (1, 1, 1), (threads, 1, 1))
        self._kernels["meet"](launch, (self._arrived, np.int32(self._size), np.int32(self._rank)))

    def _copy(self, to: int, source: int, size: int) -> None:
        if size:
            with self._gpu.device:
                kind, stream = self._runtime.memcpyDeviceToDevice, self._gpu.stream.ptr
                self._call(self._runtime.memcpyAsync, to, source, size, kind, stream)

    def _make_room(self, count: int) -> list[int]:
        """Where each rank receives so many elements. One place serves all exchanges, since a rank
        has added up those of one when it comes to the next."""
        if count > self._room:
            self._received, self._room = self._gpu.empty((count,), _FLOAT), count
        return self._addresses(self._received)

    def _addresses(self, array: Any) -> list[int]:
        """Where each rank's array lies for this process. All ranks call this at the same time."""
        key = (_at(array), array.nbytes)
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
        return handle + (_at(array) - begin).to_bytes(8, "little")

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
            doing = f"{function.__name__}, for copies between ranks"
            raise LadderError(
                f"{self._gpu.name}: {error}, in {doing}; --exchange nccl does without them"
            ) from None


def _at(array: Any, element: int = 0) -> int:
    address: int = array.data.ptr + element * array.itemsize
    return address
