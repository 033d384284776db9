"""Drawings of runs: several over each other, with a panel for each thing that their logs hold; and
the losses of a sweep against the value of a flag."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, NullFormatter, ScalarFormatter

from trainer.plots.style import BLUE, GREEN, GREY, GRID, INK, ORANGE, figure_of, write_title

Curve = Sequence[tuple[int, float]]  # (step, value)
TRAINING, VALIDATION, EVALUATION = "training loss", "validation loss", "HellaSwag accuracy"
TRAIN_SPLIT = "loss on the training text"  # without dropout; shares the panel of VALIDATION
DIFFERENCE = "training loss minus the first run's"
TIME, RATE, NORM = "time of a step", "learning rate", "gradient norm"
NOISY = (TRAINING, DIFFERENCE, TIME, NORM)  # a value a step, which is smoothed
COLOURS = (BLUE, ORANGE, GREEN, "#7a3e9d", "#e9b44c", INK)
THIN, SPREAD = 1.3, 6.0  # points; lines that coincide are broader below than above
MOST_DOTS = 40  # of a curve; beyond, they would hide it
LEGEND_WIDTH = 64  # characters: a longer name has its line to itself
GRID_COLUMNS = 6  # shared by one to three panels
LOG_FROM = 8.0  # values whose largest is this many times the smallest are drawn on a log axis


def draw_runs(
    runs: Mapping[str, Mapping[str, Curve]],
    title: str,
    window: int = 1,
    marks: Mapping[str, Mapping[str, float]] | None = None,
) -> Figure:
    """Panels of training loss, validation loss, evaluation, time of a step, learning rate and
    gradient norm, and of how far the training losses are apart.

    runs    for every run, its curves by panel; a panel without curves is left out, and
            TRAIN_SPLIT is dashed in the panel of VALIDATION
    window  steps of the moving average of what is logged at each step
    marks   for a panel, values that others have published, by name; each is a dashed line
    """
    below = ((DIFFERENCE, TIME), (RATE, NORM)) if len(runs) > 1 else ((TIME, RATE, NORM),)
    rows = [
        [name for name in row if any(run.get(name) for run in runs.values())]
        for row in ((TRAINING, VALIDATION, EVALUATION), *below)
    ]
    rows = [row for row in rows if row]
    mosaic: list[Any] = [
        [name for name in row for _ in range(GRID_COLUMNS // len(row))] for row in rows
    ]
    heights = [3.2, 1.9, 1.9][: len(rows)]
    few = len(runs) <= len(COLOURS)
    widths = [THIN + few * SPREAD * above / len(runs) for above in reversed(range(len(runs)))]
    figure = Figure(figsize=(9.5, sum(heights) + 0.7), dpi=140, layout="constrained")
    panels = figure.subplot_mosaic(mosaic, height_ratios=heights)
    for name, axes in panels.items():
        looks = zip(runs.items(), colours_of(len(runs)), widths, strict=True)
        for (run, curves), colour, width in looks:
            if curves.get(name):
                _draw_curve(axes, curves[name], name, run, colour, width, window)
            if name == VALIDATION and curves.get(TRAIN_SPLIT):
                axes.plot(*zip(*curves[TRAIN_SPLIT], strict=True), "--", color=colour, lw=1.2)
                axes.set_title(f"dashed: {TRAIN_SPLIT}", loc="right", fontsize=8, color=INK)
        for mark, value in (marks or {}).get(name, {}).items():
            axes.axhline(value, color=GREY, ls="--", lw=1)
            axes.annotate(
                f"{mark}: {value:.3f}", (0.99, value), (0, 2), textcoords="offset points",
                xycoords=axes.get_yaxis_transform(), ha="right", color=INK, fontsize=7,
            )  # fmt: skip
        _style(axes, name)
        if len(runs) == 1 and name == VALIDATION:
            _write_ends(axes, next(iter(runs.values()))[name])
    if TRAINING in panels and VALIDATION in panels:
        both = panels[TRAINING], panels[VALIDATION]
        low, high = zip(*(axes.get_ylim() for axes in both), strict=True)
        both[1].sharey(both[0])  # takes the limits of the first, so the curves of the second ...
        both[0].set_ylim(min(low), max(high))  # ... and the marks could lie outside
    write_title(figure, title)
    if len(runs) > 1:
        lines = {line.get_label(): line for axes in panels.values() for line in axes.lines}
        names = [name for name in runs if name in lines]
        legend = figure.legend(
            [lines[name] for name in names], names, frameon=False, fontsize=8,
            ncols=min(4, len(names), 1 + LEGEND_WIDTH // max(1, *map(len, names))),
            loc="outside lower center",
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)  # nor is it in the name of a run
    return figure


def moving_average(values: Sequence[float], window: int) -> np.ndarray:
    """The mean of the `window` values around each; near the ends, of those that there are."""
    window = max(1, min(window, len(values)))
    ones = np.ones(window)
    counts = np.convolve(np.ones(len(values)), ones, "same")
    return np.asarray(np.convolve(values, ones, "same") / counts)


def _draw_curve(
    axes: Any, curve: Curve, panel: str, run: str, colour: Any, width: float, window: int
) -> None:
    steps, values = zip(*curve, strict=True)
    shade = colour if width == THIN else 1 - 0.6 * (1 - np.array(to_rgb(colour)))
    look = {"color": shade, "lw": width, "label": run}
    if panel not in NOISY:
        style = "-" if panel == RATE or len(curve) > MOST_DOTS else "o-"
        axes.plot(steps, values, style, ms=1.5 + width, **look)
        return
    if window > 1:
        axes.plot(steps, values, color=colour, lw=0.6, alpha=0.25)
    axes.plot(steps, moving_average(values, window), **look)


def _style(axes: Any, name: str) -> None:
    axes.set_title(name, loc="left", fontsize=9, color=INK)
    axes.set_xlabel("step", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    if name in (TRAINING, VALIDATION):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel("nats per token", fontsize=8)
    if name in (RATE, TIME):
        axes.set_ylim(bottom=0)
    if name == TIME:
        axes.set_ylabel("ms", fontsize=8)
    if name == DIFFERENCE:
        axes.axhline(0, color=GREY, lw=1)
        axes.yaxis.get_offset_text().set_fontsize(8)
        axes.set_ylabel("nats per token", fontsize=8)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, color=GRID)


def _write_ends(axes: Any, curve: Curve) -> None:
    """The first and the last value, beside their points."""
    halo = [withStroke(linewidth=3, foreground="white")]
    for (step, value), side in ((curve[0], "left"), (curve[-1], "right")):
        axes.annotate(
            f"{value:.3f}", (step, value), (0, 6), textcoords="offset points", ha=side,
            fontsize=8, color=BLUE, path_effects=halo,
        )  # fmt: skip


def colours_of(count: int) -> list[Any]:
    """One for each run: from a few that differ well, or from a scale in the order of the runs."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return list(colormaps["viridis"](np.linspace(0, 0.92, count)))


# ---- a sweep ----


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
        marks = "o" if list(places.values()) == [*range(len(places))] else "o-"  # names, or numbers
        axes.plot(*zip(*points, strict=True), marks, color=colour, lw=1.4, ms=5, label=name)
    loss, best = min((loss, text) for line in lines.values() for text, loss in line)
    axes.plot(places[best], loss, "o", color=INK, ms=11, fillstyle="none")
    ends = {min(places.values()): "left", max(places.values()): "right"}
    axes.annotate(
        f"{loss:.4f} at {best}", (places[best], loss), (0, -20), textcoords="offset points",
        ha=ends.get(places[best], "center"), fontsize=9, parse_math=False,
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
