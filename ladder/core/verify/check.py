"""Checks a rung: runs it on awkward shapes and compares it with the float64 reference.

    report = check(find("layernorm.forward"), rung, device)
    assert report.passed, report

What a rung must survive, for each dtype and shape:

    inputs      random, rounded to the run's dtype; the reference computes from the rounded values
    outputs     start as NaN where they are overwritten, and with random values where they
                accumulate; a NaN left in the result never passes
    scratch     starts as NaN
    guards      16 KiB of NaN before and after every buffer: still there afterwards, and whatever
                was computed from them is NaN
    inputs      unchanged afterwards
    twice       the second run gives the same bits, unless the header says `Deterministic: no`; on
                the emulator under another order of threads and blocks, and again with warps of 64,
                which a user's own file has only where they are asked for
    again       at the first shape, the call that counts is the eleventh in the same storage, and
                the ten before it had other contents: what a kernel keeps is of no use to it
    far         of arrays of more than 2^31 elements, the last block stays within (variants.py)
    cases       the op's other settings, values and places in memory, at the largest shapes;
                without the hard ones if the header says `Accurate: no`

By default the shapes are derived from the rung (shapes.py).

ladder/core/verify/tolerance.py derives how far a result may be from the reference.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import bind, refuse_group
from ladder.core.contract.device import Device
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.launch_plan import SIZES_HERE
from ladder.core.contract.op import DTYPES, Dims, OnGpu, Op, format_dims, resolve_dtype
from ladder.core.contract.rung_file import SUFFIXES, Rung
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.kernel import KernelError
from ladder.core.verify.cases import cases
from ladder.core.verify.guards import WRITES, Guarded, GuardedRows, guarded
from ladder.core.verify.inputs import NORMAL, Arrays, make_inputs, scalars, starts
from ladder.core.verify.patterns import EVERY, SAME_ROWS, UNWRITTEN
from ladder.core.verify.shapes import derive_shapes
from ladder.core.verify.tolerance import INDENT, Expected
from ladder.core.verify.variants import name_for, out_of_reach, variants, watching

FEW_SHAPES = 5  # of a check with `few`
FEW_ORDERS = 2  # of these, the first: under every width of the warp and order of threads
CASE_SHAPES = 2  # at which the cases are tried; a brief check takes one
MOST_CASE_BYTES = 4 << 20  # of such a shape, if it is given: there may be a dozen cases
MOST_CASE_FLOPS = 2e7  # of one that is derived
FEW_CASE_BYTES = 256 << 10  # of the one that a brief check takes, if there is one as small
MOST_BYTES = 64 << 20  # of a shape on the GPU: the float64 reference takes a second or two
CALLS_BEFORE = 10  # in the same storage, at the first shape
LAST_BLOCK = "the last block alone"  # variants.py
LANES = 32  # of a warp; another size leaves some of them without an element
NO_VALUE = "right while variables without a value hold no 0: one of them has a part in the result"
NARROW = (
    "right with warps of 32, wrong with 64: write WARP_SIZE, and warp in header lines, instead of "
    "32, or add '// Needs: warp == 32'"
)
FROM_UNWRITTEN = "what is stored comes from memory that nothing has written"
STALE = "right in the first call, wrong in call {} in the same storage: something is kept"


@dataclass(frozen=True)
class Outcome:
    """The result for one shape and dtype. `error`: the largest, as a fraction of the tolerance."""

    dims: dict[str, int]
    dtype: str
    inputs: str  # "normal", or the name of one of the op's cases
    status: str  # "passed", "refused", "failed", or "fault": it ended in an error
    detail: str = ""
    error: float = 0.0
    problems: Sequence[Sequence[Any]] = ()  # that the emulator saw: kind, file, line

    @property
    def label(self) -> str:
        case = "" if self.inputs == NORMAL else self.inputs
        return ", ".join(filter(None, (format_dims(self.dims) or "some shape", self.dtype, case)))


@dataclass(frozen=True)
class Report:
    """All outcomes of one rung on one device."""

    op: str
    rung: str
    device: str
    outcomes: tuple[Outcome, ...]
    which: str = ""  # what the command line calls the rung; "" where it cannot
    warnings: tuple[str, ...] = ()  # of the compiler, in a user's own file
    given_up: tuple[str, ...] = ()  # goals that no shape reached in time (shapes.py)

    @property
    def passed(self) -> bool:
        """Something ran, and nothing failed: a rung that refuses everything has shown nothing."""
        return not self.failures and any(outcome.status == "passed" for outcome in self.outcomes)

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status in ("failed", "fault")]

    def __str__(self) -> str:
        not_run = (f"no shape that takes few seconds has {goal}" for goal in self.given_up)
        return "\n".join([self._verdict(), *not_run, *self.warnings])

    def _verdict(self) -> str:
        head = f"{self.op} {self.rung} on {self.device}"
        if self.failures:
            first = self.failures[0]
            where = f" at {first.label}" if first.dims else ""  # a child that died tells no shape
            detail = self._by_size(first).detail
            if call := self.call_of(first):
                command = f"more: python -m ladder check {call} --device emulated -v"
                detail = _before_tolerance(detail, command)
            return f"{head}: FAILED{where}: {detail}"
        if not self.passed:
            why = f": {self._reasons()}" if self.outcomes else ""
            return f"{head}: FAILED: it refuses every shape and dtype{why}"
        passed, refused = (
            sum(o.status == status for o in self.outcomes) for status in ("passed", "refused")
        )
        worst = max(outcome.error for outcome in self.outcomes)
        also = f", {refused} refused ({self._reasons()})" if refused else ""
        share = "below 1%" if worst < 0.005 else f"{worst:.0%}"
        far = f"largest error {share} of the tolerance" if worst else "all values are exact"
        return f"{head}: {passed} passed{also}; {far}"

    def _reasons(self) -> str:
        """Why calls were refused, with the number of calls where there are several reasons."""
        counts = Counter(
            outcome.detail.partition(SIZES_HERE)[0]
            for outcome in self.outcomes
            if outcome.status == "refused"
        )
        if len(counts) == 1:
            return next(iter(counts))
        return ", ".join(f"{count}: {why}" for why, count in counts.most_common())

    def _by_size(self, failure: Outcome) -> Outcome:
        """The failure; if only sizes that fill whole warps are right, it says so."""
        right = [o.dims for o in self.outcomes if (o.status, o.dtype) == ("passed", failure.dtype)]
        for name, size in failure.dims.items():
            if right and size % LANES and not any(dims[name] % LANES for dims in right):
                fills = f"{name}={right[-1][name]}, which fills whole warps, wrong at {name}={size}"
                cause = f"right at {fills}: look at the lanes past the end"
                detail = failure.detail.replace(EVERY, cause).replace(SAME_ROWS, cause)
                if "cause: " not in detail:
                    detail = _before_tolerance(detail, f"cause: {cause}")
                return replace(failure, detail=detail)
        return failure

    def call_of(self, failure: Outcome) -> str:
        """What `check` and `trace` take to run a failure alone; "" where the file is gone."""
        if not self.which or (self.which.endswith(SUFFIXES) and not Path(self.which).exists()):
            return ""
        shape = ",".join(f"{name}={size}" for name, size in failure.dims.items())
        call = f" --shape {shape} --dtype {failure.dtype}" if failure.dims else ""
        warp = " --warp 64" if self.device.startswith("emulated, warps of 64") else ""
        own = f"{self.which} --reference {self.op}"
        of = own if self.op.endswith(".py") else f"{self.op} {self.which}"
        return f"{of}{call}{warp}"


def _before_tolerance(detail: str, line: str) -> str:
    """A report's detail with a line more, which stands before the tolerance, if there is one."""
    *lines, last = detail.split(INDENT)
    after = [last] if last.startswith(("tolerance:", "rounding:")) else []
    before = lines if after else [*lines, last]
    return INDENT.join([*before, line, *after])


def check(
    ladder: Ladder,
    rung: Rung,
    device: Device,
    dtypes: Sequence[str] | None = None,
    shapes: Sequence[Dims] | None = None,
    brief: bool = False,
    few: bool = False,
    stop_at_failure: bool = False,
    announce: Callable[[Outcome, Report], None] = lambda coming, report: None,
    wide: bool = True,
) -> Report:
    """Check a rung.

    dtypes  by default all three real types, or float32 for an op without real arguments
    shapes  by default those that take the rung through all of its code (shapes.py), and on a GPU
            GPT-2's as well
    brief   on the emulator, only one width of the warp and one order of threads
    few     only the FEW_SHAPES most telling shapes, in brief but for the FEW_ORDERS first ones, and
            the cases, in brief, at one of them
    stop_at_failure  leave out what comes after the first failure
    announce         is called with what comes next, as if it had passed, and the report so far
    wide             on the emulator, one order of threads has warps of 64

    Raises LadderError where the rung does not compile or does not fit its contract.
    """
    op = ladder.op
    refuse_group(op, device)
    outcomes: list[Outcome] = []
    which = rung.id if rung.path is not None else ""
    given_up: dict[str, None] = {}

    def report() -> Report:
        names = op.name, rung.label, device.name
        return Report(*names, tuple(outcomes), which, given_up=tuple(given_up))

    for dtype in dtypes or op.reals:
        to_run = what_to_run(op, rung, device, dtype, shapes, few, given_up.setdefault)
        for place, (dims, case) in enumerate(to_run):
            announce(Outcome(dict(dims), dtype, case, "passed"), report())
            once = brief or (few and place >= FEW_ORDERS)
            calls = CALLS_BEFORE if all(o.status == "refused" for o in outcomes) else 0
            outcome = check_case(op, rung, device, dtype, dims, case, once, calls, wide)
            outcomes.append(outcome)
            status = outcomes[-1].status
            if status == "fault" or (stop_at_failure and status == "failed"):
                # After an illegal access, a GPU runs nothing more for this process.
                return report()
    if shapes is None and not few and (far := out_of_reach(op, rung, device, dtypes or op.reals)):
        dims, dtype, error = far
        fault = Fault(error)
        at = dict(dims), dtype, LAST_BLOCK
        outcomes.append(Outcome(*at, fault.status, str(fault), problems=fault.problems))
    return report()


def what_to_run(
    op: Op,
    rung: Rung,
    device: Device,
    dtype: str,
    shapes: Sequence[Dims] | None = None,
    few: bool = False,
    give_up: Callable[[str], object] = lambda goal: None,
) -> list[tuple[Dims, str]]:
    """Shapes and names of cases, as `check` goes through them for one real type.

    Of shapes that are given, those of more than MOST_CASE_BYTES are run with normal inputs only.
    `give_up` is called as by `derive_shapes`.
    """
    real = DTYPES[dtype]
    others = [name for name, case in op.cases.items() if rung.accurate or not case.hard]
    if shapes is not None:
        small = [dims for dims in shapes if op.least_bytes(dims, real) <= MOST_CASE_BYTES]
        return [
            (dims, name) for dims in shapes for name in (NORMAL, *(others if dims in small else ()))
        ]
    target = device.target(real)
    derived = derive_shapes(op, rung, target, give_up) or list(op.shapes)
    if device.group_size > 1:  # numbers of ranks that can be shared out; of a library, one each
        own = [dims for dims in op.shapes if rung.plan(dims, target).refusal is None]
        each = [d[op.ranks] / device.group_size for d in [*own, *derived]]
        derived = [
            dims
            for dims, ranks in zip([*own, *derived], each, strict=True)
            if ranks == 1 or (ranks.is_integer() and not rung.library)
        ]
    derived = derived[:FEW_SHAPES] if few else derived
    also = [] if few else [dims for dims, _ in _also(op, rung)]
    also = [dims for dims in also if rung.plan(dims, target).refusal is None]
    some = [*derived, *also]
    at = largest(op, real, derived, 1, FEW_CASE_BYTES) if few else largest(op, real, some)
    normal = [*derived, *also, *([gpt2_shape(op, device)] if device.is_gpu else [])]
    return [(dims, NORMAL) for dims in normal] + [(dims, name) for name in others for dims in at]


def _also(op: Op, rung: Rung) -> Iterator[tuple[Dims, int | None]]:
    """The shapes of `Op.also` that are for a rung, and the SMs of the emulated GPU."""
    for at in op.also:
        if not isinstance(at, OnGpu):
            yield at, None
        elif rung.path is not None and at.heuristic in rung.lines.heuristics:
            yield at.dims, at.sms


def _variants(
    op: Op, rung: Rung, device: Device, dims: Dims, brief: bool = False, wide: bool = True
) -> Sequence[tuple[Device, ...]]:
    """The devices on which a shape is checked; the size of the GPU may be part of it."""
    sms = next((sms for other, sms in _also(op, rung) if other == dims), None)
    return variants(device, brief, sms, wide)


def largest(
    op: Op,
    real: np.dtype,
    shapes: Sequence[Dims],
    count: int = CASE_SHAPES,
    most_bytes: int | None = None,
) -> list[Dims]:
    """The largest of some shapes, the last one of all, those before it of those without a dimension
    of 1, where rows or heads may differ; those beyond `most_bytes`, or that take long, only where
    there are no others."""

    def place(dims: Dims) -> tuple[bool, int]:
        size = op.least_bytes(dims, real)
        small = most_bytes is None or size <= most_bytes
        return (True, size) if small and op.flops(dims) <= MOST_CASE_FLOPS else (False, -size)

    *others, last = sorted(shapes, key=place)
    others.sort(key=lambda dims: (place(dims)[0], 1 not in dims.values()))
    return [*others, last][-count:]


def runs(
    ladder: Ladder,
    rungs: Iterable[Rung],
    device: Device,
    dtypes: Sequence[str] | None = None,
    shapes: Sequence[Dims] | None = None,
) -> Iterator[tuple[Device, Rung, str, Dims]]:
    """What `check` will run of some kernels, in its order: where, which, in which real type, and at
    which shape."""
    for rung, dtype in itertools.product(rungs, dtypes or ladder.op.reals):
        if rung.path is not None:
            for dims, _ in what_to_run(ladder.op, rung, device, dtype, shapes):
                for group in _variants(ladder.op, rung, device, dims):
                    yield group[0], rung, dtype, dims


def check_case(
    op: Op,
    rung: Rung,
    device: Device,
    dtype: str,
    dims: Dims,
    case: str = NORMAL,
    brief: bool = False,
    calls_before: int = 0,
    wide: bool = True,
    seed: int = 0,
) -> Outcome:
    """Check one shape, dtype and case of the op, under every variant of the device; in the first
    one after `calls_before` in the same storage, with other contents."""
    real = DTYPES[dtype]
    outcome = functools.partial(Outcome, dict(dims), dtype, case)
    groups = _variants(op, rung, device, dims, brief, wide)
    reasons = [rung.plan(dims, group[0].target(real)).refusal for group in groups]
    able = [group for group, why in zip(groups, reasons, strict=True) if why is None]
    if not able:
        return outcome("refused", next(filter(None, reasons)))
    worst = 0.0
    for values, expected in cases(op, dims, real, case, seed):
        run = functools.partial(_run, op, rung, real, dims, case, values, expected)
        for group in able:
            results: list[dict[str, np.ndarray]] = []
            for variant in group:
                calls = calls_before if group is able[0] and not results else 0
                try:
                    result, error = run(variant, calls_before=calls)
                    results.append(result)
                    if rung.deterministic:
                        _compare_bits(results)
                except Wrong as wrong:
                    name = name_for(variant, rung)
                    endless = "time limit" in [kind for kind, *_ in wrong.problems]
                    seen, touched = (None, {}) if endless else _watch(variant, rung, run)
                    detail = _explain(_stored(op, str(wrong), touched), wrong, seen, name)
                    if endless or (variant.is_gpu and wrong.status == "fault"):  # no more runs
                        return outcome(wrong.status, detail, problems=wrong.problems)
                    if calls and _passes(run, variant, []):
                        detail += f"{INDENT}cause: {STALE.format(calls + 1)}"
                    if isinstance(variant, Emulated) and variant.zeros:
                        filled = variant.variant(zeros=False)
                        if _passes(run, filled, results[:1]):
                            detail += f"{INDENT}cause: {NO_VALUE}"
                    if isinstance(variant, Emulated) and variant.target(real).warp == 64:
                        narrow = variant.variant(warp=32)
                        if _passes(run, narrow, []):
                            detail += f"{INDENT}cause: {NARROW}"
                    return outcome(wrong.status, detail, problems=(seen or wrong).problems)
                worst = max(worst, error)
    return outcome("passed", error=worst)


def measured_shapes(op: Op, device: Device | None = None) -> dict[str, Dims]:
    """The op's named shapes for measurements; of ranks, those with one on each GPU of a group."""
    size = device.group_size if device is not None else 1
    return {n: dims for n, dims in op.bench.items() if size == 1 or dims[op.ranks] == size}


def gpt2_shape(op: Op, device: Device | None = None) -> Dims:
    """The smallest shape that the op is measured at, with fewer rows if the reference needs it."""
    real = np.dtype(np.float32)
    shapes = measured_shapes(op, device).values()
    smallest = min(shapes, key=lambda sizes: _largest_bytes(op, sizes, real))
    dims = dict(smallest)
    while _largest_bytes(op, dims, real) > MOST_BYTES and dims[op.dims[0]] > 1:
        dims[op.dims[0]] //= 2
    return dims


def _largest_bytes(op: Op, dims: Dims, real: np.dtype) -> int:
    """What the op must move, or its largest array: a gather may touch little of one."""
    return max(op.least_bytes(dims, real), *(arg.nbytes(dims, real) for arg in op.args))


_Run = Callable[..., tuple[dict[str, np.ndarray], float]]  # on a device: outputs, largest error


class Wrong(Exception):
    """What is wrong with a rung: a short first line, then, each after INDENT, what explains it."""

    status = "failed"
    problems: Sequence[Sequence[Any]] = ()  # as those of an Outcome
    shown: Sequence[Sequence[str]] = ()  # of the emulator's problems, the lines of each


class Fault(Wrong):
    """The run ended in an error, with no result to look at."""

    status = "fault"

    def __init__(self, error: LadderError):
        super().__init__(str(error).replace("\n", INDENT))
        if isinstance(error, KernelError):
            self.shown = [text.split("\n") for text in error.shown]
            self.problems = list(dict.fromkeys((p.kind, p.file, p.line) for p in error.problems))


def _run(
    op: Op,
    rung: Rung,
    real: np.dtype,
    dims: Dims,
    case: str,
    values: Arrays,
    expected: Sequence[Expected],
    device: Device,
    calls_before: int = 0,
) -> tuple[dict[str, np.ndarray], float]:
    """Run once on new buffers; the outputs, and the largest error as a fraction of the tolerance.
    `calls_before` it have had other contents.

    Raises Wrong where anything is.
    """
    start = starts(op, dims, case)
    buffers = {
        arg.name: guarded(
            device,
            arg.name,
            arg.resolve_shape(dims),
            resolve_dtype(arg.dtype, real),
            start.get(arg.name, 0),
        )
        for arg in op.args
        if arg.role == "out" or arg.name in values
    }
    scratch: list[Guarded | GuardedRows] = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype) -> Any:
        scratch.append(guarded(device, f"scratch buffer {len(scratch) + 1}", shape, dtype))
        scratch[-1].fill(None)
        return scratch[-1].array

    arrays = {arg.name: buffers[arg.name].array if arg.name in buffers else None for arg in op.args}
    run = bind(op, rung, device, real, dims, arrays, scalars(op, case, dims), scratch=allocate)
    calls = [values]
    if calls_before or op.ranks:  # with ranks, flags are as another call has left them
        other = make_inputs(op, dims, real, np.random.default_rng(1), case)
        calls = [*[other] * max(calls_before, 1), values]
    for given in calls:
        for name, buffer in buffers.items():
            buffer.fill(given.get(name))
        if rung.host:  # each call allocates its own
            scratch.clear()
        try:
            run()
            device.synchronize()
        except LadderError as fault:
            raise Fault(fault) from None

    contents, outside = {}, []
    for buffer in (*buffers.values(), *scratch):
        contents[buffer.name], problem = buffer.read()
        outside += [problem] if problem else []
    for arg in op.args:
        if arg.role == "in" and arg.name in values:
            same = values[arg.name].tobytes() == contents[arg.name].tobytes()
            outside += [] if same else [f"it changes its input {arg.name}"]
    errors = []
    after: dict[str, Expected] = {}  # outputs that are computed from another, as it is stored
    for output in sorted(expected, key=lambda output: output.then is None):
        output = after.get(output.arg.name, output)
        before = values.get(output.arg.name) if output.arg.role == "inout" else None
        problem, error = output.verify(contents[output.arg.name], rung.rounds, before, rung.tf32)
        if problem is not None:
            raise Wrong(INDENT.join([*outside, problem]))
        errors.append(error)
        if output.then is not None:
            after = {e.arg.name: e for e in output.then(contents[output.arg.name].tobytes())}
    if outside:
        raise Wrong(INDENT.join(outside))
    return {output.arg.name: contents[output.arg.name] for output in expected}, max(errors)


def _passes(run: _Run, device: Device, first: Sequence[dict[str, np.ndarray]]) -> bool:
    """Whether a run is right, and has the bits of the first one, if any."""
    try:
        _compare_bits([*first, run(device)[0]])
    except Wrong:
        return False
    return True


def _watch(device: Device, rung: Rung, run: _Run) -> tuple[Fault | None, dict[str, set[str]]]:
    """What the same run is seen to do that it must not, with its line, if every memory access is
    watched: None where the device cannot, or there is nothing to see. And how the kernels access
    each argument: "read", "write", "atomic"."""
    watcher = watching(device)
    if watcher is None:
        return None, {}
    watcher.reset_report()
    seen = None
    try:
        run(watcher)
    except Fault as fault:
        seen = fault
    except Wrong:  # wrong numbers only, as before
        pass
    touched: dict[str, set[str]] = {}
    names = rung.lines.args if rung.path is not None else {}
    for line in watcher.report().lines:
        touched.setdefault(names.get(line.buffer, line.buffer), set()).add(line.kind)
    return seen, touched


def _stored(op: Op, wrong: str, touched: Mapping[str, set[str]]) -> str:
    """What is wrong; where no element seems to be stored, and yet one is, the other cause."""
    first, *rest = wrong.split(INDENT)
    name = first.partition("[")[0]
    kinds = touched.get(name, set())
    if kinds <= {"read"}:
        return wrong
    cause = f"cause: {FROM_UNWRITTEN}"
    if kinds != {"write"} and name in [arg.name for arg in op.args if arg.role == "out"]:
        cause = (
            f"cause: the kernel adds to what {name} held before the call, which is NaN: store the "
            f"result, or set {name} to 0 first (adopt does it with --fill '{name} = 0')"
        )
    return INDENT.join([first, *(cause if UNWRITTEN in line else line for line in rest)])


def _explain(text: str, wrong: Wrong, seen: Fault | None, variant: str) -> str:
    """A report's detail: what is wrong, where, the cause; then the rest."""
    first, *rest = text.split(INDENT)
    if seen and seen.shown and seen.shown[0][0] != first:  # the accesses tell more than the pattern
        quoted = rest[: len(wrong.shown[0]) - 1] if wrong.shown else []  # lines of the source
        problems = [problem for problem in seen.shown if problem[0] != first]
        if first.startswith(WRITES):
            problems.sort(key=lambda problem: ": write of " not in problem[0])
        watched = [line for problem in problems for line in problem]
        more = [line for line in rest[len(quoted) :] if not line.startswith("cause:")]
        own, more = ([line for line in part if line not in watched] for part in (quoted, more))
        rest = [*own, f"line: {watched[0]}", *watched[1:], *more]
    return INDENT.join([f"{first} [{variant}]", *rest])


def _compare_bits(results: Sequence[dict[str, np.ndarray]]) -> None:
    """Raise Wrong where the last of several runs on the same input differs from the first."""
    for name, first in results[0].items():
        last = results[-1][name]
        differ = (first != last) & ~(np.isnan(first) & np.isnan(last))
        if differ.any():
            index = np.unravel_index(np.argmax(differ), differ.shape)
            raise Wrong(
                f"two runs on the same input differ: {name}[{', '.join(map(str, index))}] is "
                f"{first[index]}, then {last[index]}; a rung that may do so says "
                "'Deterministic: no' in its header"
            )
