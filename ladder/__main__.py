"""The command line: python -m ladder list | show | diff | check | bench | pick | trace | sass | ...

A rung is named by its id (3, 16bit-5, cublas), by its number where only one rung has it, or by the
path of your own `.cu` file.
"""

import argparse
import contextlib
import importlib
import sys
from collections.abc import Sequence

from ladder.core.common.command_line import Parser, run, version
from ladder.core.common.errors import LadderError
from ladder.core.common.install import ROOT

COMMANDS = {  # a module of ladder/core/commands, and the commands that it adds
    "sources": ("list", "show", "diff", "lint"),
    "checks": ("check", "doctor"),
    "adoption": ("adopt",),
    "timings": ("bench", "pick", "latency"),
    "machine_code": ("compile", "sass", "isa"),
    "traces": ("trace", "ncu"),
    "exports": ("export",),
    "documents": ("docs", "notebooks"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns the exit status: 0 done, 1 a check failed, 2 it cannot be done as asked.
    """
    return run(_run, sys.argv[1:] if arguments is None else arguments, "ladder")


def _run(words: Sequence[str]) -> int:
    if "" in words:  # a variable of the shell that is not set
        raise LadderError("an argument is empty; give it a value, or leave it out")
    options = _parser(words).parse_args(words)
    options.stdout = sys.stdout
    in_text = getattr(options, "format", "text") in ("text", "github")
    with contextlib.redirect_stdout(sys.stdout if in_text else sys.stderr):  # what kernels print
        return int(options.run(options))


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """A parser of all commands; where one is typed, of that one: it imports no other's modules."""
    from ladder.core.commands import completion
    from ladder.core.commands.shared import Commands

    parser = Parser(prog="python -m ladder", description="Kernels of GPT-2's layers, rung by rung.")
    parser.add_argument("--version", action="version", version=version())
    parser.add_argument(
        "--print-completion",
        action=completion.PrintCompletion,
        choices=("bash", "zsh"),
        help='lets a shell complete ops, rungs and flags: eval "$(kernel-ladder --print-completion '
        'bash)"',
    )
    commands = Commands(parser)
    needed = [name for name, known in COMMANDS.items() if words and words[0] in known]
    for name in needed or COMMANDS:
        importlib.import_module(f"{ROOT}ladder.core.commands.{name}").add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
