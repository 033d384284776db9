"""Train a GPT-2: `python -m trainer [flags]`, or run another command, `python -m trainer COMMAND`.

python -m trainer                      the quick start; --help lists the flags
python -m trainer prepare NAME         token files of a data set or a benchmark
python -m trainer doctor               what this machine has, and what will run on it
python -m trainer sample -e RUN        text from a trained model
python -m trainer eval NAME -e RUN     its accuracy on hellaswag or mmlu
python -m trainer export RUN --to hf   its weights for other programs: transformers, llm.c
python -m trainer verify -e MODEL STATE  ten steps, compared with llm.c's debug state
python -m trainer plot RUN ...         the course of one or more runs, drawn over each other
python -m trainer sweep -l A,B,C       a run for every value of a flag
python -m trainer bench                the time of a training step
python -m trainer torch                the same training in PyTorch, side by side
python -m trainer profile              the same by op, against each one's floor, and the memory
python -m trainer scaling              the time of a step on 1, 2, 4, ... GPUs
python -m trainer climb                what each ladder is worth to the training step
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from ladder.core.common.command_line import did_you_mean, version
from ladder.core.common.errors import LadderError
from ladder.core.common.install import ROOT
from trainer.commands.command import run

COMMANDS = {  # the module of each
    "prepare": "trainer.commands.prepare",
    "doctor": "trainer.commands.doctor",
    "sample": "trainer.commands.sample",
    "eval": "trainer.commands.evaluation",
    "export": "trainer.commands.export",
    "verify": "trainer.commands.verify",
    "plot": "trainer.commands.plot",
    "sweep": "trainer.commands.sweep",
    "bench": "trainer.commands.throughput",
    "torch": "trainer.commands.beside_torch",
    "profile": "trainer.commands.profile",
    "climb": "trainer.commands.climb",
    "scaling": "trainer.commands.scaling",
}


def main(argv: Sequence[str]) -> int:
    command, *rest = argv or [""]
    # Each command imports only what it needs: doctor must work where training cannot.
    if command in COMMANDS:
        status: int = importlib.import_module(ROOT + COMMANDS[command]).main(rest)
        return status
    if command and not command.startswith("-"):
        asked = f"{command!r}{did_you_mean(command, COMMANDS)}"
        raise LadderError(
            f"unknown command {asked}; the commands are {', '.join(COMMANDS)}; flags alone train "
            "a model"
        )
    if command == "--version":
        print(version())
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
