"""Times a rung: many calls in one captured CUDA graph between two events, repeated many times.

A single launch cannot be timed well: a small kernel takes less time (2 µs) than the host needs to
launch it (5 µs). So a batch of calls is captured once and replayed. The calls use several sets of
buffers in turn. Together these are larger than the L2 cache, because a layer of a model finds its
input in memory and not in the cache.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ladder.core.contract.binding import Binder
from ladder.core.contract.device import Device
from ladder.core.contract.op import DTYPES, Arg, Dims, Op, resolve_dtype
from ladder.core.contract.rung_file import Rung
from ladder.core.verify.inputs import NORMAL, Arrays, make_inputs, scalars

ROTATED_BYTES = 256 << 20  # twice the largest L2 cache of 2025 (126 MB, B200)
MOST_SETS = 64  # for tiny shapes: below, launches take longer than memory anyway
BATCH_SECONDS = 400e-6  # long beside the resolution of events, 0.5 µs
WARM_UP_SECONDS = 0.05  # a GPU raises its clocks when there is work
SETTLE_SECONDS = 1.0  # and lowers them again where products draw too much power
FEWEST, MOST = 15, 400  # repetitions
PRECISION = 0.003  # enough when the standard error of the mean is below this part of it


class Clock(Protocol):
    """The part of a device that timing needs."""

    def time(self, work: Callable[[], None]) -> float: ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]: ...


@dataclass(frozen=True)
class Timing:
    """Seconds of one call. low and high: the 10th and 90th percentile over the repetitions."""

    median: float
    low: float
    high: float
    repetitions: int


def measure(clock: Clock, calls: Sequence[Callable[[], None]], seconds: float = 0.5) -> Timing:
    """Time one of `calls`, which do the same work on different buffers.

    They run for SETTLE_SECONDS first: after an idle time, a GPU runs faster than it can sustain.

    seconds  time limit of the measurement, which ends earlier if the spread is small
    """
    replay = prepare(clock, calls)
    _for_seconds(SETTLE_SECONDS, replay)
    samples = _sample(replay, FEWEST, seconds)
    low, median, high = np.percentile(samples, (10, 50, 90))
    return Timing(float(median), float(low), float(high), len(samples))


def compare(
    clock: Clock, contenders: Sequence[Sequence[Callable[[], None]]], seconds: float
) -> list[float]:
    """The median seconds of a call of each contender.

    They are measured in turn and then in the other order, for half of `seconds` each time. A GPU
    is fastest after an idle time, so the first contender would win by a few percent. In the second
    half it is the last one. That cancels its advantage where the GPU slows down evenly, and half of
    it where the GPU slows down at once. Only the first one is warmed up at length: while the others
    have their turns, the GPU does not rest.
    """
    replays = [prepare(clock, calls) for calls in contenders]
    means = [0.0] * len(replays)  # of the medians of both halves
    order = range(len(replays))
    for half in (order, reversed(order)):
        for place, index in enumerate(half):
            _for_seconds(0 if place else WARM_UP_SECONDS, replays[index])
            samples = _sample(replays[index], FEWEST // 2, seconds / 2)
            means[index] += float(np.median(samples)) / 2
    return means


def prepare(clock: Clock, calls: Sequence[Callable[[], None]]) -> Callable[[], float]:
    """Returns a function that runs a batch of calls and returns the seconds of a call."""
    replay, count = batch(clock, calls)
    return lambda: clock.time(replay) / count


def batch(clock: Clock, calls: Sequence[Callable[[], None]]) -> tuple[Callable[[], None], int]:
    """Several rounds of calls, captured as one graph; and the number of calls in it."""

    def once() -> None:
        for call in calls:
            call()

    once()  # compiles and loads what is still missing
    estimate = max(min(clock.time(once) for _ in range(2)), 1e-9)
    rounds = max(1, math.ceil(BATCH_SECONDS / estimate))

    def all_rounds() -> None:
        for _ in range(rounds):
            once()

    return clock.capture(all_rounds), rounds * len(calls)


def _sample(replay: Callable[[], float], fewest: int, seconds: float) -> list[float]:
    """Seconds of a call, measured repeatedly."""
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < fewest or (
        len(samples) < MOST
        and time.perf_counter() - start < seconds
        and np.std(samples) / math.sqrt(len(samples)) > PRECISION * np.mean(samples)
    ):
        samples.append(replay())
    return samples


def _for_seconds(seconds: float, work: Callable[[], Any]) -> None:
    end = time.perf_counter() + seconds
    work()
    while time.perf_counter() < end:
        work()


class BufferSets:
    """Several sets of an op's arguments on a device, with the same inputs, those of a case: it is
    the place in memory that decides whether a cache holds them, and to draw new ones takes seconds.
    """

    def __init__(self, op: Op, device: Device, real: np.dtype, dims: Dims, case: str = NORMAL):
        self.op, self.device, self.real, self.dims = op, device, np.dtype(real), dict(dims)
        one = sum(arg.nbytes(dims, real) for arg in op.args)
        count = min(math.ceil(ROTATED_BYTES / one), MOST_SETS)
        self.bytes = count * one
        inputs = make_inputs(op, dims, self.real, np.random.default_rng(0), case)
        self.inputs: Arrays = {n: array for n, array in inputs.items() if n not in op.unmeasured}
        self.sets = [{arg.name: self._array(arg) for arg in op.args} for _ in range(count)]

    def _array(self, arg: Arg) -> Any:
        if arg.name in self.op.unmeasured:
            return None
        dtype = resolve_dtype(arg.dtype, self.real)
        array = self.device.empty(arg.resolve_shape(self.dims), dtype)
        if arg.name in self.inputs:
            self.device.upload(array, self.inputs[arg.name])
        return array

    def bind(self, rung: Rung) -> list[Callable[[], None]]:
        """The rung's calls, one for each set; they share the scratch buffers."""
        bind, constants = Binder(self.op, rung, self.device, self.real, self.dims), scalars(self.op)
        pool: list[Any] = []

        def allocate(shape: tuple[int, ...], dtype: np.dtype) -> Any:
            pool.append(self.device.empty(shape, dtype))
            return pool[-1]

        first, *others = self.sets
        calls = [bind(first, constants, allocate)]
        again = itertools.cycle(pool)
        return calls + [bind(each, constants, lambda *_: next(again)) for each in others]

    def run_once(self, call: Callable[[], None]) -> dict[str, np.ndarray]:
        """The outputs of the first set's call on its inputs, with outputs NaN before."""
        written = {arg: self.sets[0][arg.name] for arg in self.op.args if arg.role != "in"}
        for arg, array in written.items():
            if arg.role == "inout":
                self.device.upload(array, self.inputs[arg.name])
                continue
            dtype = resolve_dtype(arg.dtype, self.real)
            unwritten = np.nan if dtype.kind not in "iu" else 0
            self.device.upload(array, np.full(arg.resolve_shape(self.dims), unwritten, dtype))
        call()
        self.device.synchronize()
        return {arg.name: self.device.download(array) for arg, array in written.items()}


Job = tuple[Device, Rung, str, Dims]  # a rung on a device, in a real type, at a shape


def compile_ahead(pool: Executor, jobs: Iterable[Job]) -> None:
    """Let a pool compile what these jobs will launch, in their order.

    One compilation serves all shapes with the same constants. Its errors are reported when the rung
    is bound.
    """
    asked = set()
    for device, rung, dtype, dims in jobs:
        if rung.path is None:
            continue
        target = device.target(DTYPES[dtype])
        plan = rung.plan(dims, target)
        kernel = (rung.path, dtype, target.warp, *plan.constants.items())
        if plan.refusal is None and kernel not in asked:
            asked.add(kernel)
            pool.submit(device.compile_ahead, rung, plan.constants, DTYPES[dtype])
