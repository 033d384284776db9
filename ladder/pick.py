"""Which rung is the fastest for the shapes of a run? Checked, timed, and remembered.

    choice = pick(find("layernorm.forward"), device, "bfloat16", {"N": 4096, "C": 768})
    choice.rung, choice.reasons

A choice is kept in the cache directory, under a name made of all that it depends on: the GPU, its
driver, the shapes, the dtype, and the source of every rung and of the files that they include.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder import cache
from ladder.bench import refuse_emulated
from ladder.check import check, compile_ahead
from ladder.contract import DTYPES, PACKAGE, Dims, Ladder, format_dims
from ladder.device import Device
from ladder.errors import LadderError
from ladder.rungfile import Rung
from ladder.timing import BufferSets, measure

SECONDS = 0.15  # most time to spend on timing one rung at one shape
HOPELESS = 4  # times as long as the fastest: not worth an exact measurement, which takes 15 calls
OUT = 20  # times as long as the fastest at a small shape: not worth a call at a larger one
CHECKED_SHAPES = 2  # of the op's own, the largest, beside the run's if they are small
SMALL = 1 << 20  # elements


@dataclass(frozen=True)
class Choice:
    """The fastest rung, the seconds that it takes for all calls together, and why no other.

    reasons  for every rung of the ladder, by number: "the fastest: 52.9 us", "1.24 x the time", ...
    """

    op: str
    rung: int
    seconds: float
    reasons: Mapping[int, str]


def pick(
    ladder: Ladder,
    device: Device,
    dtype: str,
    *shapes: Dims,
    library: bool = False,
    deterministic: bool = False,
    fresh: bool = False,
) -> Choice:
    """The fastest rung of a ladder for a number of calls, each given by its shape.

    library        whether library rungs may be chosen
    deterministic  whether only rungs that give the same bits every time may
    fresh          measure even if the choice is known

    Raises LadderError where no rung can run, with the reason for each.
    """
    refuse_emulated(device)
    key = _key(ladder, device, dtype, shapes, library, deterministic)
    known = cache.directory() / "picks" / key

    def build(path: Path) -> None:
        calls = Counter(tuple(dims.items()) for dims in shapes)
        rung, seconds, reasons = _compete(ladder, device, dtype, calls, library, deterministic)
        text = json.dumps({"rung": rung, "seconds": seconds, "reasons": reasons}, indent=1)
        path.write_text(text, encoding="utf-8")

    choice = None if fresh else _read(ladder, known)
    if choice is None:
        known.unlink(missing_ok=True)
        choice = _read(ladder, cache.cached("picks", key, build))
    return choice


def _read(ladder: Ladder, path: Path) -> Choice | None:
    """A choice from the cache; None where there is none, or where the file is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        reasons = {int(number): str(why) for number, why in content["reasons"].items()}
        if content["rung"] not in reasons:
            return None
        return Choice(ladder.op.name, content["rung"], float(content["seconds"]), reasons)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _compete(
    ladder: Ladder,
    device: Device,
    dtype: str,
    counted: Counter[tuple[tuple[str, int], ...]],
    library: bool,
    deterministic: bool,
) -> tuple[int, float, dict[int, str]]:
    """The winner's number and seconds, and the reasons. `counted`: how many calls of each shape."""
    reasons, able, shapes = {}, [], [dict(dims) for dims in counted]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the compiler takes a third of the time
        checked = [*ladder.op.shapes[-CHECKED_SHAPES:], *shapes]
        compile_ahead(pool, ladder, ladder.on(device.kind), device, [dtype], checked)
    for rung in ladder.rungs:
        why = _ineligible(ladder, rung, device, dtype, shapes, library, deterministic)
        if why is None:
            able.append(rung)
        else:
            reasons[rung.number] = why
    if not able:
        listed = "; ".join(f"rung {number}: {why}" for number, why in reasons.items())
        raise LadderError(f"{ladder.op.name} has no rung that can run here: {listed}")
    seconds = dict.fromkeys((rung.number for rung in able), 0.0)
    for dims in sorted(shapes, key=lambda dims: ladder.op.least_bytes(dims, DTYPES[dtype])):
        buffers = BufferSets(ladder.op, device, DTYPES[dtype], dims)
        calls = {rung.number: buffers.bind(rung) for rung in able if rung.number in seconds}
        rough = {number: _roughly(device, own[0]) for number, own in calls.items()}
        count = counted[tuple(dims.items())]
        for number, own in calls.items():
            ratio = rough[number] / min(rough.values())
            if ratio > OUT and len(shapes) > 1:
                del seconds[number]
                reasons[number] = f"{ratio:.0f} x the time of the fastest at {format_dims(dims)}"
            elif ratio > HOPELESS:
                seconds[number] += count * rough[number]
            else:
                seconds[number] += count * measure(device, own, SECONDS).median
    winner = min(seconds, key=seconds.__getitem__)
    number_of_calls = f" for {counted.total()} calls" if counted.total() > 1 else ""
    for number, time in seconds.items():
        taken = f"{time * 1e6:.1f} us{number_of_calls}"
        slower = f"{taken}, {time / seconds[winner]:.2f} x the time of rung {winner}"
        reasons[number] = f"the fastest: {taken}" if number == winner else slower
    return winner, seconds[winner], dict(sorted(reasons.items()))


def _roughly(device: Device, call: Callable[[], None]) -> float:
    """Seconds of a single call, after one that loads what is still missing."""
    call()
    return device.time(call)


def _ineligible(
    ladder: Ladder,
    rung: Rung,
    device: Device,
    dtype: str,
    shapes: Sequence[Dims],
    library: bool,
    deterministic: bool,
) -> str | None:
    """Why a rung takes no part, or None."""
    if rung not in ladder.on(device.kind):
        return f"not for device {device.kind}"
    if rung.library and not library:
        return "a library's, which was not asked for"
    if deterministic and not rung.deterministic:
        return f"not deterministic: {rung.header['deterministic'][0]}"
    target = device.target(DTYPES[dtype])
    for dims in shapes:
        if (why := rung.refusal(dims, target)) is not None:
            return f"refused at {format_dims(dims)}: {why}"
    op = ladder.op
    small = [d for d in shapes if op.least_bytes(d, DTYPES["float32"]) < 4 * SMALL]
    able = [dims for dims in op.shapes if rung.refusal(dims, target) is None]
    try:
        report = check(ladder, rung, device, [dtype], [*small, *able[-CHECKED_SHAPES:]] or shapes)
    except LadderError as error:
        return str(error)
    return None if report.passed else f"wrong: {report.failures[0].detail}"


def _key(
    ladder: Ladder,
    device: Device,
    dtype: str,
    shapes: Sequence[Dims],
    library: bool,
    deterministic: bool,
) -> str:
    sources = [rung.source for rung in ladder.rungs]
    headers = [path.read_text(encoding="utf-8") for path in sorted(PACKAGE.glob("include/*.cuh"))]
    question = [device.name, _driver(device), ladder.op.name, dtype, library, deterministic]
    return cache.digest(json.dumps([*question, [dict(d) for d in shapes]]), *sources, *headers)


def _driver(device: Device) -> dict[str, Any]:
    """The versions of what runs the kernels, as far as the device has any."""
    describe = getattr(device, "description", None)
    return describe() if describe else {}
