"""What all command lines share: a wrong flag, or a file that cannot be used, is one line."""

import argparse
import difflib
import errno
import importlib.metadata
import io
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.files import NO_SPACE
from ladder.core.common.install import install, pip


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are LadderErrors: one line, then exit status 2. `newest`: the
    one that was made last."""

    newest: "Parser"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)
        Parser.newest = self

    def error(self, message: str) -> typing.NoReturn:
        if wrong := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            hint = did_you_mean(wrong[1], re.findall(r"[^', ]+", wrong[2]))
            message = message.replace(" (choose", f"{hint} (choose")
        lists = "commands" if self._subparsers else "flags"
        raise LadderError(
            f"{message.removeprefix('argument ')}; {self.prog} --help lists the {lists}"
        )

    def parse_known_args(  # type: ignore[override]  # as for a command line, all must be known
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Like argparse, but an unknown flag is refused with the nearest one, and a word that
        belongs to none is not called a flag. A command's parser is called here, too, so that the
        flags are its own."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            if not unknown[0].startswith("-"):
                self.error(f"{unknown[0]!r} is one word too many, or must stand before the flags")
            hint = did_you_mean(unknown[0], self._option_string_actions)
            flag = unknown[0] if unknown[0].isprintable() else repr(unknown[0])
            self.error(f"there is no flag {flag}{hint}")
        return parsed, unknown


def run(main: Callable[[Sequence[str]], int], words: Sequence[str], name: str = "error") -> int:
    """`main`, with a user's error as one plain line, behind `name`, and status 2, and Ctrl-C as
    status 130."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # Print ? for characters that the terminal cannot encode. Without this, a curly quote in
        # what a model says would end the run in a locale without UTF-8.
        sys.stdout.reconfigure(errors="replace")
    try:
        return main(words)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except LadderError as error:
        what = str(error)
    except ModuleNotFoundError as error:
        what = describe_missing_package(error)
    except (OSError, RuntimeError) as error:
        what = describe_system_error(error)
    except MemoryError as error:  # not covered by the estimate made before the start
        why = f" ({error})" if str(error) else ""
        what = f"out of memory{why}; choose a smaller batch, sequence or model"
    print(f"{name}: {what}", file=sys.stderr)
    return 2


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """What follows a word that was typed wrong: a blank, and "(did you mean …?)"; nothing where no
    known word is near."""
    near = difflib.get_close_matches(typed, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def version() -> str:
    """The version that is installed."""
    try:
        return importlib.metadata.version("kernel-ladder")
    except importlib.metadata.PackageNotFoundError:
        return "a checkout that is not installed"


def describe_missing_package(error: ModuleNotFoundError) -> str:
    """One line for a package that this Python lacks. Raises the error where a module of ours is
    missing."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "kernel_ladder", "ladder", "trainer", "reference"):
        raise error
    lacks = f"{sys.executable} lacks the package {package}"
    try:
        wanted = importlib.metadata.requires("kernel-ladder") or []
    except importlib.metadata.PackageNotFoundError:
        return f"{lacks}; 'make setup' puts it into .venv: run .venv/bin/python instead"
    name = re.escape(package).replace("_", "[-_]")
    # In order of the extras; of those that have it, `all` and `notebooks` hold others as a whole.
    extras = re.findall(rf"(?m)^{name}\b.*extra == ['\"](?!test)(\w+)", "\n".join(wanted))
    return f"{lacks}; {install(extras[-1]) if extras else pip(f'install {package}')} adds it"


def describe_system_error(error: OSError | RuntimeError) -> str:
    """One line for what the system refuses: a file, a thread or a process. Raises any other error.

    It covers what no code closer to the file has described: a folder without read permission, a
    name that is too long, a folder where a file is expected, a log on a full disk.
    """
    # What Python says when a thread cannot start, and a process. (A full pipe reads differently.)
    again = os.strerror(errno.EAGAIN)
    if str(error) == "can't start new thread" or getattr(error, "strerror", None) == again:
        return (
            "the system starts no more threads or processes; raise the limit (ulimit -u, or the "
            "container's), or end others"
        )
    if not isinstance(error, OSError):
        raise error
    if error.filename is None:
        if error.errno in NO_SPACE:
            return f"the output cannot be written: {error.strerror}; make room where it goes"
        raise error
    return f"{error.filename}: {error.strerror}; fix the path or its permissions"
