"""Measurements: the speed of each rung, from zero, and all rungs under the roof."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from ladder.core.common import cache
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.measure import results
from ladder.core.measure.results import Measurement
from ladder.core.show import tables
from ladder.core.show.pictures.drawing import GLYPH, MARGIN, WIDTH, Drawing
from ladder.core.show.tables import Row

LEAST, MOST = 0.1, 1000.0  # FLOPs per byte of a roofline, at least
HIGH = 300.0  # of a roofline, in pixels
LABEL, APART = 10, 13  # size of a rung's label, and from one to the next
LEADER = 34  # from a rung's mark to its label
Point = tuple[float, float]


@dataclass(frozen=True)
class Measured:
    """What a picture shows: one measurement, its rows, and the rate of matrix products.

    product  TFLOP/s of a large product in this type on this device; None where none was measured
    """

    title: str
    measurement: Measurement
    rows: Sequence[Row]
    product: float | None

    @property
    def kernels(self) -> list[Row]:
        return [row for row in self.rows if row.kernel]

    @property
    def intensity(self) -> float:
        """FLOPs of the op for each byte that it must move."""
        return float(self.measurement["flops"] / self.measurement["bytes"])

    def rate(self, row: Row) -> float:
        """TFLOP/s."""
        return float(self.measurement["flops"] / row.us / 1e6)

    @property
    def remark(self) -> str:
        """What pale bars and points mean, if there are any."""
        stale = any(row.stale for row in self.rows)
        return " Pale: the file has changed since." if stale else ""


def of(device: Mapping[str, Any], measurement: Measurement, when: str = "") -> Measured:
    """What was measured on a device; `when` ends the title."""
    title = f"{measurement['op']}, {measurement['shape']}, {measurement['dtype']}, {device['gpu']}"
    product = measurement["roof"]["matrix_tflops"] or _product(device, measurement["dtype"])
    rows = [row for row in tables.measured_rows(measurement) if not row.tf32]  # of another roof
    return Measured(title + when, measurement, rows, product)


def kept(op: str) -> Measured:
    """What was measured and kept. Raises LadderError where nothing was."""
    return of(*tables.find_measurement(op))


def digest(op: str) -> str:
    """Changes with any number that the pictures show."""
    shown = kept(op)
    fields = [dataclasses.asdict(row) for row in shown.rows]
    left_out = "tf32", "mj", "us"
    rows = json.dumps([{k: v for k, v in row.items() if k not in left_out} for row in fields])
    roof = json.dumps([shown.measurement["roof"], shown.product])
    return cache.digest("measured", shown.title, rows, roof)[:12]


def _product(device: Mapping[str, Any], dtype: str) -> float | None:
    """The rate of matrix products on this device, from the measurement of another op."""
    rates = [
        measurement["roof"]["matrix_tflops"]
        for content in results.load_all().values()
        for measurement in content["measurements"]
        if content["device"]["gpu"] == device["gpu"] and measurement["dtype"] == dtype
    ]
    return next((rate for rate in rates if rate), None)


# ---- speeds -------------------------------------------------------------------------------------


def ladder(shown: Measured) -> Drawing:
    """A bar for each rung and library: its speed, from zero; lines at the roof and the library."""
    rows, unit = shown.rows, tables.unit(shown.measurement)
    slowest, fastest = (choose(shown.kernels, key=lambda row: row.us) for choose in (max, min))
    roof, baseline = fastest.rate / fastest.of_roof, tables.best_baseline(shown.measurement)
    times, floor = slowest.us / fastest.us, fastest.us * fastest.of_roof
    ratio = f"{times:,.0f}" if times >= 100 else f"{times:.3g}"
    drawing = Drawing(
        f"{shown.title}: speed",
        f"From {tables.rate(slowest.rate)} {unit} ({slowest.name}) to "
        f"{tables.rate(fastest.rate)} {unit} ({fastest.name}): {ratio} times as fast. "
        f"The measured roof is {tables.rate(roof)} {unit}: "
        f"{floor:{',.0f' if floor >= 100 else '.3g'}} µs.{shown.remark}",
    )
    most = max(row.rate for row in rows)
    beyond = roof > 3 * most  # such a roof would press all bars together
    most = most if beyond else max(most, roof)
    x0, wide, y = MARGIN, WIDTH - 2 * MARGIN - 118.0, drawing.top + 8

    def at(rate: float) -> float:
        return x0 + wide * rate / most

    bottom = y + 28 * len(rows) + 2
    power = 10.0 ** math.floor(math.log10(most / 2))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if most <= 6 * step)
    for i in range(math.floor(most / step) + 1):
        x, label = at(i * step), f"{i * step:,g}"
        drawing.line([(x, y), (x, bottom)], "panel")
        drawing.text(x, bottom + 12, label, 10, "middle" if i else "start", "muted")
    drawing.text(x0 + wide + 8, bottom + 12, unit, 10, colour="muted")
    lines = [] if beyond else [("red", roof)]
    lines += [("orange", baseline.rate)] if baseline else []
    for row in rows:
        drawing.text(x0, y + 11, _label(row) + row.since, 11)
        drawing.box(x0, y + 14, max(at(row.rate) - x0, 1), 10, _fill(row), title=_label(row))
        share = f"{tables.rate(row.rate)} {unit}, {tables.percent(row.of_roof)}"
        drawing.text(x0 + wide + 8, y + 23, share, 11)
        for colour, rate in lines:
            mark = [(at(rate), y + 14), (at(rate), y + 26)]
            drawing.line(mark, "paper", 3)  # red on blue alone is hard to see
            drawing.line(mark, colour, 2)
        y += 28
    y = bottom + 30
    where = ", far to the right" if beyond else ""
    notes = [("red", f"roof: {tables.rate(roof)} {unit}{where}; % is the share of the roof")]
    if baseline:
        notes.append(("orange", f"{baseline.name}: {tables.rate(baseline.rate)} {unit}"))
    for colour, note in notes:
        drawing.line([(x0 + 4, y - 8), (x0 + 4, y + 4)], colour, 1.5)
        drawing.text(x0 + 12, y, note, 11, colour="muted")
        y += 17
    return drawing


# ---- rates --------------------------------------------------------------------------------------


def roofline(shown: Measured) -> Drawing:
    """FLOPs per second over FLOPs per byte, and every rung at its op's intensity.

    The ridge is where the memory roof meets the arithmetic roof, where that was measured.
    """
    intensity, kernels = shown.intensity, shown.kernels
    if not intensity:
        op = shown.measurement["op"]
        raise LadderError(f"{op} has no FLOPs, so it has no place on a roofline; draw its ladder")
    ranks = find(shown.measurement["op"]).op.ranks  # then the bytes cross links
    copy = shown.measurement["roof"]["copy_gbps"] / 1e3  # TFLOP/s at one FLOP per byte
    product = shown.product or math.inf
    rates = [shown.rate(row) for row in kernels]
    best = max(kernels, key=lambda row: row.of_roof)
    side = ("the link" if ranks else "memory") if intensity < product / copy else "arithmetic"
    ridge = f"; the ridge is at {product / copy:,.0f}" if shown.product else ""
    share = f"{tables.percent(best.of_roof)} of the roof"
    reached = f"The rung reaches {rates[0]:.3g} TFLOP/s, {share}."
    if len(kernels) > 1:
        reached = (
            f"The {len(kernels)} rungs reach {min(rates):.3g} to {max(rates):.3g} TFLOP/s; "
            f"the best, {best.name}, has {share}."
        )
    drawing = Drawing(
        f"{shown.title}: roofline",
        f"The op has {intensity:,.3g} FLOPs for each byte that must be moved{ridge}, so {side} is "
        f"its limit. {reached}{shown.remark}",
    )
    least = min(LEAST, 10 ** math.floor(math.log10(intensity)))
    top = 10 ** math.ceil(math.log10(min(product, MOST * copy)))
    low = 10.0 ** math.floor(math.log10(min(*rates, least * copy)))
    x0, wide, y0 = MARGIN + 44.0, WIDTH - 2 * MARGIN - 52.0, drawing.top + 14

    def roof(flops_per_byte: float) -> float:
        return float(min(flops_per_byte * copy, product))

    def at(flops_per_byte: float, rate: float) -> Point:
        across = math.log10(flops_per_byte / least) / math.log10(MOST / least)
        return x0 + wide * across, y0 + HIGH * (1 - math.log10(rate / low) / math.log10(top / low))

    def below_roof(x: float) -> float:
        """The y of the roof at x: what stands right of x and lower does not cross it."""
        return at(least, roof(least * (MOST / least) ** ((x - x0) / wide)))[1]

    baseline = tables.best_baseline(shown.measurement)
    shown_rows = [*kernels, *([baseline] if baseline else ())]
    names = [f"{_label(row)}, {shown.rate(row):.3g}" for row in shown_rows]
    short = [f"{_number(row)}: {shown.rate(row):.3g}" for row in shown_rows]
    while True:  # a decade more below, until all labels fit
        points = [at(intensity, shown.rate(row)) for row in shown_rows]
        labels = _labels(points, names, short, below_roof, least_x=x0)
        if max(y for _, y, _ in labels) <= y0 + HIGH - 4:
            break
        low /= 10
    for power in range(round(math.log10(least)), 4):
        x, _ = at(10.0**power, low)
        drawing.line([(x, y0), (x, y0 + HIGH)], "panel")
        drawing.text(x, y0 + HIGH + 14, f"{10.0**power:g}", 10, "middle", "muted")
    for power in range(round(math.log10(low)), round(math.log10(top)) + 1):
        _, y = at(least, 10.0**power)
        drawing.line([(x0, y), (x0 + wide, y)], "panel")
        drawing.text(x0 - 5, y + 4, f"{10.0**power:g}", 10, "end", "muted")
    corner = min(product / copy, MOST)
    drawing.line([at(least, least * copy), at(corner, corner * copy)], "red", 2)
    if shown.product:
        drawing.line([at(corner, product), at(MOST, product)], "red", 2)
        name = f"matrix product: {product:,.0f} TFLOP/s"
        drawing.text(at(MOST, product)[0], at(MOST, product)[1] - 5, name, 10, "end", "red")
    drawing.line([at(intensity, low), at(intensity, roof(intensity))], "line", 1, True)
    for (x, y), (to_x, to_y, name) in zip(points, labels, strict=True):
        toward = math.copysign(1, to_x - x)
        bends = [(x + 12 * toward, y), (to_x - 12 * toward, to_y - 4)]
        drawing.line([(x, y), *bends, (to_x - 4 * toward, to_y - 4)], "line", 0.7)
        drawing.text(to_x, to_y, name, LABEL, "start" if toward > 0 else "end")
    for row, (x, y), name in zip(shown_rows, points, names, strict=True):
        drawing.box(x - 6, y - 1.5, 12, 3, _fill(row), title=name + row.since)
    bottom = y0 + HIGH + 34
    drawing.text(x0 + wide / 2, bottom, "FLOPs per byte that must be moved", 11, "middle", "muted")
    drawing.text(MARGIN, y0 - 10, "TFLOP/s", 11, colour="muted")
    copies = f"copy{' from card to card' if ranks else ''}: {copy * 1e3:,.0f} GB/s"
    x = x0 + wide / 3
    drawing.text(x - 8, below_roof(x), copies, 10, "end", "red")  # left of its line
    drawing.paragraph(MARGIN, bottom + 22, drawing.description, size=12)
    return drawing


def _labels(
    points: Sequence[Point], names: Sequence[str], short: Sequence[str],
    below_roof: Callable[[float], float], least_x: float,
) -> list[tuple[float, float, str]]:  # fmt: skip
    """Where each point's label begins (right of it) or ends (left of it), and its text: in the
    order of the points, each as near to its own as the others and the roof let it be.

    names, short  what a label says where there is room right of the points, and where there is not
    """
    (x, _) = points[0]
    room = int((WIDTH - MARGIN - (x + LEADER)) / (GLYPH * LABEL))  # characters, right of the points
    right = room >= 40
    texts = [n if len(n) <= room else _shortened(n, room) for n in names] if right else short
    start = x + LEADER if right else x - LEADER
    order = sorted(range(len(points)), key=lambda i: points[i][1])
    lefts = [start if right else start - GLYPH * LABEL * len(texts[i]) for i in order]
    highest = [below_roof(max(left, least_x)) + 3 + APART for left in lefts]
    levels = spread([points[i][1] + 4 for i in order], APART, highest)
    return [(start, levels[order.index(i)], texts[i]) for i in range(len(points))]


def spread(wanted: Sequence[float], apart: float, least: Sequence[float]) -> list[float]:
    """Places in the order of those that are wanted (ascending), `apart` from each other, with the
    least sum of squared distances from the wanted ones; then each is moved on to its `least`.

    Without the gaps between them it is a monotone regression: pools of neighbours share a mean.
    Source: Barlow et al., Statistical Inference under Order Restrictions, 1972.
    """
    pools: list[list[float]] = []
    for number, place in enumerate(wanted):
        pools.append([place - number * apart])
        while len(pools) > 1 and mean(pools[-2]) > mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    places: list[float] = []
    for number, place in enumerate(mean(pool) for pool in pools for _ in pool):
        before = places[-1] + apart if places else -math.inf
        places.append(max(place + number * apart, least[number], before))
    return places


def _shortened(name: str, room: int) -> str:
    """A label's words cut off, so that its number can be read."""
    words, _, number = name.rpartition(", ")
    return f"{words[: room - len(number) - 3]}…, {number}"


def _label(row: Row) -> str:
    return f"{row.rung}: {row.name}" if row.rung is not None and row.kernel else row.name


def _number(row: Row) -> str:
    """A rung's number. In one type no two have the same one; the track is left out for brevity."""
    return row.rung.rpartition("-")[2] if row.rung is not None else row.name


def _fill(row: Row) -> str:
    return "line" if not row.kernel else "pale blue" if row.stale else "blue"
