"""What there is to read: `list` the ladders, `show` a rung, `diff` two of them, `lint` files."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from ladder.core.commands import shared
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import Ladder, find, find_rung, ladders
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.runs_on import runs_on
from ladder.core.show import lint, source_code, tables

LEGEND = (
    "Each rung grew from the one above it, those at ├ and └ from the rung where their line begins, "
    "which may be of another ladder."
)
LIBRARIES = "A name without a number, such as cublas: a vendor's library, to compare with."
REMARKS = {  # what `tables.remarks` says of a rung
    "does not pay": "not faster than the rung that it grew from, and kept for what it teaches",
    "not deterministic": "the last bits of its results may differ from call to call",
    "TF32": "multiplies float32 with 10 bits of fraction; training takes it only with -f 1",
}
NEEDS = (
    "sm_80+: that generation of GPUs, and later ones. needs: what the shape must meet (vector: "
    "elements in 16 bytes; a name that is no dimension, such as TILE: see the rung's file)."
)
ALL = "With an op or a layer, the list says on which GPUs and shapes each rung runs."


def add_to(commands: shared.Commands) -> None:
    parser = commands.add("list", list_ladders)
    parser.add_argument("op", nargs="?", help="an op (layernorm.forward) or a layer (layernorm)")
    shared.add_format(parser, "ops with their rungs and what these need")

    parser = commands.add("show", show)
    shared.add_op_and_rung(parser)

    parser = commands.add("diff", diff)
    parser.add_argument("op", help=shared.OP_HELP)
    parser.add_argument(
        "rung",
        nargs="?",
        help=f"{shared.RUNG_HELP}; default: every rung with the one that it grew from",
    )
    parser.add_argument(
        "other", nargs="?", help="the rung to compare it with; default: the one that it grew from"
    )
    shared.switch(parser, "--header", "whole files, with the words of their headers")
    parser.add_argument(
        "--context", type=_lines, default=3, metavar="LINES", help="around a change; default 3"
    )

    parser = commands.add("lint", lint_files)
    parser.add_argument(
        "files", nargs="*", help=".cu files; or an op or layer, and rungs of it; default: all rungs"
    )


def list_ladders(options: argparse.Namespace) -> int:
    """Every op and its rungs, or those of one op or layer, and what they need."""
    chosen = shared.matching(options.op) if options.op else list(ladders().values())
    output = shared.Output(options)
    output.add(lambda: _print_list(chosen, options.op is not None), map(_described, chosen))
    output.end()
    return 0


def _described(ladder: Ladder) -> dict[str, Any]:
    """What --format json says of a ladder."""
    op = ladder.op
    rungs = [
        {
            "rung": rung.id,
            "name": rung.slug,
            "idea": rung.idea,
            "after": " ".join(filter(None, rung.after or ())),
            "library": rung.library,
            "remarks": tables.remarks(rung).strip(" _()"),
            "runs_on": runs_on(rung, op.reals),
            "needs": rung.shape_conditions(),
            "file": rung.path,
        }
        for rung in ladder.rungs
    ]
    about = {"op": op.name, "summary": op.summary, "dims": op.dims, "reals": op.reals}
    return {**about, "rungs": rungs}


def _print_list(chosen: Sequence[Ladder], whole: bool) -> None:
    # The list of all is long enough without what rungs need.
    titles = ("rung", "idea", "runs on", "needs")[: 4 if whole else 2]
    trees = [list(source_code.tree(ladder)) for ladder in chosen]
    width = max(len(branch + name) for tree in trees for branch, name, _ in tree)
    screen, said = shared.console(), ""
    for ladder, tree in zip(chosen, trees, strict=True):
        screen.print(f"[bold]{ladder.op.name}[/]: {escape(ladder.op.summary)}", highlight=False)
        table = Table(box=None, show_header=whole, pad_edge=True)
        for title in titles:  # ids whole, also in a narrow terminal: they are there to be typed
            first = title == "rung"
            table.add_column(
                title, no_wrap=first, min_width=width if first else None, overflow="fold"
            )
        for branch, name, rung in tree:
            if name != rung.id:  # of another ladder
                table.add_row(f"[dim]{name}", f"[dim]{escape(rung.idea)}")
                continue
            remarks = tables.remarks(rung).replace("_", "")
            said += remarks
            where = runs_on(rung, ladder.op.reals)
            shapes = escape("; ".join(rung.shape_conditions()))
            cells = (branch + name, escape(rung.idea + remarks), where, shapes)
            table.add_row(*cells[: len(titles)])
        screen.print(table)
    legend = [LEGEND, *(f"{remark}: {why}." for remark, why in REMARKS.items() if remark in said)]
    if any(not rung.number for ladder in chosen for rung in ladder.rungs):
        legend.append(LIBRARIES)
    legend.append(NEEDS if whole else ALL)
    screen.print("\n[dim]" + "\n".join(legend) + "[/]", highlight=False)


def show(options: argparse.Namespace) -> int:
    """The source of a rung."""
    text, language = source_code.source(*shared.op_and_rung(options))
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
    if rung.number:
        raise LadderError(f"{name} {rung.label} is the first of its ladder; {remedy}")
    raise LadderError(
        f"{name} {rung.label} has no line such as '// After: 3'; {remedy}, "
        f"such as: python -m ladder diff {name} 1 {rung.path}"
    )


def _print_source(text: str, language: str, line_numbers: bool) -> None:
    """Coloured on a terminal; elsewhere byte for byte, as `patch` and other programs want it."""
    screen = shared.console()
    if screen.is_terminal:
        screen.print(Syntax(text, language, line_numbers=line_numbers, background_color="default"))
    else:
        print(text, end="")


def _lines(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines")
    return int(text)


def lint_files(options: argparse.Namespace) -> int:
    """The style of rungs: where a file is not as the others are, and what to do."""
    files = [Path(word) for word in options.files if word.endswith(".cu")]
    if not files:
        chosen = shared.matching(options.files[0]) if options.files else [*ladders().values()]
        named = [ladder.find(rung).file for ladder in chosen for rung in options.files[1:]]
        files = named or lint.rung_files(chosen)
    violations = dict.fromkeys(violation for path in files for violation in lint.lint(path))
    for violation in violations:
        print(violation)
    if not violations:
        print(f"{len(files)} file{'s' * (len(files) > 1)}: nothing to mend")
    return int(bool(violations))
