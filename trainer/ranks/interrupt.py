"""Ctrl-C and SIGTERM stop a run after the current step."""

from __future__ import annotations

import signal
import threading
from typing import Any

from trainer.ranks.group import ALONE, Group


class Interrupt:
    """Inside the context the first signal is kept; the second one raises KeyboardInterrupt.

    In a thread other than the main one, where Python takes no signals, nothing changes.
    """

    def __init__(self, group: Group = ALONE) -> None:
        self._group, self._signal, self._of_all = group, 0, 0
        self._before: dict[int, Any] = {}

    def here(self) -> bool:
        """Whether there was a signal to this process."""
        return self._signal > 0

    def anywhere(self) -> bool:
        """Whether there was one to any rank. All ranks ask at the same place, so that all of them
        stop there."""
        self._of_all = max(self._group.collect("the interrupt", self._signal))
        return self._of_all > 0

    @property
    def status(self) -> int:
        """The exit status, as shells define it: 130 after Ctrl-C, 143 after SIGTERM on any rank; 0
        without an interrupt."""
        return 128 + self._of_all if self._of_all else 0

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if self._signal:
            raise KeyboardInterrupt
        self._signal = number
