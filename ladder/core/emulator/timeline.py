"""What the threads of one cluster do, in their order, as runtime/recording.cpp records it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ladder.core.emulator.structures import (
    ACCESSES,
    EVENTS,
    KINDS,
    COptions,
    CPlace,
    CProblem,
    CResult,
)

MOST = 20_000  # events: runtime/recording.h
KEPT = 1500  # of these, for a picture
AFTER = 100  # of these, after a problem


@dataclass(frozen=True)
class Event:
    """What some lanes of a warp do at one place of the program.

    kind   "waits" (at an mbarrier), "waited", "meets" (at a barrier), "met", "arrives", "loads" (a
           copy that an mbarrier counts), "lands", "starts" (a copy or product of a unit), "joins"
           (waits for a unit), "returns"
    warp   of the cluster; lanes: as bits
    of     which of `Timeline.barriers`; of "starts" and "joins" the unit, a place in AGENTS
    phase  of the barrier, or the group of what the unit does
    value  threads that arrive, or bytes
    line   in the kernel's file; 0: not known
    """

    kind: str
    warp: int
    lanes: int
    of: int
    phase: int
    value: int
    line: int


@dataclass(frozen=True)
class Mark:
    """A place that a problem names: a lane, after an event, an index; -1: before all of its own.

    access  "read", "write" or "atomic"; "": it is no access. unit: a place in AGENTS; 0: a thread
    """

    event: int
    warp: int
    lane: int
    line: int
    access: str
    unit: int


@dataclass(frozen=True)
class Timeline:
    """The events of one cluster in one launch, and the first problem of the launch.

    block     the first of the cluster, which has `blocks`, each of so many `warps`
    early     whether asynchronous copies land at once
    barriers  (name, the place of its block in the cluster, threads that a phase counts)
    before    events that are left out before these; after: whether some are after them
    problem   its message, or ""; deadlock: whether it is one
    missing   what would have ordered the two accesses of a race
    failed    the number of the cluster that has the problem
    """

    kernel: str
    block: tuple[int, ...]
    blocks: int
    warps: int
    early: bool
    barriers: tuple[tuple[str, int, int], ...]
    events: tuple[Event, ...]
    before: int
    after: bool
    problem: str
    deadlock: bool
    missing: str
    marks: tuple[Mark, ...]
    failed: int

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> "Timeline":
        """One that `dataclasses.asdict` made, after its way through JSON."""
        lists = {name: tuple(found[name][:MOST]) for name in ("block", "barriers")}
        events = tuple(Event(**event) for event in found["events"][:KEPT])
        marks = tuple(Mark(**mark) for mark in found["marks"])
        return cls(**{**found, **lists, "events": events, "marks": marks})


def read(
    kernel: str,
    result: CResult,
    options: COptions,
    problem: tuple[CProblem, str] | None,
    line_of: Callable[[int | None], int],
) -> Timeline:
    """The recording of a launch; `problem` with its message."""
    size = options.warp_size
    warps = -(-options.block[0] * options.block[1] * options.block[2] // size)

    def number(block: Sequence[int]) -> int:
        of_grid: int = block[0] + options.grid[0] * (block[1] + options.grid[1] * block[2])
        return of_grid

    def mark(place: CPlace) -> Mark:
        x, y, z = place.thread
        thread = x + options.block[0] * (y + options.block[1] * z)
        warp = number(place.block) % options.cluster * warps + thread // size
        access = ACCESSES[place.access] if place.access >= 0 else ""
        event = max(place.event - first, -1)
        return Mark(event, warp, thread % size, line_of(place.pc), access, place.agent)

    failed, message, missing, deadlock = options.recorded, "", "", False
    places: list[CPlace] = []
    if problem:
        raw, message = problem
        failed = number(raw.place.block) // options.cluster
        race, deadlock = raw.other.access >= 0, KINDS[raw.kind] == "deadlock"
        missing = raw.text.decode() if race else ""
        places = [raw.place, raw.other] if race else [raw.place]
    places = [p for p in places if number(p.block) // options.cluster == options.recorded]
    last: int = max((place.event for place in places), default=-1)
    end = min(result.event_count, last + 1 + AFTER if last >= 0 else KEPT)
    first = max(0, end - KEPT)
    events = tuple(
        Event(EVENTS[e.kind], e.warp, e.lanes, e.object, e.phase, e.value, line_of(e.pc))
        for e in result.events[first:end]
    )
    barriers = tuple(
        (b.name.decode(), b.member, b.threads) for b in result.barriers[: result.barrier_count]
    )
    y, x = divmod(options.recorded * options.cluster, options.grid[0])
    z, y = divmod(y, options.grid[1])
    return Timeline(
        kernel,
        (x, y, z),
        options.cluster,
        warps,
        bool(options.early),
        barriers,
        events,
        first,
        end < result.event_count or end >= MOST,
        message,
        deadlock,
        missing,
        tuple(map(mark, places)),
        failed,
    )
