"""What the commands share: how they are added, and the options of a call (device, dtype, shape)."""

import argparse
import functools
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ladder.core.common import confine
from ladder.core.common.command_line import Parser
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import Ladder, find, find_rung, ladders
from ladder.core.contract.op import DTYPES, REALS, SHORT, Dims, format_dims
from ladder.core.contract.rung_file import SUFFIXES, Rung
from ladder.core.contract.target import Target
from ladder.core.device.open import default_device
from ladder.core.verify.reference_file import load

OP_HELP = "such as layernorm.forward"
RUNG_HELP = "its id as 'list' shows it, or its name (warp_per_row), or the path of a .cu file"

Run = Callable[[argparse.Namespace], int]  # a command: the parsed options -> the exit status


class Commands:
    """The commands of `python -m ladder`; each module of this folder adds its own."""

    def __init__(self, parser: Parser) -> None:
        parser.set_defaults(run=lambda _: parser.parse_args(["--help"]))  # where none is named
        self._parsers = parser.add_subparsers(dest="command", metavar="COMMAND")

    def add(self, name: str, run: Run) -> Parser:
        """A command; the first line of the docstring of `run` is its help."""
        text = (run.__doc__ or "").splitlines()[0]
        parser = self._parsers.add_parser(name, help=text, description=text)
        parser.set_defaults(run=run)
        return parser


def switch(parser: argparse._ActionsContainer, name: str, text: str) -> None:
    """A flag without a value; `text` is its help."""
    parser.add_argument(name, action="store_true", help=text)


def add_op_and_rung(parser: Parser) -> None:
    """The arguments of a command that is about one rung; `op_and_rung` reads them."""
    parser.add_argument("op", help=OP_HELP)
    # argparse would only say that it is missing; we know which there are.
    parser.add_argument("rung", nargs="?", help=RUNG_HELP)


def op_and_rung(options: argparse.Namespace) -> tuple[Ladder, Rung]:
    """The rung that a command is about, and its ladder."""
    ladder = find(options.op)
    if options.rung is None:
        name = ladder.op.name
        raise LadderError(
            f"{name} has the rungs {', '.join(ladder.spans())}; name one, such as: "
            f"python -m ladder {options.command} {name} {ladder.rungs[1].id}"
        )
    return ladder, find_rung(options.op, options.rung)


def add_reference(parser: Parser) -> None:
    parser.add_argument(
        "--reference",
        type=Path,
        metavar="ref.py",
        help="compare your own .cu file, or .py with host code, with this file's function",
    )


def own_op(options: argparse.Namespace, files: Sequence[str]) -> Ladder:
    """The op of --reference, with which a command compares `files`."""
    if not files or not all(name.endswith(SUFFIXES) for name in files):
        raise LadderError(
            "with --reference, name a .cu file of your own and no op: python -m ladder "
            f"{options.command} mine.cu --reference {options.reference}"
        )
    if options.reference.suffix != ".py":
        raise LadderError(f"--reference {options.reference}: name a Python file, ref.py")
    return load(options.reference)


def add_unconfined(parser: Parser) -> None:
    """--unconfined of a command that runs a file on the emulator; `unconfined` reads it."""
    switch(parser, "--unconfined", confine.FLAG)


def unconfined(options: argparse.Namespace, rung: Rung) -> bool:
    """Whether a user's own kernel runs unconfined on the emulator, which crashes on a GPU are
    looked into on, too. Raises LadderError as `confine.admit`."""
    return rung.is_own_file and confine.admit(rung.file, options.unconfined)


def add_device_options(parser: Parser) -> None:
    """--device, --dtype and --shape of a command that may run all of an op."""
    group = parser.add_argument_group("where it runs, and on what")
    group.add_argument(
        "--device",
        default=default_device(),
        help="cpu, emulated, cuda, cuda:1 or several (cuda:0,1), hip (AMD), or isa:gfx1100 (AMD's "
        "machine code on the CPU, slowly); default: the GPU, or emulated without one",
    )
    add_call_options(group, "types of `real`; default: all that the op has")


def add_call_options(
    parser: argparse._ActionsContainer,
    dtype: str = "type of `real`; default: the first that the rung takes",
) -> None:
    """--dtype and --shape of a command that looks at one call of a rung."""
    parser.add_argument("--dtype", type=_dtypes, metavar="fp32,fp16,bf16", help=dtype)
    parser.add_argument("--shape", type=_shape, metavar="N=4,C=768", help="default: the op's own")


def ending(suffix: str, remedy: str = "") -> Callable[[str], Path]:
    """The type of an argument: a file that is named so."""

    def read(text: str) -> Path:
        if text.endswith(suffix):
            return Path(text)
        raise argparse.ArgumentTypeError(f"{text}: its name must end in {suffix}{remedy}")

    return read


def _shape(text: str) -> Dims:
    try:
        pairs = [entry.split("=") for entry in text.replace(",", " ").split()]
        dims = {name: int(size) for name, size in pairs}
    except ValueError:
        dims = {}
    if not dims or len(dims) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape; write e.g. N=4,C=768")
    return dims


def _dtypes(text: str) -> list[str]:
    names = [SHORT.get(name, name) for name in text.split(",")]
    for name in names:
        if name not in REALS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no real type; there are {', '.join(SHORT)}"
            )
    return names


def matching(name: str) -> list[Ladder]:
    """The ladder of an op, or all ladders of a layer ("layernorm")."""
    layer = [ladder for ladder in ladders().values() if ladder.op.layer == name]
    return layer or [find(name)]


def shape_of(ladder: Ladder, options: argparse.Namespace) -> Dims:
    """The shape that --shape gives, or the first that the op is measured at."""
    dims, op = options.shape or next(iter(ladder.op.bench.values())), ladder.op
    if set(dims) != set(op.dims):
        example = ",".join(f"{name}={size}" for name, size in op.shapes[-1].items())
        why: str | None = f"its dimensions are {', '.join(op.dims)}; write e.g. {example}"
    elif min(dims.values()) < 1 or max(dims.values()) >= 1 << 31:
        why = "a dimension is at least 1 and below 2^31"
    elif why := op.misfit(dims):
        why = f"it needs {why}"
    if why:
        raise LadderError(f"--shape {format_dims(dims)} is no shape of {op.name}: {why}")
    return dims


def shape_to_run(ladder: Ladder, options: argparse.Namespace) -> Dims:
    """The same, for a command that makes the arrays here: they must fit its memory."""
    dims = shape_of(ladder, options)
    need = ladder.op.least_bytes(dims, np.dtype(np.float32))
    if need > (there := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
        raise LadderError(
            f"--shape {format_dims(dims)} takes {need / 2**30:,.0f} GiB, and this machine has "
            f"{there / 2**30:,.0f} GiB of memory; choose a smaller one"
        )
    return dims


def dtype_of(
    ladder: Ladder,
    rung: Rung,
    options: argparse.Namespace,
    target_of: Callable[[np.dtype], Target],
) -> str:
    """The type that --dtype gives, or the first of the op's that the rung is written for."""
    reals: list[str] = options.dtype or list(ladder.op.reals)
    return next((name for name in reals if rung.claims(target_of(DTYPES[name]))), reals[0])


Render = Callable[[list[Any]], str]


def add_format(parser: Parser, lists: str, more: Mapping[str, tuple[Render, str]] = {}) -> None:
    """--format of a command that prints by `Output`. `lists`: what its JSON is a list of; `more`:
    other forms of that list, with their help."""
    others = "".join(f"; {name}: {text}" for name, (_, text) in more.items())
    parser.add_argument(
        "--format",
        choices=("text", "json", *more),
        default="text",
        help=f"json: one list, of {lists}; remarks go to stderr{others}. Default text",
    )
    renders = {name: render for name, (render, _) in more.items()}
    as_json: Render = functools.partial(json.dumps, indent=1, default=str)
    parser.set_defaults(renders={"json": as_json, **renders})


class Output:
    """What a command has found: as text while it finds it, or in another form at its end. In a
    GitHub workflow, which takes lines that begin with :: for commands, both."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._elements: list[Any] | None = None if options.format == "text" else []
        self._stdout = options.stdout
        self._render: Render | None = options.renders.get(options.format)
        self._resume = secrets.token_hex(16) if options.format == "github" else ""
        if self._resume:  # what a kernel prints is no command
            print(f"::stop-commands::{self._resume}", flush=True)

    def add(self, show: Callable[[], None], elements: Iterable[Any]) -> None:
        """Elements of the list; `show` prints them as text."""
        if self._elements is None or self._resume:
            show()
        if self._elements is not None:
            self._elements += elements

    def remark(self, line: str) -> None:
        """A line for people alone."""
        print(line, file=sys.stdout if self._elements is None else sys.stderr, flush=True)

    def end(self) -> None:
        if self._resume:
            print(f"::{self._resume}::")
        if self._elements is not None and self._render is not None:
            print(self._render(self._elements), file=self._stdout)


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        """As where `print` writes: rich would end the program with status 1."""
        raise  # rich calls this where it handles the BrokenPipeError


def console() -> Console:
    """Coloured and as wide as the terminal; plain and unwrapped elsewhere."""
    screen = _Screen()
    return screen if screen.is_terminal else _Screen(width=200, no_color=True, highlight=False)
