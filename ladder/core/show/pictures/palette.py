"""The colours of all pictures: each has a value for light and one for dark pages.

An SVG names only the light values. Its style sheet replaces them where the reader's browser asks
for dark colours, so that one file serves both. Text is readable on every fill in both (tested).
"""

import colorsys
import functools

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
