"""Shared memory, lane by lane: the bank that each lane accesses, and the wavefronts it takes."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.report import Access, Report
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing, distinct, text_on
from ladder.core.show.source_code import parse_shape
from ladder.core.show.trace import ALL, default_dtype, is_of, trace

BANKS = 32  # of shared memory, each 4 bytes wide


@dataclass(frozen=True)
class Wavefronts:
    """How one request of a warp is served.

    passes  for each wavefront and each bank: the lanes that get their word, () where none do
    ideal   the least number of wavefronts that could carry as many bytes
    """

    passes: tuple[tuple[tuple[int, ...], ...], ...]
    ideal: int


def wavefronts(access: Access) -> Wavefronts:
    """In each wavefront every bank serves one word, to all lanes that asked for it. Lanes that ask
    for 8 or 16 bytes each are served in groups of 16 or 8, since a wavefront has 128 bytes; two
    groups together where lanes read the same in pairs.

    The emulator counts by the same rule, and says where it comes from
    (ladder/core/emulator/runtime/counts.cpp).
    """
    together = 32 if access.bytes <= 4 else 16 if access.bytes == 8 else 8
    offset_of = dict(zip(access.lanes, access.offsets, strict=True))
    if (
        together < 32
        and access.kind == "read"
        and any(
            all(offset_of.get(lane ^ bit, offset) == offset for lane, offset in offset_of.items())
            for bit in (1, 2)
        )
    ):
        together *= 2
    passes: list[tuple[tuple[int, ...], ...]] = []
    ideal = 0
    for first in range(0, 64, together):
        words: list[dict[int, list[int]]] = [{} for _ in range(BANKS)]
        for lane, offset in zip(access.lanes, access.offsets, strict=True):
            if first <= lane < first + together:
                for word in range(offset // 4, (offset + access.bytes - 1) // 4 + 1):
                    words[word % BANKS].setdefault(word, []).append(lane)
        count = max(map(len, words))
        ideal += count > 0
        for number in range(count):
            served = [list(bank.values()) for bank in words]
            passes.append(
                tuple(tuple(bank[number]) if number < len(bank) else () for bank in served)
            )
    return Wavefronts(tuple(passes), ideal)


def conflicts(access: Access) -> bool:
    """Whether a request to shared memory takes more wavefronts than its bytes need."""
    served = wavefronts(access)
    return len(served.passes) > served.ideal


def requests(report: Report, rung: Rung, line: str, array: str = "") -> list[Access]:
    """Those to shared memory, to one array or to all, of the rung's lines that contain a text."""
    source = rung.source.splitlines()
    return [
        access
        for access in report.accesses
        if access.space == "shared" and is_of(access, rung) and array in ("", access.buffer)
        if line in source[access.line - 1]
    ]


def draw(
    op: str, rung: str, *, line: str, array: str = "", shape: str = "", title: str = ""
) -> Drawing:
    """The first request of a warp: a column for each bank, a row for each wavefront.

    line   text of the source line, "a[y][k]"
    array  where the line has several: "a"
    title  what the picture shows, where the text of the line does not say it
    """
    ladder, chosen = find(op), find(op).rung(rung)
    dims = parse_shape(ladder.op, shape)
    report = trace(ladder, chosen, default_dtype(chosen), dims, keep=ALL)
    accesses = requests(report, chosen, line, array)
    if not accesses:
        raise LadderError(f"{op} {rung} asks nothing of shared memory in lines with {line!r}")
    return of_request(f"{op}, {chosen.name}: {title or line}", accesses[0])


def of_request(title: str, access: Access) -> Drawing:
    """The picture of one request."""
    served = wavefronts(access)
    count = len(served.passes)
    plural = "s" if count > 1 else ""
    text = f"{count} wavefront{plural} for {len(access.lanes)} lanes of {access.bytes} bytes"
    drawing = Drawing(
        title,
        f"The lanes of warp {access.warp} {access.kind} array {access.buffer} in shared memory: "
        f"{text}; {served.ideal} would be the least. {_worst(served.passes)}",
    )
    y = drawing.top
    drawing.text(MARGIN, y, f"{access.kind} {access.buffer}: {text} (least: {served.ideal})")
    y += 20
    drawing.text(MARGIN, y, "number = lane; column = bank; row = wavefront", 12, colour="muted")
    x0, cell = MARGIN + 24, (WIDTH - 2 * MARGIN - 24) / BANKS
    y += 20
    for bank in (*range(0, BANKS, 4), BANKS - 1):
        drawing.text(x0 + (bank + 0.5) * cell, y, str(bank), 10, "middle", "muted")
    y += 5
    for number, banks in enumerate(served.passes):
        drawing.text(x0 - 6, y + 14, str(number + 1), 11, "end", "muted")
        for lanes, group in itertools.groupby(range(BANKS), key=lambda bank: banks[bank]):
            own = list(group)
            x, wide = x0 + own[0] * cell, len(own) * cell
            if not lanes:
                for bank in own:
                    drawing.box(x0 + bank * cell, y, cell, 20, "paper", "line", 0.5)
                continue
            fill = distinct(lanes[0], 32)
            names = ", ".join(map(str, lanes))
            where = f"bank {own[0]}" if len(own) == 1 else f"banks {own[0]} to {own[-1]}"
            drawing.box(x, y, wide, 20, fill, "line", 0.5, f"{where}: lane {names}")
            drawing.text(x + wide / 2, y + 14, _short(lanes, len(own)), 9, "middle", text_on(fill))
        y += 20
    return drawing


def _short(lanes: Sequence[int], banks: int) -> str:
    """The lanes that share a word; only the first of them where there is no room for more."""
    if len(lanes) == 1:
        return str(lanes[0])
    text = ", ".join(map(str, lanes))
    if len(lanes) > 2 and lanes[-1] - lanes[0] == len(lanes) - 1:
        text = f"{lanes[0]} to {lanes[-1]}"
    return text if len(text) <= 3 * banks else f"{lanes[0]}+"


def _worst(passes: Sequence[Sequence[tuple[int, ...]]]) -> str:
    """How many words one bank has to serve, and how many lanes share a word."""
    most = max(sum(bool(banks[bank]) for banks in passes) for bank in range(BANKS))
    share = max(len(lanes) for banks in passes for lanes in banks)
    text = f"The busiest bank serves {most} word{'s' if most > 1 else ''}."
    return text + (f" Up to {share} lanes share a word (a broadcast)." if share > 1 else "")
