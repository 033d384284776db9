"""Ctrl-C and SIGTERM stop a run after the current step."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Interrupt:
    """Inside the context the first signal sets `signal`; the second one raises KeyboardInterrupt.

    In a thread other than the main one, where Python takes no signals, nothing changes.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        return self.signal is not None

    def _handle(self, number: int, frame: object) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


def exit_status(number: int) -> int:
    """Of a run that a signal has stopped, as shells define it: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + number
