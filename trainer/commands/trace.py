"""A step as a time line, in the Trace Event Format, which Perfetto and chrome://tracing open.

A track each for the forward pass, the backward pass and the update. A slice is a call of an op,
named by it; the slices of a layer lie in one of the layer.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ladder.core.contract.ladder import find
from trainer.commands.op_timing import ZEROING
from trainer.engine.engine import Engine
from trainer.engine.rung_map import rung_of
from trainer.model.calls import Call, op_calls

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
    found = _LAYER.match(call.where) if call else None
    return found.group() if found else ""


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
