"""Completion in a shell, by shtab: `eval "$(kernel-ladder-train --print-completion bash)"`."""

import dataclasses
import importlib
import io
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from typing import Any

from ladder.core.common.command_line import Parser
from ladder.core.common.install import ROOT
from trainer.commands.parser import parse
from trainer.flags import Flags

FILES = (
    *("model", "dataset", "train_data", "val_data", "data_dir"),
    *("output", "config", "rung", "run"),
)


def script(shell: str, commands: Mapping[str, str]) -> str:
    """What bash or zsh reads to complete the flags of training and of commands, {name: module}."""
    import shtab  # only here: it is an extra

    mains = {name: importlib.import_module(ROOT + module).main for name, module in commands.items()}
    mains["sweep"], parsers = parse, []  # it takes the flags of training
    for main in (parse, *mains.values()):
        with redirect_stdout(io.StringIO()), suppress(SystemExit):
            main(["--help"])
        parsers.append(Parser.newest)
    choices = {f.name: f.metadata.get("choices") for f in dataclasses.fields(Flags)}
    actions: list[Any] = [action for parser in parsers for action in parser._actions]
    for action in actions:
        action.choices = action.choices or choices.get(action.dest)
        if action.dest in FILES:
            action.complete = shtab.FILE
    whole, *parts = parsers
    whole.prog, below = "kernel-ladder-train", whole.add_subparsers(dest="command")
    for name, part in zip(mains, parts, strict=True):
        below.add_parser(name, help=part.description, parents=[part], add_help=False)
    return str(shtab.complete(whole, shell))
