"""The latency of memory, measured: the time from a load's request to its result.

A chain is an array of lines, each of which holds the place of the next, in random order. One thread
goes along it: it cannot request a line before the one before it has come (Saavedra and Smith,
Measuring Cache and TLB Performance, IEEE Transactions on Computers 44(10), 1995). A short chain
stays in the L1 cache, a longer one in L2, and the longest comes from global memory.

Other threads may read an array meanwhile. The more bytes they have requested, the more arrive per
second, until the memory is busy; from there on requests only wait longer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.files import read_text
from ladder.core.contract.device import Device
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.rung_file import MOST_BYTES, Rung

SOURCE = Path(__file__).with_suffix(".cu")
LINE = 128  # bytes: no two links lie in one line of a cache
VECTOR, AT_ONCE = 16, 4  # bytes of a load of the readers, and how many a thread has requested
CHAINS = tuple(1 << power for power in range(14, 30))  # bytes: 16 KiB to 512 MiB
READERS = (0, 32, 64, 128, 256, 384, 512, 768, 1024)  # threads of an SM that read meanwhile
STREAM = 1 << 30  # bytes that they read, again and again
STEPS = 1 << 16  # of one measurement, tens of milliseconds at most
MOST_WARM = 1 << 20  # steps before it, at most
SAMPLES = 5
TRIAL, SECONDS = 500, 0.02  # rounds of the readers, to see how long they take; how long they should

_FLOAT, _WORD = np.dtype(np.float32), np.dtype(np.uint32)


@dataclass(frozen=True)
class Loaded:
    """Latency while `readers` threads on each of `sms` read: seconds of a load, and what they
    read."""

    sms: int
    readers: int
    latency: float
    bytes_per_second: float


class Chase:
    """A chain of so many bytes in the memory of a device, and where the thread stands on it."""

    def __init__(self, device: Device, size: int) -> None:
        self.links = size // LINE
        self._device = device
        self._kernels = device.compile(
            Rung("latency", "a chain of addresses", SOURCE, read_text(SOURCE, MOST_BYTES)),
            {"AT_ONCE": AT_ONCE},
            _FLOAT,
        )
        self._next = device.empty((size // _WORD.itemsize,), _WORD)
        device.upload(self._next, chain(self.links))
        self.position = device.empty((1,), _WORD)  # the word at which the thread stands
        device.zero(self.position)

    def go(self, steps: int) -> float:
        """Go so many steps; returns the seconds of one."""
        launch = Launch("chase", (1, 1, 1), (1, 1, 1))
        args = (self.position, self._next, np.int32(steps))
        return self._device.time(lambda: self._kernels["chase"](launch, args)) / steps

    def idle(self) -> float:
        """The seconds of a load where nothing else runs, once the chain is where it stays."""
        self.go(min(self.links, MOST_WARM))
        return float(np.median([self.go(STEPS) for _ in range(SAMPLES)]))

    def go_beside(self, stream: Any, blocks: int, threads: int, rounds: int) -> tuple[float, int]:
        """Go on while blocks of readers read `stream`, each thread AT_ONCE vectors in a round;
        returns the seconds that this takes, and the steps made."""
        device = self._device
        counts, unread = device.empty((2,), _WORD), device.empty((1,), _FLOAT)
        device.zero(counts)
        at_once = AT_ONCE * blocks * threads
        vectors = stream.nbytes // VECTOR // at_once * at_once
        most = np.int32(np.iinfo(np.int32).max // 2)
        of_readers = (counts, unread, stream, np.uint64(vectors), np.int32(rounds))
        args = (self.position, self._next, most, *of_readers)
        launch = Launch("chase_beside_reads", (1 + blocks, 1, 1), (threads, 1, 1))
        seconds = device.time(lambda: self._kernels["chase_beside_reads"](launch, args))
        return seconds, int(device.download(counts)[1])


def chain(links: int) -> np.ndarray:
    """A cycle through so many lines: the first word of each is the place, in words, of that of the
    next one."""
    words = LINE // _WORD.itemsize
    order = np.random.default_rng(0).permutation(links)
    lines = np.zeros((links, words), _WORD)
    lines[order, 0] = np.roll(order, -1) * words
    return lines.reshape(-1)


def by_load(device: Device) -> Iterator[Loaded]:
    """The seconds of a load from global memory while more and more threads read."""
    chase = Chase(device, CHAINS[-1])
    stream = device.empty((STREAM // _FLOAT.itemsize,), _FLOAT)
    device.zero(stream)
    blocks = device.target(_FLOAT).multiprocessors - 1  # the last SM is the chase's
    for threads in READERS:
        if threads == 0:
            yield Loaded(blocks, 0, chase.idle(), 0.0)
            continue
        trial, _ = chase.go_beside(stream, blocks, threads, TRIAL)
        rounds = max(TRIAL, round(TRIAL * SECONDS / trial))
        times, steps = zip(
            *(chase.go_beside(stream, blocks, threads, rounds) for _ in range(SAMPLES)), strict=True
        )
        read = VECTOR * AT_ONCE * blocks * threads * rounds
        latency = float(np.median(np.divide(times, steps)))
        yield Loaded(blocks, threads, latency, read / float(np.median(times)))
