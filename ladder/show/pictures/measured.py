"""Measurements on logarithmic scales, where the lowest rungs can be seen too."""

from __future__ import annotations

import math

from ladder.measure.results import Measurement
from ladder.show import charts, tables
from ladder.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.show.tables import Row

LEAST, MOST = 0.1, 1000.0  # FLOPs per byte of a roofline
HIGH = 300.0  # of a roofline, in pixels


def found(op: str, **which: str) -> tuple[str, Measurement, list[Row]]:
    """What was measured, in words, and its rows. Raises LadderError where nothing was."""
    device, measurement = tables.find_measurement(op, **{k: v for k, v in which.items() if v})
    title = f"{op}, {measurement['shape']}, {measurement['dtype']}, {device['gpu']}"
    return title, measurement, tables.measured_rows(measurement)


def digest(op: str, **which: str) -> str:
    """Changes with any number of the measurement."""
    title, measurement, rows = found(op, **which)
    return charts.digest("measured", title, rows, measurement)


def draw_ladder(op: str, *, dtype: str = "", shape: str = "", device: str = "") -> Drawing:
    """A bar for each rung and library: its time, on a logarithmic scale."""
    title, _, rows = found(op, dtype=dtype, shape=shape, device=device)
    kernels = [row for row in rows if row.kernel]
    slowest, fastest = (choose(kernels, key=lambda row: row.us) for choose in (max, min))
    drawing = Drawing(
        f"{title}: time, logarithmic",
        f"From {slowest.us:,.1f} µs ({slowest.name}) to {fastest.us:,.1f} µs ({fastest.name}): "
        f"{slowest.us / fastest.us:,.0f} times as fast. {_remark(rows)}",
    )
    low = 10 ** math.floor(math.log10(min(row.us for row in rows)))
    high = 10 ** math.ceil(math.log10(max(row.us for row in rows)))
    x0, wide, y = MARGIN + 236.0, WIDTH - 2 * MARGIN - 236 - 58.0, drawing.top
    for row in rows:
        name = (f"{row.rung}: {row.name}" if row.rung is not None else row.name) + row.since
        drawing.text(x0 - 6, y + 12, name if len(name) < 36 else name[:34] + "…", 11, "end")
        length = wide * math.log10(row.us / low) / math.log10(high / low)
        drawing.box(x0, y + 1, length, 14, _fill(row), title=name)
        drawing.text(x0 + length + 5, y + 12, f"{row.us:,.0f} µs", 11)
        y += 19
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        x = x0 + wide * (power - math.log10(low)) / math.log10(high / low)
        drawing.line([(x, drawing.top), (x, y)], "line", 0.6, dashed=True)
        drawing.text(x, y + 13, f"{10**power:,}", 10, "middle", "muted")
    return drawing


def draw_roofline(op: str, *, dtype: str = "", shape: str = "", device: str = "") -> Drawing:
    """FLOPs per second over FLOPs per byte from 0.1 to 1,000, and every rung at its op's intensity.

    The ridge is where the memory roof meets the arithmetic roof, where that was measured.
    """
    title, measurement, rows = found(op, dtype=dtype, shape=shape, device=device)
    copy = measurement["roof"]["copy_gbps"] / 1e3  # TFLOP/s at one FLOP per byte
    matrix = measurement["roof"]["matrix_tflops"] or math.inf
    intensity = measurement["flops"] / measurement["bytes"]
    kernels = [row for row in rows if row.kernel]
    rates = {row.rung: measurement["flops"] / row.us / 1e6 for row in kernels}
    ridge = f", the ridge at {matrix / copy:,.0f}" if matrix < math.inf else ""
    side = "memory" if intensity < matrix / copy else "arithmetic"
    best = max(kernels, key=lambda row: row.of_roof)
    drawing = Drawing(
        f"{title}: roofline",
        f"The op needs {intensity:,.1f} FLOPs per byte{ridge}: {side} sets its roof. The "
        f"{len(kernels)} rungs reach {min(rates.values()):.3g} to {max(rates.values()):.3g} "
        f"TFLOP/s; the best, {best.name}, {best.of_roof:.0%} of the roof. {_remark(kernels)}",
    )
    top = 10 ** math.ceil(math.log10(min(matrix, MOST * copy)))
    low = 10 ** math.floor(math.log10(min(*rates.values(), LEAST * copy)))
    x0, wide, y0 = MARGIN + 44.0, WIDTH - 2 * MARGIN - 52.0, drawing.top + 10

    def at(flops_per_byte: float, rate: float) -> tuple[float, float]:
        across = math.log10(flops_per_byte / LEAST) / math.log10(MOST / LEAST)
        return x0 + wide * across, y0 + HIGH * (1 - math.log10(rate / low) / math.log10(top / low))

    for power in range(-1, 4):
        x, _ = at(10.0**power, low)
        drawing.line([(x, y0), (x, y0 + HIGH)], "panel")
        drawing.text(x, y0 + HIGH + 14, f"{10.0**power:g}", 10, "middle", "muted")
    for power in range(round(math.log10(low)), round(math.log10(top)) + 1):
        _, y = at(LEAST, 10.0**power)
        drawing.line([(x0, y), (x0 + wide, y)], "panel")
        drawing.text(x0 - 5, y + 4, f"{10.0**power:g}", 10, "end", "muted")
    corner = min(matrix / copy, MOST)
    drawing.line([at(LEAST, LEAST * copy), at(corner, corner * copy)], "red", 2)
    if matrix < math.inf:
        drawing.line([at(corner, matrix), at(MOST, matrix)], "red", 2)
    drawing.line(
        [at(intensity, low), at(intensity, min(intensity * copy, matrix))], "line", 1, True
    )
    right = intensity < 10  # side of the point on which there is room for names
    level = -math.inf
    for number, row in enumerate(sorted(kernels, key=lambda row: row.us)):
        x, y = at(intensity, rates[row.rung])
        drawing.box(x - 4, y - 4, 8, 8, _fill(row), "paper", 1, row.name + row.since)
        last = y0 + HIGH - 8 - 13 * (len(kernels) - 1 - number)  # leaves room for those below
        level = max(level + 13, min(y + 4, last))
        shift = 26 if right else -26
        drawing.line([(x, y), (x + shift - math.copysign(4, shift), level - 4)], "line", 0.7)
        name = f"{row.rung}: {row.name}" if right else str(row.rung)  # names would cross the roof
        drawing.text(x + shift, level, name, 10, "start" if right else "end")
    bottom = max(y0 + HIGH + 34, level + 20)
    drawing.text(x0 + wide / 2, bottom, "FLOPs per byte that must be moved", 11, "middle", "muted")
    drawing.text(MARGIN, y0 - 10, "TFLOP/s", 11, colour="muted")
    drawing.paragraph(MARGIN, bottom + 22, drawing.description, size=12)
    return drawing


def _fill(row: Row) -> str:
    return "line" if not row.kernel else "pale blue" if row.stale else "blue"


def _remark(rows: list[Row]) -> str:
    """Which rows are pale, if any: those whose code was measured before it changed."""
    return "Pale: the file has changed since." if any(row.stale for row in rows) else ""
