"""Swizzles of shared memory in general: an exclusive or of two groups of address bits.

A line of shared memory is 128 bytes, 8 places of 16 bytes, in 4 banks each. So bits 4 to 6 of an
address are the place, and bits 7 and up the line. Rows of 32, 64 or 128 bytes lie one after the
other. The swizzle for rows of 16 * 2**B bytes replaces B bits of the place, from bit 4 on, by their
exclusive or with the B bits from bit 7 on.
Source: CuTe's Swizzle<B, 4, 3>; PTX ISA, "swizzling modes" of tensor maps (32B, 64B, 128B).
"""

from __future__ import annotations

from collections.abc import Callable

from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.palette import distinct, text_on

PIECE, LINE = 16, 128  # bytes of a piece and of a line
ROWS = 8  # that one 8 x 8 matrix of ldmatrix or wgmma has
BITS = 11  # of an address that are drawn
WIDE, HIGH = 26.0, 18.0  # of a place


def swizzled(address: int, row: int) -> int:
    """Where the byte at `address` is stored, if rows have `row` bytes: 32, 64 or 128."""
    return address ^ (address // LINE % (row // PIECE)) * PIECE


def plain(address: int, row: int) -> int:
    """The same without a swizzle."""
    return address


def wavefronts(place: Callable[[int, int], int], row: int, piece: int = 0) -> int:
    """To read one piece of 8 rows: how many of them lie in the same banks."""
    places = [place(r * row + piece * PIECE, row) % LINE // PIECE for r in range(ROWS)]
    return max(map(places.count, places))


def draw() -> Drawing:
    """The bits of an address, and 8 rows of 32, 64 and 128 bytes before and after the swizzle."""
    counts = {row: (wavefronts(plain, row), wavefronts(swizzled, row)) for row in (32, 64, 128)}
    took = "; ".join(
        f"rows of {row} bytes: {before} wavefronts plain, {after} swizzled"
        for row, (before, after) in counts.items()
    )
    drawing = Drawing(
        "Swizzle: where the exclusive or comes from",
        "Bits 0 to 3 of a shared-memory address are the byte in a piece of 16, bits 4 to 6 the "
        "place of the piece among the 32 banks, and bits 7 and up the line of 128 bytes. The "
        "swizzle for rows of 32, 64 or 128 bytes replaces 1, 2 or 3 bits of the place, from bit 4 "
        "on, by their exclusive or with as many bits of the line. Below, places are columns and "
        "lines are rows; in each place stand the row and the piece of a tile. Coloured: piece 0 of "
        f"8 rows, which ldmatrix reads for one 8 x 8 matrix. {took}.",
    )
    y = _bits(drawing, drawing.top)
    for row, (before, after) in counts.items():
        for place, count, name, x in (
            (plain, before, f"rows of {row} bytes", MARGIN + 30.0),
            (swizzled, after, "swizzled", WIDTH - MARGIN - 8 * WIDE),
        ):
            times = f"{count} wavefront{'s' if count > 1 else ''}"
            drawing.text(x, y, f"{name}: {times}", 12, bold=True)
            _places(drawing, x, y + 7, row, place)
        y = drawing.bottom + 22
    drawing.paragraph(MARGIN, y, drawing.description, size=12, colour="muted")
    return drawing


def _bits(drawing: Drawing, y: float) -> float:
    """The bits of an address by what they choose, and which of them are combined; the next y."""
    wide, left = 34.0, MARGIN + 30.0
    groups = {"line": range(7, BITS), "place": range(4, 7), "byte in a piece": range(4)}
    fills = {"line": "pale blue", "place": "pale gold", "byte in a piece": "panel"}

    def at(bit: int) -> float:
        return left + (BITS - 1 - bit) * wide

    for name, bits in groups.items():
        x = at(bits[-1])
        drawing.text(x + len(bits) * wide / 2, y, name, 11, "middle", "muted")
        for bit in bits:
            drawing.box(at(bit), y + 6, wide, 22, fills[name], "line")
            drawing.text(at(bit) + wide / 2, y + 21, str(bit), 11, "middle")
    for number, row in enumerate((32, 64, 128)):
        high = y + 44 + 24 * number
        width = (number + 1) * wide
        drawing.text(left - 30, high + 4, f"{row} bytes", 11)
        for low in (7, 4):
            drawing.line([(at(low + number) + 3, high), (at(low) + wide - 3, high)], "orange", 4)
        start, stop = at(7 + number) + width / 2, at(4 + number) + width / 2
        drawing.text(
            at(4) + wide + 10,
            high + 4,
            f"place bits 4–{4 + number} ^= bits 7–{7 + number}"
            if number
            else "place bit 4 ^= bit 7",
            11,
        )
        drawing.line(
            [(start, high + 4), (start, high + 10), (stop, high + 10), (stop, high + 4)],
            "orange",
            1,
            arrow=True,
        )
    return y + 44 + 24 * 3 + 16


def _places(
    drawing: Drawing, x: float, y: float, row: int, place: Callable[[int, int], int]
) -> None:
    """Lines of shared memory with 8 rows in them; piece 0 of each row coloured by the row."""
    pieces = row // PIECE
    for r in range(ROWS):
        for piece in range(pieces):
            address = place(r * row + piece * PIECE, row)
            column, line = address % LINE // PIECE, address // LINE
            fill = "panel" if piece else distinct(r, ROWS)
            at = x + column * WIDE, y + line * HIGH
            drawing.box(*at, WIDE, HIGH, fill, "paper", 1, f"row {r}, piece {piece}: {address}")
            ink = "muted" if piece else text_on(fill)
            drawing.text(at[0] + WIDE / 2, at[1] + 13, f"{r}.{piece}", 10, "middle", ink)
