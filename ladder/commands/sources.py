"""What there is to read: `list` the ladders, `show` a rung, `diff` two of them."""

from __future__ import annotations

import argparse

from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from ladder.commands.options import (
    OP_HELP,
    RUNG_HELP,
    Commands,
    add_op_and_rung,
    console,
    matching,
    op_and_rung,
)
from ladder.common.errors import LadderError
from ladder.contract.ladder import Ladder, find, find_rung, ladders
from ladder.contract.rung_file import Rung
from ladder.contract.runs_on import runs_on
from ladder.show import source_code, tables

LEGEND = (
    "Each rung grew from the one above it, those at ├ and └ from the rung where their line begins. "
)
NEEDS = (
    "sm_80+: that generation of GPUs, and later ones; needs: what the shape must meet (vector: "
    "elements in 16 bytes)."
)
ALL = "With an op or a layer, the list says on which GPUs and shapes each rung runs."


def add_to(commands: Commands) -> None:
    parser = commands.add("list", list_ladders)
    parser.add_argument("op", nargs="?", help="an op (layernorm.forward) or a layer (layernorm)")

    parser = commands.add("show", show)
    add_op_and_rung(parser)

    parser = commands.add("diff", diff)
    parser.add_argument("op", help=OP_HELP)
    parser.add_argument(
        "rung", nargs="?", help=f"{RUNG_HELP}; default: every rung with the one that it grew from"
    )
    parser.add_argument(
        "other", nargs="?", help="the rung to compare it with; default: the one that it grew from"
    )
    parser.add_argument(
        "--header", action="store_true", help="whole files, with the words of their headers"
    )
    parser.add_argument(
        "--context", type=_lines, default=3, metavar="LINES", help="around a change; default 3"
    )


def list_ladders(options: argparse.Namespace) -> int:
    """Every op and its rungs, or those of one op or layer, and what they need."""
    chosen = matching(options.op) if options.op else list(ladders().values())
    columns = 5 if options.op else 3  # the list of all is wide enough without what rungs need
    titles = ("op", "rung", "idea", "runs on", "needs")[:columns]
    table = Table(*titles, box=None, pad_edge=False)
    for ladder in chosen:
        table.add_row(f"[bold]{ladder.op.name}[/]", "", escape(ladder.op.summary))
        for branch, rung in source_code.tree(ladder):
            idea = escape(rung.idea + tables.remarks(rung).replace("_", ""))
            where = runs_on(rung, ladder.op.reals)
            shapes = escape("; ".join(rung.shape_conditions()))
            table.add_row(*("", branch + rung.id, idea, where, shapes)[:columns])
    console().print(table)
    console().print(f"\n[dim]{LEGEND}{NEEDS if options.op else ALL}[/]", highlight=False)
    return 0


def show(options: argparse.Namespace) -> int:
    """The source of a rung."""
    text, language = source_code.source(*op_and_rung(options))
    _print_source(text, language, line_numbers=True)
    return 0


def diff(options: argparse.Namespace) -> int:
    """What changes from one rung to another; by default, from the one that it grew from."""
    ladder = find(options.op)
    if options.rung is None:
        pairs = [(parent, rung) for rung in ladder.rungs if (parent := ladder.parent(rung))]
    else:
        rung = find_rung(options.op, options.rung)
        other = find_rung(options.op, options.other) if options.other else None
        pairs = [(rung, other) if other else (_parent(ladder, rung), rung)]
    texts = (
        source_code.diff(ladder, *pair, context=options.context, header=options.header)
        for pair in pairs
    )
    _print_source("\n".join(texts), "diff", line_numbers=False)
    return 0


def _parent(ladder: Ladder, rung: Rung) -> Rung:
    if (parent := ladder.parent(rung)) is not None:
        return parent
    name, remedy = ladder.op.name, "name the rung to compare it with"
    if rung.number == 1:
        raise LadderError(f"{name} {rung.label} is the first of its ladder; {remedy}")
    raise LadderError(
        f"{name} {rung.label} has no line such as '// After: 3'; {remedy}, "
        f"such as: python -m ladder diff {name} 1 {rung.path}"
    )


def _print_source(text: str, language: str, line_numbers: bool) -> None:
    """Coloured on a terminal; elsewhere byte for byte, as `patch` and other programs want it."""
    screen = console()
    if screen.is_terminal:
        screen.print(Syntax(text, language, line_numbers=line_numbers, background_color="default"))
    else:
        print(text, end="")


def _lines(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines")
    return int(text)
