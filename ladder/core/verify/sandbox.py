"""Checks a user's own kernel, a `.cu` file from anywhere, in a child process.

    report = sandbox.check("layernorm.forward", "mine.cu")
    report = sandbox.check("layernorm.forward", source_text, device="cuda", seconds=20)
    report = sandbox.check(Path("ref.py"), "mine.cu")     # against a reference of the user's own

A kernel that is still being written may loop forever or access an illegal address. After an illegal
access, a process cannot use the GPU any more. So the kernel runs in a child process with a time
limit, and a crash of the child becomes a message here. A second child then looks for the line that
did it, on the emulator, which watches every access. The child (child.py) reads one JSON request
from its standard input, and writes lines of JSON to a file, of which the last one is its answer.

On the emulator the child is confined, where this machine can (ladder/core/common/confine.py).
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ladder.core.common import confine
from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.common.install import ROOT
from ladder.core.contract.device import Device
from ladder.core.contract.device_code import included
from ladder.core.contract.ladder import PACKAGE, Ladder
from ladder.core.contract.op import Dims
from ladder.core.contract.rung_file import MOST_BYTES, Rung
from ladder.core.device.open import open_device
from ladder.core.emulator.coverage import Spot
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.kernel import KernelError
from ladder.core.emulator.report import Access, LineCount, Timeline
from ladder.core.emulator.report import Report as Seen
from ladder.core.verify.check import Outcome, Report
from ladder.core.verify.check import check as check_here
from ladder.core.verify.inputs import NORMAL, run_on
from ladder.core.verify.reference_file import open_ladder
from ladder.core.verify.tolerance import INDENT
from ladder.core.verify.variants import watching

SECONDS = 120.0  # time limit of a check
# A check launches a kernel at several shapes, and in several orders of its threads. One launch of
# the emulator that takes a sixth of the check's time, and 10 s, does not leave enough for the rest.
LAUNCHES, LEAST_SECONDS = 6, 10.0
# Of a recording: threads in order, and in others; asynchronous copies late, and early.
ORDERS: tuple[dict[str, Any], ...] = ({}, {"early": True}, {"seed": 1}, {"seed": 2, "early": True})
HEADERS = (".h", ".cuh", ".hpp", ".hh", ".hxx", ".inl", ".inc", ".cu", ".cpp", ".cc")
START = (  # not python -m, which finds modules in the current folder, and it may be a stranger's
    "import sys; sys.path = [path for path in sys.path if path]; "
    f"from {ROOT}ladder.core.verify.child import main; main()"
)


def check(
    op: str | Path,
    kernel: str | Path,
    device: str = "emulated",
    dtypes: Sequence[str] | None = None,
    shapes: Sequence[Dims] | None = None,
    seconds: float = SECONDS,
    unconfined: bool = False,
) -> Report:
    """Check a kernel, given by its path or its source text, in a child process; `unconfined` also
    on the emulator, where this machine could confine it.

    op  an op's name, or the path of a reference file (reference_file.py), which runs here, too

    Never raises for what the kernel does: a crash or an endless loop is a report that failed.
    Raises LadderError where it does not compile, or its header or arguments do not fit.
    """
    with as_file(kernel) as path:
        return cover(op, path, device, dtypes, shapes, seconds, unconfined, task="check")[0]


def cover(
    op: str | Path,
    path: str | Path,
    device: str,
    dtypes: Sequence[str] | None,
    shapes: Sequence[Dims] | None,
    seconds: float = SECONDS,
    unconfined: bool = False,
    task: str = "cover",
) -> tuple[Report, list[Spot]]:
    """Check a kernel in a child process, as `check` does; and on the emulator how often its
    branches and loops ran, if it ended and the task is not `check` alone."""
    ladder = open_ladder(op)
    rung = ladder.find(path)
    request = _request(op, path, device, unconfined or not rung.is_own_file)
    request |= {"dtypes": dtypes, "shapes": shapes and [dict(dims) for dims in shapes]}
    try:
        return _read(in_child(task, request, seconds))
    except LadderError:  # perhaps of a text that the kernel has written over before it was compiled
        seen = _watch(request, seconds) if device.startswith(Emulated.kind) else None
        if seen is None:
            raise
        return Report(ladder.op.name, rung.label, device, (seen,)), []
    except ChildDied as death:
        if death.stopped and death.progress and _launch_limit(seconds) < seconds:
            return _as_far_as_it_came(rung, death.progress, seconds)
        with distrusted():
            coming = (death.progress or {}).get("next", {"dims": {}, "dtype": "", "inputs": NORMAL})
            outcome = Outcome(**{**coming, "status": "fault", "detail": str(death)})
        if seen := _watch(request, seconds):  # line, thread and cause: what a reader needs first
            detail = INDENT.join([seen.detail, f"process: {death}"])
            outcome = dataclasses.replace(seen, status="fault", detail=detail)
        return Report(ladder.op.name, rung.label, device, (outcome,)), []


def trace(
    op: str | Path,
    path: str | Path,
    dtype: str,
    dims: Dims,
    unconfined: bool = False,
    **settings: int,
) -> Seen:
    """The memory accesses of a kernel in one run on the emulator with some `settings` of
    `Emulated.variant`, in a child process. Raises LadderError where it does what it must not,
    unless the settings have `record`: then the timelines show it."""
    request = _request(op, path, Emulated.kind, unconfined)
    request |= {"dtype": dtype, "dims": dict(dims), "settings": settings}
    answer = _in_child_that_lives("trace", request)
    with distrusted():
        accesses: list[dict[str, Any]] = [
            {name: tuple(v) if isinstance(v, list) else v for name, v in access.items()}
            for access in answer["accesses"]
        ]
        lines = [LineCount(**line) for line in answer["lines"]]
        timelines = [Timeline(**launch) for launch in answer["timelines"]]
        return Seen(lines, [], [Access(**access) for access in accesses], timelines)


def judge(
    op: str | Path,
    path: str | Path,
    dtype: str,
    dims: Dims,
    at_most: Mapping[str, float],
    at_least: Mapping[str, float],
    unconfined: bool = False,
) -> tuple[bool, list[str]]:
    """Whether a kernel keeps all limits, and a sentence on each (limits.judge), in a child process.
    Raises LadderError where it does what it must not."""
    if "local bytes" in (*at_most, *at_least) and not unconfined:
        raise LadderError("local bytes are counted with --unconfined only: NVRTC writes files")
    request = _request(op, path, Emulated.kind, unconfined)
    request |= {"dtype": dtype, "dims": dict(dims)}
    request |= {"at_most": dict(at_most), "at_least": dict(at_least)}
    answer = _in_child_that_lives("judge", request)
    with distrusted():
        return answer["kept"] is True, [str(sentence) for sentence in answer["said"]]


def _request(op: str | Path, path: str | Path, device: str, unconfined: bool) -> dict[str, Any]:
    """What every task is told; `path` may be a rung's id, which is no stranger's."""
    request = {"op": str(op), "own_op": isinstance(op, Path), "path": str(path)}
    return {**request, "device": device, "unconfined": unconfined}


def _in_child_that_lives(task: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a child; LadderError where it dies."""
    try:
        return in_child(task, request, SECONDS)
    except ChildDied as death:
        raise LadderError(str(death)) from None


@contextmanager
def distrusted() -> Iterator[None]:
    """Reads an answer: a kernel may have written it. Raises LadderError where it is none."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        raise LadderError("the kernel's process has answered what it cannot have found") from None


def _as_far_as_it_came(
    rung: Rung, progress: dict[str, Any], seconds: float
) -> tuple[Report, list[Spot]]:
    """The report of a child whose time was over, though none of its launches took too long."""
    with distrusted():
        coming = Outcome(**progress.pop("next"))
    report, _ = _read(progress)
    detail = (
        f"{rung.file.name} was stopped after {seconds:g} s, the time of the whole check. It is "
        f"slow rather than endless: each launch ended within its limit, {_launch_limit(seconds):g} "
        f"s, and {len(report.outcomes)} shapes and cases are done; --seconds gives more time"
    )
    last = dataclasses.replace(coming, status="fault", detail=detail)
    return dataclasses.replace(report, outcomes=(*report.outcomes, last)), []


def _launch_limit(seconds: float) -> float:
    """The seconds of one launch on the emulator, of those of a check."""
    return max(seconds / LAUNCHES, LEAST_SECONDS)


def _watch(request: Mapping[str, Any], seconds: float) -> Outcome | None:
    """What the emulator sees where a kernel has ended the process or does not end: in a child that
    watches every memory access, and stops the kernel before it does what it must not."""
    named = request["device"]  # "emulated:64" remains what it is
    device = named if named.startswith(Emulated.kind) else Emulated.kind
    try:
        report, _ = _read(in_child("watch", {**request, "device": device}, seconds))
    except (ChildDied, LadderError):
        return None
    return report.failures[0] if report.failures else None


def _read(answer: dict[str, Any]) -> tuple[Report, list[Spot]]:
    with distrusted():
        spots = [Spot(**spot) for spot in answer.pop("spots", ())]
        outcomes = tuple(Outcome(**outcome) for outcome in answer.pop("outcomes"))
        warnings, given_up = (tuple(answer.pop(name)) for name in ("warnings", "given_up"))
        report = Report(**answer, outcomes=outcomes, warnings=warnings, given_up=given_up)
        return report, spots


def require(op: str | Path, rung: Rung, device: str, unconfined: bool = False) -> None:
    """Raise LadderError unless a user's own kernel passes `check`. Called before it is used."""
    report = check(op, rung.file, device, unconfined=unconfined)
    if not report.passed:
        raise LadderError(str(report))


@contextmanager
def as_file(kernel: str | Path) -> Iterator[Path]:
    """The path of a kernel; source text, known by its line breaks, is written to `kernel.cu`."""
    if isinstance(kernel, str) and "\n" in kernel:
        with tempfile.TemporaryDirectory(prefix="kernel-ladder-") as folder:
            path = Path(folder) / "kernel.cu"
            path.write_text(kernel, encoding="utf-8")
            yield path
    else:
        yield Path(kernel)


class ChildDied(Exception):
    """The child process ended without an answer; the message says how and what that means.

    progress  of a check on the emulator, the report so far, with what came `next`
    stopped   its time was over
    """

    def __init__(self, message: str, progress: Any = None, stopped: bool = False):
        super().__init__(message)
        self.progress, self.stopped = progress, stopped


def in_child(task: str, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Run a task of `TASKS` in a child process and return its answer.

    Raises LadderError for one that the task raised, ChildDied where no answer came.
    """
    path = Path(request["path"])
    emulated = request["device"].startswith(Emulated.kind)
    confined = emulated and not request["unconfined"] and not confine.lacking()
    temporary = tempfile.TemporaryFile
    with (
        tempfile.TemporaryDirectory(prefix="kernel-ladder-") as scratch,
        temporary() as stdin,
        temporary() as answer,
        temporary() as stdout,
        temporary() as stderr,
    ):
        stdin.write(json.dumps(request).encode())
        stdin.seek(0)
        words = [task, str(answer.fileno()), str(seconds)]
        words += [scratch, *_needed_files(path)] if confined else []
        words += [request["op"]] if confined and request["own_op"] else []
        environment = {
            name: value
            for name, value in os.environ.items()
            if not confined or confine.VARIABLES.fullmatch(name)
        }
        child = subprocess.Popen(
            [sys.executable, "-c", START, *words],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={**environment, "PYTHONPATH": _python_path()},
            pass_fds=[answer.fileno()],
            start_new_session=True,  # so that what it starts ends with it
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
            ended = child.returncode is not None
        finally:
            with suppress(ProcessLookupError):  # its helper, and what that has started
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        result, said = _last(answer), _text(stderr)
        print(_text(stdout) if ended else "", end="")  # what the kernel printed
    if not ended:
        raise ChildDied(
            f"{path.name} was stopped after {seconds:g} s: a loop that does not end, or threads "
            "that wait for each other; 'python -m ladder check' takes --seconds for more time",
            result,
            stopped=True,
        )
    if result is None or "next" in result:
        raise ChildDied(_cause_of_death(path.name, child.returncode, said), result)
    if "error" in result:
        raise LadderError(result["error"])
    return result


def _needed_files(path: Path) -> list[str]:
    """A kernel's file, and what it includes that has the name of a header: no more is read for it,
    whatever else it names."""
    headers = included(read_text(path, MOST_BYTES), path.parent)
    return [str(path), *(str(p) for p in headers if os.path.realpath(p).endswith(HEADERS))]


def _last(answer: BinaryIO) -> dict[str, Any] | None:
    """The last whole line of an answer, where a process has written what it should."""
    answer.seek(0)
    with suppress(ValueError):
        message = json.loads(answer.read().rpartition(b"\n")[0].rpartition(b"\n")[2])
        return message if isinstance(message, dict) else None
    return None


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _cause_of_death(name: str, status: int, stderr: str) -> str:
    last = (stderr.strip().splitlines() or ["it said nothing"])[-1]
    if status >= 0:
        return f"{name} ended the process with status {status}: {last}"
    meaning = {
        signal.SIGSEGV: "it read or wrote memory that is not its own",
        signal.SIGBUS: "it read or wrote memory that is not its own",
        signal.SIGFPE: "an integer was divided by zero",
        signal.SIGABRT: last,
        signal.SIGILL: "it executed an illegal instruction",
        signal.SIGKILL: "it was killed, perhaps because memory ran out",
    }
    what = signal.Signals(-status)
    return f"{name} crashed ({what.name}): {meaning.get(what, last)}"


def _python_path() -> str:
    """The child finds this same package, wherever it was started from."""
    home = PACKAGE.parents[ROOT.count(".")]
    return os.pathsep.join(filter(None, (str(home), os.environ.get("PYTHONPATH"))))


# ---- in the child -------------------------------------------------------------------------------


def asked(request: Mapping[str, Any]) -> tuple[Ladder, Rung]:
    """The op and the kernel of a request."""
    ladder = open_ladder(Path(request["op"]) if request["own_op"] else request["op"])
    return ladder, ladder.find(request["path"])


def _check(request: Mapping[str, Any]) -> dict[str, Any]:
    device = open_device(request["device"])
    if not isinstance(device, Emulated):
        return _check_on(device, request)
    device = device.variant(time_limit=_launch_limit(request["seconds"]))

    def announce(coming: Outcome, report: Report) -> None:
        progress = {**dataclasses.asdict(report), "next": dataclasses.asdict(coming)}
        request["say"](progress)

    return _check_on(device, request, announce=announce)


def _check_watching(request: Mapping[str, Any]) -> dict[str, Any]:
    device = open_device(request["device"])
    return _check_on(watching(device) or device, request, stop_at_failure=True)


def _check_on(device: Device, request: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    ladder, rung = asked(request)
    given = ladder, rung, device, request["dtypes"], request["shapes"]
    report = check_here(*given, wide=False, **how)
    if isinstance(device, Emulated):
        warnings = tuple(device.warnings(rung))
        report = dataclasses.replace(report, warnings=warnings)
    return dataclasses.asdict(report)


def _check_covering(request: Mapping[str, Any]) -> dict[str, Any]:
    device = Emulated(count_branches=True)
    answer = _check_on(device, request)
    spots = device.coverage(asked(request)[1])
    return {**answer, "spots": [dataclasses.asdict(spot) for spot in spots]}


def _trace(request: Mapping[str, Any]) -> dict[str, Any]:
    """The accesses of one run; or what is recorded in the first order that shows a mistake."""
    reports, records = [], request["settings"].get("record", False)
    for order in ORDERS if records else ORDERS[:1]:
        device = Emulated(counting=True).variant(**request["settings"], **order)
        with suppress(*[KernelError] * records):
            run_on(device, *asked(request), request["dtype"], request["dims"])
        reports.append(device.report())
        if reports[-1].problems:
            return dataclasses.asdict(reports[-1])
    return dataclasses.asdict(reports[0])


TASKS = {"check": _check, "watch": _check_watching, "cover": _check_covering, "trace": _trace}
