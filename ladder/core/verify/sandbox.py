"""Checks a user's own kernel, a `.cu` file from anywhere, in a child process.

    report = sandbox.check("layernorm.forward", "mine.cu")
    report = sandbox.check("layernorm.forward", source_text, device="cuda", seconds=20)
    report = sandbox.check(Path("ref.py"), "mine.cu")     # against a reference of the user's own

A kernel that is still being written may loop forever or access an illegal address. After an illegal
access, a process cannot use the GPU any more. So the kernel runs in a child process with a time
limit, and a crash of the child becomes a message here. A second child then looks for the line that
did it, on the emulator, which watches every access. The child is `python -m
ladder.core.verify.sandbox`: it reads one JSON request from its standard input, and writes one JSON
answer to a file.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write
from ladder.core.common.install import ROOT
from ladder.core.contract.device import Device
from ladder.core.contract.ladder import PACKAGE, Ladder
from ladder.core.contract.op import Dims
from ladder.core.contract.rung_file import Rung
from ladder.core.device.open import open_device
from ladder.core.emulator.coverage import Spot
from ladder.core.emulator.emulated import Emulated
from ladder.core.verify.check import Outcome, Report
from ladder.core.verify.check import check as check_here
from ladder.core.verify.reference_file import open_ladder
from ladder.core.verify.tolerance import INDENT
from ladder.core.verify.variants import watching

SECONDS = 120.0  # time limit of a check
# A check launches a kernel at several shapes, and in several orders of its threads. One launch of
# the emulator that takes a sixth of the check's time, and 10 s, does not leave enough for the rest.
LAUNCHES, LEAST_SECONDS = 6, 10.0
PROGRESS = ".progress"  # after the name of the answer's file


def check(
    op: str | Path,
    kernel: str | Path,
    device: str = "emulated",
    dtypes: Sequence[str] | None = None,
    shapes: Sequence[Dims] | None = None,
    seconds: float = SECONDS,
) -> Report:
    """Check a kernel, given by its path or its source text, in a child process.

    op  an op's name, or the path of a reference file (reference_file.py), which runs here, too

    Never raises for what the kernel does: a crash or an endless loop is a report that failed.
    Raises LadderError where it does not compile, or its header or arguments do not fit.
    """
    with as_file(kernel) as path:
        return _report(_answer("check", seconds, op, path, device, dtypes, shapes))


def cover(
    op: str | Path,
    path: str | Path,
    dtypes: Sequence[str] | None = None,
    shapes: Sequence[Dims] | None = None,
    seconds: float = SECONDS,
) -> tuple[Report, list[Spot]]:
    """Check a kernel on the emulator, in a child process, as `check` does; and how often its
    branches and loops ran, if it ended."""
    answer = _answer("cover", seconds, op, path, Emulated.kind, dtypes, shapes)
    spots = [Spot(**spot) for spot in answer.pop("spots", ())]
    return _report(answer), spots


def _answer(
    task: str,
    seconds: float,
    op: str | Path,
    path: str | Path,
    device: str,
    dtypes: Sequence[str] | None,
    shapes: Sequence[Dims] | None,
) -> dict[str, Any]:
    """What a child says of a kernel; a report that failed, if the child dies of it."""
    ladder = open_ladder(op)
    rung = ladder.find(path)
    request: dict[str, Any] = {"op": str(op), "path": str(path), "device": device}
    request |= {"own_op": isinstance(op, Path)}
    request |= {"dtypes": dtypes, "shapes": shapes and [dict(dims) for dims in shapes]}
    try:
        return in_child(task, request, seconds)
    except ChildDied as death:
        if death.progress and _launch_limit(seconds) < seconds:
            return _as_far_as_it_came(rung, death.progress, seconds)
        outcome = Outcome({}, "", "normal", "fault", str(death))
        if seen := _watch(request, seconds):  # line, thread and cause: what a reader needs first
            detail = INDENT.join([seen.detail, f"process: {death}"])
            outcome = dataclasses.replace(seen, status="fault", detail=detail)
        report = Report(ladder.op.name, rung.label, device, (outcome,))
        return dataclasses.asdict(report)


def _as_far_as_it_came(rung: Rung, progress: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The report of a child whose time was over, though none of its launches took too long."""
    report = dict(progress)
    coming, done = report.pop("next"), report["outcomes"]
    detail = (
        f"{rung.file.name} was stopped after {seconds:g} s, the time of the whole check. It is "
        f"slow rather than endless: each launch ended within its limit, {_launch_limit(seconds):g} "
        f"s, and {len(done)} shapes and cases are done; --seconds gives more time"
    )
    return {**report, "outcomes": [*done, {**coming, "status": "fault", "detail": detail}]}


def _launch_limit(seconds: float) -> float:
    """The seconds of one launch on the emulator, of those of a check."""
    return max(seconds / LAUNCHES, LEAST_SECONDS)


def _watch(request: Mapping[str, Any], seconds: float) -> Outcome | None:
    """What the emulator sees where a kernel has ended the process or does not end: in a child that
    watches every memory access, and stops the kernel before it does what it must not."""
    named = request["device"]  # "emulated:64" remains what it is
    device = named if named.startswith(Emulated.kind) else Emulated.kind
    try:
        report = _report(in_child("watch", {**request, "device": device}, seconds))
    except (ChildDied, LadderError):
        return None
    return report.failures[0] if report.failures else None


def _report(answer: dict[str, Any]) -> Report:
    outcomes = tuple(Outcome(**outcome) for outcome in answer.pop("outcomes"))
    warnings, given_up = (tuple(answer.pop(name)) for name in ("warnings", "given_up"))
    return Report(**answer, outcomes=outcomes, warnings=warnings, given_up=given_up)


def require(op: str | Path, rung: Rung, device: str) -> None:
    """Raise LadderError unless a user's own kernel passes `check`. Called before it runs in this
    process."""
    report = check(op, rung.file, device)
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

    progress  where its time was over on the emulator, the report so far, with what came `next`
    """

    def __init__(self, message: str, progress: Mapping[str, Any] | None = None):
        super().__init__(message)
        self.progress = progress


def in_child(task: str, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Run a task of `TASKS` in a child process and return its answer.

    Raises LadderError for one that the task raised, ChildDied where no answer came.
    """
    name = Path(request["path"]).name
    with tempfile.TemporaryDirectory(prefix="kernel-ladder-") as folder:
        answer = Path(folder) / "answer.json"
        environment = {**os.environ, "PYTHONPATH": _python_path()}
        module = f"{ROOT}ladder.core.verify.sandbox"
        child = subprocess.Popen(
            [sys.executable, "-m", module, task, answer, str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # so that the compiler that it starts ends with it
        )
        try:
            stdout, stderr = child.communicate(json.dumps(request).encode(), seconds)
        except subprocess.TimeoutExpired:
            so_far = Path(f"{answer}{PROGRESS}")
            raise ChildDied(
                f"{name} was stopped after {seconds:g} s: a loop that does not end, or threads "
                "that wait for each other; 'python -m ladder check' takes --seconds for more time",
                json.loads(so_far.read_text(encoding="utf-8")) if so_far.exists() else None,
            ) from None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
        print(stdout.decode(errors="replace"), end="")  # what the kernel printed
        if not answer.exists():
            raise ChildDied(
                _cause_of_death(name, child.returncode, stderr.decode(errors="replace"))
            )
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in result:
        raise LadderError(result["error"])
    return result


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


def _asked(request: Mapping[str, Any]) -> tuple[Ladder, Rung]:
    ladder = open_ladder(Path(request["op"]) if request["own_op"] else request["op"])
    return ladder, ladder.find(request["path"])


def _check(request: Mapping[str, Any]) -> dict[str, Any]:
    device = open_device(request["device"])
    if not isinstance(device, Emulated):
        return _check_on(device, request)
    device = device.variant(time_limit=_launch_limit(request["seconds"]))

    def announce(coming: Outcome, report: Report) -> None:
        progress = {**dataclasses.asdict(report), "next": dataclasses.asdict(coming)}
        with atomic_write(f"{request['answer']}{PROGRESS}") as file:
            file.write(json.dumps(progress).encode())

    return _check_on(device, request, announce=announce)


def _check_watching(request: Mapping[str, Any]) -> dict[str, Any]:
    device = open_device(request["device"])
    return _check_on(watching(device) or device, request, stop_at_failure=True)


def _check_on(device: Device, request: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    ladder, rung = _asked(request)
    given = ladder, rung, device, request["dtypes"], request["shapes"]
    report = check_here(*given, wide=False, **how)
    if isinstance(device, Emulated):
        warnings = tuple(device.warnings(rung))
        report = dataclasses.replace(report, warnings=warnings)
    return dataclasses.asdict(report)


def _check_covering(request: Mapping[str, Any]) -> dict[str, Any]:
    device = Emulated(count_branches=True)
    answer = _check_on(device, request)
    spots = device.coverage(_asked(request)[1])
    return {**answer, "spots": [dataclasses.asdict(spot) for spot in spots]}


TASKS = {"check": _check, "watch": _check_watching, "cover": _check_covering}


def _main(task: str, answer: str, seconds: str) -> None:
    signal.setitimer(signal.ITIMER_REAL, float(seconds) + 5)  # in case the parent is gone by then
    try:
        known = {"seconds": float(seconds), "answer": answer}
        result = TASKS[task]({**json.load(sys.stdin), **known})
    except LadderError as error:
        result = {"error": str(error)}
    with atomic_write(answer) as file:
        file.write(json.dumps(result).encode())


if __name__ == "__main__":
    _main(*sys.argv[1:])
