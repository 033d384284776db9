"""The backward pass of attention in tiles: who loads what in which order, and where it adds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.dims import Dims
from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.ladder import find
from ladder.core.emulator.report import Access
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.palette import distinct, text_on
from ladder.core.show.pictures.runs import counted, default_dtype, emulated_plan
from ladder.core.show.source_code import parse_shape

ACROSS = 2  # panels side by side
GAP = 20  # between them
SIDE = 46  # beside the map: for names of tiles, and for dq
QUERY, KEY = ("q", "dout", "dq"), ("k", "v", "dk", "dv")  # what belongs to a query, and to a key
PARTS = {"qkv": "qkv", "dqkv": ("dq", "dk", "dv")}


@dataclass(frozen=True)
class Pass:
    """What the blocks of one kernel do, for one head.

    block     for each tile of queries (rows) and keys (columns): the block that has it, or -1
    step      of that block, counted from 0
    keeps     what a block loads once: ("k", "v"); walks: what it loads anew in every step
    stored    what it writes once: ("dk", "dv")
    added     what it adds to atomically: for each tile of it, how many blocks do: {"dq": (4, 3)}
    matrices  (T, T) matrices in memory that it writes or reads: {"probs": "write"}
    """

    kernel: str
    block: np.ndarray
    step: np.ndarray
    keeps: tuple[str, ...]
    walks: tuple[str, ...]
    stored: tuple[str, ...]
    added: dict[str, tuple[int, ...]]
    matrices: dict[str, str]

    @property
    def products(self) -> tuple[str, ...]:
        """Of a tile: the scores need q and k, dprobs needs dout and v, and each gradient is one."""
        loads = {*self.keeps, *self.walks}
        again = [("scores", {"q", "k"}), ("dprobs", {"dout", "v"})]
        recomputed = [name for name, needs in again if needs <= loads]
        return (*recomputed, *self.stored, *self.added)


@dataclass
class _Seen:
    """The tiles that one block touches, each in the order of its first access."""

    loads: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    stores: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    adds: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def tiles(self, names: Sequence[str]) -> list[int]:
        """Those of the queries, or of the keys."""
        every = [self.loads, self.stores, self.adds]
        return list(dict.fromkeys(i for seen in every for name in names for i in seen[name]))


def passes(op: str, rung: str, dtype: str, shape: str, tile: int) -> list[Pass]:
    """From the accesses that the emulator records, of the first head. Raises LadderError where a
    block has several tiles of queries and several of keys: then `tile` is not its size."""
    dims = parse_shape(find(op).op, shape)
    plan = emulated_plan(find(op).rung(rung), dtype, dims)
    square = [buffer.name for buffer in plan.scratch if buffer.shape[-2:] == (dims["T"],) * 2]
    seen: dict[str, dict[tuple[int, int, int], _Seen]] = {}
    matrices: dict[str, dict[str, str]] = defaultdict(dict)
    for access in counted(op, rung, dtype, shape).accesses:
        if access.buffer in square:
            matrices[access.kernel].setdefault(access.buffer, access.kind)
        name, token = _what(access, dims, DTYPES[dtype].itemsize)
        if name:
            blocks = seen.setdefault(access.kernel, {})
            block = blocks.setdefault(access.block, _Seen())
            kinds = {"read": block.loads, "write": block.stores, "atomic": block.adds}
            if token // tile not in kinds[access.kind][name]:
                kinds[access.kind][name].append(token // tile)
    count = -(-dims["T"] // tile)
    found = []
    for kernel, blocks in seen.items():
        if any(block.tiles(QUERY) and block.tiles(KEY) for block in blocks.values()):
            found.append(_pass(kernel, list(blocks.values()), count, matrices[kernel]))
    if not found:
        raise LadderError(f"picture flow: {op} {rung} loads no tiles of q, k, v and dout")
    return found


def _what(access: Access, dims: Dims, size: int) -> tuple[str, int]:
    """Which matrix of the first head a request touches first, and which token; "" for others."""
    T, C, NH = dims["T"], dims["C"], dims["NH"]
    if access.buffer not in ("qkv", "dqkv", "dout"):
        return "", 0
    width = C if access.buffer == "dout" else 3 * C
    token, channel = divmod(access.offsets[0] // size, width)
    if token >= T or channel % C >= C // NH:
        return "", 0
    return PARTS[access.buffer][channel // C] if width > C else "dout", token


def _pass(kernel: str, blocks: list[_Seen], count: int, matrices: dict[str, str]) -> Pass:
    owner, step = (np.full((count, count), -1) for _ in range(2))
    adders: dict[str, list[int]] = {}
    walks: set[str] = set()
    for number, block in enumerate(blocks):
        rows, columns = block.tiles(QUERY), block.tiles(KEY)
        if len(rows) > 1 and len(columns) > 1:
            raise LadderError(
                f"picture flow: a block of {kernel} has {len(rows)} tiles of queries and "
                f"{len(columns)} of keys; tile= must be the size of its own"
            )
        for i, (row, column) in enumerate((r, c) for r in rows for c in columns):
            owner[row, column], step[row, column] = number, i
        walks |= {name for name, tiles in block.loads.items() if len(tiles) > 1}
        for name, tiles in block.adds.items():
            for at in tiles:
                adders.setdefault(name, [0] * count)[at] += 1
    loads = [name for name in ("q", "dout", "k", "v") if any(block.loads[name] for block in blocks)]
    stored = [name for name in ("dq", "dk", "dv") if any(block.stores[name] for block in blocks)]
    return Pass(
        kernel, owner, step, tuple(n for n in loads if n not in walks),
        tuple(n for n in loads if n in walks), tuple(stored),
        {name: tuple(times) for name, times in adders.items()}, matrices,
    )  # fmt: skip


def draw(op: str, rung: str, *, shape: str, tile: str = "", dtype: str = "") -> Drawing:
    """A map of the tiles of scores for each kernel; beside it, what is loaded and what is summed.

    tile  rows of a tile; by default the rung's constant TILE
    """
    dtype = dtype or default_dtype(op, rung)
    dims, chosen = parse_shape(find(op).op, shape), find(op).rung(rung)
    size = int(tile or emulated_plan(chosen, dtype, dims).constants.get("TILE", 64))
    found = passes(op, rung, dtype, shape, size)
    total = sum(len(each.products) for each in found)
    drawing = Drawing(
        f"{op}, {chosen.name}: which block loads which tile, and where the gradients are summed",
        f"T = {dims['T']}, tiles of {size} tokens, one head. {total} products for each tile of "
        f"scores. {' '.join(map(_sentence, found))}",
    )
    y = drawing.paragraph(
        MARGIN, drawing.top, "Rows: tiles of queries; columns: tiles of keys. Colour: the block; "
        "number: its step.", size=12, colour="muted",
    ) + 4  # fmt: skip
    across = min(len(found), ACROSS)
    wide = (WIDTH - 2 * MARGIN - (across - 1) * GAP) / across
    for place, each in enumerate(found):
        y = drawing.bottom + 24 if place and place % across == 0 else y
        _panel(drawing, MARGIN + place % across * (wide + GAP), y, wide, each)
    y = drawing.bottom + 24
    for each in found:
        y = drawing.paragraph(MARGIN, y, _sentence(each), size=12) + 4
    return drawing


def _panel(drawing: Drawing, x: float, y: float, wide: float, each: Pass) -> None:
    """One kernel: what it loads on the left and above, what it sums on the right and below."""
    count, loads = len(each.block), (*each.keeps, *each.walks)
    cell = min(54.0, (wide - 2 * SIDE) / count)
    left, top = x + SIDE, y + 50
    blocks = each.block.max() + 1
    drawing.text(x, y + 10, _short(each), bold=True)
    drawing.text(x, y + 26, f"{_times(len(each.products), 'product')} a tile", 11, colour="muted")
    sides = ([n for n in QUERY if n in loads], [n for n in KEY if n in loads])
    for i in range(count):
        middle = (i + 0.5) * cell
        drawing.text(left - 6, top + middle + 4, " ".join(sides[0]), 11, "end", mono=True)
        drawing.text(left + middle, top - 6, " ".join(sides[1]), 11, "middle", mono=True)
    drawing.box(left, top, count * cell, count * cell, "panel", "line")
    for row, column in np.ndindex(count, count):
        number = int(each.block[row, column])
        if number >= 0:
            at = left + column * cell, top + row * cell
            fill = distinct(number, blocks)
            drawing.box(*at, cell, cell, fill, "paper", 1.5)
            text = str(each.step[row, column] + 1)
            x, y = at[0] + cell / 2, at[1] + cell / 2 + 5
            drawing.text(x, y, text, 13, "middle", text_on(fill))
    for i in range(count):
        _sums(drawing, each, i, (left + count * cell + 6, top + i * cell), (SIDE - 8, cell), QUERY)
        _sums(drawing, each, i, (left + i * cell, top + count * cell + 6), (cell, 34), KEY)


def _sums(
    drawing: Drawing, each: Pass, i: int, at: tuple[float, float], size: tuple[float, float],
    names: Sequence[str],
) -> None:  # fmt: skip
    """The gradients of tile `i`: in the colour of the block that sums them in registers, or how
    many blocks add to them in memory."""
    stored = [name for name in names if name in each.stored]
    added = [name for name in names if name in each.added]
    if not stored and not added:
        return
    own = each.block[i] if names is QUERY else each.block[:, i]
    fill = distinct(int(own.max()), int(each.block.max()) + 1) if stored else "pale red"
    ink = text_on(fill) if stored else "ink"
    drawing.box(*at, *size, fill, "paper" if stored else "red", 1.5)
    lines = [
        *stored,
        *(text for name in added for text in (name, _times(each.added[name][i], "add"))),
    ]
    for number, text in enumerate(lines):
        y = at[1] + size[1] / 2 + 4 + 13 * (number - (len(lines) - 1) / 2)
        drawing.text(at[0] + size[0] / 2, y, text, 11, "middle", ink)


def _short(each: Pass) -> str:
    return each.kernel.removeprefix("attention_backward").lstrip("_") or "one kernel"


def _sentence(each: Pass) -> str:
    """What a kernel does, in words."""
    does = [f"keeps {_list(each.keeps)}"] if each.keeps else []
    if each.walks:
        along = "down the queries" if {"q", "dout"} & {*each.walks} else "along the keys"
        does.append(f"walks {along} and loads {_list(each.walks)} in each step")
    for kind, verb in (("write", "stores"), ("read", "reads")):
        names = [name for name, how in each.matrices.items() if how == kind]
        does += [f"{verb} {_list(names)} in memory"] if names else []
    if each.stored:
        does.append(f"sums {_list(each.stored)} in registers, and stores the sums once")
    for name, times in each.added.items():
        does.append(f"adds to {name} by atomics, up to {max(times)} blocks to the same tile")
    return f"{_short(each)}: a block {'; '.join(does)}. Products: {_list(each.products)}."


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _list(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])
