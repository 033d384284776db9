"""Train a GPT-2: `python -m trainer [flags]`; other commands: `python -m trainer COMMAND`."""

import importlib
import os
import sys
from collections.abc import Sequence

from ladder.core.common.command_line import did_you_mean, run, version
from ladder.core.common.errors import LadderError
from ladder.core.common.install import ROOT

COMMANDS = {  # the module of each
    "prepare": "trainer.commands.prepare",  # token files of a data set or a benchmark
    "doctor": "trainer.commands.doctor",  # what this machine has, and what will run on it
    "sample": "trainer.commands.sample",  # text from a trained model
    "chat": "trainer.commands.chat",  # the same at a prompt
    "eval": "trainer.commands.evaluation",  # its loss on a text, its accuracy on hellaswag or mmlu
    "export": "trainer.commands.export",  # its weights for other programs: transformers, llm.c
    "verify": "trainer.commands.verify",  # ten steps, compared with llm.c's debug state
    "plot": "trainer.commands.plot",  # the course of runs, drawn over each other
    "sweep": "trainer.commands.sweep",  # a run for every value of a flag
    "bench": "trainer.commands.throughput",  # the time of a training step
    "torch": "trainer.commands.beside_torch",  # the same training in PyTorch, side by side
    "profile": "trainer.commands.profile",  # that time by op, and the memory
    "climb": "trainer.commands.climb",  # what each ladder is worth to the step
    "scaling": "trainer.commands.scaling",  # the time of a step on 1, 2, 4, ... GPUs
}


def main(argv: Sequence[str]) -> int:
    command, *rest = argv or [""]
    # Each command imports only what it needs: doctor must work where training cannot.
    if command in COMMANDS:
        return int(importlib.import_module(ROOT + COMMANDS[command]).main(rest))
    if command and not command.startswith("-"):
        asked = f"{command!r}{did_you_mean(command, COMMANDS)}"
        raise LadderError(
            f"unknown command {asked}; the commands are {', '.join(COMMANDS)}; flags alone train "
            "a model"
        )
    if command == "--version":
        print(version())
        return 0
    if command == "--print-completion" and rest in (["bash"], ["zsh"]):
        from trainer.commands.completion import script

        print(script(rest[0], COMMANDS))
        return 0
    from trainer.commands.parser import parse

    flags = parse(argv)  # a wrong flag is reported before anything slow is imported
    from trainer.ranks.launch import wants_supervisor

    if wants_supervisor(flags, os.environ):
        from trainer.ranks.supervise import supervise

        return supervise(argv, flags.value("ranks"))
    from trainer.files.resume import run_directory
    from trainer.ranks.join import join
    from trainer.train import train

    with join(flags, run_directory(flags)) as group:
        return train(flags, group=group).status


def command_line() -> int:
    """What the console command of an installed wheel calls."""
    return run(main, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(command_line())
