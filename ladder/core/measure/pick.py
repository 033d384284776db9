"""Picks the fastest rung for the shapes of a run: times, checks the fastest, and caches.

    choice = pick(find("layernorm.forward"), device, "bfloat16", {"N": 4096, "C": 768})
    choice.rung, choice.reasons

The result of the fastest rung is checked; where it is wrong, the next one takes its place. Results
are cached by rung and shape (pick_cache.py), so that a later pick times only the rungs that are new
or edited, and only at new shapes. For some GPUs and shapes, the repository brings these results.
Rungs that are far behind by its measurements on a GPU of the same architecture (known.py) are left
out.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from ladder.core.contract.dims import Dims, format_dims
from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Op
from ladder.core.contract.rung_file import Rung
from ladder.core.measure.bench import refuse_emulated
from ladder.core.measure.known import outclassed
from ladder.core.measure.pick_cache import PickCache
from ladder.core.measure.timing import BufferSets, compare
from ladder.core.verify.check import check, compile_ahead

Question = tuple[Ladder, str, Sequence[Dims]]  # a ladder, a real type, the shapes of the calls

SECONDS = 0.15  # most time to spend on timing one rung at one shape
HOPELESS = 4  # times as long as the fastest: not worth an exact measurement, which takes 20 calls
OUT = 20  # times as long as the fastest at a small shape: not run at a larger one
CHECKED_SHAPES = 2  # of the op's own, the largest, beside the run's if they are small
SMALL = 1 << 20  # elements


@dataclass(frozen=True)
class Choice:
    """The fastest rung, its seconds for all calls together, and the reason for each rung.

    reasons  for every rung of the ladder, by id: "the fastest: 52.9 us", "1.24 x the time", ...
    """

    op: str
    rung: str
    seconds: float
    reasons: Mapping[str, str]


def pick(
    ladder: Ladder,
    device: Device,
    dtype: str,
    *shapes: Dims,
    library: bool = False,
    deterministic: bool = False,
    tf32: bool = False,
    fresh: bool = False,
) -> Choice:
    """The fastest rung of a ladder for a number of calls, each given by its shape.

    library        whether library rungs may be chosen
    deterministic  whether only rungs that give the same bits every time may
    tf32           whether rungs may that multiply float32 factors as TF32
    fresh          check and measure everything, even what is cached, or known to be far behind

    Raises LadderError where no rung can run, with the reason for each.
    """
    refuse_emulated(device)
    picks = PickCache(device, ladder.op.name, dtype, fresh)
    counted = Counter(tuple(dims.items()) for dims in shapes)
    distinct = [dict(dims) for dims in counted]
    allowed = _Allowed(library, deterministic, tf32)
    able, reasons = _able(picks, ladder, device, dtype, distinct, allowed, fresh)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for rung in able:
            at = _timed(picks, ladder.op, rung, device, dtype, distinct)
            compile_ahead(pool, ladder, [rung], device, [dtype], at)
    winner = None
    while winner is None:
        seconds, out = _race(picks, ladder.op, able, device, DTYPES[dtype], counted)
        if not seconds:
            reasons |= out
            listed = "; ".join(f"rung {rung.id}: {reasons[rung.id]}" for rung in ladder.rungs)
            raise LadderError(f"{ladder.op.name} has no rung that can run here: {listed}")
        fastest = ladder.rung(min(seconds, key=seconds.__getitem__))
        if wrong := _wrong(picks, ladder, fastest, device, dtype, distinct):
            reasons[fastest.id] = wrong
            able.remove(fastest)
        else:
            winner = fastest.id
            reasons |= out
    number_of_calls = f" for {counted.total()} calls" if counted.total() > 1 else ""
    for id, time in seconds.items():
        taken = f"{time * 1e6:.1f} us{number_of_calls}"
        slower = f"{taken}, {time / seconds[winner]:.2f} x the time of rung {winner}"
        reasons[id] = f"the fastest: {taken}" if id == winner else slower
        if any(picks.is_kept(ladder.rung(id), dims) for dims in distinct):
            reasons[id] += " (doc/results/picks)"
    in_order = {rung.id: reasons[rung.id] for rung in ladder.rungs}
    return Choice(ladder.op.name, winner, seconds[winner], in_order)


@dataclass(frozen=True)
class _Allowed:
    """Which rungs may be chosen: see `pick`."""

    library: bool
    deterministic: bool
    tf32: bool


def _able(
    picks: PickCache,
    ladder: Ladder,
    device: Device,
    dtype: str,
    shapes: Sequence[Dims],
    allowed: _Allowed,
    fresh: bool,
) -> tuple[list[Rung], dict[str, str]]:
    """The rungs that can be chosen, and by id why the others cannot."""
    reasons, fit = {}, []
    for rung in ladder.rungs:
        why = _unfit(ladder, rung, device, dtype, shapes, allowed)
        if why is None:
            fit.append(rung)
        else:
            reasons[rung.id] = why
    far = {} if fresh else outclassed(ladder, fit, device, dtype)
    for rung in fit:
        if rung.id in far and any(picks.get(rung, dims).rough is None for dims in shapes):
            reasons[rung.id] = far[rung.id]
    return [rung for rung in fit if rung.id not in reasons], reasons


@contextlib.contextmanager
def compiling_ahead(
    questions: Sequence[Question],
    device: Device,
    library: bool = False,
    deterministic: bool = False,
    tf32: bool = False,
) -> Iterator[None]:
    """Compile in the background what `pick` will time and check for several ladders: one ladder has
    too few kernels to keep all cores at work."""
    allowed, candidates = _Allowed(library, deterministic, tf32), []
    for ladder, dtype, shapes in questions:
        picks = PickCache(device, ladder.op.name, dtype)
        able, _ = _able(picks, ladder, device, dtype, shapes, allowed, False)
        # Of a rung whose time is known, it is known as well whether it is right if it matters.
        candidates += [
            (picks, ladder, rung, dtype, shapes)
            for rung in able
            if _timed(picks, ladder.op, rung, device, dtype, shapes)
        ]
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for needed in (_timed, _checked):  # what is timed first
            for picks, ladder, rung, dtype, shapes in candidates:
                at = needed(picks, ladder.op, rung, device, dtype, shapes)
                compile_ahead(pool, ladder, [rung], device, [dtype], at)
        yield
    finally:
        pool.shutdown(cancel_futures=True)


def _unfit(
    ladder: Ladder,
    rung: Rung,
    device: Device,
    dtype: str,
    shapes: Sequence[Dims],
    allowed: _Allowed,
) -> str | None:
    """Why a rung cannot be chosen even if its result is right; None if it can."""
    if rung not in ladder.on(device):
        return f"not for {device.name}"
    if rung.library and not allowed.library:
        return "a library's, which was not asked for"
    if rung.tf32 and not allowed.tf32:
        return "it multiplies as TF32, which was not allowed"
    if allowed.deterministic and not rung.deterministic:
        return f"not deterministic: {rung.header['deterministic'][0]}"
    target = device.target(DTYPES[dtype])
    for dims in shapes:
        if (why := rung.plan(dims, target).refusal) is not None:
            return f"refused at {format_dims(dims)}: {why}"
    return None


def _timed(
    picks: PickCache, op: Op, rung: Rung, device: Device, dtype: str, shapes: Sequence[Dims]
) -> list[Dims]:
    """The shapes of the run at which a rung's time is not known."""
    return [dims for dims in shapes if picks.get(rung, dims).rough is None]


def _checked(
    picks: PickCache, op: Op, rung: Rung, device: Device, dtype: str, shapes: Sequence[Dims]
) -> list[Dims]:
    """The shapes at which a rung has to be checked: small ones of the run, and the op's own."""
    target = device.target(DTYPES[dtype])
    small = [d for d in shapes if op.least_bytes(d, DTYPES["float32"]) < 4 * SMALL]
    able = [dims for dims in op.shapes if rung.plan(dims, target).refusal is None]
    at = [*small, *able[-CHECKED_SHAPES:]] or shapes
    return [dims for dims in at if picks.get(rung, dims).wrong != ""]


def _wrong(
    picks: PickCache, ladder: Ladder, rung: Rung, device: Device, dtype: str, shapes: Sequence[Dims]
) -> str:
    """How a rung is wrong; "" if it is right.

    An error is not cached: a missing compiler or a lack of memory may be gone next time, and after
    an illegal access a GPU fails in every later call.
    """
    for dims in _checked(picks, ladder.op, rung, device, dtype, shapes):
        wrong = picks.get(rung, dims).wrong
        if wrong is None:
            try:
                report = check(ladder, rung, device, [dtype], [dims])
            except LadderError as error:
                return str(error)
            wrong = ""
            if not report.passed:  # the first line of what may be a page
                wrong = f"wrong: {report.failures[0].detail.splitlines()[0]}"
            if report.outcomes[-1].status != "fault":
                picks.add(rung, dims, wrong=wrong)
        if wrong:
            return wrong
    return ""


def _race(
    picks: PickCache,
    op: Op,
    rungs: Sequence[Rung],
    device: Device,
    real: np.dtype,
    counted: Counter[tuple[tuple[str, int], ...]],
) -> tuple[dict[str, float], dict[str, str]]:
    """The seconds of all calls together, by the rung's id, and why some were left out.

    counted  how many calls of each shape
    """
    seconds, out = dict.fromkeys((rung.id for rung in rungs), 0.0), {}
    for shape in sorted(counted, key=lambda shape: op.least_bytes(dict(shape), real)):
        times = _Times(picks, op, device, real, dict(shape))
        for rung in rungs:
            if rung.id in seconds and (failure := times.failure(rung)):
                out[rung.id] = failure
                del seconds[rung.id]
        left = [rung for rung in rungs if rung.id in seconds]
        fastest = min((times.rough(rung) for rung in left), default=0.0)
        times.compare([rung for rung in left if times.rough(rung) <= HOPELESS * fastest])
        for rung in left:
            ratio = times.rough(rung) / fastest
            if ratio > OUT and len(counted) > 1:
                del seconds[rung.id]
                where = format_dims(dict(shape))
                out[rung.id] = f"{ratio:.0f} x the time of the fastest at {where}"
            else:
                seconds[rung.id] += counted[shape] * times.best(rung)
    return seconds, out


@dataclass
class _Times:
    """The times of rungs at one shape, from the cache or else measured.

    The inputs take seconds to make, so they are made when the first measurement needs them.
    """

    picks: PickCache
    op: Op
    device: Device
    real: np.dtype
    dims: Dims
    calls: dict[str, list[Callable[[], None]]] = field(default_factory=dict)  # by rung

    def rough(self, rung: Rung) -> float:
        """Seconds of a single call, after a first one that loads the kernel."""
        seconds = self.picks.get(rung, self.dims).rough
        if seconds is None:
            call = self.bind(rung)[0]
            call()
            seconds = self.device.time(call)
            self.picks.add(rung, self.dims, rough=seconds)
        return seconds

    def failure(self, rung: Rung) -> str:
        """Why a rung cannot run: it does not compile, or takes too much memory. "" if it can."""
        try:
            self.rough(rung)
        except LadderError as error:
            return str(error)
        return ""

    def compare(self, rungs: Sequence[Rung]) -> None:
        """Measure exactly the rungs that have only a rough time."""
        rungs = [rung for rung in rungs if self.picks.get(rung, self.dims).exact is None]
        calls = [self.bind(rung) for rung in rungs]
        for rung, seconds in zip(rungs, compare(self.device, calls, SECONDS), strict=True):
            self.picks.add(rung, self.dims, exact=seconds)

    def best(self, rung: Rung) -> float:
        """The best known time of a rung, in seconds."""
        exact = self.picks.get(rung, self.dims).exact
        return self.rough(rung) if exact is None else exact

    def bind(self, rung: Rung) -> list[Callable[[], None]]:
        if rung.id not in self.calls:
            self.calls[rung.id] = self.buffers.bind(rung)
        return self.calls[rung.id]

    @functools.cached_property
    def buffers(self) -> BufferSets:
        return BufferSets(self.op, self.device, self.real, self.dims)
