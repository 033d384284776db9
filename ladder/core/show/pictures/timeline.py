"""A pipelined kernel over time: copies that land, products that run, and warps that wait."""

from collections.abc import Sequence

from ladder.core.contract.ladder import find
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.recording import Event, record
from ladder.core.show.pictures.replay import Durations, Replay, Span

KINDS = {  # of spans: what they mean, and the colour
    "copy": ("copy (thin bar: its start)", "orange"),
    "held": ("landed, in use", "pale orange"),
    "product": ("products", "blue"),
    "queue": ("products wait for the tensor cores", "pale blue"),
    "softmax": ("softmax", "purple"),
    "store": ("store", "green"),
    "wait": ("waits at an mbarrier", "pale red"),
    "": ("idle, or empty", "panel"),
}
ORDER = ("producer", "stage", "consumer", "tensor cores")
TENSOR_CORES = ("tensor cores", 0)  # the row of all products
TICK = 2.5  # pixels: the start of a copy


def draw(
    op: str, rung: str, *, shape: str, dtype: str = "bfloat16", copy: str = "5", product: str = "2",
    store: str = "1", softmax: str = "0", cluster: str = "1", until: str = "60",
) -> Drawing:  # fmt: skip
    """A row for the producer, each stage of the ring, each consumer warpgroup, the tensor cores."""
    durations = Durations(float(copy), float(product), float(store), float(softmax))
    title = f"{op}, {find(op).rung(rung).name}"
    return of_events(title, record(op, rung, dtype, shape), durations, int(cluster), float(until))


def of_events(
    title: str, events: Sequence[Event], durations: Durations, cluster: int = 1, until: float = 60
) -> Drawing:
    """The same from a recording; `cluster` blocks run together, `until` is where the axis ends."""
    spans = Replay(events, cluster, durations).spans
    drawing = Drawing(f"{title}: the pipeline over time", _describe(spans, durations, until))
    spans += [span._replace(row=TENSOR_CORES) for span in spans if span.kind == "product"]
    rows = sorted({span.row for span in spans}, key=lambda row: (ORDER.index(row[0]), row[1]))
    y, x0 = drawing.top, MARGIN + 92.0
    scale = (WIDTH - MARGIN - x0) / until
    for row in rows:
        y += 6 if row == TENSOR_CORES else 0
        drawing.text(x0 - 8, y + 13, _name(row), 12, "end", bold=row == TENSOR_CORES)
        drawing.box(x0, y, until * scale, 18, "panel")
        for span in sorted(spans, key=_layer):
            if span.row == row and span.start < until:
                _draw_span(drawing, span, x0, y, scale, until)
        y += 22
    drawing.text(x0 - 8, y + 10, "time units", 10, "end", "muted")
    for time in range(0, int(until) + 1, 10):
        drawing.text(x0 + time * scale, y + 10, str(time), 10, "middle", "muted")
    kinds = {"", *(span.kind for span in spans)}
    y = drawing.legend(y + 30, [KINDS[kind] for kind in KINDS if kind in kinds])
    drawing.paragraph(MARGIN, y + 22, drawing.description, size=12, colour="muted")
    return drawing


def _layer(span: Span) -> int:
    """Waits lie underneath, starts of copies on top."""
    return {"wait": 0, "ask": 2}.get(span.kind, 1)


def _draw_span(
    drawing: Drawing, span: Span, x0: float, y: float, scale: float, until: float
) -> None:
    left = x0 + span.start * scale
    if span.kind == "ask":
        drawing.box(
            left, y + 1, TICK, 16, KINDS["copy"][1], title=f"copy: starts at {span.start:g}"
        )
        return
    wide = (min(span.end, until) - span.start) * scale
    text = f"{span.kind}: {span.start:g} to {span.end:g}"
    drawing.box(left, y + 1, wide, 16, KINDS[span.kind][1], "paper", 0.8, text)


def _describe(spans: Sequence[Span], durations: Durations, until: float) -> str:
    """How many of everything there are, and what is assumed."""
    stages, consumers = (
        len({span.row for span in spans if span.row[0] == name}) for name in ("stage", "consumer")
    )
    last = max(span.end for span in spans)
    products = [span for span in spans if span.kind == "product"]
    first, end = min(span.start for span in products), max(span.end for span in products)
    busy = sum(span.end - span.start for span in products)
    shown = f" The picture shows the first {until:g}." if last > until else ""
    stores = any(span.kind == "store" for span in spans)
    store = f", the softmax of a tile {durations.softmax:g}" if durations.softmax else ""
    store += f", a store {durations.store:g}" if stores else ""
    return (
        f"Block 0, with {stages} {'stage' if stages == 1 else 'stages'} and {consumers} consumer "
        f"{'warpgroup' if consumers == 1 else 'warpgroups'}. It takes {last:g} time units, and the "
        f"tensor cores work in {busy:g} of them. From the first product, at {first:g}, to the end "
        f"of the last one, at {end:g}, they work in {busy / (end - first):.0%} of the time.{shown} "
        f"Assumed durations, in these units: a copy {durations.copy:g}, the products of a stage "
        f"{durations.product:g}{store}. Order and waiting come from the kernel's barriers."
    )


def _name(row: tuple[str, int]) -> str:
    name, number = row
    return name if name in ("producer", "tensor cores") else f"{name} {number}"
