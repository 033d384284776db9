"""What holds: `check` rungs against the reference, `lint` their text; `doctor` on this machine."""

import argparse
import dataclasses
import functools
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.markup import escape

from ladder.core.commands import findings, html_report, shared
from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import DTYPES, Dims
from ladder.core.contract.rung_file import SUFFIXES, Rung
from ladder.core.device.open import device_findings, open_device
from ladder.core.emulator.coverage import Spot
from ladder.core.emulator.emulated import Emulated
from ladder.core.measure.timing import compile_ahead
from ladder.core.show.pictures import waits
from ladder.core.verify import check, sandbox


def add_to(commands: shared.Commands) -> None:
    parser = commands.add("check", check_rungs)
    parser.add_argument("op", help="an op, or a layer; with --reference, your own .cu or .py file")
    parser.add_argument("rung", nargs="?", help=f"{shared.RUNG_HELP}; default: all")
    shared.add_reference(parser)
    shared.add_unconfined(parser)
    shared.add_device_options(parser)
    group = parser.add_argument_group("how closely it looks")
    group.add_argument(
        "--seconds",
        type=_seconds,
        default=sandbox.SECONDS,
        help="time limit for your own kernel; default %(default)g",
    )
    shared.switch(
        group,
        "--coverage",
        "on the emulator, how often the branches and loops of a rung run at these shapes",
    )
    group.add_argument(
        "--warp",
        type=int,
        default=32,
        choices=(32, 64),
        help="lanes of the emulator's warps; default 32, and for a rung 64 in one order of threads",
    )
    for flag in ("--at-most", "--at-least"):
        group.add_argument(
            flag,
            type=_limits,
            default={},
            metavar="COUNT=N,...",
            help="limits of what a right kernel asks of memory, 'sectors of inp=256, atomics=8', "
            "counted by the emulator at --shape, or at the op's own last shape",
        )
    group.add_argument("-v", "--verbose", action="store_true", help="one line for each shape")
    for flag, end, text in (
        ("--report", ".html", "also write a page: source, accesses, machine code, roofline"),
        ("--times", ".json", "times for the report, which `bench --save` has kept"),
    ):
        parser.add_argument(flag, type=shared.ending(end), metavar=f"FILE{end}", help=text)
    forms = {
        "github": (findings.as_annotations, "text, and annotations of a workflow"),
        "sarif": (findings.as_sarif, "for code scanning"),
    }
    lists = "reports, each on a rung, with an outcome for each shape, type and case"
    shared.add_format(parser, lists, forms)

    commands.add("doctor", examine_machine)


def check_rungs(options: argparse.Namespace) -> int:
    """Compare rungs with the float64 reference; without a rung, all of an op or layer."""
    if (options.coverage or options.warp == 64) and options.device != Emulated.kind:
        raise LadderError("--coverage and --warp are for the emulator; add --device emulated")
    if options.warp == 64 and not options.coverage:
        options.device = "emulated:64"
    limited = options.at_most or options.at_least
    if (limited or options.report) and options.rung is None and not options.reference:
        raise LadderError("limits and reports are for one kernel; name it after the op")
    failed, output = False, shared.Output(options)
    own = next((name for name in (options.rung, options.op) if str(name).endswith(SUFFIXES)), "")
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for ladder in _ladders(options, output):
            for report, spots in _check_ladder(ladder, options, pool, output):
                failed |= not report.passed
                show = functools.partial(_print_report, report, options.verbose, spots)
                element = _as_json(report, spots)
                element["file"] = own or str(ladder.rung(report.which or "0").path)
                output.add(show, [element])
                said: list[str] = []
                if report.passed and limited:
                    kept, said = _judge(ladder, options)
                    failed |= not kept
                    output.remark("\n".join(said))
                if options.report:
                    html_report.write(options, ladder, report, said, failed)
                    output.remark(f"written to {options.report}")
    except LadderError as error:
        if own and options.format in ("github", "sarif"):  # there, it shows at its line, too
            wrong = {"op": options.op, "file": own, "passed": False, "text": str(error)}
            output.add(lambda: None, [{**wrong, "outcomes": ()}])
            output.end()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if options.shape and not failed:
        output.remark("at this shape only; without --shape, at shapes that the checker chooses")
    output.end()
    return int(failed)


def _judge(ladder: Ladder, options: argparse.Namespace) -> tuple[bool, list[str]]:
    """Whether a rung keeps the limits that are given, and a sentence on each."""
    rung = ladder.find(options.rung)
    dtype = shared.dtype_of(ladder, rung, options, Emulated().target)
    dims = shared.shape_to_run(ladder, options) if options.shape else ladder.op.shapes[-1]
    given = dtype, dims, options.at_most, options.at_least
    rights = options.unconfined or not rung.is_own_file
    return sandbox.judge(options.reference or ladder.op.name, options.rung, *given, rights)


def _as_json(report: check.Report, spots: Sequence[Spot]) -> dict[str, Any]:
    element = {**dataclasses.asdict(report), "passed": report.passed, "text": str(report)}
    for outcome in element["outcomes"]:  # JSON has no NaN
        outcome["error"] = outcome["error"] if math.isfinite(outcome["error"]) else None
    return {**element, "coverage": [dataclasses.asdict(spot) for spot in spots]}


def _ladders(options: argparse.Namespace, output: shared.Output) -> list[Ladder]:
    """The ladders of an op or layer. Where a rung is named, those of a layer that have it; says why
    the others are left out. Raises LadderError where none has it."""
    if options.reference:
        ladder = shared.own_op(options, [options.op] if options.rung is None else [])
        options.rung = options.op
        return [ladder]
    ladders = shared.matching(options.op)
    if options.rung is None or options.rung.endswith(".cu") or len(ladders) == 1:
        return ladders
    lacking = [_why_not(ladder, options.rung) for ladder in ladders]
    if all(lacking):
        raise LadderError("; ".join(lacking))
    for why in filter(None, lacking):
        output.remark(f"left out: {why}")
    return [ladder for ladder, why in zip(ladders, lacking, strict=True) if not why]


def _why_not(ladder: Ladder, which: str) -> str:
    """Why an op has no rung of this name; "" where it has."""
    try:
        ladder.find(which)
    except LadderError as error:
        return str(error)
    return ""


Checked = tuple[check.Report, Sequence[Spot]]  # the counts of branches and loops, if they count


def _check_ladder(
    ladder: Ladder, options: argparse.Namespace, pool: Executor, output: shared.Output
) -> Iterator[Checked]:
    """The reports, one after the other; the pool compiles what comes next in the meantime."""
    dtypes, name = options.dtype, options.reference or ladder.op.name
    shapes = [shared.shape_to_run(ladder, options)] if options.shape else None
    if options.rung is not None and options.rung.endswith(SUFFIXES):
        options.unconfined = shared.unconfined(options, ladder.find(options.rung))  # it asks once
        given = options.device, dtypes, shapes, options.seconds, options.unconfined
        if options.coverage:
            yield sandbox.cover(name, options.rung, *given)
        else:
            yield sandbox.check(name, options.rung, *given), ()
        return
    named = [ladder.find(options.rung)] if options.rung else []
    if options.coverage:
        for rung in named or ladder.rungs:
            if rung.path is not None:
                counting = Emulated(count_branches=True)
                report = _check_rung(ladder, rung, counting, dtypes, shapes)
                yield report, counting.coverage(rung)
        return
    device = open_device(options.device)
    rungs = named or [
        rung for rung in ladder.on(device) if _for_device(ladder, rung, device, dtypes, output)
    ]
    compile_ahead(pool, check.runs(ladder, rungs, device, dtypes, shapes))
    for rung in rungs:
        yield _check_rung(ladder, rung, device, dtypes, shapes), ()


def _check_rung(
    ladder: Ladder,
    rung: Rung,
    device: Device,
    dtypes: Sequence[str] | None,
    shapes: Sequence[Dims] | None,
) -> check.Report:
    """The report; until then, a terminal shows what is being checked."""
    screen = shared.console()
    if not screen.is_terminal:
        return check.check(ladder, rung, device, dtypes, shapes)
    name = escape(f"{ladder.op.name} {rung.label}")
    with screen.status(name) as status:

        def announce(coming: check.Outcome, _: check.Report) -> None:
            status.update(f"{name}: {escape(coming.label)}")

        return check.check(ladder, rung, device, dtypes, shapes, announce=announce)


def _for_device(
    ladder: Ladder, rung: Rung, device: Device, dtypes: Sequence[str] | None, output: shared.Output
) -> bool:
    """Whether a rung is for this device in any of the real types; says so if it is not."""
    targets = [device.target(DTYPES[dtype]) for dtype in dtypes or ladder.op.reals]
    if any(rung.claims(target) for target in targets):
        return True
    needs = "; ".join(rung.conditions())
    output.remark(f"{ladder.op.name} {rung.label} needs {needs}: not for {device.name}, left out")
    return False


def _print_report(report: check.Report, verbose: bool, spots: Sequence[Spot]) -> None:
    screen = shared.console()
    here = f"{Path.cwd()}{os.sep}"
    text = str(report).replace(here, "")  # files as they were named
    style = "green" if report.passed else "bold red"
    screen.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
    call = report.call_of(report.failures[0]).replace(here, "") if report.failures else ""
    if call and waits.SHOWN & {kind for kind, *_ in report.failures[0].problems}:
        print(f"    who waits for whom: python -m ladder trace {call} --timeline run.svg")
    for outcome in report.outcomes:
        if verbose or (not report.passed and outcome in report.failures[1:]):
            detail = outcome.detail if verbose else outcome.detail.partition("\n")[0]
            text = f"    {outcome.label}: {outcome.status}{': ' if detail else ''}{detail}"
            screen.print(text, highlight=False, markup=False, soft_wrap=True)
    for spot in spots:
        text = f"{spot.line:6}  {spot.kind:5}  {spot.text}: {spot.summary}"
        mark = f"  <- {spot.never}" if spot.never else ""
        style = "yellow" if mark else ""
        screen.print(text + mark, style=style, highlight=False, markup=False, soft_wrap=True)


def examine_machine(options: argparse.Namespace) -> int:
    """What this machine has for compiling and running kernels."""
    lines = device_findings()
    width = max(len(finding.what) for finding in lines)
    for finding in lines:
        print(f"{finding.what:{width}}  {finding.state}")
        if finding.remedy:
            print(f"{'':{width}}  -> {finding.remedy}")
    return 0


def _limits(text: str) -> dict[str, float]:
    try:
        pairs = [entry.split("=") for entry in text.split(",")]
        return {name.strip(): float(number) for name, number in pairs}
    except ValueError:
        example = "'sectors of inp=256, atomics=8'"
        raise argparse.ArgumentTypeError(f"{text!r} is no limit; write e.g. {example}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no time to wait; write e.g. 60")
    return seconds
