"""Picks the fastest rung for each shape of a run: times, checks the fastest, and caches.

    (choice,) = pick(find("layernorm.forward"), device, "bfloat16", {"N": 4096, "C": 768})
    choice.rung, choice.reasons

The result of the fastest rung is checked; where it is wrong, the next one takes its place. Results
are cached by rung and shape (pick_cache.py), so that a later pick times only the rungs that are new
or edited, and only at new shapes. For some GPUs and shapes, the repository brings these results.
Rungs that are far behind by its measurements on a GPU of the same architecture are left out.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import DTYPES, TRAINING, Dims, format_dims
from ladder.core.contract.rung_file import Rung
from ladder.core.measure import results
from ladder.core.measure.bench import refuse_emulated
from ladder.core.measure.pick_cache import PickCache
from ladder.core.measure.timing import BufferSets, Job, compare, compile_ahead
from ladder.core.verify.check import check
from ladder.core.verify.inputs import NORMAL

Question = tuple[Ladder, str, Sequence[Dims]]  # a ladder, a real type, the shapes of the calls

SECONDS = 0.15  # most time to spend on timing one rung at one shape
HOPELESS = 4  # times as long as the fastest: not worth an exact measurement, which takes 20 calls
OUT = 20  # times as long as the fastest at a small shape: not run at a larger one
CHECKED_SHAPES = 2  # of the op's own, the largest, beside the run's if they are small
SMALL = 1 << 20  # elements


@dataclass(frozen=True)
class Choice:
    """The fastest rung at a shape, the seconds of a call, and the reason for each rung.

    reasons  for every rung of the ladder, by id: "the fastest: 52.9 us", "1.24 x the time", ...
    kept     whether the seconds come with the repository
    """

    op: str
    rung: str
    seconds: float
    reasons: Mapping[str, str]
    kept: bool = False


def pick(
    ladder: Ladder,
    device: Device,
    dtype: str,
    *shapes: Dims,
    library: bool = False,
    deterministic: bool = False,
    tf32: bool = False,
    fresh: bool = False,
) -> list[Choice]:
    """The fastest rung of a ladder at each of some shapes.

    library        whether library rungs may be chosen
    deterministic  whether only rungs that give the same bits every time may
    tf32           whether rungs may that multiply float32 factors as TF32
    fresh          check and measure everything, even what is cached, or known to be far behind

    Raises LadderError where no rung can run at a shape, with the reason for each.
    """
    refuse_emulated(device)
    picker = _Picker(ladder, device, dtype, library, deterministic, tf32, fresh)
    able = [picker.able(dims) for dims in shapes]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        each = zip(shapes, able, strict=True)
        compile_ahead(pool, [job for dims, (rungs, _) in each for job in picker.new(rungs, dims)])
    choices, out, real = {}, dict[str, str](), DTYPES[dtype]
    for place in sorted(range(len(shapes)), key=lambda i: ladder.op.least_bytes(shapes[i], real)):
        rungs, reasons = able[place]
        choices[place] = picker.fastest(shapes[place], rungs, {**out, **reasons}, out)
    return [choices[place] for place in range(len(shapes))]


@contextlib.contextmanager
def compiling_ahead(
    questions: Iterable[Question], device: Device, **settings: bool
) -> Iterator[None]:
    """Compile in the background what `pick` will time and check for several ladders, with the same
    settings: one ladder has too few kernels to keep all cores at work."""
    timed, checked = [], []
    for ladder, dtype, shapes in questions:
        picker = _Picker(ladder, device, dtype, **settings)
        for dims in shapes:
            # Of a rung whose time is known, it is known as well whether it is right.
            new = picker.new(picker.able(dims)[0], dims)
            timed += new
            for _, rung, _, _ in new:
                checked += [(device, rung, dtype, at) for at in picker.checked(rung, dims)]
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        compile_ahead(pool, [*timed, *checked])
        yield
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass
class _Picker:
    """Picks rungs of a ladder on a device, in one real type; the settings are those of `pick`."""

    ladder: Ladder
    device: Device
    dtype: str
    library: bool = False
    deterministic: bool = False
    tf32: bool = False
    fresh: bool = False

    def __post_init__(self) -> None:
        self.picks = PickCache(self.device, self.ladder.op.name, self.dtype, self.fresh)
        self.target = self.device.target(DTYPES[self.dtype])

    def able(self, dims: Dims) -> tuple[list[Rung], dict[str, str]]:
        """The rungs that can be chosen, and by id why the others cannot."""
        whys = {rung.id: self.unfit(rung, dims) for rung in self.ladder.rungs}
        reasons = {id: why for id, why in whys.items() if why is not None}
        fit = [rung for rung in self.ladder.rungs if rung.id not in reasons]
        far = {} if self.fresh else outclassed(self.ladder, fit, self.device, self.dtype)
        for rung in fit:
            if rung.id in far and self.picks.get(rung, dims).rough is None:
                reasons[rung.id] = far[rung.id]
        return [rung for rung in fit if rung.id not in reasons], reasons

    def unfit(self, rung: Rung, dims: Dims) -> str | None:
        """Why a rung cannot be chosen even if its result is right; None if it can."""
        if rung not in self.ladder.on(self.device):
            return f"not for {self.device.name}"
        if rung.library and not self.library:
            return "a library's, which was not asked for"
        if rung.tf32 and not self.tf32:
            return "it multiplies as TF32, which was not allowed"
        if self.deterministic and not rung.deterministic:
            return f"not deterministic: {rung.header['deterministic'][0]}"
        why = rung.plan(dims, self.target).refusal
        return why and f"refused at {format_dims(dims)}: {why}"

    def new(self, rungs: Iterable[Rung], dims: Dims) -> list[Job]:
        """To be compiled: the rungs that have not been timed at this shape."""
        new = [rung for rung in rungs if self.picks.get(rung, dims).rough is None]
        return [(self.device, rung, self.dtype, dims) for rung in new]

    def fastest(
        self, dims: Dims, able: Sequence[Rung], reasons: dict[str, str], out: dict[str, str]
    ) -> Choice:
        """The fastest of the rungs that can be chosen, but for those with a reason why not.

        out  to be added to: by id, why a rung need not run at a larger shape
        """
        picks, op = self.picks, self.ladder.op
        times = _Times(self, dims)
        for rung in able:
            if rung.id not in reasons:
                try:
                    times.rough(rung)
                except LadderError as error:  # it does not compile, or takes too much memory
                    reasons[rung.id] = out[rung.id] = str(error)
        winner = None
        while winner is None:
            left = [rung for rung in able if rung.id not in reasons]
            if not left:
                listed = "; ".join(f"rung {r.id}: {reasons[r.id]}" for r in self.ladder.rungs)
                raise LadderError(f"{op.name} has no rung that can run here: {listed}")
            rough = {rung.id: times.rough(rung) for rung in left}
            shortest = min(rough.values())
            times.compare([rung for rung in left if rough[rung.id] <= HOPELESS * shortest])
            fastest = min(left, key=times.best)
            if wrong := self.wrong(fastest, dims):
                reasons[fastest.id] = wrong
            else:
                winner = fastest
        best = times.best(winner)
        for rung in left:
            taken = f"{times.best(rung) * 1e6:.1f} us"
            slower = f"{taken}, {times.best(rung) / best:.2f} x the time of rung {winner.id}"
            kept = " (doc/results/picks)" if picks.is_kept(rung, dims) else ""
            reasons[rung.id] = (f"the fastest: {taken}" if rung is winner else slower) + kept
            if rough[rung.id] > OUT * shortest:
                ratio = rough[rung.id] / shortest
                out[rung.id] = f"{ratio:.0f} x the time of the fastest at {format_dims(dims)}"
        in_order = {rung.id: reasons[rung.id] for rung in self.ladder.rungs}
        return Choice(op.name, winner.id, best, in_order, picks.is_kept(winner, dims))

    def checked(self, rung: Rung, dims: Dims) -> list[Dims]:
        """Where a rung has to be checked: the run's shape if it is small, and the op's own."""
        op = self.ladder.op
        small = [dims] if op.least_bytes(dims, DTYPES["float32"]) < 4 * SMALL else []
        able = [own for own in op.shapes if rung.plan(own, self.target).refusal is None]
        at = [*small, *able[-CHECKED_SHAPES:]] or [dims]
        return [shape for shape in at if self.picks.get(rung, shape).wrong != ""]

    def wrong(self, rung: Rung, dims: Dims) -> str:
        """How a rung is wrong; "" if it is right.

        An error is not cached: a missing compiler or a lack of memory may be gone next time, and
        after an illegal access a GPU fails in every later call.
        """
        for at in self.checked(rung, dims):
            wrong = self.picks.get(rung, at).wrong
            if wrong is None:
                try:
                    report = check(self.ladder, rung, self.device, [self.dtype], [at])
                except LadderError as error:
                    return str(error)
                wrong = ""
                if not report.passed:  # the first line of what may be a page
                    wrong = f"wrong: {report.failures[0].detail.splitlines()[0]}"
                if report.outcomes[-1].status != "fault":
                    self.picks.add(rung, at, wrong=wrong)
            if wrong:
                return wrong
        return ""


class _Times:
    """The times of a picker's rungs at one shape, from the cache or else measured.

    The inputs take seconds to make, so they are made when the first measurement needs them.
    """

    def __init__(self, picker: _Picker, dims: Dims) -> None:
        self.picker, self.picks, self.device, self.dims = picker, picker.picks, picker.device, dims
        self.calls: dict[str, list[Callable[[], None]]] = {}  # by rung

    def rough(self, rung: Rung) -> float:
        """Seconds of a single call, after a first one that loads the kernel."""
        seconds = self.picks.get(rung, self.dims).rough
        if seconds is None:
            call = self.bind(rung)[0]
            call()
            seconds = self.device.time(call)
            self.picks.add(rung, self.dims, rough=seconds)
        return seconds

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
        op, real = self.picker.ladder.op, DTYPES[self.picker.dtype]
        case = TRAINING if TRAINING in op.cases else NORMAL
        return BufferSets(op, self.device, real, self.dims, case)


FAR = 2.0  # times as long as the fastest: too far behind to win at another shape or on a sister GPU


def outclassed(ladder: Ladder, rungs: Sequence[Rung], device: Device, dtype: str) -> dict[str, str]:
    """Why some of these rungs need no measurement, by id.

    They took more than FAR times as long as the fastest of `rungs` wherever both were measured in
    this type, and neither's code has changed since.
    """
    by_id = {rung.id: rung for rung in rungs}
    near: set[str] = set()  # to the fastest, somewhere
    far: dict[str, str] = {}
    architecture = device.description().get("arch")
    measured = [
        (content["device"]["gpu"], measurement)
        for content in results.load_all().values()
        if architecture is not None and content["device"].get("arch") == architecture
        for measurement in content["measurements"]
        if measurement["op"] == ladder.op.name and measurement["dtype"] == dtype
    ]
    for gpu, measurement in measured:
        times = {
            row["rung"]: row["median_us"]
            for row in measurement["rows"]
            if row.get("rung") in by_id and row["code"] == code_identity(by_id[row["rung"]])
        }
        fastest = min(times, key=times.__getitem__, default="")
        for id, time in times.items():
            ratio = time / times[fastest]
            if ratio <= FAR:
                near.add(id)
            else:
                shape = measurement["shape"]
                far[id] = f"{ratio:.1f} x the time of rung {fastest} on {gpu} ({shape})"
    return {id: why for id, why in far.items() if id not in near}
