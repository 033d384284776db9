"""A pipelined kernel over time: copies that land, products that run, and warps that wait.

Each warp's events come from the kernel: an instrumented copy of it runs in the emulator and prints
every wait, arrival, copy and product. They are then replayed with durations that are assumed, and
stand in the picture: the order and the dependencies are the kernel's, the lengths are not measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ladder.common.errors import LadderError
from ladder.contract.ladder import find
from ladder.emulator.emulated import Emulated
from ladder.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.show.source_code import parse_shape
from ladder.show.trace import run_on

RECORDER = r"""
#define RECORD(event, address, value)                                                     \
    (threadIdx.x % 32 < 2                                                                 \
         ? (void)emulator::emulator_print("@ %d %d %s %p %d\n", (int)blockIdx.x,          \
                                          (int)threadIdx.x, event, (const void *)(address), \
                                          (int)(value))                                   \
         : (void)0)
template <int PENDING, class... Registers>
__forceinline__ void recorded_wgmma_wait(Registers &...registers) {
    RECORD("product-wait", nullptr, PENDING);
    wgmma_wait<PENDING>(registers...);
}
#define mbarrier_init(b, n) (RECORD("init-" #b, b, n), mbarrier_init(b, n))
#define mbarrier_wait(b, parity) (RECORD("wait", b, parity), mbarrier_wait(b, parity))
#define mbarrier_arrive(b) (RECORD("arrive", b, -1), mbarrier_arrive(b))
#define mbarrier_arrive_at(b, rank) (RECORD("arrive", b, rank), mbarrier_arrive_at(b, rank))
#define mbarrier_expect(b, bytes) (RECORD("expect", b, bytes), mbarrier_expect(b, bytes))
#define tma_load_2d(tile, map, b, x, y) (RECORD("load", b, 0), tma_load_2d(tile, map, b, x, y))
#define tma_load_2d_multicast(tile, map, b, x, y, blocks) \
    (RECORD("load", b, blocks), tma_load_2d_multicast(tile, map, b, x, y, blocks))
#define named_barrier(id, threads) \
    (RECORD("meet", nullptr, (id) * 4096 + (threads)), named_barrier(id, threads))
#define wgmma_commit() (RECORD("product", nullptr, 0), wgmma_commit())
#define tma_store_commit() (RECORD("store", nullptr, 0), tma_store_commit())
#define wgmma_wait recorded_wgmma_wait
"""
FILLS = {
    "copy": "orange",
    "held": "pale orange",
    "product": "blue",
    "wait": "pale red",
    "store": "green",
}


class Event(NamedTuple):
    """One line of the recording; `address` of the barrier, `value` that the function was given."""

    block: int
    thread: int
    name: str
    address: str
    value: int


class Span(NamedTuple):
    """Something that takes time; `row`: ("stage", i), ("producer", 0) or ("consumer", group)."""

    row: tuple[str, int]
    kind: str
    start: float
    end: float


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


@functools.lru_cache(maxsize=8)
def record(op: str, rung: str, dtype: str, shape: str) -> tuple[Event, ...]:
    """What lanes 0 and 1 of every warp do, each in its own order."""
    chosen = find(op).rung(rung)
    if '"wgmma_real.cuh"' not in chosen.source and '"hopper.cuh"' not in chosen.source:
        raise LadderError(f"picture timeline: {op} {rung} uses no mbarrier and no TMA")
    lines = chosen.source.splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("#include"))
    source = "\n".join([*lines[: last + 1], RECORDER, *lines[last + 1 :], ""])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run_on(Emulated(), find(op), dataclasses.replace(chosen, source=source), dtype,
               parse_shape(find(op).op, shape))  # fmt: skip
    events = []
    for line in printed.getvalue().splitlines():
        if line.startswith("@ "):
            _, block, thread, *name, address, value = line.split()
            events.append(Event(int(block), int(thread), " ".join(name), address, int(value)))
    return tuple(events)


def replay(
    events: Sequence[Event], cluster: int, copy: float, product: float, store: float
) -> list[Span]:
    """What block 0 does when; `cluster` blocks run together.

    copy     time from the start of a copy to its end
    product  of a warpgroup's products of one stage: the tensor cores of an SM serve one at a time
    store    of a warpgroup's part of storing its results
    """
    events = [event for event in events if event.block < cluster]
    barriers, groups = _barriers(events)
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        threads[event.block, event.thread].append(event)
    clock = dict.fromkeys(threads, 0.0)
    place = dict.fromkeys(threads, 0)
    products: dict[tuple[int, int], list[float]] = defaultdict(list)  # when they end, by warpgroup
    mine: dict[tuple[int, int], int] = defaultdict(int)  # how many a thread has started
    busy: dict[int, float] = defaultdict(float)  # the tensor cores of a block's SM
    meeting: dict[tuple[int, int], list[float]] = defaultdict(list)
    met: dict[tuple[tuple[int, int], int, int], int] = {}
    spans: list[Span] = []
    most = max(thread for _, thread in threads) // 128

    def row(key: tuple[int, int]) -> tuple[str, int]:
        group = key[1] // 128
        return ("producer", 0) if group == most else ("consumer", group)

    def step(key: tuple[int, int]) -> bool:
        """Carry out a thread's next event; False if it must wait for another thread."""
        block, thread = key
        event, now = threads[key][place[key]], clock[key]
        group = (block, thread // 128)
        shown = block == 0 and thread % 128 == 0
        if event.name == "wait":
            barrier = barriers[block, event.address]
            if len(barrier.ended) % 2 == event.value:
                return False
            until = max(now, barrier.ended[-1]) if barrier.ended else now
            if shown and until > now:
                spans.append(Span(row(key), "wait", now, until))
            clock[key] = until
        elif event.name in ("arrive", "expect"):
            there = event.value if event.name == "arrive" and event.value >= 0 else block
            barriers[there, groups[block, event.address, there]].arrivals.append(now)
            barriers[there, groups[block, event.address, there]].advance()
        elif event.name == "load":
            for there in range(cluster) if event.value else (block,):
                if event.value and not event.value >> there & 1:
                    continue
                barrier = barriers[there, groups[block, event.address, there]]
                barrier.landed.append(now + copy)
                barrier.advance()
        elif event.name == "product":
            if mine[key] == len(products[group]):
                start = max(now, busy[block])
                busy[block] = start + product
                products[group].append(start + product)
                if block == 0:
                    spans.append(Span(row(key), "product", start, start + product))
            mine[key] += 1
        elif event.name == "product-wait":
            done = mine[key] - event.value
            clock[key] = max(now, products[group][done - 1]) if done > 0 else now
        elif event.name == "meet":
            number, count = divmod(event.value, 4096)
            at = (block, number)
            if thread % 32:  # lane 0 stands for its warp
                pass
            elif (key, place[key], number) not in met:
                met[(key, place[key], number)] = len(meeting[at])
                meeting[at].append(now)
                return step(key)
            else:
                warps = count // 32
                first = met[(key, place[key], number)] // warps * warps
                if len(meeting[at]) < first + warps:
                    return False
                clock[key] = max(now, *meeting[at][first : first + warps])
        elif event.name == "store":
            if shown:
                spans.append(Span(row(key), "store", now, now + store))
            clock[key] = now + store
        place[key] += 1
        return True

    while True:
        left = sorted((clock[key], key) for key in threads if place[key] < len(threads[key]))
        if not left:
            break
        if not any(step(key) for _, key in left):
            raise LadderError("the replay of the recording stops: its barriers do not fit together")
    stages = [key for key in barriers if key[0] == 0 and "full" in barriers[key].name]
    empties = [key for key in barriers if key[0] == 0 and "empty" in barriers[key].name]
    for i, (full, empty) in enumerate(zip(stages, empties, strict=True)):
        for landed, freed in zip(barriers[full].ended, barriers[empty].ended, strict=False):
            spans.append(Span(("stage", i), "copy", landed - copy, landed))
            spans.append(Span(("stage", i), "held", landed, freed))
    return spans


def _barriers(
    events: Sequence[Event],
) -> tuple[dict[tuple[int, str], Barrier], dict[tuple[int, str, int], str]]:
    """The barriers by block and address; and for one of a block, its address in another block."""
    barriers: dict[tuple[int, str], Barrier] = {}
    order: dict[int, list[str]] = defaultdict(list)
    for event in events:
        if event.name.startswith("init-"):
            barriers[event.block, event.address] = Barrier(event.name, event.value)
            order[event.block].append(event.address)
    same = {
        (block, address, there): order[there][i]
        for block in order
        for i, address in enumerate(order[block])
        for there in order
    }
    expected: dict[tuple[int, str], int] = defaultdict(int)
    loads: dict[tuple[int, str], int] = defaultdict(int)
    for event in events:
        if event.name == "expect":
            expected[event.block, event.address] += 1
        elif event.name == "load":
            for there in order:
                if (event.value >> there & 1) if event.value else there == event.block:
                    loads[there, same[event.block, event.address, there]] += 1
    for key, count in expected.items():
        barriers[key].loads = loads[key] // count
    return barriers, same


def draw(
    op: str, rung: str, *, shape: str, dtype: str = "bfloat16", copy: str = "5", product: str = "2",
    store: str = "1", cluster: str = "1", until: str = "60",
) -> Drawing:  # fmt: skip
    """A row for the producer, for each stage of the ring, and for each consumer warpgroup."""
    spans = replay(
        record(op, rung, dtype, shape), int(cluster), float(copy), float(product), float(store)
    )
    end = min(float(until), max(span.end for span in spans))
    rows = sorted({span.row for span in spans}, key=lambda row: (ORDER.index(row[0]), row[1]))
    products = [span for span in spans if span.kind == "product" and span.start < end]
    busy = sum(min(span.end, end) - span.start for span in products)
    stages = sum(name == "stage" for name, _ in rows)
    consumers = sum(name == "consumer" for name, _ in rows)
    drawing = Drawing(
        f"{op}, {find(op).rung(rung).name}: the pipeline over time",
        f"Block 0, with {stages} stages and {consumers} consumer warpgroups. The tensor cores work "
        f"in {busy / end:.0%} of the first {end:g} time units. Assumed durations, in these units: "
        f"a copy {copy}, the products of a stage {product}, a store {store}. Order and waiting "
        "come from the kernel's barriers.",
    )
    y, x0 = drawing.top, MARGIN + 92.0
    scale = (WIDTH - MARGIN - x0) / end
    for row in rows:
        drawing.text(x0 - 8, y + 13, _name(row), 12, "end")
        drawing.box(x0, y, end * scale, 18, "panel")
        for span in sorted(
            spans, key=lambda span: span.kind != "wait"
        ):  # products run on meanwhile
            if span.row == row and span.start < end:
                wide = (min(span.end, end) - span.start) * scale
                title = f"{span.kind}: {span.start:g} to {span.end:g}"
                fill = FILLS[span.kind]
                drawing.box(x0 + span.start * scale, y + 1, wide, 16, fill, "paper", 0.8, title)
        y += 22
    for time in range(0, int(end) + 1, 10):
        drawing.text(x0 + time * scale, y + 10, str(time), 10, "middle", "muted")
    y += 30
    x = float(MARGIN)
    for kind, text in LEGEND.items():
        drawing.box(x, y - 11, 13, 13, FILLS[kind], "line")
        drawing.text(x + 18, y, text, 12)
        x += 34 + 6.6 * len(text)
    drawing.paragraph(MARGIN, y + 22, drawing.description, size=12, colour="muted")
    return drawing


ORDER = ("producer", "stage", "consumer")
LEGEND = {
    "copy": "copy",
    "held": "landed, in use",
    "product": "products",
    "store": "store",
    "wait": "waits",
}


def _name(row: tuple[str, int]) -> str:
    name, number = row
    return "producer" if name == "producer" else f"{name} {number}"
