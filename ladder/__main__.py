"""The command line: python -m ladder list | show | diff | check | bench | pick | trace | sass | ...

Wherever a command takes the number of a rung, it takes the path of your own `.cu` file too.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from ladder.common.command_line import Parser, explain, print_what_can_be
from ladder.common.errors import LadderError
from ladder.contract.device import Device
from ladder.contract.dims import Dims, format_dims
from ladder.contract.dtypes import DTYPES, REALS
from ladder.contract.ladder import Ladder, find, ladders
from ladder.contract.rung_file import Rung
from ladder.contract.target import Target
from ladder.device.open import default_device, open_device
from ladder.measure import bench, pick, results
from ladder.show import pages, source_code, tables
from ladder.verify import check, sandbox

SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0 well, 1 a check failed, 2 it cannot be done as asked."""
    print_what_can_be()
    try:
        options = _parser().parse_args(arguments)
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
    except (OSError, RuntimeError) as error:
        print(f"ladder: {explain(error)}", file=sys.stderr)
        return 2


# ---- what there is ------------------------------------------------------------------------------


def list_ladders(options: argparse.Namespace) -> int:
    """Every op and its rungs, or those of one op or layer."""
    chosen = _matching(options.op) if options.op else list(ladders().values())
    table = Table("op", "rung", "idea", "needs", box=None, pad_edge=False)
    for ladder in chosen:
        table.add_row(f"[bold]{ladder.op.name}[/]", "", escape(ladder.op.summary), "")
        for rung in ladder.rungs:
            idea = escape(rung.idea + tables.remarks(rung).replace("_", ""))
            number = f"{rung.number}" + (" library" if rung.library else "")
            table.add_row("", number, idea, escape("; ".join(rung.conditions())))
    _console().print(table)
    return 0


def show(options: argparse.Namespace) -> int:
    """The source of a rung."""
    rung = sandbox.find_rung(options.op, options.rung)
    text, language = source_code.source(find(options.op), rung)
    console = _console()
    if console.is_terminal:
        console.print(Syntax(text, language, line_numbers=True, background_color="default"))
    else:
        print(text, end="")
    return 0


def diff(options: argparse.Namespace) -> int:
    """What changes from one rung to another."""
    ladder = find(options.op)
    rungs = [sandbox.find_rung(options.op, which) for which in (options.rung, options.other)]
    text = source_code.diff(ladder, *rungs, context=options.context)
    console = _console()
    if console.is_terminal:
        console.print(Syntax(text, "diff", background_color="default"))
    else:
        print(text, end="")
    return 0


# ---- what holds ---------------------------------------------------------------------------------


def check_rungs(options: argparse.Namespace) -> int:
    """Compare rungs with the float64 reference; without a rung, all of an op or layer."""
    failed = False
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for ladder in _matching(options.op):
            for report in _check_ladder(ladder, options, pool):
                failed |= not report.passed
                _print_report(report, options.verbose)
    finally:
        pool.shutdown(cancel_futures=True)
    return int(failed)


def _check_ladder(
    ladder: Ladder, options: argparse.Namespace, pool: Executor
) -> Iterable[check.Report]:
    """The reports, one after the other; the pool compiles what comes next in the meantime."""
    dtypes, name = options.dtype, ladder.op.name
    shapes = [_shape_of(ladder, options)] if options.shape else None
    if options.rung is not None and not options.rung.isdecimal():
        return [sandbox.check(name, options.rung, options.device, dtypes, shapes, options.seconds)]
    device = open_device(options.device)
    if options.rung:
        rungs = [ladder.rung(int(options.rung))]
    else:
        rungs = [rung for rung in ladder.on(device) if _for_device(ladder, rung, device, dtypes)]
    check.compile_ahead(pool, ladder, rungs, device, dtypes, shapes)
    return (check.check(ladder, rung, device, dtypes, shapes) for rung in rungs)


def _for_device(ladder: Ladder, rung: Rung, device: Device, dtypes: Sequence[str] | None) -> bool:
    """Whether a rung is for this device in any of the real types; says so if it is not."""
    targets = [device.target(DTYPES[dtype]) for dtype in dtypes or ladder.op.reals]
    if any(rung.claims(target) for target in targets):
        return True
    needs = "; ".join(rung.conditions())
    print(f"{ladder.op.name} {rung.label} needs {needs}: not for {device.name}, left out")
    return False


def _print_report(report: check.Report, verbose: bool) -> None:
    console = _console()
    style = "green" if report.passed else "bold red"
    console.print(str(report), style=style, highlight=False, markup=False, soft_wrap=True)
    for outcome in report.outcomes:
        if verbose or (not report.passed and outcome in report.failures[1:]):
            detail = f": {outcome.detail}" if outcome.detail else ""
            text = f"    {outcome.label}: {outcome.status}{detail}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)


# ---- how fast -----------------------------------------------------------------------------------


def bench_ladders(options: argparse.Namespace) -> int:
    """Time rungs beside the roof and PyTorch; --save keeps the numbers in doc/results."""
    device = open_device(options.device)
    if options.save and not device.is_gpu:
        raise LadderError(f"--save keeps times of a GPU only; device {device.name} is not one")
    chosen = [ladder for name in options.op for ladder in _matching(name)]
    chosen = chosen or (list(ladders().values()) if options.all else [])
    if not chosen:
        raise LadderError("name an op or a layer to measure, or give --all")
    rungs = [sandbox.find_rung(chosen[0].op.name, which) for which in options.rung]
    if rungs and len(chosen) > 1:
        raise LadderError(f"--rung needs one op, and {' '.join(options.op)} are several")
    for rung in rungs:
        if rung.number < 0:
            if options.save:
                raise LadderError(f"--save keeps the repository's own rungs, not {rung.path}")
            sandbox.require(chosen[0].op.name, rung.path, options.device)
    roofs, problems = bench.Roofs(device), []

    def say(line: str, wrong: bool) -> None:
        bench.tell(line)
        problems.extend([line] if wrong else [])

    for ladder in chosen:
        dims = _shape_of(ladder, options)
        known = (name for name, bench_dims in ladder.op.bench.items() if bench_dims == dims)
        shapes = {next(known, format_dims(dims)): dims} if options.shape else None
        for measurement in bench.bench(
            ladder, device, options.dtype, shapes, rungs or None, roofs, say
        ):
            if options.save:
                print(f"written to {results.record(device.description(), measurement)}")
    return int(bool(problems))


def pick_rung(options: argparse.Namespace) -> int:
    """The fastest rung for a shape, and why no other."""
    device, ladder = open_device(options.device), find(options.op)
    shape = _shape_of(ladder, options)
    for dtype in options.dtype or ladder.op.reals:
        choice = pick.pick(
            ladder,
            device,
            dtype,
            shape,
            library=options.library,
            deterministic=options.deterministic,
            fresh=options.fresh,
        )
        print(f"{options.op} at {format_dims(shape)} in {dtype} on {device.name}:")
        for number, why in choice.reasons.items():
            mark = "->" if number == choice.rung else "  "
            print(f"{mark} rung {number} ({ladder.rung(number).idea}): {why}")
    return 0


# ---- what it does -------------------------------------------------------------------------------


def trace_rung(options: argparse.Namespace) -> int:
    """Memory accesses, line by line, counted by the emulator."""
    from ladder.emulator.emulated import Emulated
    from ladder.show import trace  # the emulator takes a moment to load

    ladder, rung = find(options.op), sandbox.find_rung(options.op, options.rung)
    if rung.number < 0:
        sandbox.require(options.op, rung.path, "emulated")
    dims = _shape_of(ladder, options) if options.shape else source_code.small_shape(ladder.op)
    dtype = _dtype_of(ladder, rung, options, Emulated(warp=options.warp).target)
    report = trace.trace(ladder, rung, dtype, dims, options.warp)
    title = f"{options.op} {rung.label}, {format_dims(dims)}, {dtype}"
    print(title)
    _console().print(trace.table(report, rung))
    if options.picture:
        try:
            trace.picture(report, rung, title).savefig(options.picture)
        except (OSError, ValueError) as error:  # ValueError: an ending that means no format
            why = getattr(error, "strerror", None) or error
            raise LadderError(f"cannot draw --picture {options.picture}: {why}") from None
        print(f"written to {options.picture}")
    return 0


def show_sass(options: argparse.Namespace) -> int:
    """The machine code of a rung, below the lines that it comes from; needs no GPU."""
    from ladder.device.cuda import compiler, sass

    ladder, rung = find(options.op), sandbox.find_rung(options.op, options.rung)
    if rung.path is None:
        raise LadderError(f"{options.op} {rung.label} is no kernel: it has no machine code")
    dims = _shape_of(ladder, options)
    target_of = functools.partial(compiler.typical_target, options.arch)
    real = DTYPES[_dtype_of(ladder, rung, options, target_of)]
    target = target_of(real)
    if (why := rung.refusal(dims, target)) is not None:
        raise LadderError(f"{options.op} {rung.label} cannot run: {why}")
    cubin = compiler.compile_cubin(rung, rung.defines(dims, target), real, target.arch)
    console = _console()
    found = sass.instructions(cubin, rung.path)
    if not options.summary:
        console.print(sass.listing(found, rung.source), soft_wrap=True)
    for name, takes in compiler.resources(cubin).items():
        print(
            f"{name}: {takes.registers} registers, {takes.shared} bytes of shared memory, "
            f"{takes.stack} of stack, {takes.spill} spilled"
        )
    for remark in compiler.remarks(cubin):
        print(f"  the compiler: {remark}")
    for group, kinds in sass.summary(found).items():
        print(f"  {group}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
    return 0


def write_docs(options: argparse.Namespace) -> int:
    """Renew what pages show of kernels and results; with --check only say what has drifted."""
    drifted = pages.update(write=not options.check)
    for line in drifted:
        print(line)
    return int(options.check and bool(drifted))


def look_around(options: argparse.Namespace) -> int:
    """What this machine has for compiling and running kernels."""
    from ladder.device import inventory

    found = inventory.findings()
    width = max(len(finding.what) for finding in found)
    for finding in found:
        print(f"{finding.what:{width}}  {finding.found}")
        if finding.remedy:
            print(f"{'':{width}}  -> {finding.remedy}")
    return 0


# ---- arguments ----------------------------------------------------------------------------------


def _matching(name: str) -> list[Ladder]:
    """The ladder of an op, or all ladders of a layer ("layernorm")."""
    layer = [ladder for ladder in ladders().values() if ladder.op.layer == name]
    return layer or [find(name)]


def _shape_of(ladder: Ladder, options: argparse.Namespace) -> Dims:
    """The shape that --shape gives, or the first that the op is measured at."""
    dims, op = options.shape or next(iter(ladder.op.bench.values())), ladder.op
    if set(dims) != set(op.dims) or min(dims.values()) < 1 or max(dims.values()) >= 1 << 31:
        example = ",".join(f"{name}={size}" for name, size in op.shapes[-1].items())
        raise LadderError(
            f"--shape {format_dims(dims)} is not one of {op.name}; write e.g. {example}"
        )
    need = op.least_bytes(dims, np.dtype(np.float32))
    if need > (there := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
        raise LadderError(
            f"--shape {format_dims(dims)} takes {need / 2**30:,.0f} GiB, and this machine has "
            f"{there / 2**30:,.0f} GiB of memory; choose a smaller one"
        )
    return dims


def _dtype_of(
    ladder: Ladder,
    rung: Rung,
    options: argparse.Namespace,
    target_of: Callable[[np.dtype], Target],
) -> str:
    """The type that --dtype gives, or the first of the op's that the rung is written for."""
    reals = options.dtype or ladder.op.reals
    return next((name for name in reals if rung.claims(target_of(DTYPES[name]))), reals[0])


def _shape(text: str) -> Dims:
    try:
        pairs = [entry.split("=") for entry in text.replace(",", " ").split()]
        dims = {name: int(size) for name, size in pairs}
    except ValueError:
        dims = {}
    if not dims or len(dims) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape; write e.g. N=4,C=768")
    return dims


def _lines(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no time to wait; write e.g. 60")
    return seconds


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
    parser = Parser(prog="python -m ladder", description="Kernels of GPT-2's layers, rung by rung.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int]) -> Parser:
        text = run.__doc__.splitlines()[0]
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    sub = command("list", list_ladders)
    sub.add_argument("op", nargs="?", help="an op (layernorm.forward) or a layer (layernorm)")

    sub = command("show", show)
    sub.add_argument("op", help="such as layernorm.forward")
    sub.add_argument("rung", help="its number, or the path of a .cu file")

    sub = command("diff", diff)
    sub.add_argument("op", help="such as layernorm.forward")
    sub.add_argument("rung", help="its number, or the path of a .cu file")
    sub.add_argument("other", help="the same, of the rung to compare it with")
    sub.add_argument(
        "--context", type=_lines, default=3, metavar="LINES", help="around a change; default 3"
    )

    sub = command("check", check_rungs)
    sub.add_argument("op", help="an op, or a layer")
    sub.add_argument("rung", nargs="?", help="its number, or the path of a .cu file; default: all")
    _device_options(sub)
    sub.add_argument(
        "--seconds",
        type=_seconds,
        default=sandbox.SECONDS,
        help="time limit for your own kernel; default %(default)g",
    )
    sub.add_argument("-v", "--verbose", action="store_true", help="one line for each shape")

    sub = command("bench", bench_ladders)
    sub.add_argument("op", nargs="*", help="ops or layers")
    sub.add_argument("--all", action="store_true", help="every op")
    sub.add_argument("--rung", nargs="+", default=[], help="only these; numbers or .cu files")
    _device_options(sub)
    sub.add_argument("--save", action="store_true", help="write to doc/results/<gpu>.json")

    sub = command("pick", pick_rung)
    sub.add_argument("op", help="such as layernorm.forward")
    _device_options(sub)
    sub.add_argument("--library", action="store_true", help="vendor libraries may be chosen")
    sub.add_argument("--deterministic", action="store_true", help="the same bits every time")
    sub.add_argument("--fresh", action="store_true", help="measure again")

    sub = command("trace", trace_rung)
    sub.add_argument("op", help="such as layernorm.forward")
    sub.add_argument("rung", help="its number, or the path of a .cu file")
    _call_options(sub)
    sub.add_argument(
        "--warp", type=int, default=32, choices=(32, 64), help="lanes of a warp; default 32"
    )
    sub.add_argument("--picture", metavar="FILE", help="also draw which lane touches what (.svg)")

    sub = command("sass", show_sass)
    sub.add_argument("op", help="such as layernorm.forward")
    sub.add_argument("rung", help="its number, or the path of a .cu file")
    _call_options(sub)
    sub.add_argument("--arch", default="sm_90a", help="sm_75, sm_80, sm_90a, ...; default sm_90a")
    sub.add_argument("--summary", action="store_true", help="only counts and registers")

    sub = command("docs", write_docs)
    sub.add_argument("--check", action="store_true", help="write nothing; status 1 if out of date")

    command("doctor", look_around)
    return parser


def _device_options(sub: Parser) -> None:
    sub.add_argument(
        "--device",
        default=default_device(),
        help="cpu, emulated, cuda or cuda:1; default cuda, or emulated without a GPU",
    )
    _call_options(sub, "types of `real`; default: all that the op has")


def _call_options(
    sub: Parser, dtype: str = "type of `real`; default: the first that the rung takes"
) -> None:
    sub.add_argument("--dtype", type=_dtypes, metavar="fp32,fp16,bf16", help=dtype)
    sub.add_argument("--shape", type=_shape, metavar="N=4,C=768", help="default: the op's own")


if __name__ == "__main__":
    sys.exit(main())
