"""Pictures of measurements; as SVG files, they name the numbers that they were drawn from."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

from ladder.common import cache
from ladder.common.errors import LadderError
from ladder.common.files import read_text
from ladder.measure.results import Measurement
from ladder.show import tables
from ladder.show.tables import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID, OURS, PEER, ROOF = "#333333", "#dddddd", "#1f77b4", "#999999", "#d62728"
STALE = "#aec7e8"  # a paler OURS: the code has changed since
Rows = Sequence[Row]


def digest(kind: str, title: str, rows: Rows, measurement: Measurement) -> str:
    """Names what a picture shows; it changes with any number in it."""
    shown = json.dumps([dataclasses.asdict(row) for row in rows])
    return cache.digest(kind, title, shown, json.dumps(measurement["roof"]))[:12]


def drawn_from(picture: Path) -> str | None:
    """The digest that a picture was drawn from, or None."""
    try:
        found = re.search(r"ladder:([0-9a-f]{12})", read_text(picture))
    except LadderError:  # it is not there
        return None
    return found.group(1) if found else None


def bars(title: str, rows: Rows, measurement: Measurement) -> Figure:
    """A bar for each rung and peer, as long as the bytes (or FLOPs) per second that it reaches."""
    figure, axes = _figure(title, (7.5, 0.9 + 0.34 * len(rows)))
    matrix = measurement["roof"]["matrix_tflops"]
    roof = matrix or measurement["roof"]["copy_gbps"]
    for place, row in enumerate(rows):
        axes.barh(place, row.rate, color=_colour(row), height=0.7)
        near = row.rate > 0.85 * roof  # a number right of the bar would cross the roof's line
        axes.text(
            row.rate + roof * (-0.01 if near else 0.01),
            place,
            tables.rate(row.rate),
            ha="right" if near else "left",
            va="center",
            fontsize=8,
            color="white" if near else INK,
        )
    axes.axvline(roof, color=ROOF, linewidth=1.2)
    at_top = axes.get_xaxis_transform()
    axes.text(roof, 1.01, "roof", color=ROOF, ha="center", fontsize=8, transform=at_top)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, roof * 1.12)
    axes.set_xlabel("TFLOP/s" if matrix else "GB/s, counting only the bytes that must be moved")
    axes.grid(axis="x", color=GRID)
    return figure


def roofline(title: str, rows: Rows, measurement: Measurement) -> Figure:
    """FLOPs per second over FLOPs per byte: what memory and arithmetic allow, and where rungs are.

    All rungs do the same work, so they stand above each other, at the intensity of the op.
    """
    figure, axes = _figure(title, (7.5, 4.2))
    copy = measurement["roof"]["copy_gbps"] * 1e9
    matrix = (measurement["roof"]["matrix_tflops"] or 0) * 1e12
    intensity = measurement["flops"] / measurement["bytes"]
    span = [intensity / 2, intensity * 16]  # more on the right, where the labels are
    if matrix:  # show both roofs, and where they meet
        span = [min(span[0], matrix / copy / 4), max(span[1], 4 * matrix / copy)]
    ridge = matrix / copy if matrix else span[1]
    xs = [span[0], min(ridge, span[1]), span[1]]
    axes.plot(xs, [min(x * copy, matrix or x * copy) / 1e12 for x in xs], color=ROOF, linewidth=1.5)
    axes.axvline(intensity, color=GRID, linewidth=1, zorder=0)
    rates = [measurement["flops"] / row.us / 1e6 for row in rows]  # TFLOP/s
    lowest, highest = min(rates) / 2, 1.3 * min(span[1] * copy, matrix or math.inf) / 1e12
    apart = (highest / lowest) ** 0.05  # so that labels keep clear of each other
    level = math.inf
    for rate, row in sorted(zip(rates, rows, strict=True), key=lambda pair: -pair[0]):
        axes.plot(intensity, rate, "o", color=_colour(row), markersize=5)
        level = min(rate, level / apart)
        axes.annotate(
            f"{_label(row)}, {tables.percent(row.of_roof)}",
            (intensity, rate),
            (intensity * 1.25, level),
            va="center",
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": GRID, "relpos": (0, 0.5)},
        )
    roof = f"roof: {copy / 1e9:,.0f} GB/s" + (f", {matrix / 1e12:,.0f} TFLOP/s" if matrix else "")
    axes.text(1, 1.01, roof, color=ROOF, ha="right", fontsize=8, transform=axes.transAxes)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(*span)
    axes.set_ylim(min(lowest, level / apart), highest)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlabel("FLOPs per byte that must be moved")
    axes.set_ylabel("TFLOP/s")
    axes.grid(color=GRID, linewidth=0.4)
    return figure


def _colour(row: Row) -> str:
    return PEER if not row.kernel else STALE if row.stale else OURS


def _label(row: Row) -> str:
    return f"{row.rung}: {row.name}{row.since}" if row.rung is not None else row.name


def _figure(title: str, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A figure of its own, not pyplot's: nothing opens a window, nothing is left behind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    figure.suptitle(title, fontsize=10, color=INK, x=0.01, horizontalalignment="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def save(figure: Figure, path: Path, digest: str) -> None:
    """The same numbers give the same bytes: no date, no random identifiers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "ladder", "svg.fonttype": "none"}):
        figure.savefig(
            path, format="svg", metadata={"Date": None, "Description": f"ladder:{digest}"}
        )
