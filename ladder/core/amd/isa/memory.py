"""Memory that kernels address: the arrays of a launch, the LDS of its blocks, scratch memory.

Global addresses are those of the host's arrays, so that a pointer in an argument is a NumPy array's
own. An access that does not lie within one array is an error that names the nearest one.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ladder.core.amd.isa.program import Line


class Bytes:
    """Bytes that are read and written at many places at once, in pieces of any size."""

    def __init__(self, content: np.ndarray):
        self.bytes = content  # uint8, contiguous
        self.halves = content[: len(content) // 2 * 2].view(np.uint16)
        self.words = content[: len(content) // 4 * 4].view(np.uint32)

    def read(self, places: np.ndarray, size: int) -> np.ndarray:
        """(n, words) of `size` bytes from each of n places; pieces below 4 bytes as one word."""
        if size >= 4:
            if not (places & 3).any():
                first = places >> 2
                if size == 4:
                    return self.words[first][:, None]
                return self.words[first[:, None] + np.arange(size // 4)]
            return self._gather(places, size).view(np.uint32)
        if size == 2 and not (places & 1).any():
            return self.halves[places >> 1].astype(np.uint32)[:, None]
        return self._gather(places, size).view(f"u{size}").astype(np.uint32)

    def _gather(self, places: np.ndarray, size: int) -> np.ndarray:
        return np.ascontiguousarray(self.bytes[places[:, None] + np.arange(size)])

    def write(self, places: np.ndarray, size: int, values: np.ndarray) -> None:
        """Write (n, words); of pieces below 4 bytes, the low bytes of a word."""
        if size >= 4 and not (places & 3).any():
            first = places >> 2
            if size == 4:
                self.words[first] = values[:, 0]
            else:
                self.words[first[:, None] + np.arange(size // 4)] = values
            return
        pieces = np.ascontiguousarray(values).view(np.uint8)[:, :size]
        self.bytes[places[:, None] + np.arange(size)] = pieces


class Region(NamedTuple):
    """An array of the host."""

    name: str
    start: int
    end: int
    content: Bytes


PACKET = "the dispatch packet"


def region(name: str, array: np.ndarray) -> Region:
    content = array.reshape(-1).view(np.uint8)
    start = content.ctypes.data
    return Region(name, start, start + content.nbytes, Bytes(content))


class Request(NamedTuple):
    """What an instruction does at each of its addresses: "reads" or "writes" so many bytes."""

    line: Line
    verb: str
    size: int

    def problem(self, what: str) -> Exception:
        return self.line.problem(f"{self.verb} {self.size} bytes {what}")


class Part(NamedTuple):
    """What of an access lies in one array: which of the lanes, and where in it."""

    content: Bytes
    lanes: slice | np.ndarray
    places: np.ndarray


class Memory:
    """The arrays that a launch may touch."""

    def __init__(self, regions: Sequence[Region]):
        self.regions = sorted(regions, key=lambda region: region.start)
        self._starts = np.array([region.start for region in self.regions], np.uint64)
        self._last = self.regions[0]

    def parts(self, addresses: np.ndarray, request: Request) -> Iterator[Part]:
        """Where the bytes from each of these addresses (n, uint64) on lie. Raises LadderError."""
        size = request.size
        low, high = int(addresses.min()), int(addresses.max())
        at = self._last
        if not (at.start <= low and high + size <= at.end):
            index = int(np.searchsorted(self._starts, np.uint64(low), side="right")) - 1
            at = self._last = self.regions[max(index, 0)]
        if at.start <= low and high + size <= at.end:
            yield Part(at.content, slice(None), (addresses - np.uint64(at.start)).view(np.int64))
            return
        which = np.maximum(np.searchsorted(self._starts, addresses, side="right") - 1, 0)
        for index in np.unique(which):
            at, lanes = self.regions[index], np.flatnonzero(which == index)
            places = (addresses[lanes] - np.uint64(at.start)).view(np.int64)
            outside = (places < 0) | (places + size > at.end - at.start)
            if outside.any():
                address = int(addresses[lanes[np.argmax(outside)]])
                raise request.problem(self._describe(address))
            yield Part(at.content, lanes, places)

    def _describe(self, address: int) -> str:
        """Where an address outside of all arrays lies."""
        arrays = [at for at in self.regions if at.name != PACKET]  # those that kernels mean
        near = min(arrays, key=lambda at: max(at.start - address, address - at.end))
        if address < near.start:
            away = f"{near.start - address:,} bytes before the start of {near.name}"
        elif address < near.end:
            away = f"that begin in the last bytes of {near.name}"
        else:
            away = f"{address - near.end:,} bytes behind the end of {near.name}"
        if max(near.start - address, address - near.end) > 1 << 30:
            return f"at {address:#x}, which is in no array of this launch"
        return f"{away} ({near.end - near.start:,} bytes)"


class Races:
    """Finds accesses of two waves to the same place of LDS without a barrier between them.

    A write is visible to other waves once its wave has waited for it and a barrier has come after
    that. The place is tracked in granules of `granule` bytes, the smallest that the kernel writes.

    For each granule: the wave that wrote it last, the number of that operation in the wave's queue
    of LDS operations, whether it was atomic; the wave that read it last (SEVERAL: more than one),
    after how many barriers; and the instructions of both.
    """

    SEVERAL = -2

    def __init__(self, granules: int, granule: int, waves: int, blocks: int, lines: Sequence[Line]):
        self.granule, self._lines = granule, lines
        self.writer = np.full(granules, -1, np.int32)
        self.number = np.zeros(granules, np.int64)
        self.atomic = np.zeros(granules, bool)
        self.reader = np.full(granules, -1, np.int32)
        self.epoch = np.full(granules, -1, np.int32)
        self.wrote = np.zeros(granules, np.int32)  # indices of the kernel's lines
        self.read_by = np.zeros(granules, np.int32)
        self.finished = np.zeros(waves, np.int64)  # LDS operations that were complete at a barrier
        self.barriers = np.zeros(blocks, np.int32)  # that each block has passed

    def at(self, places: np.ndarray, size: int) -> np.ndarray:
        """(n, granules)"""
        count = max(1, size // self.granule)
        return (places // self.granule)[:, None] + np.arange(count)

    def read(self, where: np.ndarray, waves: np.ndarray, blocks: np.ndarray, index: int) -> None:
        """where: of `at`; waves, blocks: (n,) of the lanes; index: of the instruction."""
        waves = np.broadcast_to(waves[:, None].astype(np.int32), where.shape)
        self._refuse(self._unseen(where, waves), where, self.wrote, index, "reads")
        epoch = self.barriers[blocks][:, None]
        shared = (self.epoch[where] == epoch) & (self.reader[where] != waves)
        self.reader[where] = waves
        shared |= self.reader[where] != waves
        self.reader[where[shared]] = self.SEVERAL
        self.epoch[where] = epoch
        self.read_by[where] = index

    def write(
        self,
        where: np.ndarray,
        waves: np.ndarray,
        blocks: np.ndarray,
        numbers: np.ndarray,
        index: int,
        atomic: bool,
    ) -> None:
        """numbers: (n,) of the operation in the queue of each lane's wave."""
        waves = np.broadcast_to(waves[:, None].astype(np.int32), where.shape)
        unseen = self._unseen(where, waves)
        if atomic:
            unseen &= ~self.atomic[where]
        self._refuse(unseen, where, self.wrote, index, "writes")
        epoch = self.barriers[blocks][:, None]
        before = (self.epoch[where] == epoch) & (self.reader[where] != waves)
        self._refuse(before, where, self.read_by, index, "writes")
        self.writer[where] = waves
        self.wrote[where] = index
        if not atomic:  # several waves at once
            self._refuse(self.writer[where] != waves, where, self.wrote, index, "writes")
        self.number[where] = numbers[:, None]
        self.atomic[where] = atomic

    def _unseen(self, where: np.ndarray, waves: np.ndarray) -> np.ndarray:
        """Which places another wave wrote, so that this one may not see it yet."""
        writer = self.writer[where]
        seen = self.number[where] <= self.finished[np.maximum(writer, 0)]
        return (writer >= 0) & (writer != waves) & ~seen

    def _refuse(
        self, wrong: np.ndarray, where: np.ndarray, others: np.ndarray, index: int, verb: str
    ) -> None:
        if wrong.any():
            other = self._lines[others[where[wrong][0]]]
            raise self._lines[index].problem(
                f"{verb} LDS that another wave uses, without a barrier between them\n"
                f"  the other: {other.text!r} ({other.place})",
                other,
            )
