"""Drawings of a training step and of runs, for the notebook: work, memory, losses, number formats.

Numbers come in, a figure goes out; what is measured is read in trainer/notebook/helpers.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from matplotlib.figure import Figure

from ladder.contract.dims import Dims
from ladder.contract.ladder import find
from ladder.measure.roofline import COMPUTE_BOUND
from trainer.plots.losses import BLUE, GRID, INK, ORANGE

GREY, GREEN = "#9a9a9a", "#6a9a58"
KINDS = {  # of memory, in the order in which they are stacked
    "parameter": BLUE,
    "master": "#8fb3d9",
    "gradient": ORANGE,
    "moment": "#e9b44c",
    "activation": GREEN,
    "scratch": "#b9cfae",
    "input": GREY,
}
FORMATS = {
    "float32": np.finfo(np.float32),
    "bfloat16": ml_dtypes.finfo(ml_dtypes.bfloat16),
    "float16": np.finfo(np.float16),
}


def work(calls: Iterable[tuple[str, Dims]], real: np.dtype, title: str) -> Figure:
    """FLOPs, and bytes at least, of every op of a step: products and attention beside the rest.

    calls  the op and the dimensions of every call
    """
    flops: dict[str, int] = {}
    moved: dict[str, int] = {}
    for name, dims in calls:
        op = find(name).op
        flops[name] = flops.get(name, 0) + op.flops(dims)
        moved[name] = moved.get(name, 0) + op.least_bytes(dims, real)
    order = sorted(flops, key=lambda op: -flops[op])
    products = [op for op in order if flops[op] > COMPUTE_BOUND * moved[op]]
    figure, panels = figure_of(title, 1.1 + 0.27 * len(order), columns=2, sharey=True)
    for axes, counts, unit, scale in (
        (panels[0], flops, "GFLOP", 1e9),
        (panels[1], moved, "bytes, at least, in GB", 1e9),
    ):
        total = sum(counts.values())
        colours = [BLUE if op in products else ORANGE for op in order]
        axes.barh(order, [counts[op] / scale for op in order], color=colours, height=0.7)
        for row, op in enumerate(order):
            share = 100 * counts[op] / total
            short = f" {share:.0f} %" if share >= 1 else " < 1 %"
            axes.text(counts[op] / scale, row, short, va="center", fontsize=8, color=INK)
        part = 100 * sum(counts[op] for op in products) / total
        axes.set_xlim(0, 1.18 * max(counts.values()) / scale)
        axes.set_xlabel(
            f"{unit}: {total / scale:,.1f} in all, {min(part, 99.9):.3g} % of it blue", fontsize=9
        )
    panels[0].invert_yaxis()
    return figure


def memory(rows: Mapping[str, Mapping[str, int]], title: str) -> Figure:
    """A bar for each way to run, stacked by kind."""
    figure, (axes,) = figure_of(title, 0.9 + 0.42 * len(rows))
    left = np.zeros(len(rows))
    for kind, colour in KINDS.items():
        widths = np.array([sizes.get(kind, 0) / 2**30 for sizes in rows.values()])
        if widths.max() < 0.005:  # the inputs: too little to be seen
            continue
        axes.barh(list(rows), widths, left=left, color=colour, height=0.65, label=kind)
        for row, width in enumerate(widths):
            if width > 0.04 * max(sum(sizes.values()) for sizes in rows.values()) / 2**30:
                place = left[row] + width / 2
                axes.text(place, row, f"{width:.2f}", ha="center", va="center", fontsize=8)
        left += widths
    for row, total in enumerate(left):
        axes.text(total, row, f"  {total:.2f} GiB", va="center", fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(left))
    axes.set_xlabel("GiB", fontsize=9)
    _legend(axes)
    return figure


def formats(gradients: np.ndarray, scale: float, mark: tuple[str, float], title: str) -> Figure:
    """What each number format can hold, over the sizes of gradients, plain and scaled."""
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
    beyond = "size; left of the dotted lines float16 has only 0, right of them infinity"
    below.set_xlabel(beyond, fontsize=9)
    below.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def drift(paths: Mapping[str, Sequence[float]], title: str) -> Figure:
    """A weight that takes many small steps, by the format that holds it."""
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


def figure_of(
    title: str, height: float, rows: int = 1, columns: int = 1, sharex=False, sharey=False, **grid
) -> tuple[Figure, Sequence[Any]]:
    figure = Figure(figsize=(9.5, height), layout="constrained")
    options = {"sharex": sharex, "sharey": sharey, "squeeze": False, "gridspec_kw": grid}
    panels = figure.subplots(rows, columns, **options).reshape(-1)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8, color=GRID)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", color=INK)
    return figure, panels


def _legend(axes: Any) -> None:
    axes.legend(
        frameon=False, fontsize=8, ncols=len(KINDS), loc="upper center", bbox_to_anchor=(0.5, -0.18)
    )
