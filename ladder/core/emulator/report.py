"""What a launch was seen to do: problems, and in counting mode its memory accesses by line."""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ladder.core.common.files import quote
from ladder.core.emulator.structures import ACCESSES, AGENTS, CEvent, CPlace, CProblem

SECTOR = 32  # bytes: the unit in which a GPU moves global memory
KEPT = 1500  # events of a timeline
AFTER = 100  # of these, after a problem


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a kernel.

    kind     one of structures.KINDS: "race", "out of bounds", "deadlock", ...
    message  the whole story in a sentence or two, with file, line, block and thread
    line     1-based line of `file`; 0 where it is not known
    block    blockIdx (x, y, z); thread: threadIdx
    other    for a race, deadlock or divergent barrier: (file, line) of the other thread, if known
    """

    kind: str
    message: str
    kernel: str
    file: str
    line: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    other: tuple[str, int] | None = None

    def excerpt(self) -> str:
        """The source line, and that of the other thread, each on a line of its own."""
        places = {(self.file, self.line), *([self.other] if self.other else [])}
        return "".join(quote(file, line) for file, line in sorted(places))


@dataclass(frozen=True)
class Site:
    """A source line that accesses a buffer.

    buffer  name of the kernel's parameter, or of the array in shared memory
    space   "global" or "shared"
    kind    "read", "write" or "atomic"
    bytes   that one lane accesses at once
    """

    file: str
    line: int
    kernel: str
    buffer: str
    space: str
    kind: str
    bytes: int


@dataclass(frozen=True)
class LineCount(Site):
    """The accesses of one source line to one buffer, summed over the launches.

    requests    how many times a warp did it
    lanes       that took part, summed over the requests; full warps would be requests * warp
    sectors     32-byte sectors of global memory that the requests touched
    wavefronts  passes over the 32 banks of shared memory that they took
    ideal_…     the least that could have served the same lanes
    """

    requests: int
    lanes: int
    sectors: int
    ideal_sectors: int
    wavefronts: int
    ideal_wavefronts: int


@dataclass(frozen=True)
class Access(Site):
    """One warp request in full: what picture shows which lane touches which address.

    lanes    the lanes that took part
    offsets  for each of them, in bytes from the start of the buffer
    """

    block: tuple[int, int, int]
    warp: int
    lanes: tuple[int, ...]
    offsets: tuple[int, ...]


class Event(NamedTuple):
    """What some lanes of a warp do, one after the other.

    kind   as in results.h, or "problem"
    of     the barrier, the unit, or what the problem is
    phase  of the barrier, or the group of what the unit does
    came   how many threads have come to the phase, of `threads`
    block  its place in its cluster; warp: in the block; lanes: as bits
    line   in the kernel's file; 0: not known
    """

    kind: str
    of: str
    phase: int
    came: int
    threads: int
    block: int
    warp: int
    lanes: int
    line: int


@dataclass(frozen=True)
class Timeline:
    """What the threads of one cluster do in a launch, and the first thing that they do wrong.

    early     whether asynchronous copies land at once
    left_out  how many more events there were, before and after these
    problem   its message, or ""; kind: as of a Problem, or ""
    """

    kernel: str
    early: bool
    events: Sequence[Event]
    left_out: int
    problem: str
    kind: str


@dataclass(frozen=True)
class Report:
    """Everything since the device was made or `reset_report` was called, in program order."""

    lines: list[LineCount] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)  # of each launch that was recorded


def timeline_of(
    kernel: str,
    recorded: Sequence[CEvent],
    early: bool,
    problems: Sequence[tuple[CProblem, Problem]],
    locate: Callable[[int | None], tuple[str, int]],
) -> Timeline:
    """The timeline of a launch with these problems, of the events of a cluster as the runtime
    records them for each lane (results.h): by warp."""
    own_file = locate(None)[0]

    def event(place: CPlace, kind: str, of: str, phase: int, came: int, threads: int) -> Event:
        file, line = locate(place.pc)
        lanes = 0 if kind == "ends" else 1 << place.lane  # no lane's doing
        line *= file == own_file
        return Event(kind, of, phase, came, threads, place.member, place.warp, lanes, line)

    raw = []
    for seen in recorded:
        of = seen.of.decode().removeprefix("the mbarrier ").removeprefix("the barrier ").rstrip(",")
        raw.append(event(seen.place, seen.kind.decode(), of, seen.phase, seen.came, seen.threads))
    serials = [seen.place.serial for seen in recorded]
    message = kind = ""
    for problem, said in [pair for pair in problems if pair[0].place.serial][:1]:
        message, kind = said.message, said.kind
        places = [problem.place, problem.other][: 1 + (kind == "race")]
        for place in sorted(places, key=lambda place: -place.serial):
            if place.serial and kind != "deadlock":  # which its waits show
                what = ACCESSES[place.access] if place.access >= 0 else kind
                marked = event(place, "problem", what + AGENTS[place.agent], 0, 0, 0)
                raw.insert(bisect_right(serials, place.serial), marked)
    events = _of_warps(raw)
    marks = [index + AFTER for index, event in enumerate(events) if event.kind == "problem"]
    end = len(events) if kind == "deadlock" else max([KEPT, *marks])
    kept = events[:end][-KEPT:]
    return Timeline(kernel, early, kept, len(events) - len(kept), message, kind)


def _of_warps(events: Sequence[Event]) -> list[Event]:
    """The n-th time that the lanes of a warp do the same thing is one event, and so is all that
    they start of one phase or group. A problem comes right after what its own lane did before."""
    groups: dict[Any, list[Event]] = {}
    times: Counter[Any] = Counter()
    last: dict[Any, Any] = {}  # of each lane
    for event in events:
        lane, what = (event.block, event.warp, event.lanes), event._replace(lanes=0, came=0)
        known = what, times[what, lane]
        if event.kind == "problem" and lane in last:
            groups[last[lane]].append(event)
            continue
        times[what, lane] += event.kind not in ("loads", "starts")
        before, *problems = groups.get(known, [event])
        groups[known] = [event._replace(lanes=before.lanes | event.lanes), *problems]
        last[lane] = known
    return list(itertools.chain.from_iterable(groups.values()))
