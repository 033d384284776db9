"""Stream-K: which steps of which tile each block has, so that all finish nearly together."""

from __future__ import annotations

from typing import NamedTuple

from ladder.common.errors import LadderError
from ladder.contract.ladder import find
from ladder.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.show.pictures.palette import distinct
from ladder.show.pictures.places import SMS, plan_on_gpu
from ladder.show.source_code import parse_shape

NEEDED = ("TILES", "STEPS", "WAVES", "REST", "SHARE", "LINE", "FULL", "LEFT")
HIGH = 240.0


class Part(NamedTuple):
    """Steps `first` to `last` (not included) of a tile's sum."""

    tile: int
    first: int
    last: int


def parts(op: str, rung: str, dtype: str, shape: str, sms: int) -> list[list[Part]]:
    """What each block of a stream-K rung does, in order, from the constants of its launch plan.

    A block has whole tiles first. The tiles that are left are shared: FULL blocks take SHARE steps
    each of a tile, and what remains of all of them, LEFT steps of each, is one line of which a
    block takes LINE steps (ladder/matmul/tiles.py, stream_k).
    """
    chosen = find(op).rung(rung)
    constants = plan_on_gpu(chosen, dtype, parse_shape(find(op).op, shape), sms).constants
    if missing := [name for name in NEEDED if name not in constants]:
        raise LadderError(f"picture stream-k: {op} {rung} defines no {', '.join(missing)}")
    tiles, steps, waves, rest, share, line, full, left = (constants[name] for name in NEEDED)
    found: list[list[Part]] = []
    for block in range(sms):
        own = [Part(wave * sms + block, 0, steps) for wave in range(waves)]
        if block < full * rest:
            first = block // rest * share
            own.append(Part(tiles - rest + block % rest, first, first + share))
        elif left:
            begin = (block - full * rest) * line
            end = min(begin + line, rest * left)
            for number in range(begin // left, -(-end // left)):
                low, high = max(begin, number * left), min(end, (number + 1) * left)
                skip = full * share - number * left
                own.append(Part(tiles - rest + number, low + skip, high + skip))
        found.append(own)
    return found


def draw(
    op: str, rung: str, *, shape: str, dtype: str = "bfloat16", sms: str = str(SMS)
) -> Drawing:
    """A column for each block: its steps, coloured by tile."""
    found = parts(op, rung, dtype, shape, int(sms))
    work = [sum(part.last - part.first for part in own) for own in found]
    tiles = {part.tile for own in found for part in own}
    steps = sum(work) // len(tiles)
    whole = -(-len(tiles) // len(found)) * steps
    drawing = Drawing(
        f"{op}, {find(op).rung(rung).name}: {len(tiles)} tiles shared by {len(found)} blocks",
        f"{shape}: {len(tiles)} tiles of {steps} steps each. The busiest block has {max(work)} "
        f"steps and the least busy one {min(work)}; with whole tiles only, the busiest would have "
        f"{whole}. A colour is a tile.",
    )
    y = drawing.paragraph(MARGIN, drawing.top, drawing.description, size=12) + 4
    x0, wide = MARGIN + 34.0, (WIDTH - 2 * MARGIN - 34) / len(found)
    scale = HIGH / max(work)
    for block, own in enumerate(found):
        done = 0
        for part in own:
            count = part.last - part.first
            title = f"block {block}: steps {part.first} to {part.last - 1} of tile {part.tile}"
            fill = distinct(part.tile * 7 % len(tiles), len(tiles))
            drawing.box(
                x0 + block * wide, y + done * scale, wide, count * scale, fill, "paper", 0.4, title
            )
            done += count
    drawing.text(x0 - 6, y + 10, "0", 10, "end", "muted")
    drawing.text(x0 - 6, y + HIGH, str(max(work)), 10, "end", "muted")
    drawing.text(x0 - 6, y + HIGH / 2, "steps", 10, "end", "muted")
    drawing.text(x0, y + HIGH + 14, "block 0", 10, colour="muted")
    drawing.text(WIDTH - MARGIN, y + HIGH + 14, f"block {len(found) - 1}", 10, "end", "muted")
    return drawing
