"""Completion in a shell, by shtab: `eval "$(kernel-ladder-train --print-completion bash)"`."""

import dataclasses
import importlib
from collections.abc import Mapping

from ladder.core.common.command_line import parser_of
from ladder.core.common.install import ROOT
from trainer.commands.parser import parse
from trainer.flags import Flags

FILES = (
    "model",
    "dataset",
    "train_data",
    "val_data",
    "data_dir",
    "output",
    "config",
    "rung",
    "run",
)


def script(shell: str, commands: Mapping[str, str]) -> str:
    """What bash or zsh reads to complete the flags of training and of commands, {name: module}."""
    import shtab  # only here: it is an extra

    parser = parser_of(parse)
    parser.prog = "kernel-ladder-train"
    below = parser.add_subparsers(dest="command")
    for name, module in commands.items():
        main = importlib.import_module(ROOT + module).main
        found = parser_of(parse if name == "sweep" else main)  # which takes training's, with commas
        below.add_parser(name, help=found.description, parents=[found], add_help=False)
    choices = {f.name: f.metadata.get("choices") for f in dataclasses.fields(Flags)}
    for one in (parser, *below.choices.values()):
        for action in one._actions:
            action.choices = action.choices or choices.get(action.dest)
            if action.dest in FILES:
                action.complete = shtab.FILE
    return shtab.complete(parser, shell)
