"""Runs the checker on changed rungs, and says whether it caught each change.

A changed rung is written to a temporary file and checked as a user's own kernel would be, up to the
first failure: in the first type that the rung is written for, then at the most telling shapes in
the others. Each check runs in a process of its own, since a kernel may damage the process that it
runs in. What was checked in one that crashes goes through the sandbox, as a stranger's kernel does.
What the compiler makes of a change is kept in a temporary folder, not in the user's cache.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from ladder.core.common import cache
from ladder.core.common.errors import CompileError, LadderError
from ladder.core.common.install import cores
from ladder.core.contract import rung_file
from ladder.core.contract.ladder import Ladder, find
from ladder.core.contract.op import DTYPES
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator import toolchain
from ladder.core.emulator.emulated import Emulated
from ladder.core.verify import sandbox
from ladder.core.verify.check import check

SECONDS = 400.0  # for one check
LAUNCH_SECONDS = 10.0  # for one launch
NAMED_LINE = re.compile(r"\.cuh?:[1-9]\d*\b")


@dataclass(frozen=True)
class Trial:
    """A changed rung, and what is known of it."""

    op: str
    path: Path  # of the rung before the change
    source: str  # after it


@dataclass(frozen=True)
class Verdict:
    """What the checker says of a changed rung.

    status   "caught", "survived", "undecided": the check took too long, or "invalid": it does not
             compile
    message  the report
    """

    status: str
    message: str
    seconds: float

    @property
    def names_line(self) -> bool:
        """Whether the report names a line of the kernel's file."""
        return bool(NAMED_LINE.search(self.message))


@functools.cache
def device(processes: int = 1) -> Emulated:
    """The emulator, with a time limit that suits small shapes, on its share of the processors."""
    return Emulated(time_limit=LAUNCH_SECONDS, workers=max(1, cores() // processes))


def types(ladder: Ladder, rung: Rung) -> list[str]:
    """The real types that a rung is written for."""
    return [name for name in ladder.op.reals if rung.claims(device().target(DTYPES[name]))]


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for one changed rung, in that of `own_cache`."""
    return tempfile.TemporaryDirectory(prefix="kernel-ladder-", dir=os.environ[cache.VARIABLE])


def judge(trial: Trial, processes: int) -> Verdict:
    """Check a changed rung in this process, one of several."""
    start = time.monotonic()
    ladder = find(trial.op)
    status, message = "caught", "refused: it is for no real type"
    with scratch() as folder:
        path = Path(folder) / trial.path.name
        path.write_text(trial.source, encoding="utf-8")
        try:
            rung = rung_file.parse(path, ladder.op.kernel)
            for i, dtype in enumerate(types(ladder, rung)):
                report = check(
                    ladder, rung, device(processes), [dtype], few=i > 0, stop_at_failure=True
                )
                status, message = "survived" if report.passed else "caught", str(report)
                if not report.passed:
                    break
        except CompileError as error:
            status, message = "invalid", str(error)
        except LadderError as error:
            status, message = "caught", f"refused: {error}"
    return Verdict(status, message, time.monotonic() - start)


def judge_in_sandbox(trial: Trial) -> Verdict:
    """Check a changed rung as a stranger's kernel: in a process of its own, with a time limit."""
    start = time.monotonic()
    with scratch() as folder:
        path = Path(folder) / trial.path.name
        path.write_text(trial.source, encoding="utf-8")
        ladder = find(trial.op)
        dtypes = types(ladder, rung_file.parse(path, ladder.op.kernel))
        report = sandbox.check(trial.op, path, dtypes=dtypes[:1], seconds=SECONDS)
    status = "survived" if report.passed else "caught"
    return Verdict(status, str(report), time.monotonic() - start)


def judge_all(
    trials: Sequence[Trial], processes: int = 1, show: Callable[[int, Verdict], None] | None = None
) -> list[Verdict]:
    """Check many, so many at a time; `show` is called with the index of each as it is known."""
    processes = min(processes, len(trials))
    verdicts: dict[int, Verdict] = {}
    waiting = [(index, False) for index in reversed(range(len(trials)))]  # and whether it crashed
    running: list[_Running] = []
    with own_cache():
        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    running.append(_Running(trials, *waiting.pop(), processes))
                wait([one.connection for one in running], 0.5)
                for one in [one for one in running if one.is_over()]:
                    running.remove(one)
                    if (verdict := one.verdict()) is None:
                        waiting.append((one.index, True))
                        continue
                    verdicts[one.index] = verdict
                    if show:
                        show(one.index, verdict)
        finally:
            for one in running:
                one.end()
    return [verdicts[index] for index in range(len(trials))]


class _Running:
    """A process that checks one rung; in the sandbox if the process before it has crashed on it."""

    def __init__(self, trials: Sequence[Trial], index: int, crashed: bool, processes: int) -> None:
        self.index, self.crashed, self.trial = index, crashed, trials[index]
        self.deadline = time.monotonic() + SECONDS * (1 + crashed)
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        work = theirs, self.trial, crashed, processes
        self.process = context.Process(target=_serve, args=work, daemon=True)
        self.process.start()
        theirs.close()

    def is_over(self) -> bool:
        return self.connection.poll() or time.monotonic() > self.deadline

    def verdict(self) -> Verdict | None:
        """What it has found out; None if it crashed. It ends."""
        try:
            if not self.connection.poll():
                return Verdict("undecided", f"not done after {SECONDS:g} s", SECONDS)
            answer: Verdict | Exception = self.connection.recv()
        except (EOFError, OSError):
            if self.crashed:
                raise RuntimeError(f"the checker crashes on {self.trial.path}") from None
            return None
        finally:
            self.end()
        if isinstance(answer, Exception):
            raise RuntimeError(f"the checker fails on {self.trial.path}") from answer
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection, trial: Trial, crashed: bool, processes: int) -> None:
    try:
        connection.send(judge_in_sandbox(trial) if crashed else judge(trial, processes))
    except Exception as bug:  # of the checker itself: no verdict on the rung
        connection.send(bug)


@contextlib.contextmanager
def own_cache() -> Iterator[None]:
    """Compile into a temporary folder; the emulator's own library is copied from the user's, since
    the sandbox reads nothing else."""
    shared = toolchain.runtime().parent
    before = os.environ.get(cache.VARIABLE)
    with tempfile.TemporaryDirectory(prefix="kernel-ladder-") as folder:
        shutil.copytree(shared, Path(folder, shared.parent.name, shared.name))
        os.environ[cache.VARIABLE] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[cache.VARIABLE]
            else:
                os.environ[cache.VARIABLE] = before
