"""Drawings of the losses of runs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from trainer.plots.style import BLUE, GREY, GRID, INK, ORANGE, figure_of

Losses = Sequence[tuple[int, float]]  # (step, loss in nats per token)
OFFSET: Any = {"textcoords": "offset points"}


def losses(
    curves: Mapping[str, Sequence[float]], levels: Mapping[str, float], title: str
) -> Figure:
    """Training losses by step; dotted lines: the losses of simpler models."""
    figure, (axes,) = figure_of(title, 3.4)
    for (name, curve), colour in zip(curves.items(), (BLUE, ORANGE), strict=False):
        axes.plot(range(1, len(curve) + 1), curve, color=colour, lw=1.2, label=name)
    beside = {"fontsize": 8, "color": INK, "va": "center", "transform": axes.get_yaxis_transform()}
    for name, level in levels.items():
        axes.axhline(level, color=GREY, ls=":", lw=1.2)
        axes.text(1.005, level, f"{level:.2f}  {name}", **beside)
    _loss_axes(axes, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)  # above the levels
    return figure


def compare(one: Sequence[float], other: Sequence[float], names: tuple[str, str]) -> Figure:
    """Two runs that should be equal: their losses, and the relative difference of the losses."""
    title = f"{names[0]} and {names[1]}, the same steps"
    figure, (above, below) = figure_of(title, 3.6, rows=2, sharex=True, height_ratios=(2, 1))
    steps = np.arange(1, len(one) + 1)
    above.plot(steps, one, color=BLUE, lw=4, alpha=0.35, label=names[0])
    above.plot(steps, other, "o", color=INK, ms=3.5, label=names[1])
    _loss_axes(above)
    above.set_xlabel("")
    apart = np.abs(np.subtract(one, other)) / np.abs(one)
    below.semilogy(steps, np.maximum(apart, 1e-10), "o-", color=ORANGE, ms=3.5, lw=1)
    below.axhline(2.0**-24, color=GREY, ls=":", lw=1)
    above_line = {"fontsize": 8, "va": "bottom", "ha": "right", "color": INK}
    below.text(steps[-1], 2.0**-24, "half a unit in the last place of float32", **above_line)
    below.set_ylim(1e-9, 1e-4)
    below.set_ylabel("relative difference", fontsize=9)
    below.set_xlabel("step", fontsize=9)
    below.grid(axis="y", color=GRID)
    return figure


def finetune(train: Losses, val: Losses, reference: Losses, vocab: int, title: str) -> Figure:
    """The losses of a run; `reference`: the losses of its first steps in NumPy."""
    figure, (axes,) = figure_of(title, 3.6)
    axes.plot(*zip(*train, strict=True), color=BLUE, lw=1.3, label="training")
    axes.plot(*zip(*val, strict=True), "o-", color=ORANGE, lw=1.6, ms=4, label="validation")
    name = f"the NumPy reference on a CPU, {len(reference)} steps"
    axes.plot(*zip(*reference, strict=True), "x", color=INK, ms=6, label=name)
    for step, loss in (val[0], val[-1]):
        axes.annotate(f"{loss:.2f}", (step, loss), (5, 5), fontsize=8, color=ORANGE, **OFFSET)
    chance = math.log(vocab)
    axes.axhline(chance, color=GREY, ls=":", lw=1.2, label=f"ln {vocab:,} = {chance:.2f}")
    _loss_axes(axes)
    return figure


def _loss_axes(axes: Any, **legend: Any) -> None:
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel("loss (nats per token)", fontsize=9)
    axes.grid(axis="y", color=GRID)
    axes.legend(frameon=False, fontsize=9, **legend)
