"""Drawings for a climb: what was predicted, what memory is asked for, which gradients are wrong."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from trainer.plots.style import BESIDE, BLUE, GREY, INK, ORANGE, figure_of

Row = tuple[str, float, float]  # a name, and two values that belong together


def savings(rows: Sequence[Row], title: str) -> Figure:
    """Milliseconds that climbs save: predicted, and measured in the step; on logarithmic axes.

    rows  op, predicted, measured
    """
    figure, (axes,) = figure_of(title, 1.0 + 0.29 * len(rows))
    names = [name for name, *_ in rows]
    predicted, measured = (np.array([row[i] for row in rows], float) for i in (1, 2))
    axes.hlines(names, predicted, measured, color=GREY, lw=2, zorder=1)
    axes.scatter(measured, names, color=BLUE, s=45, label="saved in the step", zorder=2)
    axes.scatter(
        predicted, names, facecolor="none", edgecolor=ORANGE, s=45, lw=1.6, zorder=3,
        label="predicted from the rungs alone",
    )  # fmt: skip
    for place, (_, foretold, saved) in enumerate(rows):
        apart = f"{round(100 * (foretold / saved - 1)):+d} %"
        axes.annotate(apart, (max(foretold, saved), place), **BESIDE)
    axes.set_xscale("log")
    axes.set_xlim(right=5 * max(predicted.max(), measured.max()))
    axes.set_xlabel("ms of a step", fontsize=9)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def sectors(rows: Sequence[Row], title: str) -> Figure:
    """The sectors that each op of a step asks for, and in front of them the least possible.

    rows  name, sectors, least
    """
    figure, (axes,) = figure_of(title, 1.0 + 0.27 * len(rows))
    names, total = [name for name, *_ in rows], sum(count for _, count, _ in rows)
    axes.barh(names, [row[1] for row in rows], color="#b7cde3", height=0.72, label="asked for")
    axes.barh(names, [row[2] for row in rows], color=BLUE, height=0.36, label="least possible")
    for place, (_, count, least) in enumerate(rows):
        text = f"{count:,}: {100 * count / total:.1f} % of the step, {count / least:.1f} x least"
        axes.annotate(text, (max(count, least), place), **BESIDE)
    axes.set_xlim(0, 1.5 * max(count for _, count, _ in rows))
    axes.set_xlabel(f"sectors of 32 bytes: {total:,} in the whole step", fontsize=9)
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def gradients(apart: Mapping[str, float], limit: float, title: str) -> Figure:
    """The relative difference of each gradient from the right one, in the order of the mapping.

    limit  from which on a difference is not due to rounding
    """
    figure, (axes,) = figure_of(title, 3.0)
    names, heights = list(apart), np.array(list(apart.values()))
    shown = np.clip(np.nan_to_num(heights, nan=np.inf), 1e-8, 10)
    colours = np.where(shown < limit, BLUE, ORANGE)
    axes.vlines(range(len(names)), 1e-9, shown, color=colours, lw=2)
    axes.scatter(range(len(names)), shown, color=colours, s=25, zorder=2)
    axes.axhline(limit, color=GREY, ls=":", lw=1.2)
    beside = {"fontsize": 8, "color": INK, "va": "bottom", "transform": axes.get_yaxis_transform()}
    axes.text(0.01, limit, "more than rounding", **beside)
    axes.set_yscale("log")
    axes.set_ylim(1e-9, 20)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axes.set_ylabel("relative difference", fontsize=9)
    return figure
