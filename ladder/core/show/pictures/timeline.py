"""A pipelined kernel over time: copies that land, products that run, and warps that wait.

The events of a recording are replayed with assumed durations. The order and the dependencies are
the kernel's: a wait ends when its barrier's phase does. The lengths are not measured. A copy and a
store take as long as they are said to, however many run at the same time; the tensor cores of an SM
serve one warpgroup at a time; all else takes no time.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.recording import WARPGROUP, Event, record
from ladder.core.show.source_code import parse_shape

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

Thread = tuple[int, int]  # block, number in the block
Group = tuple[int, int]  # block, warpgroup


class Span(NamedTuple):
    """Something that takes time; `row`: ("stage", i), ("producer", 0) or ("consumer", group).

    kind  "ask" (for copies: it takes no time), "copy", "held", "queue" (products that are issued
          and wait for the tensor cores), "product", "softmax", "store" or "wait" (at an mbarrier)
    """

    row: tuple[str, int]
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Durations:
    """In any unit of time.

    copy     from the start of a copy by TMA to its end
    product  of a warpgroup's products of one stage
    store    until a warpgroup has written one of its tiles of results to shared memory, from where
             TMA stores it
    softmax  of what a warpgroup computes from the result of products before its next ones: in
             attention, the exponentials of a tile of scores
    """

    copy: float
    product: float
    store: float
    softmax: float = 0.0


@dataclass
class Barrier:
    """An mbarrier during the replay: when its phases ended, and what the current one lacks."""

    name: str
    count: int
    loads: int = 0  # that a phase waits for
    ended: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    landed: list[float] = field(default_factory=list)

    def advance(self) -> None:
        """End the phase if nothing is missing."""
        if len(self.arrivals) >= self.count and len(self.landed) >= self.loads:
            done, self.arrivals = self.arrivals[: self.count], self.arrivals[self.count :]
            copied, self.landed = self.landed[: self.loads], self.landed[self.loads :]
            self.ended.append(max(done + copied))


class Barriers:
    """All mbarriers of a cluster, by block and address."""

    def __init__(self, events: Sequence[Event]):
        self.all: dict[tuple[int, str], Barrier] = {}
        self._order: dict[int, list[str]] = defaultdict(list)  # in which a block makes its own
        for event in events:
            if event.name == "init":
                self.all[event.block, event.address] = Barrier(event.of, event.value)
                self._order[event.block].append(event.address)
        self._count_loads(events)

    def at(self, event: Event, block: int) -> Barrier:
        """The barrier that an event names, or the same one of another block."""
        place = self._order[event.block].index(event.address)
        return self.all[block, self._order[block][place]]

    def of(self, event: Event) -> list[Barrier]:
        """Those at which a copy counts its bytes: one in each block that it writes to."""
        if not event.value:
            return [self.at(event, event.block)]
        return [self.at(event, block) for block in self._order if event.value >> block & 1]

    def named(self, block: int, name: str) -> list[Barrier]:
        """Those of a block whose name begins so, in the order of the stages."""
        return [b for (of, _), b in self.all.items() if of == block and b.name.startswith(name)]

    def _count_loads(self, events: Sequence[Event]) -> None:
        """How many copies a phase waits for: those of all phases, divided by the phases."""
        phases: dict[int, int] = defaultdict(int)
        for event in events:
            if event.name == "expect":
                phases[id(self.at(event, event.block))] += 1
            elif event.name == "load":
                for barrier in self.of(event):
                    barrier.loads += 1
        for barrier in self.all.values():
            barrier.loads //= max(1, phases[id(barrier)])


class Replay:
    """One run of a cluster's blocks; `spans` is what block 0 does.

    Each kind of event has a method. It is called with the thread, the event and the thread's time,
    and returns the time at which the thread goes on, or None if it must wait for another thread.
    """

    def __init__(self, events: Sequence[Event], cluster: int, durations: Durations):
        events = [event for event in events if event.block < cluster]
        self.spans: list[Span] = []
        self._barriers, self._lasts = Barriers(events), durations
        self._events: dict[Thread, list[Event]] = defaultdict(list)
        for event in events:
            self._events[event.block, event.thread].append(event)
        self._clock = dict.fromkeys(self._events, 0.0)
        self._place = dict.fromkeys(self._events, 0)  # of a thread's next event
        self._ends: dict[Group, list[float]] = defaultdict(list)  # of a warpgroup's products
        self._started: dict[Thread, int] = defaultdict(int)  # how many a thread has started
        self._busy: dict[int, float] = defaultdict(float)  # until when, a block's tensor cores
        self._met: dict[tuple[int, int], list[float]] = defaultdict(list)  # by block and barrier
        self._turn: dict[tuple[Thread, int], int] = {}  # of a meeting: how many came before
        self._consumers = {event.thread // WARPGROUP for event in events if event.name == "product"}
        self._run()
        self._add_stages()

    def _run(self) -> None:
        steps = {
            "wait": self._wait, "arrive": self._arrive, "expect": self._arrive, "load": self._load,
            "product": self._product, "product-wait": self._product_wait, "meet": self._meet,
            "store": self._store,
        }  # fmt: skip
        while waiting := [t for t in self._events if self._place[t] < len(self._events[t])]:
            for thread in sorted(waiting, key=lambda thread: (self._clock[thread], thread)):
                event = self._events[thread][self._place[thread]]
                step = steps.get(event.name)
                until = step(thread, event, self._clock[thread]) if step else self._clock[thread]
                if until is not None:
                    break
            else:
                raise LadderError("the replay of the recording stops: its barriers do not fit")
            self._clock[thread] = until
            self._place[thread] += 1

    def _row(self, thread: Thread) -> tuple[str, int]:
        group = thread[1] // WARPGROUP
        return ("consumer", group) if group in self._consumers else ("producer", 0)

    def _show(self, thread: Thread, kind: str, start: float, end: float) -> None:
        """What the first thread of a warpgroup of block 0 does stands for the warpgroup."""
        if thread[0] == 0 and thread[1] % WARPGROUP == 0 and end > start:
            self.spans.append(Span(self._row(thread), kind, start, end))

    def _wait(self, thread: Thread, event: Event, now: float) -> float | None:
        barrier = self._barriers.at(event, event.block)
        if len(barrier.ended) % 2 == event.value:  # the parity of the phase that it is in
            return None
        until = max(now, barrier.ended[-1]) if barrier.ended else now
        self._show(thread, "wait", now, until)
        return until

    def _arrive(self, thread: Thread, event: Event, now: float) -> float:
        elsewhere = event.name == "arrive" and event.value >= 0  # mbarrier_arrive_at
        barrier = self._barriers.at(event, event.value if elsewhere else event.block)
        barrier.arrivals.append(now)
        barrier.advance()
        return now

    def _load(self, thread: Thread, event: Event, now: float) -> float:
        if thread[0] == 0:
            self.spans.append(Span(self._row(thread), "ask", now, now))
        for barrier in self._barriers.of(event):
            barrier.landed.append(now + self._lasts.copy)
            barrier.advance()
        return now

    def _product(self, thread: Thread, event: Event, now: float) -> float:
        block, group = thread[0], (thread[0], thread[1] // WARPGROUP)
        if self._started[thread] == len(self._ends[group]):  # the first of the group's threads
            start = max(now, self._busy[block])
            before = max(now, self._ends[group][-1]) if self._ends[group] else now
            self._busy[block] = start + self._lasts.product
            self._ends[group].append(self._busy[block])
            self._show((block, group[1] * WARPGROUP), "queue", before, start)
            self._show((block, group[1] * WARPGROUP), "product", start, self._busy[block])
        self._started[thread] += 1
        return now

    def _product_wait(self, thread: Thread, event: Event, now: float) -> float:
        done = self._started[thread] - event.value
        ends = self._ends[thread[0], thread[1] // WARPGROUP]
        until = max(now, ends[done - 1]) if done > 0 else now
        following = self._events[thread][self._place[thread] + 1 :]
        if following and following[0].name == "product":  # it takes what has been waited for
            self._show(thread, "softmax", until, until + self._lasts.softmax)
            until += self._lasts.softmax
        return until

    def _meet(self, thread: Thread, event: Event, now: float) -> float | None:
        """A barrier of warps, for which their first lanes stand."""
        if thread[1] % 32:
            return now
        number, threads = divmod(event.value, 4096)
        met, visit = self._met[thread[0], number], (thread, self._place[thread])
        if visit not in self._turn:
            self._turn[visit] = len(met)
            met.append(now)
        warps = threads // 32
        first = self._turn[visit] // warps * warps
        return max(now, *met[first : first + warps]) if len(met) >= first + warps else None

    def _store(self, thread: Thread, event: Event, now: float) -> float:
        self._show(thread, "store", now, now + self._lasts.store)
        return now + self._lasts.store

    def _add_stages(self) -> None:
        """When each stage of block 0 is filled, and until when it is in use."""
        fulls, empties = (self._barriers.named(0, name) for name in ("full", "empty"))
        last = max((end for (block, _), ends in self._ends.items() if not block for end in ends))
        for i, full in enumerate(fulls):
            copies = [end - self._lasts.copy for end in full.ended]
            freed = empties[i].ended if empties else [*copies[1:], last]
            for start, landed, free in zip(copies, full.ended, freed, strict=False):
                self.spans.append(Span(("stage", i), "copy", start, landed))
                self.spans.append(Span(("stage", i), "held", landed, free))


def draw(
    op: str, rung: str, *, shape: str, dtype: str = "bfloat16", copy: str = "5", product: str = "2",
    store: str = "1", softmax: str = "0", cluster: str = "1", until: str = "60",
) -> Drawing:  # fmt: skip
    """A row for the producer, each stage of the ring, each consumer warpgroup, the tensor cores."""
    durations = Durations(float(copy), float(product), float(store), float(softmax))
    chosen, dims = find(op).rung(rung), parse_shape(find(op).op, shape)
    events = record(op, chosen, dtype, dims)
    return of_events(f"{op}, {chosen.name}", events, durations, int(cluster), float(until))


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
