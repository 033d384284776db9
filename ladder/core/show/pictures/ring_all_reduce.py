"""A ring all-reduce: which share each rank sends in each step, and how many ranks it sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ladder.core.common.errors import LadderError
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing

Holds = Sequence[Sequence[frozenset[int]]]  # [rank][share]: whose contributions it sums


@dataclass(frozen=True)
class Step:
    """One step of the ring.

    sent   of each rank, the share that it sends to the next one
    adds   whether the receiver adds it to its own (reduce-scatter) or takes it (all-gather)
    holds  what every rank has afterwards
    """

    sent: tuple[int, ...]
    adds: bool
    holds: Holds


def steps(ranks: int) -> list[Step]:
    """The 2 (R - 1) steps of R ranks (Patarasuk and Yuan 2009, Bandwidth optimal all-reduce).

    In step s of the first half rank r sends share r - s, in the second half share r + 1 - s.
    """
    if not 2 <= ranks <= 6:
        raise LadderError(f"picture ring-all-reduce: {ranks} ranks; choose 2 to 6")
    holds = [[frozenset({rank})] * ranks for rank in range(ranks)]
    found = []
    for number in range(2 * (ranks - 1)):
        adds = number < ranks - 1
        sent = tuple(
            (rank - number if adds else rank + 1 - (number - ranks + 1)) % ranks
            for rank in range(ranks)
        )
        before = [list(shares) for shares in holds]
        for rank, share in enumerate(sent):
            receiver = (rank + 1) % ranks
            arrived = before[rank][share]
            kept = before[receiver][share]
            holds[receiver][share] = kept | arrived if adds else arrived
        found.append(Step(sent, adds, [list(shares) for shares in holds]))
    return found


def draw(*, ranks: str = "4") -> Drawing:
    """One row per step, one group of shares per rank."""
    count = int(ranks)
    course = steps(count)
    drawing = Drawing(
        f"Ring all-reduce of {count} ranks",
        f"Each rank's vector is cut into {count} shares. A box is one share; its number says how "
        f"many ranks' values it sums. In every step each rank sends one share (framed) to the next "
        f"rank, the last one to the first. After {count - 1} steps every rank has the whole sum of "
        f"one share: that was a reduce-scatter. After {count - 1} more every rank has all of them: "
        f"an all-gather. Each rank has sent {2 * (count - 1)}/{count} of the vector.",
    )
    y = drawing.paragraph(MARGIN, drawing.top, drawing.description, size=12) + 10
    left, gap, high = MARGIN + 92.0, 14.0, 24.0
    wide = (WIDTH - MARGIN - left - gap * (count - 1)) / count
    cell = wide / count
    for rank in range(count):
        drawing.text(left + rank * (wide + gap) + wide / 2, y, f"rank {rank}", 12, "middle")
    y += 8
    start: Holds = [[frozenset({rank})] * count for rank in range(count)]
    held = [start, *(step.holds for step in course)]
    for number, holds in enumerate(held):
        name = "start" if number == 0 else f"after step {number}"
        drawing.text(MARGIN, y + 16, name, 12, colour="muted")
        for rank in range(count):
            x = left + rank * (wide + gap)
            for share, ranks_in in enumerate(holds[rank]):
                fill = "pale green" if len(ranks_in) == count else "pale blue"
                fill = "panel" if len(ranks_in) == 1 else fill
                at = x + share * cell
                title = (
                    f"share {share} of rank {rank}: ranks {', '.join(map(str, sorted(ranks_in)))}"
                )
                drawing.box(at, y, cell, high, fill, "paper", 1.5, title)
                drawing.text(at + cell / 2, y + 16, str(len(ranks_in)), 12, "middle")
            if number < len(course):
                share = course[number].sent[rank]
                at = x + share * cell
                drawing.box(at + 1, y + 1, cell - 2, 2, "orange")
                drawing.box(at + 1, y + high - 3, cell - 2, 2, "orange")
                drawing.box(at + 1, y + 1, 2, high - 2, "orange")
                drawing.box(at + cell - 3, y + 1, 2, high - 2, "orange")
        y += high + 8
        if number == count - 1:
            drawing.line([(MARGIN, y - 4), (WIDTH - MARGIN, y - 4)], "line", 1, dashed=True)
    y += 10
    x = float(MARGIN)
    for fill, text in (
        ("panel", "own values"),
        ("pale blue", "sum of some ranks"),
        ("pale green", "sum of all ranks"),
        ("orange", "is sent next"),
    ):
        drawing.box(x, y, 13, 13, fill, "line")
        drawing.text(x + 19, y + 11, text, 12)
        x += 34 + 6.6 * len(text)
    return drawing
