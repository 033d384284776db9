"""The command line: python -m ladder list | show | diff | check | bench | pick | trace | sass | ...

Wherever a command takes the number of a rung, it takes the path of your own `.cu` file too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from ladder import check, listing, own
from ladder.contract import Dims, Ladder, find, ladders
from ladder.device import open_device
from ladder.errors import LadderError
from ladder.rungfile import REALS

SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0 well, 1 a check failed, 2 it cannot be done as asked."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except LadderError as error:
        print(f"ladder: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ladder: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


# ---- what there is ------------------------------------------------------------------------------


def list_ladders(options: argparse.Namespace) -> int:
    """Every op and its rungs, or those of one op or layer."""
    chosen = _matching(options.op) if options.op else list(ladders().values())
    table = Table("op", "rung", "idea", "needs", box=None, pad_edge=False)
    for ladder in chosen:
        table.add_row(f"[bold]{ladder.op.name}[/]", "", ladder.op.summary, "")
        for rung in ladder.rungs:
            idea = rung.idea + ("" if rung.pays else " (does not pay)")
            number = f"{rung.number}" + (" library" if rung.library else "")
            table.add_row("", number, idea, "; ".join(rung.conditions()))
    _console().print(table)
    return 0


def show(options: argparse.Namespace) -> int:
    """The source of a rung."""
    rung = own.find_rung(options.op, options.rung)
    text, language = listing.source(find(options.op), rung)
    console = _console()
    if console.is_terminal:
        console.print(Syntax(text, language, line_numbers=True, background_color="default"))
    else:
        print(text, end="")
    return 0


def diff(options: argparse.Namespace) -> int:
    """What changes from one rung to another."""
    ladder = find(options.op)
    rungs = [own.find_rung(options.op, which) for which in (options.rung, options.other)]
    text = listing.diff(ladder, *rungs, context=options.context)
    console = _console()
    if console.is_terminal:
        console.print(Syntax(text, "diff", background_color="default"))
    else:
        print(text, end="")
    return 0


# ---- what holds ---------------------------------------------------------------------------------


def check_rungs(options: argparse.Namespace) -> int:
    """Compare rungs with the float64 reference; without a rung, all of an op or layer."""
    dtypes, shapes = options.dtype, options.shape and [options.shape]
    failed = False
    for ladder in _matching(options.op):
        if options.rung is not None and not options.rung.isdigit():
            reports = [
                own.check(
                    ladder.op.name, options.rung, options.device, dtypes, shapes, options.seconds
                )
            ]
        else:
            device = open_device(options.device)
            rungs = [ladder.rung(int(options.rung))] if options.rung else ladder.on(device.kind)
            reports = (check.check(ladder, rung, device, dtypes, shapes) for rung in rungs)
        for report in reports:
            failed |= not report.passed
            _print_report(report, options.verbose)
    return int(failed)


def _print_report(report: check.Report, verbose: bool) -> None:
    console = _console()
    style = "green" if report.passed else "bold red"
    console.print(str(report), style=style, highlight=False, markup=False, soft_wrap=True)
    for outcome in report.outcomes:
        if verbose or (not report.passed and outcome in report.failures[1:]):
            detail = f": {outcome.detail}" if outcome.detail else ""
            text = f"    {outcome.label}: {outcome.status}{detail}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)


# ---- arguments ----------------------------------------------------------------------------------


def _matching(name: str) -> list[Ladder]:
    """The ladder of an op, or all ladders of a layer ("layernorm")."""
    layer = [ladder for ladder in ladders().values() if ladder.op.layer == name]
    return layer or [find(name)]


def _shape(text: str) -> Dims:
    try:
        pairs = (entry.split("=") for entry in text.replace(",", " ").split())
        return {name.strip(): int(size) for name, size in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape; write e.g. N=4,C=768") from None


def _dtypes(text: str) -> list[str]:
    names = [SHORT.get(name, name) for name in text.split(",")]
    for name in names:
        if name not in REALS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no real type; there are {', '.join(SHORT)}"
            )
    return names


def _console() -> Console:
    """Coloured and as wide as the terminal; plain and unwrapped elsewhere."""
    console = Console()
    return console if console.is_terminal else Console(width=200, no_color=True, highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ladder", description="Kernels of GPT-2's layers, rung by rung."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run, rung: str | None = None) -> argparse.ArgumentParser:
        text = run.__doc__.splitlines()[0]
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    sub = command("list", list_ladders)
    sub.add_argument("op", nargs="?", help="an op (layernorm.forward) or a layer (layernorm)")

    sub = command("show", show)
    sub.add_argument("op")
    sub.add_argument("rung", help="its number, or the path of a .cu file")

    sub = command("diff", diff)
    sub.add_argument("op")
    sub.add_argument("rung")
    sub.add_argument("other")
    sub.add_argument("--context", type=int, default=3, metavar="LINES")

    sub = command("check", check_rungs)
    sub.add_argument("op", help="an op, or a layer")
    sub.add_argument("rung", nargs="?", help="its number, or the path of a .cu file; default: all")
    _device_options(sub)
    sub.add_argument(
        "--seconds", type=float, default=own.SECONDS, help="time limit for your own kernel"
    )
    sub.add_argument("-v", "--verbose", action="store_true", help="one line for each shape")
    return parser


def _device_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--device", default=_default_device(), help="cpu, emulated, cuda or cuda:1")
    sub.add_argument("--dtype", type=_dtypes, metavar="fp32,fp16,bf16", help="default: all")
    sub.add_argument("--shape", type=_shape, metavar="N=4,C=768", help="default: the op's own")


def _default_device() -> str:
    from ladder.cuda import driver_version

    return "cuda" if driver_version() else "emulated"


if __name__ == "__main__":
    sys.exit(main())
