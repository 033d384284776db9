"""Which loads a wave has not waited for yet: the counters behind `s_waitcnt`.

A load returns before its data have come. The hardware counts what is outstanding, in several
counters by the kind of memory, and an instruction waits until a counter has fallen to a number; a
program that uses the register earlier gets what was there before, now and then. Here every such
use is an error.

Operations of one queue complete in order, so that waiting for n leaves only the last n. Scalar
loads and flat accesses complete in any order: only waiting for 0 is enough for them.
https://llvm.org/docs/AMDGPUUsage.html#memory-model, and s_waitcnt in AMD's ISA documents
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ladder.core.common.errors import LadderError

if TYPE_CHECKING:
    from ladder.core.amd.isa.program import Line


class Queue(NamedTuple):
    """Operations that complete in order among themselves, or in any order."""

    name: str
    ordered: bool = True


LOADS = Queue("loads")
STORES = Queue("stores")
LDS = Queue("LDS")
SCALAR = Queue("scalar loads", ordered=False)
FLAT_MEMORY = Queue("flat accesses", ordered=False)  # which may turn out to be to LDS, so that
FLAT_LDS = Queue("flat accesses to LDS", ordered=False)  # both counters count them

_RDNA: Mapping[str, tuple[Queue, ...]] = {
    "vmcnt": (LOADS, FLAT_MEMORY),
    "vscnt": (STORES,),
    "lgkmcnt": (LDS, SCALAR, FLAT_LDS),
    "expcnt": (),
}
# Which queues each counter counts. gfx9 (CDNA) counts stores with loads.
COUNTERS: Mapping[str, Mapping[str, tuple[Queue, ...]]] = {
    "gfx9": {name: queues for name, queues in _RDNA.items() if name != "vscnt"},
    "gfx10": _RDNA,
    "gfx11": _RDNA,
    "gfx12": {
        "loadcnt": (LOADS, FLAT_MEMORY),
        "storecnt": (STORES,),
        "dscnt": (LDS, FLAT_LDS),
        "kmcnt": (SCALAR,),
        "samplecnt": (),
        "bvhcnt": (),
        "expcnt": (),
    },
}


class Ticket(NamedTuple):
    """A register that a load will write.

    numbers  (waves,), the load's place in its queue; 0 in waves that did not issue it
    """

    queue: Queue
    numbers: np.ndarray
    line: Line


class Outstanding:
    """What a set of waves has issued and not waited for."""

    def __init__(self, waves: int):
        self.waves = waves
        self.issued: dict[Queue, np.ndarray] = {}  # how many, of each wave
        self.done: dict[Queue, np.ndarray] = {}  # how many of them are known to be complete
        self.registers: dict[int, list[Ticket]] = {}

    def issue(self, queues: Sequence[Queue], registers: Sequence[int], line: Line) -> None:
        """An operation begins, which all these queues count, and which will write these registers.

        Raises LadderError where an earlier load of one may come after it.
        """
        if self.registers:
            self.check(line, registers, after=queues[0])
        for queue in queues:
            if queue not in self.issued:
                self.issued[queue] = np.zeros(self.waves, np.int64)
                self.done[queue] = np.zeros(self.waves, np.int64)
            numbers = self.issued[queue] = self.issued[queue] + 1
            for register in registers:
                self.registers.setdefault(register, []).append(Ticket(queue, numbers, line))

    def wait(self, queues: Iterable[Queue], number: int) -> None:
        """At most so many operations of these queues, together, are left."""
        for queue in queues:
            if queue in self.issued and (queue.ordered or number == 0):
                self.done[queue] = np.maximum(self.done[queue], self.issued[queue] - number)
        left = {}
        for register, tickets in self.registers.items():
            kept = [t for t in tickets if (t.numbers > self.done[t.queue]).any()]
            if kept:
                left[register] = kept
        self.registers = left

    def check(self, line: Line, registers: Iterable[int], after: Queue | None = None) -> None:
        """Raise LadderError where `line` uses a register before its load was waited for.

        after  `line` is a load of this queue: what is in the queue already comes first
        """
        for register in registers:
            for ticket in self.registers.get(register, ()):
                if _comes_first(ticket.queue, after):
                    continue
                if (ticket.numbers > self.done[ticket.queue]).any():
                    scalar = register >= SCALAR_KEY
                    name = f"s{register - SCALAR_KEY}" if scalar else f"v{register}"
                    raise line.problem(
                        f"uses {name} before the wave has waited for its load\n"
                        f"  loaded by {ticket.line.text!r} ({ticket.line.place})",
                        ticket.line,
                    )

    def take(self, which: np.ndarray) -> Outstanding:
        part = Outstanding(0)
        part.issued = {queue: counts[which] for queue, counts in self.issued.items()}
        part.done = {queue: counts[which] for queue, counts in self.done.items()}
        part.waves = int(np.count_nonzero(which)) if which.dtype == bool else len(which)
        for register, tickets in self.registers.items():
            part.registers[register] = [t._replace(numbers=t.numbers[which]) for t in tickets]
        return part

    @staticmethod
    def join(parts: Sequence[Outstanding]) -> Outstanding:
        whole = Outstanding(sum(part.waves for part in parts))
        queues = {queue for part in parts for queue in part.issued}
        for name in ("issued", "done"):
            for queue in queues:
                counts = [getattr(p, name).get(queue, np.zeros(p.waves, np.int64)) for p in parts]
                getattr(whole, name)[queue] = np.concatenate(counts)
        starts = np.cumsum([0, *(part.waves for part in parts)])
        for part, start in zip(parts, starts, strict=False):
            for register, tickets in part.registers.items():
                for ticket in tickets:
                    numbers = np.zeros(whole.waves, np.int64)
                    numbers[start : start + part.waves] = ticket.numbers
                    joined = ticket._replace(numbers=numbers)
                    whole.registers.setdefault(register, []).append(joined)
        return whole


def _comes_first(earlier: Queue, later: Queue | None) -> bool:
    """Whether a load of one queue returns before a later one of the other. A flat access to memory
    goes the way of the other loads; one to LDS has a ticket of FLAT_LDS as well."""
    return (earlier is later and earlier.ordered) or (earlier is FLAT_MEMORY and later is LOADS)


SCALAR_KEY = 1024  # keys of scalar registers; below are vector registers by number


def waits(text: str, arch: str) -> list[tuple[tuple[Queue, ...], int]]:
    """(queues, number) of a waiting instruction, for each counter that it names.

    s_waitcnt vmcnt(1) lgkmcnt(0), s_waitcnt_vscnt null, 0x0, s_wait_loadcnt_dscnt 0x102
    """
    known = next(of for name, of in COUNTERS.items() if arch.startswith(name))
    opcode, _, operands = text.partition(" ")
    if opcode == "s_waitcnt":
        named = [(name, int(number)) for name, number in re.findall(r"(\w+)\((\d+)\)", operands)]
        if not named and int(operands, 0) != 0:
            raise LadderError(f"{text!r}: its number is not understood")
        return [(known[n], c) for n, c in named] or [(queues, 0) for queues in known.values()]
    value = int(operands.rpartition(",")[2], 0)
    names = re.findall(r"\w+?cnt", opcode.removeprefix("s_waitcnt_").removeprefix("s_wait_"))
    names = [name.lstrip("_") for name in names]
    if len(names) == 2:  # in 6 bits each, the first one higher
        return [(known[names[0]], value >> 8), (known[names[1]], value & 0xFF)]
    return [(known[names[0]], value)]
