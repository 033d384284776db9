"""Charts of matplotlib as SVG, with a dark value for every colour: one file for all pages.

The pictures of this folder name their colours; a chart has whatever colours its code chose. Here
each gets its dark value from the palette, or by turning its lightness around, which keeps hues
apart and text readable on what it stands on.
"""

import colorsys
import io
import re
from html import escape
from typing import Any

import matplotlib

from ladder.core.show.pictures.drawing import COLOURS

DARK = dict(COLOURS.values())  # by the light value
BLACK, WHITE = 0.95, 0.07  # the lightness that black and white have on a dark page


def svg(figure: Any, description: str = "") -> str:
    """The text of an SVG file; `description` says in words what the figure shows, by default with
    its own titles.

    Text stays text. The same figure always gives the same file.
    """
    description = description or _titles(figure)
    content = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": "chart"}
    with matplotlib.rc_context(settings):  # type: ignore[arg-type]  # a plain dict will do
        figure.savefig(content, format="svg", metadata={"Date": None})
    _, _, body = content.getvalue().partition("<svg ")
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'(<(?:text|tspan) [^>]*style=")(?![^"]*fill:)', r"\1fill: #000000; ", body)
    colours = sorted(set(re.findall(r"\b(fill|stroke): (#[0-9a-f]{6})", body)))
    rules = "".join(f'[style*="{w}: {c}"]{{{w}:{dark(c)}!important}}' for w, c in colours)
    start, _, rest = body.partition(">")
    return (
        f'<svg role="img" aria-label="{escape(description)}" style="max-width:100%;height:auto" '
        f"{start}>\n<title>{escape(description)}</title>\n"
        f"<style>@media(prefers-color-scheme:dark){{{rules}}}</style>{rest}"
    )


def _titles(figure: Any) -> str:
    """Those of the figure and of its panels; of a panel without one, what it has over what, or all
    that is written in it."""
    panels = [
        axes.get_title()
        or axes.get_title("left")
        or " over ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel())))
        or " ".join(text.get_text() for text in axes.texts)
        for axes in figure.axes
    ]
    return "; ".join(text.replace("\n", " ") for text in (figure.get_suptitle(), *panels) if text)


def dark(colour: str) -> str:
    """What "#rrggbb" becomes on a dark page."""
    if colour in DARK:
        return DARK[colour]
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    turned = BLACK + (WHITE - BLACK) * lightness
    rgb = colorsys.hls_to_rgb(hue, turned, saturation)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in rgb)
