"""Where the time and the energy of a training step go, op by op.

Each call is timed within the step, by marks: events that are recorded in the step's graph between
its kernels. So an op has the data of the step, the caches as the op before leaves them, and the
clock that the GPU holds under its power limit; alone, it would have neither. Nothing lies between
two marks but a call, and the wait for its launch: the times add up to the step.

Energy cannot be marked, since the counter changes ten times a second. Each op's calls are repeated
alone for some seconds.
"""

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ladder.core.contract.binding import bind
from ladder.core.contract.device import Device
from ladder.core.contract.ladder import find
from ladder.core.measure import energy
from ladder.core.measure.roofline import COMPUTE_BOUND, Roof
from ladder.core.measure.timing import batch, prepare
from trainer.commands.step_timing import WARM_UP, one_step
from trainer.engine.engine import Engine
from trainer.engine.memory import scratch_needed
from trainer.engine.rung_map import key_for, op_of, rung_of
from trainer.model.calls import Call, op_calls
from trainer.report import Display

TURNS_SECONDS, WARM_UP_SECONDS = 3.0, 1.5  # of steps with and without marks, in turns
FEWEST_TURNS, MOST_TURNS = 3, 150
LAUNCHES = 1000  # of a kernel with nothing to do, to see what a launch in a graph costs
ZEROING = "zero gradients"  # which is no op but takes time, too


@dataclass(frozen=True)
class InStep:
    """Where the time of a step goes, by marks between its calls, in one graph.

    step_ms  of the step without marks, which took turns with the marked one. Ranks would have to
             take these turns together: of one of several, it is the marked step, without exchanges
    parts    milliseconds of zeroing the gradients (None) and of each call in order: from the end of
             the one before to its own, without what a mark costs
    mark_us  microseconds that a mark costs: by so much the marked steps took longer, each mark
    """

    step_ms: float
    parts: list[tuple[Call | None, float]]
    mark_us: float


def time_in_step(
    engine: Engine, fewest: int = FEWEST_TURNS, begin: Callable[[], None] = lambda: None
) -> InStep:
    """Time each call within the step, on the data of the step and at its clock. The calls run one
    after the other, without exchanges between ranks. One of several ranks has taken steps before.

    fewest  measured steps, at least
    begin   is called after the warm-up
    """
    device, program = engine.device, engine.program
    shared = program.vector is not None  # one rank of several
    marks: list[Any] = []

    def marked() -> None:
        marks[:] = [device.mark()]
        engine.zero_gradients()
        marks.append(device.mark())
        for call in program.training_step:
            engine.bound[call]()
            marks.append(device.mark())

    for _ in range(WARM_UP if not shared else 0):
        one_step(engine)
    marked()
    run = device.capture(marked) if device.marks_in_graphs else marked
    estimate = device.time(run)
    count = max(fewest, min(MOST_TURNS, math.ceil(TURNS_SECONDS / (2 * estimate))))
    warm_up = min(count // 2, math.ceil(WARM_UP_SECONDS / (2 * estimate)))
    parts, steps, wholes = [], [], []
    for turn in range(-warm_up, count):
        if turn == 0:
            begin()
        run()
        steps.append(device.time(run if shared else lambda: one_step(engine)))
        if turn >= 0:
            parts.append([device.seconds(*ends) for ends in itertools.pairwise(marks)])
            wholes.append(device.seconds(marks[0], marks[-1]))
    calls, step = (None, *program.training_step), float(np.median(steps[-count:]))
    mark = 0.0
    if device.marks_in_graphs and not shared:
        mark = max(0.0, float(np.median(wholes)) - step) / len(calls)
    each = 1e3 * (np.median(parts, axis=0) - mark)
    return InStep(1e3 * step, list(zip(calls, each.tolist(), strict=True)), 1e6 * mark)


def by_key(engine: Engine, calls: Iterable[Call | None]) -> dict[str, list[Call | None]]:
    """The calls of each op, and of each key of rung_map.py that gives some of its shapes another
    rung. None, the zeroing of the gradients, counts as an op, too."""
    of_key: dict[str, list[Call | None]] = {}
    for call in calls:
        key = ZEROING if call is None else key_for(engine.rungs, call.op, call.dims) or call.op
        of_key.setdefault(key, []).append(call)
    return of_key


def rows_of(engine: Engine, timed: InStep, roof: Roof) -> list[dict[str, Any]]:
    """A row for each key of `by_key`, the slowest first: its rung, how many calls it has, their
    total time, floor, bytes and FLOPs, and the scratch memory that the largest of them needs."""
    ms = dict(timed.parts)
    rows = []
    for key, calls in by_key(engine, ms).items():
        row: dict[str, Any] = {"op": key, "calls": len(calls), "ms": sum(ms[c] for c in calls)}
        if key == ZEROING:
            size = engine.arrays["gradients"].nbytes
            floor = size / roof.bandwidth
            row |= {"bytes": size, "flops": 0, "rung": ""}
        else:
            op, rung = find(op_of(key)).op, engine.rungs[key]
            dims = [call.dims for call in calls if call is not None]
            floor = sum(roof.floor(op, d, engine.real, rung.tf32) for d in dims)
            moved = sum(op.least_bytes(d, engine.real) for d in dims)
            row |= {"bytes": moved, "flops": sum(map(op.flops, dims)), "rung": rung.id}
        scratch = scratch_needed(filter(None, calls), engine.device, engine.real, engine.rungs)
        row["scratch_bytes"] = sum(n * dtype.itemsize for dtype, n in scratch.items())
        rows.append({**row, "floor_ms": 1e3 * floor})
    return sorted(rows, key=lambda row: -row["ms"])


def show_ops(ops: Sequence[Mapping[str, Any]], step_ms: float, screen: Display) -> None:
    """The table of a step's `rows_of`."""
    columns = ["op", "rung>", "calls>", "ms>", "% step>", "floor>", "% floor>", "rate>"]
    columns += ["scratch MiB>", *(["J>"] if all("joules" in row for row in ops) else [])]
    rows = []
    for row in ops:
        rate = f"{row['bytes'] / row['ms'] / 1e6:,.0f} GB/s"
        if row["flops"] > COMPUTE_BOUND * row["bytes"]:
            rate = f"{row['flops'] / row['ms'] / 1e9:,.1f} TFLOP/s"
        cells = (
            row["op"],
            row["rung"],
            str(row["calls"]),
            f"{row['ms']:,.2f}",
            f"{100 * row['ms'] / step_ms:.1f}",
            f"{row['floor_ms']:,.2f}",
            f"{100 * row['floor_ms'] / row['ms']:.0f}",
            rate,
            f"{row['scratch_bytes'] / 2**20:,.1f}",
            f"{row.get('joules', 0.0):,.3f}",
        )
        rows.append(cells[: len(columns)])
    screen.table(columns, rows)


def add_joules(engine: Engine, rows: Sequence[dict[str, Any]]) -> None:
    """Add to each row what its calls take when they are repeated back to back, behind steps that
    warm the GPU up: seconds, joules, and the GPU's power and clock."""
    of_key = by_key(engine, (None, *engine.program.training_step))
    shared = engine.program.vector is not None  # ranks would have to take the steps together
    before = None if shared else lambda: one_step(engine)
    for row in rows:
        its_calls = of_key[row["op"]]
        calls = [engine.bound[call] if call else engine.zero_gradients for call in its_calls]
        replay, count = batch(engine.device, calls)
        used = energy.measure(engine.device, replay, before)
        if used is not None:
            share = len(calls) / count
            row |= asdict(used)
            row |= {"seconds": used.seconds * share, "joules": used.joules * share}


def energy_of_step(engine: Engine, tokens: int) -> dict[str, Any]:
    """The entry of a result on the energy of a step that is repeated without a pause; no entry
    where nothing counts energy, or where ranks would have to repeat it together."""
    shared = engine.program.vector is not None
    used = None if shared else energy.measure(engine.device, lambda: one_step(engine))
    if used is None:
        return {}
    return {"energy": {**asdict(used), "microjoules_per_token": 1e6 * used.joules / tokens}}


def energy_in_words(device: str, result: Mapping[str, Any]) -> str:
    """The line on the energy of a step, or on why there is none."""
    if (e := result.get("energy")) is None:
        return energy.none_on(device)
    clock = "" if e["sm_mhz"] is None else f", SMs at {e['sm_mhz']:,.0f} MHz"
    return (
        f"{e['joules']:,.2f} J a step, {e['microjoules_per_token']:,.0f} uJ a token; repeated for "
        f"seconds, a step takes {1e3 * e['seconds']:,.2f} ms, {e['watts']:,.0f} W{clock}"
    )


def empty_launch(device: Device) -> float:
    """Seconds of an almost empty kernel in a graph: start.add of one element."""
    ladder, real, dims = find("start.add"), np.dtype(np.float32), {"N": 1}
    arrays = {arg.name: device.empty((1,), real) for arg in ladder.op.args}
    call = bind(ladder.op, ladder.rung(1), device, real, dims, arrays)
    once = prepare(device, [call] * LAUNCHES)
    return statistics.median(once() for _ in range(5))


_LAYER = re.compile(r"h\d+(?=\.)")

Part = tuple[Call | None, float]
Placed = tuple[Call | None, int, int]  # its first nanosecond, and that behind its last


def trace_of(engine: Engine, parts: Iterable[Part]) -> dict[str, Any]:
    """The content of a trace file. `parts`: as in InStep."""
    program = engine.program
    backward, update = set(op_calls(program.last_backward)), set(program.update)

    def track(call: Call | None) -> str:
        return "backward" if call in backward else "update" if call in update else "forward"

    placed, end = [], 0.0
    for call, ms in parts:
        start, end = end, end + max(0.0, ms)
        placed.append((call, round(1e6 * start), round(1e6 * end)))
    events = []
    for tid, (name, group) in enumerate(itertools.groupby(placed, lambda item: track(item[0])), 1):
        about = {"pid": 1, "tid": tid}
        events.append({"ph": "M", "name": "thread_name", **about, "args": {"name": name}})
        for layer, within in itertools.groupby(group, lambda item: _layer(item[0])):
            items = list(within)
            if layer:
                events.append(_slice(layer, name, items, {"layer": layer}, about))
            for item in items:
                what, args = _about(engine, item[0])
                events.append(_slice(what, name, [item], args, about))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _layer(call: Call | None) -> str:
    layer = _LAYER.match(call.where) if call else None
    return layer.group() if layer else ""


def _slice(
    name: str, track: str, items: Sequence[Placed], args: dict[str, Any], about: dict[str, int]
) -> dict[str, Any]:
    """A complete event, from the first of some calls to the last; in microseconds."""
    start, end = items[0][1], items[-1][2]
    times = {"ts": start / 1e3, "dur": (end - start) / 1e3}
    return {"ph": "X", "name": name, "cat": track, **times, **about, "args": args}


def _about(engine: Engine, call: Call | None) -> tuple[str, dict[str, Any]]:
    if call is None:
        return ZEROING, {"bytes": engine.arrays["gradients"].nbytes}
    op, rung = find(call.op).op, rung_of(engine.rungs, call)
    return call.op, {
        "where": call.where,
        "rung": rung.label,
        "shape": dict(call.dims),
        "least bytes": op.least_bytes(call.dims, engine.real),
        "FLOPs": op.flops(call.dims),
    }
