"""A ring of stages over time: which tile each stage is filled with, and when it is waited for and
read, in a kernel that copies with `cp.async`.

An instrumented copy of the kernel runs in the emulator. Block 0 prints its copies, and its thread 0
also prints its waits and reads. The picture shows this order, and assumes no durations.
"""

from dataclasses import dataclass, field
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.ladder import Ladder, find
from ladder.core.contract.op import Dims
from ladder.core.contract.rung_file import Rung
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.source_code import parse_shape
from ladder.core.show.trace import recorded

PIECE = 16  # bytes that one cp.async copies
RECORDER = Path(__file__).with_name("ring.cuh")


@dataclass
class Interval:
    """What thread 0 does from one wait to the next; step 0 is what comes before the first wait.

    Tiles are numbered in the order in which they are copied. A group that copies nothing has none.

    pending  the number of groups that the wait allows to be in flight; None in step 0
    arrived  the last tile that has arrived, by all waits so far; -1 for none
    copied   the tiles that it starts to copy
    read     the tiles that it reads
    flight   the least number of tiles whose copies are in flight while it reads one
    """

    pending: int | None = None
    arrived: int = -1
    copied: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    flight: int | None = None


@dataclass(frozen=True)
class Ring:
    """stage: of each tile, in which stage it lies; steps: what happens to them."""

    stage: tuple[int, ...]
    steps: tuple[Interval, ...]

    @property
    def stages(self) -> int:
        return max(self.stage) + 1

    def early(self) -> list[tuple[int, int]]:
        """(step, tile) where a tile is read although no wait has covered its copy."""
        return [
            (number, tile)
            for number, step in enumerate(self.steps)
            for tile in step.read
            if tile > step.arrived
        ]


def record(ladder: Ladder, rung: Rung, dtype: str, dims: Dims) -> Ring:
    """The ring of a rung. Raises LadderError where it has none."""
    if '\n#include "async.cuh"' not in rung.source:
        raise LadderError(f"{ladder.op.name} {rung.label} includes no async.cuh: it has no ring")
    printed = recorded(ladder, rung, read_text(RECORDER), dtype, dims, wrong=True)
    return follow(
        [
            (int(thread), name, 0 if value == "(nil)" else int(value, 16))
            for thread, name, value in printed
        ]
    )


def follow(events: list[tuple[int, str, int]]) -> Ring:
    """The ring from (thread, "copy", "commit", "wait" or "read", address or number) in order.

    The copies of all threads say which pieces of shared memory a group fills. Groups that share
    most pieces share a stage. The waits and reads are those of thread 0.
    """
    pieces: dict[int, set[int]] = {}  # of each group
    current: dict[int, int] = {}  # the group that each thread fills
    for thread, name, value in events:
        group = current.setdefault(thread, 0)
        if name == "copy":
            pieces.setdefault(group, set()).add(value // PIECE)
        current[thread] = group + (name == "commit")
    groups = sorted(pieces)  # of each tile
    tiles = {group: tile for tile, group in enumerate(groups)}
    stage = _stages([pieces[group] for group in groups])

    steps, group, started = [Interval()], 0, list[int]()
    for thread, name, value in events:
        step = steps[-1]
        if thread:
            continue
        if name == "copy" and tiles[group] not in started:
            step.copied.append(tiles[group])
            started.append(tiles[group])
        group += name == "commit"
        if name == "wait":
            done = [tile for known, tile in tiles.items() if known < group - value]
            steps.append(Interval(value, max([step.arrived, *done])))
        if name == "read":
            holds = [tile for tile in started if value // PIECE in pieces[groups[tile]]]
            if holds:
                step.read += [holds[-1]] * (holds[-1] not in step.read)
                flight = sum(tile > step.arrived for tile in started)
                step.flight = flight if step.flight is None else min(flight, step.flight)
    if not stage or len(steps) == 1:
        raise LadderError("block 0 copies no tile with cp.async and waits for it: there is no ring")
    return Ring(tuple(stage), tuple(steps))


def _stages(pieces: list[set[int]]) -> list[int]:
    """The stage of each group: that of the later group with which it shares most pieces. The first
    group may bring something more, which lies in another stage until that is filled."""
    known: list[set[int]] = []
    stages = []
    for own in reversed(pieces):
        shared = [len(stage & own) for stage in known]
        if not any(shared):
            known.append(set())
            shared.append(1)
        best = shared.index(max(shared))
        known[best] |= own
        stages.append(best)
    order = list(dict.fromkeys(reversed(stages)))  # numbered as they are filled first
    return [order.index(stage) for stage in reversed(stages)]


def draw(op: str, rung: str, *, shape: str) -> Drawing:
    """A row for each stage, a column for each step."""
    chosen = find(op).rung(rung)
    seen = record(find(op), chosen, "bfloat16", parse_shape(find(op).op, shape))
    return of_ring(f"{op}, {chosen.name}", seen)


FILLS = {  # what a stage is in a step: the words of the legend, and the colour
    "copy": ("copy starts", "orange"),
    "flight": ("copy in flight", "pale orange"),
    "arrived": ("has arrived", "pale green"),
    "read": ("is read", "blue"),
    "early": ("read before its wait", "red"),
}


def of_ring(title: str, seen: Ring) -> Drawing:
    """The picture of a ring."""
    plural = "s" if seen.stages > 1 else ""
    drawing = Drawing(f"{title}: {seen.stages} stage{plural}, step by step", _describe(seen))
    x0, y = MARGIN + 62.0, drawing.top + 6
    wide, high = (WIDTH - MARGIN - x0) / len(seen.steps), 24.0
    for number in range(len(seen.steps)):
        name = str(number - 1) if number else "start"
        drawing.text(x0 + (number + 0.5) * wide, y, name, 11, "middle", "muted")
    drawing.text(x0 - 8, y, "step", 11, "end", "muted")
    y += 8
    for stage in range(seen.stages):
        drawing.text(x0 - 8, y + 16, f"stage {stage}", 12, "end")
        for number, states in enumerate(states_of(seen, stage)):
            x = x0 + number * wide
            drawing.box(x, y, wide, high, "panel", "paper", 1.5)
            for place, (state, tile) in enumerate(states):
                part, (words, fill) = wide / len(states), FILLS[state]
                left = x + place * part
                where = f"step {number - 1}, stage {stage}: tile {tile} {words}"
                drawing.box(left, y, part, high, fill, "paper", 1.5, where)
                ink = "paper" if fill in ("orange", "blue", "red") else "ink"
                drawing.text(left + part / 2, y + 16, str(tile), 11, "middle", ink)
        y += high
    drawing.text(x0 - 8, y + 15, "waits for", 11, "end", "muted")
    before = -1
    for number, step in enumerate(seen.steps):
        text = str(step.arrived) if step.arrived > before else "–"
        drawing.text(x0 + (number + 0.5) * wide, y + 15, text, 11, "middle", "muted")
        before = step.arrived
    y += 42
    shown = {
        state for i in range(seen.stages) for states in states_of(seen, i) for state, _ in states
    }
    y = drawing.legend(y, [FILLS[state] for state in FILLS if state in shown])
    drawing.paragraph(
        MARGIN, y + 22, "Number = tile. A step begins with a wait for the tile that is named below "
        f"it. {_describe(seen)}", size=12, colour="muted",
    )  # fmt: skip
    return drawing


def states_of(seen: Ring, stage: int) -> list[list[tuple[str, int]]]:
    """For each step, the states of a stage (keys of FILLS) with its tile, in order of time.

    A stage is empty again after the last step that reads its tile.
    """
    held, by_step = -1, []
    for number, step in enumerate(seen.steps):
        states = [
            ("read" if tile <= step.arrived else "early", tile)
            for tile in step.read
            if seen.stage[tile] == stage
        ]
        new = [tile for tile in step.copied if seen.stage[tile] == stage]
        states += [("copy", tile) for tile in new]
        if not states and any(held in later.read for later in seen.steps[number:]):
            states = [("arrived" if held <= step.arrived else "flight", held)]
        held = new[-1] if new else held
        by_step.append(states)
    return by_step


def _describe(seen: Ring) -> str:
    """In words: how far ahead copies run, and what is wrong."""
    most = max(step.flight or 0 for step in seen.steps)
    waits = sorted({step.pending for step in seen.steps if step.pending is not None})
    allowed = " or ".join(map(str, waits))
    tiles = len({tile for step in seen.steps for tile in step.read})
    flight = ("no other is", "another one is", f"up to {most} others are")[min(most, 2)]
    text = (
        f"Thread 0 reads {tiles} tiles. It waits until at most {allowed} groups of copies are in "
        f"flight. While it reads a tile, {flight} in flight."
    )
    for step, tile in seen.early()[:1]:
        text += f" In step {step - 1} it reads tile {tile}, which no wait has covered yet."
    return text
