"""The command line of `python -m trainer`, built from the fields of `Flags`.

Every setting has a readable long flag; where llm.c has a short flag of the same meaning, that works
too, so that a command line of llm.c's train_gpt2cu can be used as it stands.
"""

import argparse
import dataclasses
import functools
import os
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ladder.core.common.command_line import Parser
from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json
from ladder.core.contract.op import split_key
from trainer.flags import GROUPS, ByDevice, Flags

# What --help says of -e in the commands that take the newest run.
TRAINED = {"model": "the folder of a run, or a model; default: the newest run in runs/"}


def parse(argv: Sequence[str]) -> Flags:
    """What the words of a command line say. Raises LadderError; `--help` prints and exits."""
    parser = build_parser(
        "python -m trainer",
        "Train GPT-2 through the ladder. Without flags: GPT-2 124M on tinyshakespeare, on the CPU "
        "as llm.c's quick start, on a GPU as its fine-tuning run.",
        epilog="Other commands: prepare, doctor, sample, chat, eval, export, verify, plot, "
        "sweep, bench, torch, profile, climb, scaling, each with its own --help.",
    )
    parser.add_argument(
        "--config",
        metavar="RUN",
        help="a run's folder, or its config.json, to repeat it; other flags replace those in it",
    )
    words = list(argv)
    for i, (word, value) in enumerate(zip(words, [*words, "-"][1:], strict=True)):
        if word == "-h" and value.startswith("-"):  # with a value, it is llm.c's for HellaSwag
            words[i] = "--help"
    typed = vars(parser.parse_args(words))
    path = typed.pop("config")
    later = {name: value for name, value in typed.items() if value is not None}
    before = {"rung": None} if path is None else _before(parser, path, later)
    rung = {**(before["rung"] or {}), **(typed["rung"] or {})} or None
    return Flags(**{**before, **later, "rung": rung})


def _before(parser: Parser, path: str, later: Collection[str]) -> dict[str, Any]:
    """What was typed for the run that has left a config.json. That may be a stranger's, and is read
    as if it were typed now. A note says which text has changed, unless `later` flags replace it.
    Raises LadderError."""
    from trainer.data.datasets import is_another_text  # half a second, and few need them
    from trainer.files.weights import known_runs

    if not os.path.exists(path):
        raise LadderError(f"--config {path}: no such file or folder{known_runs(path)}")
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    try:
        record = read_json(path)
        flags = record.get("flags") if isinstance(record, dict) else None
        if not isinstance(flags, dict):
            raise LadderError('it has no "flags", as the config.json in a run\'s folder does')
        before = vars(parser.parse_args([word for item in flags.items() for word in _words(*item)]))
        for name, key in (("dataset", "train_data"), ("val_data", "val_data")):
            text, files = before[name], str(record.get(key, ""))
            if files and text and name not in later and is_another_text(text, files):
                print(f"note: {text} has changed since the run of {path}", file=sys.stderr)
    except LadderError as error:
        raise LadderError(f"--config {path}: {str(error).removeprefix(f'{path}: ')}") from None
    del before["config"]
    before["unconfined"] = None  # only who sits here says so
    return before


def _words(name: str, value: Any) -> list[str]:
    """A field of Flags as it is typed. An unknown one is left to the parser to refuse."""
    known = {f.name: f.metadata["names"][0] for f in dataclasses.fields(Flags)}
    flag = known.get(name, f"--{name}")
    if flag.startswith("--no-") and isinstance(value, bool):
        return [] if value else [flag]
    if isinstance(value, dict):
        return [f"{flag}={key}={which}" for key, which in value.items()]
    return [f"{flag}={int(value) if isinstance(value, bool) else value}"]


def build_parser(
    prog: str,
    description: str,
    names: Sequence[str] | None = None,
    epilog: str | None = None,
    helps: Mapping[str, str] | None = None,
) -> Parser:
    """A parser of the fields of Flags, or of some of them; what is not typed is None.

    helps: what --help says of a field, by name, where it is not what training says.
    """
    parser = Parser(prog=prog, description=description, epilog=epilog, add_help=False)
    # In training, -h is a flag of llm.c's.
    asks = ("--help",) if names is None else ("--help", "-h")
    parser.add_argument(*asks, action="help", help="show this and exit")
    types = typing.get_type_hints(Flags)
    title, groups = "", {}
    for f in dataclasses.fields(Flags):
        title = GROUPS.get(f.name, title)
        if names is None or f.name in names or (f.name == "unconfined" and "rung" in names):
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            groups[title].add_argument(
                *f.metadata["names"],
                dest=f.name,
                default=None,
                help=(helps or {}).get(f.name) or _help(f),
                **_kind(f, types[f.name]),
            )
    return parser


def _kind(f: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    """How argparse is to read the values of a field."""
    (kind,) = (t for t in typing.get_args(hint) if t is not type(None))
    if f.name == "rung":
        return {"action": _CollectRungs, "metavar": "OP=N"}
    if kind is bool:
        if f.metadata["names"][0].startswith("--no-"):
            return {"action": "store_const", "const": False}
        return {"nargs": "?", "const": True, "type": _switch, "metavar": "0|1"}
    if "choices" in f.metadata:
        return {"metavar": f.metadata["names"][0].lstrip("-").upper()}
    what, metavar = {int: ("a whole number", "N"), float: ("a number", "X"), str: ("", "TEXT")}[
        kind
    ]
    return {"type": functools.partial(_read, kind, what), "metavar": metavar}


def _help(f: dataclasses.Field[Any]) -> str:
    choices, default = " | ".join(f.metadata.get("choices", ())), f.metadata["default"]
    word = f"default {_word(default)}"
    if isinstance(default, ByDevice):
        word = f"default {_word(default.cpu)}, on a GPU {_word(default.gpu)}"
    elif default is None or default == "" or f.metadata["names"][0].startswith("--no-"):
        word = ""
    parts = [f.metadata["help"], choices, word]
    return "; ".join(part for part in parts if part).replace("%", "%%")


def _word(value: Any) -> str:
    """A default as one would type it."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def parse_rung(text: str) -> tuple[str, str]:
    """(op or op@shape, id of a rung or path of a .cu file) from OP=N, OP=FILE.cu, or
    OP@C:768,OC:2304=N. Raises LadderError."""
    key, _, which = text.partition("=")
    if not key or not which:
        raise LadderError(f"--rung {text}: write OP=N or OP=FILE.cu, such as gelu.forward=1")
    split_key(key)
    return key, which


class _CollectRungs(argparse.Action):
    """Gathers repeated flags into {op: id of a rung, or path}."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        op, which = parse_rung(values)
        named = dict(getattr(namespace, self.dest) or {})
        if named.setdefault(op, which) != which:
            raise LadderError(f"--rung {op}={named[op]} and --rung {values}: choose one of them")
        setattr(namespace, self.dest, named)


def _read(kind: Callable[[str], Any], what: str, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}") from None


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(f"must be 0 or 1, not {text!r}")
    return text == "1"
