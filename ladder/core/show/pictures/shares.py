"""Stream-K: which steps of which tile each block has, so that all finish nearly together."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.palette import distinct, text_on
from ladder.core.show.pictures.places import SMS, plan_on_gpu
from ladder.core.show.source_code import parse_shape

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
    """A column for each block: its steps, coloured by tile, with the tile's number if it fits."""
    found = parts(op, rung, dtype, shape, int(sms))
    work = [sum(part.last - part.first for part in own) for own in found]
    holders = Counter(part.tile for own in found for part in own)
    steps = sum(work) // len(holders)
    whole = -(-len(holders) // len(found)) * steps
    cut = sum(count > 1 for count in holders.values())
    drawing = Drawing(
        f"{op}, {find(op).rung(rung).name}: {len(found)} blocks share {len(holders)} tiles",
        f"{shape}, {len(found)} SMs: {len(holders)} tiles of {steps} steps each. {cut} of them are "
        f"cut, into {max(holders.values())} parts at most. The busiest block has {max(work)} steps "
        f"and the least busy one {min(work)}; with whole tiles only, the busiest would have "
        f"{whole}. A column is a block, a colour is a tile.",
    )
    y = drawing.paragraph(MARGIN, drawing.top, drawing.description, size=12) + 4
    x0, wide = MARGIN + 34.0, (WIDTH - 2 * MARGIN - 34) / len(found)
    scale = HIGH / max(work)
    for block, own in enumerate(found):
        done = 0
        for part in own:
            count = part.last - part.first
            fill = distinct(part.tile * 7 % len(holders), len(holders))
            box = (x0 + block * wide, y + done * scale, wide, count * scale)
            title = f"block {block}: steps {part.first} to {part.last - 1} of tile {part.tile}"
            drawing.box(*box, fill, "paper", min(2.0, wide / 20), title)
            _label(drawing, part, *box, text_on(fill))
            done += count
    drawing.text(x0 - 6, y + 10, "0", 10, "end", "muted")
    drawing.text(x0 - 6, y + HIGH, str(max(work)), 10, "end", "muted")
    drawing.text(x0 - 6, y + HIGH / 2, "steps", 10, "end", "muted")
    drawing.text(x0, y + HIGH + 14, "block 0", 10, colour="muted")
    drawing.text(WIDTH - MARGIN, y + HIGH + 14, f"block {len(found) - 1}", 10, "end", "muted")
    return drawing


def _label(
    drawing: Drawing, part: Part, x: float, y: float, wide: float, high: float, colour: str
) -> None:
    """The tile's number and the steps, where the part has room for them."""
    lines = (f"tile {part.tile}", f"{part.first}–{part.last - 1}")
    if wide < max(len(line) for line in lines) * 6 or high < 14:
        return
    for i, line in enumerate(lines[: int(high // 14)]):
        drawing.text(x + wide / 2, y + 13 + 14 * i, line, 10, "middle", colour, bold=i == 0)
