"""The one drawing helper: boxes, text and lines, written as an SVG file, and its colours.

An SVG names only the light values of colours. Its style sheet replaces them where the reader's
browser asks for dark ones, so that one file serves both. Text is readable on every fill in both
(tested).
"""

import colorsys
import functools
import textwrap
from collections.abc import Iterable, Sequence
from html import escape

COLOURS = {  # name: light, dark
    "paper": ("#ffffff", "#0d1117"),
    "panel": ("#f0f2f4", "#1c2128"),
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#57606a", "#9da5ae"),
    "line": ("#aab2bb", "#58616b"),
    "blue": ("#1f6fb4", "#6cb0ff"),
    "orange": ("#b35900", "#ffab5e"),
    "green": ("#237a37", "#63d07c"),
    "red": ("#c42b2b", "#ff8a8a"),
    "purple": ("#7344ad", "#c6a0ff"),
    "pale blue": ("#cfe3f5", "#173a63"),
    "pale orange": ("#fde0bd", "#5c3a10"),
    "pale green": ("#cdebd1", "#1a4727"),
    "pale red": ("#f9d3d0", "#642525"),
    "pale purple": ("#e4d8f6", "#412d69"),
    "pale gold": ("#fdeaa6", "#574610"),
}
BLACK, WHITE = "#010101", "#fefefe"  # the same on light and dark pages


def light(colour: str) -> str:
    """The value of a colour that is given by its name; what is no name is returned as it is."""
    return COLOURS[colour][0] if colour in COLOURS else colour


def dark_style() -> str:
    """The style sheet of a picture: dark values instead of light ones, where they are wanted."""
    rules = [
        f'[{what}="{was}"]{{{what}:{becomes}}}'
        for was, becomes in COLOURS.values()
        for what in ("fill", "stroke")
    ]
    return "@media(prefers-color-scheme:dark){" + "".join(rules) + "}"


@functools.cache
def distinct(index: int, count: int) -> str:
    """Colour `index` of `count` that are told apart by hue, and neighbours by lightness too."""
    lightness = (0.62, 0.78)[index % 2]
    red, green, blue = colorsys.hls_to_rgb(0.85 * index / max(count, 1), lightness, 0.75)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def text_on(fill: str) -> str:
    """Black or white, whichever is easier to read on a fill that is the same on all pages."""
    return BLACK if luminance(fill) > 0.18 else WHITE


def luminance(colour: str) -> float:
    """Relative luminance, 0 to 1. Source: WCAG 2.2."""
    channels = (int(light(colour)[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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
    width        in pixels; more than WIDTH for a picture that one scrolls

    x goes right, y down, in pixels. Colours are names of COLOURS, or "#rrggbb".
    """

    def __init__(self, title: str, description: str, width: int = WIDTH):
        self.title, self.description, self.width = title, description, width
        self._parts: list[str] = []
        self.bottom = 0.0
        at, wide = MARGIN + SIZE, width - 2 * MARGIN
        self.top = self.paragraph(MARGIN, at, title, wide, size=14, bold=True) + 6

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

    def legend(self, y: float, entries: Iterable[tuple[str, str]]) -> float:
        """What colours mean: pairs of words and a colour, in lines from the baseline y on; returns
        the baseline of the last one."""
        x = float(MARGIN)
        for words, fill in entries:
            wide = 34 + 6.3 * len(words)
            if x + wide - 16 > self.width - MARGIN:
                x, y = float(MARGIN), y + 19
            self.box(x, y - 11, 13, 13, fill, "line")
            self.text(x + 18, y, words, 12)
            x += wide
        return y

    def svg(self, digest: str = "") -> str:
        """The file. `digest` names what the picture was drawn from."""
        height = round(self.bottom + MARGIN)
        source = f"<metadata>ladder:{digest}</metadata>\n" if digest else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{self.width}" '
            f'height="{height}" viewBox="0 0 {self.width} {height}" font-family="{FONT}">\n'
            f"<title>{escape(self.title)}</title>\n<desc>{escape(self.description)}</desc>\n"
            f"{source}<style>{dark_style()}</style>\n"
            f'<rect width="{self.width}" height="{height}" rx="6" fill="{light("paper")}"/>\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )

    def _add(self, part: str, bottom: float) -> None:
        self._parts.append(part)
        self.bottom = max(self.bottom, bottom)
