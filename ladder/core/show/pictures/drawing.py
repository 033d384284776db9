"""The one drawing helper: boxes, text, lines and rasters, written as an SVG file."""

import textwrap
from collections.abc import Sequence
from html import escape

from ladder.core.show.pictures.palette import dark_style, light

WIDTH = 520  # in pixels: readable on a phone, where a page shows it about 360 wide
MARGIN = 12
SIZE = 13  # of text, in pixels
GLYPH = 0.54  # mean width of a character, as a share of the size of the text
FONT = "system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"


class Drawing:
    """A picture on its own background; it is as high as what is drawn on it.

    title        stands above it
    description  what the picture shows, in words: for those who do not see it

    x goes right, y down, in pixels. Colours are names of palette.COLOURS, or "#rrggbb".
    """

    def __init__(self, title: str, description: str):
        self.title, self.description = title, description
        self._parts: list[str] = []
        self.bottom = 0.0
        self.top = self.paragraph(MARGIN, MARGIN + SIZE, title, size=14, bold=True) + 6

    def box(
        self, x: float, y: float, width: float, height: float, fill: str = "panel",
        edge: str = "", line: float = 1, title: str = "",
    ) -> None:  # fmt: skip
        """A rectangle. `title` appears when the mouse rests on it."""
        stroke = f' stroke="{light(edge)}" stroke-width="{line:g}"' if edge else ""
        inside = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self._add(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'fill="{light(fill)}"{stroke}{inside}',
            y + height,
        )

    def text(
        self, x: float, y: float, text: str, size: float = SIZE, anchor: str = "start",
        colour: str = "ink", bold: bool = False, mono: bool = False,
    ) -> None:  # fmt: skip
        """One line of text with its baseline at y; `anchor`: start, middle or end stands at x."""
        style = f' text-anchor="{anchor}"' if anchor != "start" else ""
        style += ' font-weight="600"' if bold else ""
        style += f' font-family="{MONO}"' if mono else ""
        self._add(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{light(colour)}"{style}>'
            f"{escape(text)}</text>",
            y + 0.3 * size,
        )

    def paragraph(
        self, x: float, y: float, text: str, width: float = WIDTH - 2 * MARGIN,
        size: float = SIZE, colour: str = "ink", bold: bool = False,
    ) -> float:  # fmt: skip
        """Text in lines that fit the width, the first with its baseline at y; the next baseline."""
        for line in textwrap.wrap(text, max(1, int(width / (GLYPH * size * (1.1 if bold else 1))))):
            self.text(x, y, line, size, colour=colour, bold=bold)
            y += round(1.35 * size)
        return y

    def line(
        self, points: Sequence[tuple[float, float]], colour: str = "line", width: float = 1,
        dashed: bool = False,
    ) -> None:  # fmt: skip
        """A line through points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._add(
            f'<polyline points="{path}" fill="none" stroke="{light(colour)}" '
            f'stroke-width="{width:g}"{dash}/>',
            max(y for _, y in points),
        )

    def cells(
        self, x: float, y: float, size: float, colours: Sequence[Sequence[str]],
        height: float = 0,
    ) -> None:  # fmt: skip
        """A raster: rows of cells, each `size` wide and `height` (or `size`) high, in its colour.

        "" leaves a cell empty. Neighbours of one colour become one rectangle.
        """
        height = height or size
        done: set[tuple[int, int]] = set()
        paths: dict[str, list[str]] = {}
        for r, row in enumerate(colours):
            for c, colour in enumerate(row):
                if not colour or (r, c) in done:
                    continue
                stop = c + 1
                while stop < len(row) and row[stop] == colour and (r, stop) not in done:
                    stop += 1
                low = r + 1
                while low < len(colours) and all(colours[low][i] == colour for i in range(c, stop)):
                    low += 1
                done |= {(i, j) for i in range(r, low) for j in range(c, stop)}
                wide, high = (stop - c) * size, (low - r) * height
                at = f"M{x + c * size:.6g} {y + r * height:.6g}"
                paths.setdefault(colour, []).append(f"{at}h{wide:.6g}v{high:.6g}h-{wide:.6g}z")
        for colour, path in paths.items():
            self._add(f'<path fill="{light(colour)}" d="{"".join(path)}"/>', 0)
        self.bottom = max(self.bottom, y + len(colours) * height)

    def svg(self, digest: str = "") -> str:
        """The file. `digest` names what the picture was drawn from."""
        height = round(self.bottom + MARGIN)
        source = f"<metadata>ladder:{digest}</metadata>\n" if digest else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" '
            f'height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="{FONT}">\n'
            f"<title>{escape(self.title)}</title>\n<desc>{escape(self.description)}</desc>\n"
            f"{source}<style>{dark_style()}</style>\n"
            f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{light("paper")}"/>\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )

    def _add(self, part: str, bottom: float) -> None:
        self._parts.append(part)
        self.bottom = max(self.bottom, bottom)
