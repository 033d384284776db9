"""The command line: python -m ladder list | show | diff | check | bench | pick | trace | sass | ...

A rung is named by its id (3, 16bit-5, cublas), by its number where only one rung has it, or by the
path of your own `.cu` file.
"""

import argparse
import sys
from collections.abc import Sequence

from ladder.core.common.command_line import Parser, run, version
from ladder.core.common.errors import LadderError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns the exit status: 0 done, 1 a check failed, 2 it cannot be done as asked.
    """
    return run(_run, sys.argv[1:] if arguments is None else arguments, "ladder")


def _run(words: Sequence[str]) -> int:
    if "" in words:  # a variable of the shell that is not set
        raise LadderError("an argument is empty; give it a value, or leave it out")
    options = _parser().parse_args(words)
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    from ladder.core.commands import (
        adoption,
        checks,
        completion,
        documents,
        exports,
        machine_code,
        sources,
        timings,
        traces,
    )
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
    for module in (
        sources,
        checks,
        adoption,
        timings,
        machine_code,
        traces,
        exports,
        documents,
    ):
        module.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
