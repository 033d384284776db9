"""Drawings of a training step: its work, its memory, where its time goes, what a climb of its ops
saves, which of its gradients are wrong, and how number formats round its small updates.

Each function draws the numbers that it is given; trainer/notebook reads them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from ladder.core.contract.ladder import find
from ladder.core.contract.op import Dims
from ladder.core.measure.roofline import COMPUTE_BOUND
from trainer.plots.style import BESIDE, BLUE, GREEN, GREY, GRID, INK, ORANGE, figure_of

Row = tuple[str, float, float]  # a name, and two values that belong together

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


def flops_and_bytes(calls: Iterable[tuple[str, Dims]], real: np.dtype, title: str) -> Figure:
    """FLOPs and least bytes of every op of a step: products and attention, and the rest.

    calls  the op and the dimensions of every call
    """
    flops: dict[str, int] = {}
    moved: dict[str, int] = {}
    for name, dims in calls:
        op = find(name).op
        flops[name] = flops.get(name, 0) + op.flops(dims)
        moved[name] = moved.get(name, 0) + op.least_bytes(dims, real)
    order = sorted(flops, key=lambda name: -flops[name])
    products = [name for name in order if flops[name] > COMPUTE_BOUND * moved[name]]
    figure, panels = figure_of(title, 1.1 + 0.27 * len(order), columns=2, sharey=True)
    for axes, counts, unit, scale in (
        (panels[0], flops, "GFLOP", 1e9),
        (panels[1], moved, "least bytes, in GB", 1e9),
    ):
        total = sum(counts.values())
        colours = [BLUE if name in products else ORANGE for name in order]
        axes.barh(order, [counts[name] / scale for name in order], color=colours, height=0.7)
        for row, name in enumerate(order):
            share = 100 * counts[name] / total
            short = f"{share:.0f} %" if share >= 1 else "< 1 %"
            axes.annotate(short, (counts[name] / scale, row), **BESIDE)
        part = 100 * sum(counts[name] for name in products) / total
        axes.set_xlim(0, 1.18 * max(counts.values()) / scale)
        axes.set_xlabel(
            f"{unit}: {total / scale:,.1f} in total, {min(part, 99.9):.3g} % of it blue", fontsize=9
        )
    panels[0].invert_yaxis()
    return figure


def memory(rows: Mapping[str, Mapping[str, int]], title: str) -> Figure:
    """Memory: a bar for each way to run, stacked by kind of buffer."""
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
        axes.annotate(f"{total:.2f} GiB", (total, row), **BESIDE)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(left))
    axes.set_xlabel("GiB", fontsize=9)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
    axes.legend(frameon=False, fontsize=8, ncols=len(KINDS), **below)
    return figure


def times(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Milliseconds of a training step, ours and others', a panel for each type and batch size.

    rows  B, dtype, what (the program), ms
    """
    jobs = sorted({(row["dtype"], row["B"]) for row in rows})
    parts = [[row for row in rows if (row["dtype"], row["B"]) == job] for job in jobs]
    counts = [len(part) for part in parts]
    figure, panels = figure_of(
        title, 1.0 + 0.42 * sum(counts) + 0.35 * len(jobs), rows=len(jobs), height_ratios=counts
    )
    for axes, (dtype, B), chosen in zip(panels, jobs, parts, strict=True):
        colours = [BLUE if row["what"].startswith("ours") else GREY for row in chosen]
        ms = [row["ms"] for row in chosen]
        axes.barh([row["what"] for row in chosen], ms, color=colours, height=0.65)
        for place, each in enumerate(ms):
            axes.annotate(f"{each:.2f} ms", (each, place), **BESIDE)
        axes.set_xlim(0, 1.2 * max(ms))
        axes.set_title(f"B={B}, {dtype}", fontsize=9, loc="left")
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.invert_yaxis()
    return figure


def profile(p: Mapping[str, Any], title: str) -> Figure:
    """The ops of a measured step: a bar for the time, and one in front of it for the floor."""
    rows = p["ops"]
    figure, (axes,) = figure_of(title, 1.0 + 0.29 * len(rows))
    names = [f"{row['op']}  {row['rung']}".rstrip() for row in rows]
    axes.barh(names, [row["ms"] for row in rows], color="#b7cde3", height=0.72, label="measured")
    floor = "floor: least time for memory or arithmetic"
    axes.barh(names, [row["floor_ms"] for row in rows], color=BLUE, height=0.36, label=floor)
    for place, row in enumerate(rows):
        share = f"{row['ms']:.3f} ms, {100 * row['ms'] / p['step_ms']:.1f} % of the step"
        axes.annotate(share, (max(row["ms"], row["floor_ms"]), place), **BESIDE)
    axes.set_xlim(0, 1.35 * max(row["ms"] for row in rows))
    axes.set_xlabel("ms", fontsize=9)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def profiles(named: Mapping[str, Mapping[str, Any]], title: str) -> Figure:
    """Measured steps, a stacked bar for each: nanoseconds per token, by op."""
    figure, (axes,) = figure_of(title, 1.8 + 0.5 * len(named))
    ops = list(dict.fromkeys(row["op"] for p in named.values() for row in p["ops"]))
    tokens = np.array([p["B"] * p["T"] for p in named.values()])
    ends, colours = np.zeros(len(named)), colormaps["tab20"]
    for i, op in enumerate((*ops, "between ops")):
        gaps = {name: max(0.0, p["gaps_ms"]) for name, p in named.items()}
        of_op = [
            gaps[name] if i == len(ops) else sum(r["ms"] for r in p["ops"] if r["op"] == op)
            for name, p in named.items()
        ]
        widths = 1e6 * np.array(of_op) / tokens
        axes.barh(list(named), widths, left=ends, color=colours(i % 20), height=0.6, label=op)
        ends += widths
    for row, (end, p) in enumerate(zip(ends, named.values(), strict=True)):
        axes.annotate(f"{p['tokens_per_second']:,.0f} tokens/s", (end, row), **BESIDE)
    axes.set_xlim(0, 1.2 * ends.max())
    axes.set_xlabel("ns per token", fontsize=9)
    axes.invert_yaxis()
    figure.legend(frameon=False, fontsize=7, ncols=5, loc="outside lower center")
    return figure


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
