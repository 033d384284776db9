"""Who asks for the copies of tiles: every thread for pieces of 16 bytes with `cp.async`, or one
thread for whole tiles with TMA.

An instrumented copy of the kernel runs in the emulator. The threads of block 0 print each copy that
they ask for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from typing import NamedTuple

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.dims import Dims
from ladder.core.contract.ladder import find
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import Emulated, KernelError
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.runs import alone, emulated_plan
from ladder.core.show.source_code import parse_shape
from ladder.core.show.trace import run_on

PIECE = 16  # bytes that one cp.async copies
WARP = 32
RECORDER = r"""
#define RECORD(event, bytes)                                                        \
    (blockIdx.x + blockIdx.y + blockIdx.z == 0                                      \
         ? (void)emulator::emulator_print("@ %d %s %d\n", (int)threadIdx.x, event,  \
                                          (int)(bytes))                             \
         : (void)0)
#define cp_async_16(to, from) (RECORD("piece", 16), cp_async_16(to, from))
#define cp_async_16_or_zero(to, from, copy) \
    (RECORD("piece", 16), cp_async_16_or_zero(to, from, copy))
#define mbarrier_expect(b, bytes) (RECORD("expect", bytes), mbarrier_expect(b, bytes))
#define tma_load_2d(tile, map, b, x, y) (RECORD("tile", 0), tma_load_2d(tile, map, b, x, y))
"""


class Copies(NamedTuple):
    """What block 0 of a kernel asks for from its start to its end.

    pieces      of each thread: how many times 16 bytes, with cp.async
    tiles       of each thread: how many tiles, with TMA
    tile_bytes  of all of these tiles together
    """

    pieces: np.ndarray
    tiles: np.ndarray
    tile_bytes: int

    @property
    def bytes(self) -> int:
        return int(self.pieces.sum()) * PIECE + self.tile_bytes


def record(op: str, rung: Rung, dtype: str, dims: Dims, kernel: str) -> Copies:
    """The copies of one kernel. Raises LadderError where it makes none of these two kinds."""
    rung = alone(rung, kernel)
    threads = int(np.prod(emulated_plan(rung, dtype, dims).launches[0].block))
    lines = rung.source.splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("#include"))
    source = "\n".join([*lines[: last + 1], RECORDER, *lines[last + 1 :], ""])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(KernelError):
        run_on(Emulated(), find(op), dataclasses.replace(rung, source=source), dtype, dims)
    pieces, tiles, expected = np.zeros(threads, int), np.zeros(threads, int), 0
    for thread, name, value in re.findall(r"^@ (\d+) (\w+) (\d+)$", printed.getvalue(), re.M):
        pieces[int(thread)] += name == "piece"
        tiles[int(thread)] += name == "tile"
        expected += int(value) * (name == "expect")
    if not pieces.any() and not tiles.any():
        raise LadderError(f"{rung.name} {kernel} copies nothing with cp.async or TMA")
    return Copies(pieces, tiles, expected)


def draw(op: str, *rungs: str, shape: str, dtype: str = "bfloat16", kernel: str = "") -> Drawing:
    """The threads of a block, a panel for each rung, with the number of copies that each asks for.

    kernel  by default the only one
    """
    dims = parse_shape(find(op).op, shape)
    chosen = [find(op).rung(rung) for rung in rungs]
    seen = [record(op, rung, dtype, dims, kernel) for rung in chosen]
    said = " ".join(f"{r.name}: {_sentence(s)}" for r, s in zip(chosen, seen, strict=True))
    where = f"{op}, {kernel}" if kernel else op
    drawing = Drawing(
        f"{where}: who asks for the copies",
        f"Block 0, from its start to its end, {shape}, {dtype}. {said}",
    )
    y = drawing.top
    for rung, copies in zip(chosen, seen, strict=True):
        y = _threads(drawing, y, rung.name, copies) + 22
    for rung, copies in zip(chosen, seen, strict=True):
        y = drawing.paragraph(MARGIN, y, f"{rung.name}: {_sentence(copies)}", size=12) + 4
    return drawing


def _threads(drawing: Drawing, y: float, name: str, copies: Copies) -> float:
    """A cell for each thread, a row for each warp; where they end."""
    left = MARGIN + 48.0
    cell = (WIDTH - MARGIN - left) / WARP
    drawing.text(MARGIN, y + 2, name, 12, bold=True)
    y += 10
    for thread, (pieces, tiles) in enumerate(zip(copies.pieces, copies.tiles, strict=True)):
        warp, lane = divmod(thread, WARP)
        x, top = left + lane * cell, y + warp * 18
        if lane == 0:
            drawing.text(left - 6, top + 13, f"warp {warp}", 11, "end", "muted")
        fill = "orange" if tiles else "pale blue" if pieces else "panel"
        title = f"thread {thread}: {pieces} pieces, {tiles} tiles"
        drawing.box(x, top, cell, 18, fill, "paper", 1, title)
        if tiles or pieces:
            ink = "paper" if tiles else "ink"
            drawing.text(x + cell / 2, top + 13, str(tiles or pieces), 9, "middle", ink)
    return drawing.bottom


def _sentence(copies: Copies) -> str:
    """What is copied, in words."""
    parts = []
    if copies.tiles.any():
        each = copies.tile_bytes // int(copies.tiles.sum())
        who = int((copies.tiles > 0).sum())
        parts.append(
            f"{_count(who, 'thread')} {'asks' if who == 1 else 'ask'} TMA for "
            f"{copies.tiles.sum()} tiles of {each:,} bytes (orange)"
        )
    if copies.pieces.any():
        who = int((copies.pieces > 0).sum())
        parts.append(
            f"{_count(who, 'thread')} copy {copies.pieces.sum():,} times {PIECE} bytes with "
            "cp.async (blue)"
        )
    requests = int(copies.tiles.sum() + copies.pieces.sum())
    return f"{'; '.join(parts)}: {requests:,} requests for {copies.bytes:,} bytes."


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"
