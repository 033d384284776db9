"""Notices when a rank of a group is lost or hangs, and ends this process, wherever it is.

A process that waits for a lost rank may wait inside a library, a GPU's kernel or a system call, and
none of these can be told to stop. So a thread keeps a connection of its own, gives and expects a
sign of life every second, and ends the whole process. The system then frees its memory, that of its
GPU included.

All connections lead to rank 0, which tells every rank of the loss of any other.

The thread also lives where the main thread hangs. So a sign of life says how far the main thread
has come, and for how long it has been there. The ranks that have come least far hold up the others:
these wait for them, on the host or inside a GPU's kernel. Where none of the former has moved for
too long, all end.
"""

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple, NoReturn

from ladder.core.common.errors import LadderError

ALIVE, LEFT, FAILED = b"alive ", b"left", b"failed "  # the last: "failed STATUS MESSAGE"
INTERVAL = 1.0  # seconds between two signs of life
LOST = 1  # exit status of all ranks where one is lost or hangs
MOST_BYTES = 1 << 16  # of a message


def end_process(message: str | None, status: int) -> NoReturn:
    """End this process at once. The message is None where another process shows it."""
    if message is not None:
        print(f"error: {message}", file=sys.stderr)
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


class BrokenConnection(LadderError):
    """A rank does not answer, and nobody knows why."""


class Progress(NamedTuple):
    """How far the main thread of a rank has come.

    part     for messages, such as "the end of step 7"; None where it may take any time
    parts    how many it has come to, of those that are the same on all ranks
    seconds  since it came there
    line     of Python that it is at: "next_batch, token_files.py:213"
    waits    whether it waits for another rank, on the host
    """

    part: str | None = None
    parts: int = 0
    seconds: float = 0.0
    line: str = ""
    waits: bool = False


@dataclass(eq=False)
class Watch:
    """The signs of life between this rank and the ranks that it is connected with.

    rank     this one
    names    of all ranks, by rank, for messages: "rank 1 of 2 (process 4711 on node1)"
    patience seconds without a sign of life after which a rank is lost
    most     seconds at one part after which a main thread hangs
    shows    whether this process is to show the loss of rank 0: one on each machine is enough
    end      is called, in the thread, when a rank is lost: with the message or None, and the exit
             status, which is that of the rank that failed
    advice   tells the user how to go on
    """

    links: Mapping[int, Connection]
    names: Mapping[int, str]
    _: KW_ONLY
    rank: int
    patience: float
    most: float = float("inf")
    shows: bool
    end: Callable[[str | None, int], None] = end_process

    def __post_init__(self) -> None:
        self.advice: Callable[[], str] = lambda: ""
        self._main = threading.get_ident()  # the thread that opens the watch
        self._part: tuple[str | None, int, float] = (None, 0, time.monotonic())
        self._waits = False
        self._lock = threading.Lock()  # of sending: this thread and the main one do
        self._leaving = threading.Event()
        self._ended = threading.Event()
        self._present = dict(self.links)  # those that have not left
        self._reports: dict[int, Progress] = {}  # the last of each
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def progress(self, part: str | None) -> None:
        _, count, _ = self._part
        self._part = part, count + (part is not None), time.monotonic()

    def working(self, part: str) -> None:
        _, count, _ = self._part
        self._part = part, count, time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the block runs, the main thread waits for another rank."""
        self._waits = True
        try:
            yield
        finally:
            part, count, _ = self._part
            self._part = part, count, time.monotonic()
            self._waits = False

    def leave(self) -> None:
        self._leaving.set()
        self._send(LEFT)
        self._thread.join()
        for link in self.links.values():
            link.close()

    def fail(self, message: str, status: int) -> None:
        """Tell the others why this rank ends. If another one has failed before, the thread says so
        and ends the process: the user reads of one failure."""
        if self._leaving.is_set():
            self._thread.join()
        else:
            self._leaving.set()
            self._send_failure(message, status)

    def explain(self, error: Exception) -> NoReturn:
        """The main thread has lost a connection: let the thread find out about the rank, and end
        the process. Raises BrokenConnection where it finds nothing."""
        if self._ended.wait(self.patience + 2 * INTERVAL):
            self._thread.join()  # it ends the process before it ends itself
        raise BrokenConnection(f"the connection with another rank is broken ({error}); start again")

    def _run(self) -> None:
        """Until this rank leaves, or one is lost or hangs."""
        heard = dict.fromkeys(self._present, time.monotonic())
        due = 0.0
        while self._present and not self._leaving.is_set():
            if time.monotonic() >= due:
                self._reports[self.rank] = self._report()
                self._send(ALIVE + json.dumps(self._reports[self.rank]).encode())
                due = time.monotonic() + INTERVAL
            ready = wait(list(self._present.values()), timeout=INTERVAL / 4)
            for rank, link in list(self._present.items()):
                if link in ready:
                    heard[rank] = time.monotonic()
                    if not self._listen(rank, link):
                        return
                elif time.monotonic() - heard[rank] > self.patience:
                    silent = f"{self.names[rank]} has given no sign of life for "
                    self._lose(f"{silent}{self.patience:g} seconds", rank != 0 or self.shows)
                    return
            if self.rank == 0 and (hangs := self._who_hangs()):
                self._lose(hangs, shows=True)
                return

    def _report(self) -> Progress:
        part, count, since = self._part
        line = ""
        collects = gc.isenabled()
        gc.disable()  # a collection within the next call deadlocks (CPython's issue 106883)
        frame = sys._current_frames().get(self._main)
        if collects:
            gc.enable()
        if frame is not None:
            code = frame.f_code
            line = f"{code.co_name}, {Path(code.co_filename).name}:{frame.f_lineno}"
        return Progress(part, count, time.monotonic() - since, line, self._waits)

    def _listen(self, rank: int, link: Connection) -> bool:
        """Take one message. False: a rank is lost, and this one ends."""
        try:
            message = link.recv_bytes(MOST_BYTES)
        except (EOFError, OSError):
            self._lose(f"{self.names[rank]} has ended without a word", rank != 0 or self.shows)
            return False
        if message == LEFT:
            del self._present[rank]
            self._reports.pop(rank, None)
        elif message.startswith(FAILED):
            status, _, text = message[len(FAILED) :].decode("utf-8", "replace").partition(" ")
            # Rank 0 shows its own error, and what it passes on.
            why = text if rank == 0 else f"{self.names[rank]}: {text}"
            self._lose(why, shows=rank != 0, status=int(status))
            return False
        else:
            self._reports[rank] = Progress(*json.loads(message[len(ALIVE) :]))
        return True

    def _who_hangs(self) -> str | None:
        """Which ranks hold up the others, once none of them has moved for too long."""
        at_work = {rank: report for rank, report in self._reports.items() if not report.waits}
        least = min((report.parts for report in at_work.values()), default=0)
        behind = [rank for rank, report in sorted(at_work.items()) if report.parts == least]
        if not behind or any(
            at_work[rank].part is None or at_work[rank].seconds <= self.most for rank in behind
        ):
            return None
        first = at_work[behind[0]]
        names = ", ".join(self.names[rank] for rank in behind)
        at = f" (in {first.line})" if first.line else ""
        return (
            f"{names}: no progress at {first.part}{at} for {first.seconds:.0f} seconds; if this "
            f"may take longer, raise --hang-timeout ({self.most:g})"
        )

    def _lose(self, why: str, shows: bool, status: int = LOST) -> None:
        """End because of a rank. `shows`: this process prints why."""
        if self._leaving.is_set():
            return
        self._leaving.set()
        text = why
        with suppress(Exception):
            advice = self.advice()
            text = f"{why}; all ranks stop" + (f"; {advice}" if advice else "")
        self._send_failure(text, status)
        self._ended.set()
        self.end(text if shows else None, status)

    def _send_failure(self, message: str, status: int) -> None:
        self._send(FAILED + f"{status} {message}".encode()[: MOST_BYTES // 2])

    def _send(self, message: bytes) -> None:
        """To all that are connected; who has gone is noticed by listening."""
        with self._lock:
            for link in self.links.values():
                with suppress(OSError):
                    link.send_bytes(message)
