"""What the processes of a group do together with the arrays of their devices."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Communicator(Protocol):
    """What the processes of a group do together with the arrays of their devices: every one of them
    calls the same methods in the same order, each with an array of its own of the same size.

    Each array is cut into as many equal shares as there are ranks. Everything happens in place, in
    order with the device's other work, and can be recorded into a graph. Several arrays go as one
    exchange.

    name  what does it, for messages: "NCCL", "P2P"
    """

    @property
    def name(self) -> str: ...

    def all_reduce(self, *arrays: Any) -> None:
        """The arrays (float32) become their sum over all ranks."""

    def reduce_scatter(self, *arrays: Any) -> None:
        """On rank r, share r (float32) becomes the sum over all ranks; the rest is undefined."""

    def all_gather(self, *arrays: Any) -> None:
        """Share r becomes on every rank what it is on rank r."""

    def close(self) -> None:
        """Leave the group, once all submitted work is done. Graphs that recorded an exchange must
        be gone before."""


class Processes(Protocol):
    """How the device of this process and those of others become a group."""

    def new_group(self) -> bytes:
        """The name of a new group of processes, which one of them makes and all hand to
        `join_group`."""

    def join_group(self, name: bytes, rank: int, size: int) -> Communicator:
        """Join a group as rank `rank` of `size`, each on a device of its own, through the vendor's
        library (NCCL). Waits until all have. Raises LadderError where that is not possible."""

    def join_p2p(
        self,
        exchange: Callable[[str, bytes], Sequence[bytes]],
        rank: int,
        size: int,
        beside: bool,
    ) -> Communicator:
        """The same for the processes of one machine, by kernels that load and store in the memory
        of each other's devices. `exchange` hands bytes to all ranks and returns those of each, and
        is called with the same name by all; `beside`: arrays are exchanged while the device does
        other work. Raises LadderError, on all ranks, where one cannot reach another."""
