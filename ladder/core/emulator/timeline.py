"""The events of a cluster, as the runtime records them for each lane (results.h): by warp."""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ladder.core.emulator.report import Event, Problem, Timeline
from ladder.core.emulator.structures import ACCESSES, AGENTS, CEvent, CPlace, CProblem

KEPT = 1500  # events of a timeline
AFTER = 100  # of these, after a problem


def read(
    kernel: str,
    recorded: Sequence[CEvent],
    early: bool,
    problems: Sequence[tuple[CProblem, Problem]],
    locate: Callable[[int | None], tuple[str, int]],
) -> Timeline:
    """The timeline of a launch with these problems."""
    own_file = locate(None)[0]

    def event(place: CPlace, kind: str, of: str, phase: int, came: int, threads: int) -> Event:
        file, line = locate(place.pc)
        lanes = 0 if kind == "ends" else 1 << place.lane  # no lane's doing
        line *= file == own_file
        return Event(kind, of, phase, came, threads, place.member, place.warp, lanes, line)

    found = []
    for seen in recorded:
        of = seen.of.decode().removeprefix("the mbarrier ").removeprefix("the barrier ").rstrip(",")
        found.append(event(seen.place, seen.kind.decode(), of, seen.phase, seen.came, seen.threads))
    serials = [seen.place.serial for seen in recorded]
    message = ""
    for problem, said in [pair for pair in problems if pair[0].place.serial][:1]:
        message = said.message
        places = [problem.place, problem.other][: 1 + (said.kind == "race")]
        for place in sorted(places, key=lambda place: -place.serial):
            if place.serial and said.kind != "deadlock":  # which its waits show
                what = ACCESSES[place.access] if place.access >= 0 else said.kind
                marked = event(place, "problem", what + AGENTS[place.agent], 0, 0, 0)
                found.insert(bisect_right(serials, place.serial), marked)
    events = _of_warps(found)
    marks = [index + AFTER for index, event in enumerate(events) if event.kind == "problem"]
    end = len(events) if ": deadlock: " in message else max([KEPT, *marks])
    kept = events[:end][-KEPT:]
    return Timeline(kernel, early, kept, len(events) - len(kept), message)


def _of_warps(events: Sequence[Event]) -> list[Event]:
    """The n-th time that the lanes of a warp do the same thing is one event, and so is all that
    they start of one phase or group. A problem comes right after what its own lane did before."""
    found: dict[Any, list[Event]] = {}
    times: Counter[Any] = Counter()
    last: dict[Any, Any] = {}  # of each lane
    for event in events:
        lane, what = (event.block, event.warp, event.lanes), event._replace(lanes=0, came=0)
        known = what, times[what, lane]
        if event.kind == "problem" and lane in last:
            found[last[lane]].append(event)
            continue
        times[what, lane] += event.kind not in ("loads", "starts")
        before, *problems = found.get(known, [event])
        found[known] = [event._replace(lanes=before.lanes | event.lanes), *problems]
        last[lane] = known
    return list(itertools.chain.from_iterable(found.values()))
