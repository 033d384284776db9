"""Drawings of runs: their losses, the time of a step beside others, and where it goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from trainer.plots.console_logs import Printed, Timed
from trainer.plots.losses import BLUE, GRID, INK, ORANGE
from trainer.plots.pictures import GREY, figure_of

Losses = Sequence[float]


def losses(curves: Mapping[str, Losses], levels: Mapping[str, float], title: str) -> Figure:
    """Training losses, step by step; dotted: what simpler models would have."""
    figure, (axes,) = figure_of(title, 3.4)
    for (name, curve), colour in zip(curves.items(), (BLUE, ORANGE), strict=False):
        axes.plot(range(1, len(curve) + 1), curve, color=colour, lw=1.2, label=name)
    beside = {"fontsize": 8, "color": INK, "va": "center", "transform": axes.get_yaxis_transform()}
    for name, level in levels.items():
        axes.axhline(level, color=GREY, ls=":", lw=1.2)
        axes.text(1.005, level, f"{level:.2f}  {name}", **beside)
    _loss_axes(axes)
    return figure


def same(one: Losses, other: Losses, names: tuple[str, str]) -> Figure:
    """Two runs that should be one: their losses, and how far these are apart."""
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
    below.text(
        steps[-1],
        2.0**-24,
        "half a unit in float32's last place",
        fontsize=8,
        va="bottom",
        ha="right",
        color=INK,
    )
    below.set_ylim(1e-9, 1e-4)
    below.set_ylabel("apart, relative", fontsize=9)
    below.set_xlabel("step", fontsize=9)
    below.grid(axis="y", color=GRID)
    return figure


def finetune(run: Printed, other: Printed | None, vocab: int, title: str) -> Figure:
    """A run's losses; `other`: the same steps, made by something else, as far as they go."""
    figure, (axes,) = figure_of(title, 3.6)
    axes.plot(*zip(*run.train, strict=True), color=BLUE, lw=1.3, label="training")
    axes.plot(*zip(*run.val, strict=True), "o-", color=ORANGE, lw=1.6, ms=4, label="validation")
    if other:
        name = f"the NumPy reference on a CPU, {len(other.train)} steps"
        axes.plot(*zip(*other.train, strict=True), "x", color=INK, ms=6, label=name)
    for step, loss in (run.val[0], run.val[-1]):
        axes.annotate(
            f"{loss:.2f}",
            (step, loss),
            (5, 5),
            textcoords="offset points",
            fontsize=8,
            color=ORANGE,
        )
    _chance(axes, vocab)
    _loss_axes(axes)
    return figure


def validation(run: Printed, peer: tuple[str, float], title: str) -> Figure:
    """The validation loss of a run, its least, and what somebody else states as theirs."""
    figure, (axes,) = figure_of(title, 3.0)
    axes.plot(*zip(*run.val, strict=True), "o-", color=BLUE, lw=1.4, ms=4, label="validation")
    step, loss = min(run.val, key=lambda pair: pair[1])
    axes.plot(step, loss, "o", color=ORANGE, ms=8)
    axes.annotate(
        f"{loss:.4f} at step {step:,}",
        (step, loss),
        (6, 14),
        textcoords="offset points",
        fontsize=9,
    )
    name, value = peer
    axes.axhline(value, color=GREY, ls=":", lw=1.2, label=f"{name}: {value}")
    _loss_axes(axes)
    return figure


def times(rows: Sequence[Timed], title: str) -> Figure:
    """Milliseconds of a training step: ours beside others, a panel for each type and batch size."""
    jobs = sorted({(row.dtype, row.B) for row in rows})
    parts = [[row for row in rows if (row.dtype, row.B) == job] for job in jobs]
    counts = [len(part) for part in parts]
    figure, panels = figure_of(
        title, 1.0 + 0.42 * sum(counts) + 0.35 * len(jobs), rows=len(jobs), height_ratios=counts
    )
    for axes, (dtype, B), chosen in zip(panels, jobs, parts, strict=True):
        colours = [BLUE if row.what.startswith("ours") else GREY for row in chosen]
        axes.barh(
            [row.what for row in chosen], [row.ms for row in chosen], color=colours, height=0.65
        )
        for place, row in enumerate(chosen):
            axes.text(row.ms, place, f"  {row.ms:.2f} ms", va="center", fontsize=8)
        axes.set_xlim(0, 1.2 * max(row.ms for row in chosen))
        axes.set_title(f"B={B}, {dtype}", fontsize=9, loc="left")
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.invert_yaxis()
    return figure


def profile(p: Mapping[str, Any], title: str) -> Figure:
    """Each op of a measured step: its time, and in front of it its floor."""
    rows = p["ops"]
    figure, (axes,) = figure_of(title, 1.0 + 0.29 * len(rows))
    names = [f"{row['op']}  {row['rung']}".rstrip() for row in rows]
    axes.barh(names, [row["ms"] for row in rows], color="#b7cde3", height=0.72, label="measured")
    floor = "floor, of memory or of arithmetic"
    axes.barh(names, [row["floor_ms"] for row in rows], color=BLUE, height=0.36, label=floor)
    for place, row in enumerate(rows):
        share = f"  {row['ms']:.3f} ms, {100 * row['ms'] / p['step_ms']:.1f} % of the step"
        axes.text(max(row["ms"], row["floor_ms"]), place, share, va="center", fontsize=8)
    axes.set_xlim(0, 1.3 * max(row["ms"] for row in rows))
    axes.set_xlabel("ms", fontsize=9)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def profiles(named: Mapping[str, Mapping[str, Any]], title: str) -> Figure:
    """Measured steps beside each other, a bar for each, by op: nanoseconds for each token."""
    figure, (axes,) = figure_of(title, 1.8 + 0.5 * len(named))
    ops = list(dict.fromkeys(row["op"] for p in named.values() for row in p["ops"]))
    tokens = np.array([p["B"] * p["T"] for p in named.values()])
    ends, colours = np.zeros(len(named)), colormaps["tab20"].colors
    for i, op in enumerate((*ops, "between ops")):
        gaps = {name: max(0.0, p["gaps_ms"]) for name, p in named.items()}
        of_op = [
            gaps[name] if i == len(ops) else sum(r["ms"] for r in p["ops"] if r["op"] == op)
            for name, p in named.items()
        ]
        widths = 1e6 * np.array(of_op) / tokens
        axes.barh(list(named), widths, left=ends, color=colours[i % 20], height=0.6, label=op)
        ends += widths
    for row, (end, p) in enumerate(zip(ends, named.values(), strict=True)):
        axes.text(end, row, f"  {p['tokens_per_second']:,.0f} tokens/s", va="center", fontsize=8)
    axes.set_xlim(0, 1.2 * ends.max())
    axes.set_xlabel("ns for each token", fontsize=9)
    axes.invert_yaxis()
    figure.legend(frameon=False, fontsize=7, ncols=5, loc="outside lower center")
    return figure


def _chance(axes: Any, vocab: int) -> None:
    chance = math.log(vocab)
    axes.axhline(chance, color=GREY, ls=":", lw=1.2, label=f"ln {vocab:,} = {chance:.2f}")


def _loss_axes(axes: Any) -> None:
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel("loss (nats per token)", fontsize=9)
    axes.grid(axis="y", color=GRID)
    axes.legend(frameon=False, fontsize=9)
