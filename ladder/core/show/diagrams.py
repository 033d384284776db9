"""Drawings that explain: what a GPU consists of, who works in each step, how a ladder climbs.

Those of memory accesses and of measurements are in pictures/.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.report import SECTOR, Access, LineCount, Report
from ladder.core.show.trace import own_lines

INK, LINE, PAPER, GOLD = "#222222", "#888888", "#f4f4f4", "#ffe9a8"
BUSY = "#1f77b4"
DOES = (BUSY, "#f5b7a5", "#eeeeee")  # a lane that adds; one that others of its warp wait for; none
SHARES = ("#9ecae1", "#fdae6b", "#a1d99b", "#bcbddc", "#d9d9d9", "#f7b6d2", "#dbdb8d", "#c49c94")
_colours: dict[str, str] = {}  # of the arrays that `traffic` has drawn: one of SHARES each
LANES = matplotlib.colormaps["turbo"]
Colour = str | tuple[float, float, float, float]


def machine() -> Figure:
    """What is launched (grid, block, warp, lane) above what it runs on. Sizes are an H200's."""
    figure = Figure(figsize=(9.5, 6.1), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 64)
    axes.set_axis_off()

    def box(
        x: float,
        y: float,
        width: float,
        height: float,
        colour: Colour = "white",
        edge: str = LINE,
        line: float = 0.8,
    ) -> None:
        axes.add_patch(Rectangle((x, y), width, height, fc=colour, ec=edge, lw=line))

    def say(x: float, y: float, text: str, size: float = 8.5, **style: Any) -> None:
        axes.text(x, y, text, fontsize=size, color=INK, va="center", **style)

    def lanes(x: float, y: float, width: float, height: float) -> None:
        for lane in range(32):
            box(x + lane * width / 32, y, width / 32, height, LANES(lane / 31), "white", 0.3)

    def zoom(x: float, low: float, high: float, to_x: float, to_low: float, to_high: float) -> None:
        axes.plot([x, to_x], [low, to_low], color=LINE, lw=0.7, ls=":")
        axes.plot([x, to_x], [high, to_high], color=LINE, lw=0.7, ls=":")

    say(0, 62.5, "What you launch", 11, weight="bold")
    for row in range(4):
        for column in range(6):
            chosen = (row, column) == (1, 5)
            box(1 + 4 * column, 41 + 4.4 * row, 3.4, 3.7, GOLD if chosen else PAPER)
    say(1, 38.8, "grid: all blocks of one launch;")
    say(1, 36.6, "they run in any order")
    zoom(24.4, 45.4, 49.1, 31, 41, 58.6)
    box(31, 41, 27, 17.6, GOLD)
    for warp in range(8):
        lanes(32, 56.3 - 2.1 * warp, 25, 1.5)
    say(31, 38.8, "block: here 256 threads = 8 warps; they share")
    say(31, 36.6, "memory, and can wait for each other")
    zoom(57, 49.99, 51.5, 64, 47.5, 51.5)
    lanes(64, 47.5, 35, 4)
    for lane in (0, 8, 16, 24, 31):
        say(64 + (lane + 0.5) * 35 / 32, 46, str(lane), 7, ha="center")
    say(64, 54, "warp: 32 lanes that are scheduled together")
    say(64, 43.3, "lane: one thread, with its own variables and indices:")
    say(64, 41, "blockIdx.x, threadIdx.x", 8.5, family="monospace")

    say(0, 31.5, "What it runs on", 11, weight="bold")
    say(17, 31.4, "(sizes of an NVIDIA H200; SM: streaming multiprocessor)", 8)
    say(55, 22, "…", 14)
    for x, number in ((1, 0), (27, 1), (60, 131)):
        box(x, 14.5, 24, 14.5, PAPER)
        say(x + 1, 27.3, f"SM {number}", 8, weight="bold")
        box(x + 1, 20.6, 22, 4.8, "#cfe3f5")
        say(x + 1.7, 23, "registers of all lanes: 256 KB", 7.8)
        box(x + 1, 15.4, 22, 4.6, "#b5d6b2")
        say(x + 1.7, 17.7, "shared memory + L1, 256 KB", 7.8)
    box(1, 8.4, 83, 4.6, "#f6d7a7")
    say(2, 10.7, "L2 cache, 63 MB: shared by all; memory moves in sectors of 32 bytes")
    box(1, 1, 83, 6, "#f2b8a0")
    say(2, 4, "global memory, 141 GB at up to 4.8 TB/s: holds the arrays; all threads access it")
    axes.annotate("", (88, 28), (88, 2), arrowprops={"arrowstyle": "<->", "color": LINE})
    say(89.5, 26, "nearer:")
    say(89.5, 23.8, "small, fast")
    say(89.5, 5.6, "farther:")
    say(89.5, 3.4, "large, slow")
    axes.annotate(
        "each block runs on one SM",
        (72, 29),
        (74, 32.6),
        fontsize=8,
        color=INK,
        va="center",
        ha="left",
        arrowprops={"arrowstyle": "->", "color": INK},
    )
    return figure


def steps(reports: Sequence[Report], rungs: Sequence[Rung], text: str) -> Figure:
    """Which threads add in each step of a block's reduction, for several rungs side by side.

    text  of the line that runs once in each step, and writes to shared memory

    Expects that a warp that has nothing to do in a step has nothing to do after it either.
    """
    figure = Figure(figsize=(9.5, 2.9), layout="constrained")
    panels = figure.subplots(1, len(rungs), sharey=True)
    for axes, report, rung in zip(panels, reports, rungs, strict=True):
        shares = [a for a in report.accesses if a.space == "shared" and a.block == (0, 0, 0)]
        width = 1 + max(max(access.lanes) for access in shares)
        threads = width * (1 + max(access.warp for access in shares))
        source = rung.source.splitlines()
        requests: dict[int, list[Access]] = {}  # of the line, by warp: one for each step
        for access in shares:
            if access.kind == "write" and text in source[access.line - 1]:
                requests.setdefault(access.warp, []).append(access)
        state = np.full((max(map(len, requests.values())), threads), 2)  # an index of DOES
        for warp, seen in requests.items():
            for step, access in enumerate(seen):
                state[step, warp * width : (warp + 1) * width] = 1
                state[step, warp * width + np.array(access.lanes)] = 0
        for step, row in enumerate(state):
            for does, colour in enumerate(DOES):
                edges = np.flatnonzero(np.diff(row == does, prepend=False, append=False))
                runs = [(start, stop - start) for start, stop in edges.reshape(-1, 2)]
                axes.broken_barh(runs, (step + 0.5, 1), color=colour, linewidth=0)
        axes.set_xlim(0, threads)
        axes.set_ylim(len(state) + 0.5, 0.5)
        axes.set_xticks(range(0, threads + 1, width))
        axes.set_yticks(range(1, len(state) + 1))
        axes.grid(axis="x", color="white", lw=1.5)
        axes.tick_params(labelsize=8, length=0)
        axes.set_xlabel("thread; gaps separate the warps", fontsize=8)
        work = sum(map(len, requests.values()))
        axes.set_title(f"{rung.name}: {work} additions by a warp", fontsize=9, loc="left")
    panels[0].set_ylabel("step", fontsize=8)
    marks = [Rectangle((0, 0), 1, 1, fc=colour) for colour in DOES]
    names = ("adds", "idle, while other lanes of its warp add", "the whole warp is idle")
    figure.legend(marks, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def climb(reports: Sequence[Report], rungs: Sequence[Rung], least_bytes: int, title: str) -> Figure:
    """What each rung requests from memory: a panel for every kind of count that is not always 0."""
    panels = [entry for entry in _counted(reports, rungs, least_bytes) if any(entry[1])]
    return _beside(panels, rungs, title)


def deliveries(reports: Sequence[Report], rungs: Sequence[Rung], flops: int, title: str) -> Figure:
    """What it takes to deliver the factors of the multiply-adds: 4 of them, each for a whole warp,
    are the work of an SM in one clock."""
    lines = [own_lines(report, rung) for report, rung in zip(reports, rungs, strict=True)]
    warp_multiply_adds = flops / 2 / 32
    loads = [sum(line.requests for line in own if line.kind == "read") for own in lines]
    sectors = [sum(line.sectors for line in own if line.kind == "read") for own in lines]
    # A rung without shared memory gets no bar: its factors take clocks elsewhere, which are not 0.
    wavefronts = [sum(line.wavefronts for line in own) or math.nan for own in lines]
    panels: list[tuple[str, np.ndarray, np.ndarray | None]] = [
        ("load instructions\nper multiply-add", np.array(loads) / warp_multiply_adds, None),
        (
            "sectors from global memory\nper 4 multiply-adds",
            4 * np.array(sectors) / warp_multiply_adds,
            None,
        ),
        (
            "clocks of shared memory\nper 4 multiply-adds (mark: 1)",
            4 * np.array(wavefronts) / warp_multiply_adds,
            np.ones(len(rungs)),
        ),
    ]
    return _beside(panels, rungs, title)


def traffic(reports: Sequence[Report], rungs: Sequence[Rung], title: str) -> Figure:
    """Which arrays the sectors of global memory belong to, as shares of each kernel's own total.

    An array keeps the colour of its first chart, so that a notebook's charts can be compared.
    """
    sectors = [Counter[str]() for _ in rungs]
    for counted, report in zip(sectors, reports, strict=True):
        for line in report.lines:
            counted[line.buffer] += line.sectors
    totals = [counted.total() for counted in sectors]
    arrays = [name for name, _ in sum(sectors, Counter()).most_common()]
    figure = Figure(figsize=(9.5, 1.0 + 0.34 * len(rungs)), layout="constrained")
    axes = figure.add_subplot()
    left = np.zeros(len(rungs))
    for array in arrays:
        colour = _colours.setdefault(array, SHARES[len(_colours) % len(SHARES)])
        shares = np.array([sectors[i][array] / totals[i] for i in range(len(rungs))])
        axes.barh(range(len(rungs)), shares, left=left, color=colour, height=0.65, label=array)
        for row, share in enumerate(shares):
            if share >= 0.04:
                where = left[row] + share / 2
                axes.text(where, row, f"{share:.0%}", fontsize=8, va="center", ha="center")
        left += shares
    for row, total in enumerate(totals):
        axes.text(1.01, row, f"of {total:,} sectors", fontsize=8, va="center")
    axes.set_xlim(0, 1.22)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    names = [rung.idea if rung.is_own_file else f"{rung.id}  {rung.idea}" for rung in rungs]
    axes.set_yticks(range(len(rungs)), names, fontsize=8)
    axes.invert_yaxis()
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.4, 0), ncols=6, frameon=False)
    figure.suptitle(title, fontsize=9.5, x=0.01, ha="left")
    return figure


def _beside(
    panels: Sequence[tuple[str, np.ndarray, np.ndarray | None]], rungs: Sequence[Rung], title: str
) -> Figure:
    """Bars for each rung, a panel for each count, – for NaN; a mark where the least is known."""
    figure = Figure(figsize=(9.5, 1.1 + 0.3 * len(rungs)), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
    for panel, (name, values, ideals) in zip(axes, panels, strict=True):
        known, most = ~np.isnan(values), np.nan_to_num(values).max() or 1
        panel.barh(range(len(rungs)), values, color=BUSY, height=0.65)
        for row, value in enumerate(values):
            short = f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if known[row] else "–"
            panel.text(np.nan_to_num(value) + 0.04 * most, row, short, fontsize=8, va="center")
            if ideals is not None and known[row]:
                panel.plot([ideals[row]] * 2, [row - 0.42, row + 0.42], color=INK, lw=1.5)
        panel.set_xlim(0, 1.45 * most)
        panel.set_title(name, fontsize=8.5, loc="left")
        panel.set_xticks([])
        panel.tick_params(length=0)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
    names = [rung.idea if rung.is_own_file else f"{rung.id}  {rung.idea}" for rung in rungs]
    axes[0].set_yticks(range(len(rungs)), names, fontsize=8)
    axes[0].invert_yaxis()
    figure.suptitle(title, fontsize=9.5, x=0.01, ha="left")
    return figure


def _counted(
    reports: Sequence[Report], rungs: Sequence[Rung], least_bytes: int
) -> list[tuple[str, np.ndarray, np.ndarray | None]]:
    """Name, count for each rung, and the least that it could be where that differs."""
    counted = [own_lines(report, rung) for report, rung in zip(reports, rungs, strict=True)]
    far = [[count for count in lines if count.space == "global"] for lines in counted]
    near = [[count for count in lines if count.space == "shared"] for lines in counted]
    atomics = [[count for count in lines if count.kind == "atomic"] for lines in far]

    def total(groups: Sequence[Sequence[LineCount]], name: str) -> np.ndarray:
        return np.array([sum(getattr(count, name) for count in group) for group in groups])

    requests, sectors = total(far, "requests"), total(far, "sectors")
    conflicts = total(near, "wavefronts") - total(near, "ideal_wavefronts")
    return [
        ("warp requests to\nglobal memory", requests, None),
        (
            "sectors/request\n(mark: the least)",
            sectors / requests,
            total(far, "ideal_sectors") / requests,
        ),
        ("bytes requested,\n× the least", sectors * SECTOR / least_bytes, None),
        ("atomic additions,\nglobal memory", total(atomics, "lanes"), None),
        ("warp requests to\nshared memory", total(near, "requests"), None),
        ("extra passes for\nbank conflicts", conflicts, None),
    ]
