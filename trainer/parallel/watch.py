"""Notices when a rank of a group is lost, and ends this process, wherever it is.

A process that waits for a lost rank may wait inside a library, a GPU's kernel or a system call, and
none of these can be told to stop. So a thread keeps a connection of its own, gives and expects a
sign of life every second, and ends the whole process. The system then frees its memory, that of its
GPU included.

All connections lead to rank 0, which tells every rank of the loss of any other.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import NoReturn

from ladder.common.errors import LadderError

ALIVE, LEFT, FAILED = b"alive", b"left", b"failed "
INTERVAL = 1.0  # seconds between two signs of life
STATUS = 1  # of a process that ends because another one did
MOST_BYTES = 1 << 16  # of a message


def end_process(message: str | None) -> NoReturn:
    """End this process at once. The message is None where another process shows it."""
    if message is not None:
        print(f"error: {message}", file=sys.stderr)
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(STATUS)


class Watch:
    """The signs of life between this rank and the ranks that it is connected with.

    names    of all ranks, by rank, for messages: "rank 1 of 2 (process 4711 on node1)"
    patience seconds without a sign of life after which a rank is lost
    shows    whether this process is to show the loss of rank 0: one on each machine is enough
    end      is called, in the thread, when a rank is lost
    advice   tells the user how to go on
    """

    def __init__(
        self,
        links: Mapping[int, Connection],
        names: Mapping[int, str],
        *,
        patience: float,
        shows: bool,
        end: Callable[[str | None], None] = end_process,
    ) -> None:
        self.advice: Callable[[], str] = lambda: ""
        self._links, self._names = dict(links), names
        self._patience, self._shows, self._end = patience, shows, end
        self._lock = threading.Lock()  # of sending: this thread and the main one do
        self._leaving = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """All ranks are done: say so, and close the connections."""
        self._leaving.set()
        self._send(LEFT)
        self._thread.join()
        for link in self._links.values():
            link.close()

    def fail(self, message: str) -> None:
        """Tell the others that this rank ends by an error, which this process shows."""
        if not self._leaving.is_set():
            self._leaving.set()
            self._send(FAILED + message.encode()[: MOST_BYTES // 2])

    def explain(self, error: Exception) -> NoReturn:
        """The main thread has lost a connection: let the thread find out about the rank, and end
        the process. Raises LadderError where it finds nothing."""
        if self._ended.wait(self._patience + 2 * INTERVAL):
            self._thread.join()  # it ends the process before it ends itself
        raise LadderError(f"the connection with another rank is broken ({error}); start again")

    def _run(self) -> None:
        """Until this rank leaves or another is lost."""
        present = dict(self._links)  # those that have not left
        heard = dict.fromkeys(present, time.monotonic())
        due = 0.0
        while present and not self._leaving.is_set():
            if time.monotonic() >= due:
                self._send(ALIVE)
                due = time.monotonic() + INTERVAL
            ready = wait(list(present.values()), timeout=INTERVAL / 4)
            for rank, link in list(present.items()):
                if link in ready:
                    heard[rank] = time.monotonic()
                    if not self._listen(rank, link, present):
                        return
                elif time.monotonic() - heard[rank] > self._patience:
                    silent = f"{self._names[rank]} has given no sign of life for "
                    self._lose(f"{silent}{self._patience:g} seconds", rank)
                    return

    def _listen(self, rank: int, link: Connection, present: dict[int, Connection]) -> bool:
        """Take one message. False: a rank is lost, and this one ends."""
        try:
            message = link.recv_bytes(MOST_BYTES)
        except (EOFError, OSError):
            self._lose(f"{self._names[rank]} has ended without a word", rank)
            return False
        if message == LEFT:
            del present[rank]
        elif message.startswith(FAILED):
            text = message[len(FAILED) :].decode("utf-8", "replace")
            # Rank 0 shows its own error, and what it passes on.
            self._lose(text if rank == 0 else f"{self._names[rank]}: {text}", rank, told=rank == 0)
            return False
        return True

    def _lose(self, why: str, rank: int, told: bool = False) -> None:
        """End because of a rank. `told`: by rank 0, which shows it itself."""
        if self._leaving.is_set():
            return
        self._leaving.set()
        text = why
        with suppress(Exception):
            advice = self.advice()
            text = f"{why}; all ranks stop" + (f"; {advice}" if advice else "")
        self._send(FAILED + text.encode()[: MOST_BYTES // 2])
        self._ended.set()
        show = not told and (rank != 0 or self._shows)
        self._end(text if show else None)

    def _send(self, message: bytes) -> None:
        """To all that are connected; who has gone is noticed by listening."""
        with self._lock:
            for link in self._links.values():
                with suppress(OSError):
                    link.send_bytes(message)
