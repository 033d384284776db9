"""A drawing of a sweep: the loss of every run against the value of a flag."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from trainer.plots.runs import colours_of
from trainer.plots.style import GRID, INK, figure_of

LOG_FROM = 8.0  # values whose largest is this many times the smallest are drawn on a log axis


def draw_sweep(
    lines: Mapping[str, Sequence[tuple[str, float]]],
    flag: str,
    what: str = "least validation loss",
) -> Figure:
    """The loss of runs against the values of `flag`; the least of all is marked.

    lines  for each combination of the other flags, by name: (value as it was typed, loss)
    what   which loss it is
    """
    figure, (axes,) = figure_of("", 3.6)
    texts = list(dict.fromkeys(text for line in lines.values() for text, _ in line))
    places = _numbers(texts)
    for (name, line), colour in zip(lines.items(), colours_of(len(lines)), strict=True):
        points = sorted((places[text], loss) for text, loss in line)
        axes.plot(*zip(*points, strict=True), "o-", color=colour, lw=1.4, ms=5, label=name)
    loss, best = min((loss, text) for line in lines.values() for text, loss in line)
    axes.plot(places[best], loss, "o", color=INK, ms=11, fillstyle="none")
    axes.annotate(
        f"{loss:.4f} at {best}", (places[best], loss), (0, -20), textcoords="offset points",
        ha="center", fontsize=9, parse_math=False,
    )  # fmt: skip
    if min(places.values()) > 0 and max(places.values()) >= LOG_FROM * min(places.values()):
        axes.set_xscale("log")
    axes.set_xticks(list(places.values()), list(places), fontsize=8, parse_math=False)
    axes.set_xticks([], minor=True)
    axes.margins(y=0.22)
    axes.set_xlabel(flag, fontsize=9)
    axes.set_ylabel(f"{what} (nats per token)", fontsize=9)
    axes.grid(axis="y", color=GRID)
    if len(lines) > 1:
        for text in axes.legend(frameon=False, fontsize=8).get_texts():
            text.set_parse_math(False)  # a value may hold two $
    return figure


def _numbers(texts: Sequence[str]) -> dict[str, float]:
    """Where each value stands on the axis: at its number, if all are numbers; else in turn."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = []
    if not numbers or not all(map(math.isfinite, numbers)):
        return {text: float(place) for place, text in enumerate(texts)}
    return dict(zip(texts, numbers, strict=True))
