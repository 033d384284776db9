"""Charts of what rungs ask of memory: how a ladder climbs, what feeds a product, array by array.

Those of single accesses and of measurements are in pictures/.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.report import SECTOR, LineCount, Report
from ladder.core.show.trace import own_lines

CACHE_LINE = 128  # bytes
INK, BUSY = "#222222", "#1f77b4"
SHARES = ("#9ecae1", "#fdae6b", "#a1d99b", "#bcbddc", "#d9d9d9", "#f7b6d2", "#dbdb8d", "#c49c94")
_colours: dict[str, str] = {}  # of the arrays that `traffic` has drawn: one of SHARES each


def climb(reports: Sequence[Report], rungs: Sequence[Rung], least_bytes: int, title: str) -> Figure:
    """What each rung requests from memory: a panel for every kind of count that is not always 0,
    nor always the least."""
    panels = [
        (name, values, least)
        for name, values, least in _counted(reports, rungs, least_bytes)
        if any(values) and (least is None or any(values != least))
    ]
    return _beside(panels, rungs, title)


def deliveries(reports: Sequence[Report], rungs: Sequence[Rung], flops: int, title: str) -> Figure:
    """What it takes to deliver the factors of the multiply-adds: 4 of them, each for a whole warp,
    are the work of an SM in one clock. The bias is no factor."""
    lines = [
        [line for line in own_lines(report, rung) if line.buffer != "bias"]
        for report, rung in zip(reports, rungs, strict=True)
    ]
    warp_multiply_adds = flops / 2 / 32
    loads = [sum(line.requests for line in own if line.kind == "read") for own in lines]
    sectors = [sum(line.sectors for line in own if line.kind == "read") for own in lines]
    looked_up = [_cache_lines(report, own) for report, own in zip(reports, lines, strict=True)]
    # A rung without shared memory gets no bar there: its factors take clocks of L1 only.
    wavefronts = [sum(line.wavefronts for line in own) or math.nan for own in lines]
    panels: list[tuple[str, np.ndarray, np.ndarray | None]] = [
        ("load instructions\nper multiply-add", np.array(loads) / warp_multiply_adds, None),
        (
            "sectors of global memory,\nper 4 multiply-adds",
            4 * np.array(sectors) / warp_multiply_adds,
            None,
        ),
        ("clocks of L1,\nper 4 multiply-adds", 4 * np.array(looked_up) / warp_multiply_adds, None),
        (
            "clocks of shared memory,\nper 4 multiply-adds (mark: 1)",
            4 * np.array(wavefronts) / warp_multiply_adds,
            np.ones(len(rungs)),
        ),
    ]
    return _beside(panels, rungs, title)


def _cache_lines(report: Report, counts: Sequence[LineCount]) -> float:
    """How many lines of the L1 cache the loads look up: of each source line, as many for a request
    as those take, on average, that the report holds in full."""
    total = 0.0
    for count in counts:
        if count.space == "global" and count.kind == "read":
            seen = [
                len({offset // CACHE_LINE for offset in access.offsets})
                for access in report.accesses
                if (access.line, access.buffer, access.kind)
                == (count.line, count.buffer, count.kind)
            ]
            total += count.requests * sum(seen) / len(seen)
    return total


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
