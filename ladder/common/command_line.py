"""What all command lines here share: what is wrong with the words, or with a file that they name,
is one line."""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import sys
import typing
from collections.abc import Sequence
from typing import Any

from ladder.common.errors import LadderError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are LadderErrors: one line, then exit status 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> typing.NoReturn:
        raise LadderError(
            f"{message.removeprefix('argument ')}; {self.prog} --help lists the flags"
        )

    def parse_args(self, args: Sequence[str] | None = None, namespace=None) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known = difflib.get_close_matches(unknown[0], self._option_string_actions, n=1)
            hint = f" (did you mean {known[0]}?)" if known else ""
            self.error(f"there is no flag {unknown[0]}{hint}")
        return parsed


def print_what_can_be() -> None:
    """Let standard output put ? for a character that it lacks: in a locale without UTF-8 Python
    would raise, and end a run for a curly quote in what the model says."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def explain(error: OSError | RuntimeError) -> str:
    """One line for what the system refuses: a file, a thread, a process; an error that is about
    none of them is raised again.

    For what nothing closer to the file has put into words: a folder that may not be looked into, a
    name that is too long, a folder where a file belongs, a log on a full disk.
    """
    # What Python says of a thread, and of a process; a pipe that is full has words of its own.
    again = os.strerror(errno.EAGAIN)
    if str(error) == "can't start new thread" or getattr(error, "strerror", None) == again:
        return (
            "the system starts no more threads or processes; raise the limit (ulimit -u, or that "
            "of the container), or end others"
        )
    if not isinstance(error, OSError):
        raise error
    if error.filename is None:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"the output cannot be written: {error.strerror}; make room where it goes"
        raise error
    return f"{error.filename}: {error.strerror}; correct the path, or who may use it"
