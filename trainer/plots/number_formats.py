"""Drawings of number formats: their range, and how they round small updates."""

import math
from collections.abc import Mapping

import ml_dtypes
import numpy as np
from matplotlib.figure import Figure

from trainer.plots.style import BLUE, GREEN, GREY, GRID, INK, ORANGE, figure_of

FORMATS = {
    "float32": np.finfo(np.float32),
    "bfloat16": ml_dtypes.finfo(ml_dtypes.bfloat16),
    "float16": np.finfo(np.float16),
}


def formats(gradients: np.ndarray, scale: float, mark: tuple[str, float], title: str) -> Figure:
    """The range of each number format, above the magnitudes of gradients, plain and scaled."""
    figure, (above, below) = figure_of(title, 4.2, rows=2, sharex=True)
    for row, info in enumerate(FORMATS.values()):
        limits = info.smallest_subnormal, info.tiny, info.max
        least, normal, most = (math.log2(float(limit)) for limit in limits)
        above.barh(row, most - normal, left=normal, height=0.5, color=BLUE)
        above.barh(row, normal - least, left=least, height=0.5, color="#c5d7ea")
        colour = "white" if most > 100 else INK
        precision = f"{info.nmant + 1} bits of precision"
        above.text(70, row, precision, color=colour, fontsize=9, ha="center", va="center")
    above.set_yticks(range(len(FORMATS)), list(FORMATS), fontsize=9)
    above.invert_yaxis()
    sizes = np.log2(gradients[gradients > 0].astype(np.float64))
    for shift, colour, name in (
        (0, ORANGE, "gradients of activations"),
        (math.log2(scale), GREEN, f"the same, times {scale:,.0f}"),
    ):
        below.hist(sizes + shift, np.arange(-60, 30), color=colour, alpha=0.75, label=name)
    half = FORMATS["float16"]
    for axes in (above, below):
        for limit in (float(half.smallest_subnormal) / 2, float(half.max)):
            axes.axvline(math.log2(limit), color=INK, ls=":", lw=1)
    below.axvline(math.log2(mark[1]), color="#7a3e9d", lw=1.5, label=mark[0])
    below.set_yticks([])
    below.set_ylabel("how many", fontsize=9)
    below.set_xlim(-150, 130)
    ticks = range(-140, 129, 20)
    below.set_xticks(ticks, [f"$2^{{{tick}}}$" for tick in ticks], fontsize=8)
    beyond = "size; float16 rounds to 0 left of the dotted lines, and to infinity right of them"
    below.set_xlabel(beyond, fontsize=9)
    below.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def drift(paths: Mapping[str, np.ndarray], title: str) -> Figure:
    """A weight after each of many small updates, in each format."""
    figure, (axes,) = figure_of(title, 3.0)
    # the exact one is broad, and the others lie on it
    styles = ((GREY, "-", 5.0), (ORANGE, "-", 2.0), (GREEN, "-", 1.0), (BLUE, "--", 1.5))
    for (name, path), (colour, style, width) in zip(paths.items(), styles, strict=True):
        axes.plot(path, style, color=colour, lw=width, label=name)
    axes.set_xlabel("updates", fontsize=9)
    axes.set_ylabel("the weight", fontsize=9)
    axes.grid(color=GRID)
    axes.legend(frameon=False, fontsize=9)
    return figure
