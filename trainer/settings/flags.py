"""The command line of `python -m trainer`, built from the fields of TrainConfig.

Every setting has a readable long flag; where llm.c has a short flag of the same meaning, that works
too, so that a command line of llm.c's train_gpt2cu can be used as it stands.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from ladder.common.command_line import Parser
from ladder.common.errors import LadderError
from trainer.settings.config import DEFAULTS, TrainConfig

_ONE_PROCESS = "this trainer runs one process on one device; leave it out"

# Flags of llm.c that are not honoured: the value that means what is done here anyway, if there is
# one, and why the others are refused. Ignoring one would train something else than was asked for.
REFUSED = {
    "-z": ("0", "there is one device, so no optimizer state to shard (ZeRO); leave it out"),
    "-f": ("0", "no rung rounds to TF32 yet; leave it out"),
    "-h": ("0", "HellaSwag is not evaluated; leave it out (the list of flags is --help)"),
    "-pn": ("1", _ONE_PROCESS),
    "-pr": ("0", _ONE_PROCESS),
    "-pg": (None, _ONE_PROCESS),
    "-pm": (None, _ONE_PROCESS),
    "-pi": (None, _ONE_PROCESS),
    "-ps": (None, _ONE_PROCESS),
    "-pp": (None, _ONE_PROCESS),
    "-pf": (None, _ONE_PROCESS),
}


def parse(argv: Sequence[str]) -> TrainConfig:
    """A TrainConfig from command-line words. Raises LadderError; `--help` prints and exits."""
    parser = build_parser(
        "python -m trainer",
        "Train GPT-2 through the ladder. Without flags: GPT-2 124M on tinyshakespeare, on the CPU "
        "as llm.c's quick start, on a GPU as its fine-tuning run.",
        epilog="Other commands: prepare, doctor, sample, plot, bench, profile, climb, each with "
        "its own --help.",
    )
    words = ["--help"] if list(argv) == ["-h"] else _without_refused(argv)
    return TrainConfig(**vars(parser.parse_args(words)))


def _without_refused(argv: Sequence[str]) -> list[str]:
    """The words without flags of REFUSED that ask for what is done here anyway."""
    words, rest = [], list(argv)
    while rest:
        word = rest.pop(0)
        if word not in REFUSED:
            words.append(word)
            continue
        harmless, reason = REFUSED[word]
        value = rest.pop(0) if rest else None
        if value is None or value != harmless:
            raise LadderError(f"{word} of llm.c is not available: {reason}")
    return words


def build_parser(
    prog: str,
    description: str,
    names: Sequence[str] | None = None,
    epilog: str | None = None,
    helps: Mapping[str, str] | None = None,
) -> Parser:
    """A parser of the fields of TrainConfig, or of some of them.

    helps: what --help says of a field, by name, where it is not what training says.
    """
    # -h means something else in llm.c
    parser = Parser(prog=prog, description=description, epilog=epilog, add_help=False)
    parser.add_argument("--help", action="help", help="show this and exit")
    types = typing.get_type_hints(TrainConfig)
    for f in dataclasses.fields(TrainConfig):
        if names is None or f.name in names:
            parser.add_argument(
                *f.metadata["flags"],
                dest=f.name,
                default=f.default,
                help=(helps or {}).get(f.name) or _help(f),
                **_kind(f, types[f.name]),
            )
    return parser


def _kind(f: dataclasses.Field, hint: Any) -> dict[str, Any]:
    """How argparse is to read the values of a field."""
    kinds = [t for t in typing.get_args(hint) if t is not type(None)] or [hint]
    if typing.get_origin(hint) is tuple:
        return {"action": _Collect, "metavar": "OP=N"}
    if kinds[0] is bool:
        if f.metadata["flags"][0].startswith("--no-"):
            return {"action": "store_false"}
        return {"nargs": "?", "const": True, "type": _switch, "metavar": "0|1"}
    if "choices" in f.metadata:
        return {"metavar": f.metadata["flags"][0].lstrip("-").upper()}
    reader, metavar = {int: (_whole, "N"), float: (_number, "X"), str: (str, "TEXT")}[kinds[0]]
    return {"type": reader, "metavar": metavar}


def _help(f: dataclasses.Field) -> str:
    choices = " | ".join(f.metadata.get("choices", ()))
    default = "" if f.default in (None, "", ()) else f"default {_word(f.default)}"
    if isinstance(f.default, bool) and f.metadata["flags"][0].startswith("--no-"):
        default = ""
    if f.name in DEFAULTS["cpu"]:
        values = dict.fromkeys(_word(DEFAULTS[kind][f.name]) for kind in ("cpu", "cuda"))
        default = "default " + ", on a GPU ".join(values)
    parts = [f.metadata["help"], choices, default]
    return "; ".join(part for part in parts if part).replace("%", "%%")


def _word(value: Any) -> str:
    """A default as one would type it."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


class _Collect(argparse.Action):
    """Gather repeated flags into a tuple."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), values))


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(f"must be 0 or 1, not {text!r}")
    return text == "1"
