"""A pipelined kernel over time: copies that land, products that run, and warps that wait."""

from __future__ import annotations

from collections.abc import Sequence

from ladder.contract.ladder import find
from ladder.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.show.pictures.recording import Event, record
from ladder.show.pictures.replay import Durations, Replay, Span

FILLS = {
    "copy": "orange",
    "held": "pale orange",
    "product": "blue",
    "softmax": "purple",
    "wait": "pale red",
    "store": "green",
}
LEGEND = {
    "copy": "copy",
    "held": "landed, in use",
    "product": "products",
    "softmax": "softmax",
    "store": "store",
    "wait": "waits",
}
ORDER = ("producer", "stage", "consumer")


def draw(
    op: str, rung: str, *, shape: str, dtype: str = "bfloat16", copy: str = "5", product: str = "2",
    store: str = "1", softmax: str = "0", cluster: str = "1", until: str = "60",
) -> Drawing:  # fmt: skip
    """A row for the producer, for each stage of the ring, and for each consumer warpgroup."""
    durations = Durations(float(copy), float(product), float(store), float(softmax))
    title = f"{op}, {find(op).rung(rung).name}"
    return of_events(title, record(op, rung, dtype, shape), durations, int(cluster), float(until))


def of_events(
    title: str, events: Sequence[Event], durations: Durations, cluster: int = 1, until: float = 60
) -> Drawing:
    """The same from a recording; `cluster` blocks run together, `until` is where the axis ends."""
    spans, end = Replay(events, cluster, durations).spans, until
    rows = sorted({span.row for span in spans}, key=lambda row: (ORDER.index(row[0]), row[1]))
    drawing = Drawing(f"{title}: the pipeline over time", _describe(spans, durations, until))
    y, x0 = drawing.top, MARGIN + 92.0
    scale = (WIDTH - MARGIN - x0) / end
    for row in rows:
        drawing.text(x0 - 8, y + 13, _name(row), 12, "end")
        drawing.box(x0, y, end * scale, 18, "panel")
        for span in sorted(spans, key=lambda span: span.kind != "wait"):  # waits lie underneath
            if span.row == row and span.start < end:
                wide = (min(span.end, end) - span.start) * scale
                text = f"{span.kind}: {span.start:g} to {span.end:g}"
                left, fill = x0 + span.start * scale, FILLS[span.kind]
                drawing.box(left, y + 1, wide, 16, fill, "paper", 0.8, text)
        y += 22
    for time in range(0, int(end) + 1, 10):
        drawing.text(x0 + time * scale, y + 10, str(time), 10, "middle", "muted")
    y += 30
    x = float(MARGIN)
    for kind in [kind for kind in LEGEND if any(span.kind == kind for span in spans)]:
        text = LEGEND[kind]
        drawing.box(x, y - 11, 13, 13, FILLS[kind], "line")
        drawing.text(x + 18, y, text, 12)
        x += 34 + 6.6 * len(text)
    drawing.paragraph(MARGIN, y + 22, drawing.description, size=12, colour="muted")
    return drawing


def _describe(spans: Sequence[Span], durations: Durations, until: float) -> str:
    """How many of everything there are, and what is assumed."""
    stages, consumers = (
        len({span.row for span in spans if span.row[0] == name}) for name in ("stage", "consumer")
    )
    last = max(span.end for span in spans)
    end = min(last, until)
    time = f"the {last:g} time units that it takes"
    if last > until:
        time = f"the first {until:g} time units"
    products = [span for span in spans if span.kind == "product" and span.start < end]
    busy = sum(min(span.end, end) - span.start for span in products)
    stores = any(span.kind == "store" for span in spans)
    store = f", the softmax of a tile {durations.softmax:g}" if durations.softmax else ""
    store += f", a store {durations.store:g}" if stores else ""
    return (
        f"Block 0, with {stages} {'stage' if stages == 1 else 'stages'} and {consumers} consumer "
        f"{'warpgroup' if consumers == 1 else 'warpgroups'}. The tensor cores work in "
        f"{busy / end:.0%} of {time}. Assumed durations, in these units: "
        f"a copy {durations.copy:g}, the products of a stage {durations.product:g}{store}. Order "
        "and waiting come from the kernel's barriers."
    )


def _name(row: tuple[str, int]) -> str:
    name, number = row
    return "producer" if name == "producer" else f"{name} {number}"
