"""The processes that train one model together, as each of them sees the others.

A process's number in the group is its rank; rank 0 leads: it prints, logs, samples and saves. All
ranks run the same program in lockstep. What one of them must know of another goes through
`exchange`, which every rank calls at the same point of the program.

`Group` itself is a process that trains alone, and `Ranks` one of several. The methods of `Group`
are written once, by `exchange`; so a run asks its group, and has no case for being alone.
"""

import contextlib
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import raw_bytes
from ladder.core.contract.device import Communicator, Device
from trainer.ranks.meeting import Member, Table
from trainer.ranks.watch import Watch

# Bytes of an array in one message: to receive a message, Python allocates what is left of it anew
# for each part that arrives.
PIECE = 1 << 18


class Group:
    """A process alone.

    rank, size   which one of how many
    local_rank   its number among those on the same machine: the number of its GPU
    local_size   how many there are on the same machine
    """

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def exchange(self, what: str, data: bytes = b"") -> list[bytes]:
        """What each rank gave, in the order of ranks; waits for all of them.

        what  the place in the program, which must be the same on all ranks
        """
        return [data]

    def gather(self, what: str, array: np.ndarray) -> list[np.ndarray]:
        """On rank 0 the flat arrays of all ranks, in the order of ranks; elsewhere nothing."""
        return [array]

    def progress(self, part: str | None) -> None:
        """The main thread has come to `part`, the same on all ranks, and reaches the next within
        --hang-timeout seconds, not counting those in which it waits for others in `exchange`. None:
        what follows may take any time."""

    def working(self, part: str) -> None:
        """The main thread has come to `part`, and other ranks perhaps do not: a piece of long work,
        such as one tensor of a checkpoint. It may take as long as a part of `progress`."""

    def leave(self) -> None:
        """The end of a run that went well: all ranks have come here."""

    def fail(self, message: str, status: int) -> None:
        """Tell the others that this rank ends by an error, so that they end with its status."""

    def advise(self, advice: Callable[[], str]) -> None:
        """What to say to the user when a rank is lost: how to go on."""

    def collect(self, what: str, value: Any) -> list[Any]:
        """The values of all ranks, each one JSON."""
        parts = self.exchange(what, json.dumps(value).encode())
        return [json.loads(part) for part in parts]

    def share(self, what: str, value: Any = None) -> Any:
        """The value of rank 0, as JSON; those of the others count for nothing."""
        return self.collect(what, value if self.leads else None)[0]

    def agree(self, what: str, value: Any) -> None:
        """Raise LadderError, on all ranks, where a rank has another value than rank 0."""
        values = self.collect(what, value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise LadderError(
                    f"rank {rank} of {self.size} differs from rank 0: {what} is {other}, and "
                    f"{values[0]} on rank 0; start all ranks with the same program, flags and data"
                )

    @contextlib.contextmanager
    def machine_by_machine(self, what: str) -> Iterator[None]:
        """On each machine one rank goes through the block first, the others after it: the first
        downloads and prepares files, and the others find them."""
        if self.local_rank > 0:
            self.exchange(what)
        yield
        if self.local_rank == 0:
            self.exchange(what)


ALONE = Group()


class Ranks(Group):
    """One of several processes: messages go to rank 0, and from there to all.

    Only bytes, JSON and arrays are sent, never a pickle: a rank that was taken over by a stranger
    can spoil the numbers of the others, but not run code in them.
    """

    def __init__(self, table: Table, watch: Watch) -> None:
        self.rank, self.size, self.members = table.rank, len(table.members), table.members
        own = self.members[self.rank]
        self.local_rank = own.local_rank
        self.local_size = sum(member.host == own.host for member in self.members)
        self._talk = [table.links[rank].talk for rank in sorted(table.links)]
        self._watch = watch

    def exchange(self, what: str, data: bytes = b"") -> list[bytes]:
        mine = _pack([what.encode(), data])  # one message each way: two would wait for each other
        with self._peers_needed():
            if self.rank > 0:
                (leader,) = self._talk
                leader.send_bytes(mine)
                return _unpack(leader.recv_bytes())
            parts = [data]
            for rank, peer in enumerate(self._talk, 1):
                place, part = _unpack(peer.recv_bytes())
                if place != what.encode():
                    raise LadderError(
                        f"rank {rank} of {self.size} is at {place.decode()!r} where rank 0 is at "
                        f"{what!r}: the ranks do not run the same program"
                    )
                parts.append(part)
            answer = _pack(parts)
            for peer in self._talk:
                peer.send_bytes(answer)
            return parts

    def gather(self, what: str, array: np.ndarray) -> list[np.ndarray]:
        sizes = self.collect(what, array.size)
        if not self.leads:
            self.send(array, 0)
            return []
        others = [np.empty(size, array.dtype) for size in sizes[1:]]
        for rank, other in enumerate(others, 1):
            self.receive(other, rank)
        return [array.reshape(-1), *others]

    def send(self, array: np.ndarray, rank: int) -> None:
        """Send a contiguous array to a rank; one of the two is rank 0."""
        link, data = self._link(rank), raw_bytes(array)
        with self._peers_needed():
            for start in range(0, array.nbytes, PIECE):
                link.send_bytes(data[start : start + PIECE])

    def receive(self, array: np.ndarray, rank: int) -> None:
        """Receive into a contiguous array what a rank sends; one of the two is rank 0."""
        link, data = self._link(rank), raw_bytes(array)
        with self._peers_needed():
            for start in range(0, array.nbytes, PIECE):
                piece = data[start : start + PIECE]
                if link.recv_bytes_into(piece) != len(piece):
                    raise LadderError(f"rank {rank} of {self.size} sent an array of another size")

    def progress(self, part: str | None) -> None:
        self._watch.progress(part)

    def working(self, part: str) -> None:
        self._watch.working(part)

    def leave(self) -> None:
        self.exchange("the end of the run")
        self._watch.leave()

    def fail(self, message: str, status: int) -> None:
        self._watch.fail(message, status)

    def advise(self, advice: Callable[[], str]) -> None:
        self._watch.advice = advice

    def _link(self, rank: int) -> Connection:
        return self._talk[max(rank, self.rank) - 1 if self.rank == 0 else 0]

    @contextlib.contextmanager
    def _peers_needed(self) -> Iterator[None]:
        """Where a connection breaks, the watch learns who is lost, and ends this process."""
        try:
            with self._watch.waiting():
                yield
        except (EOFError, ConnectionError) as error:
            self._watch.explain(error)


class HostSums:
    """A `ladder.core.contract.device.Communicator` for arrays of the host: sums over ranks, in
    their order, on rank 0."""

    name = "the host"

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._others = ranks, range(1, ranks.size)

    def all_reduce(self, *arrays: np.ndarray) -> None:
        for array in arrays:
            self._add_up(array)
            self._hand_out([array] * self._ranks.size)

    def reduce_scatter(self, *arrays: np.ndarray) -> None:
        for array in arrays:
            self._add_up(array)
            self._hand_out(np.split(array, self._ranks.size))

    def all_gather(self, *arrays: np.ndarray) -> None:
        for array in arrays:
            shares = np.split(array, self._ranks.size)
            if self._ranks.leads:
                for rank in self._others:
                    self._ranks.receive(shares[rank], rank)
            else:
                self._ranks.send(shares[self._ranks.rank], 0)
            self._hand_out([array] * self._ranks.size)

    def close(self) -> None:
        """The connections belong to the group."""

    def _add_up(self, array: np.ndarray) -> None:
        """On rank 0 the array becomes the sum of those of all ranks."""
        if not self._ranks.leads:
            self._ranks.send(array, 0)
            return
        received = np.empty_like(array)
        for rank in self._others:
            self._ranks.receive(received, rank)
            array += received

    def _hand_out(self, parts: Sequence[np.ndarray]) -> None:
        """Each rank gets its part from rank 0."""
        if self._ranks.leads:
            for rank in self._others:
                self._ranks.send(parts[rank], rank)
        else:
            self._ranks.receive(parts[self._ranks.rank], 0)


def open_communicator(
    device: Device, group: Group, exchange: str, overlaps: bool
) -> Communicator | None:
    """By which the devices of a group exchange arrays: our kernels, the vendor's library, or the
    host itself where arrays are the host's. None for a process alone.

    exchange  "p2p": kernels that reach the memory of all devices; "nccl"; "auto": p2p where that is
              possible, since it was faster
    overlaps  whether they exchange gradients while the backward pass goes on

    Raises LadderError where the ranks cannot exchange so.
    """
    if not isinstance(group, Ranks):
        return None
    if (processes := device.processes) is None:
        return HostSums(group)
    if exchange != "nccl":
        try:
            if group.local_size < group.size:
                raise LadderError("--exchange p2p: the ranks are on several machines")
            joined: Communicator
            joined = processes.join_p2p(group.exchange, group.rank, group.size, overlaps)
            return joined
        except LadderError:
            if exchange == "p2p":
                raise
    made = processes.new_group() if group.leads else None
    name = group.exchange("the name of the devices' group", made or b"")[0]
    joined = processes.join_group(name, group.rank, group.size)
    return joined


def _pack(parts: Sequence[bytes]) -> bytes:
    """Each part behind its length."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _unpack(message: bytes) -> list[bytes]:
    parts, start = [], 0
    while start < len(message):
        length = int.from_bytes(message[start : start + 8], "little")
        parts.append(message[start + 8 : start + 8 + length])
        start += 8 + length
    return parts


def roster(members: Sequence[Member]) -> str:
    """Where the ranks are, for the user: "2 ranks on node1, 2 on node2"."""
    hosts = Counter(member.host for member in members)
    return ", ".join(f"{count} on {host}" for host, count in hosts.items())


class Interrupt:
    """Ctrl-C and SIGTERM stop a run after the current step: the first signal is kept,
    and the second one raises KeyboardInterrupt.

    In a thread other than the main one, where Python takes no signals, nothing changes.
    """

    def __init__(self, group: Group = ALONE) -> None:
        self._group, self._signal = group, 0
        self._before: dict[int, Any] = {}

    def here(self) -> bool:
        """Whether there was a signal to this process."""
        return self._signal > 0

    def anywhere(self) -> bool:
        """Whether there was one to any rank. All ranks ask at the same place, so that all of them
        stop there."""
        return self.status() > 0

    def status(self) -> int:
        """The exit status, as shells define it: 130 after Ctrl-C, 143 after SIGTERM on any rank; 0
        without an interrupt. All ranks ask for this at the same place, too."""
        first = max(self._group.collect("the interrupt", self._signal))
        return 128 + first if first else 0

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if self._signal:
            raise KeyboardInterrupt
        self._signal = number
