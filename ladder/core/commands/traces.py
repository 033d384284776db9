"""What a rung does: `trace` counts accesses or draws waits, `ncu` says how to profile it."""

import argparse
import dataclasses
import functools
from pathlib import Path

from ladder.core.commands import shared
from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Dims, format_dims
from ladder.core.device.cuda import compiler
from ladder.core.emulator.emulated import Emulated
from ladder.core.show import machine, ncu, source_code, trace
from ladder.core.show.pictures import accesses, waits
from ladder.core.show.pictures.drawing import Drawing
from ladder.core.verify import sandbox


def add_to(commands: shared.Commands) -> None:
    parser = commands.add("trace", trace_rung)
    shared.add_op_and_rung(parser)
    shared.add_reference(parser)
    shared.add_unconfined(parser)
    shared.add_call_options(parser)
    parser.add_argument(
        "--warp", type=int, default=32, choices=(32, 64), help="lanes of a warp; default 32"
    )
    pictures = {
        "--picture": "also draw which lane touches what",
        "--timeline": "draw instead who waits where, also of a kernel that is wrong",
    }
    either = parser.add_mutually_exclusive_group()
    for flag, text in pictures.items():
        either.add_argument(flag, type=shared.ending(".svg"), metavar="FILE.svg", help=text)
    shared.add_format(parser, "counts, each of a source line and a buffer")

    parser = commands.add("ncu", how_to_profile)
    shared.add_op_and_rung(parser)
    shared.add_unconfined(parser)
    shared.add_call_options(parser)
    parser.add_argument("--arch", default="sm_90a", help="of the GPU; default sm_90a")


def trace_rung(options: argparse.Namespace) -> int:
    """Memory accesses, line by line, counted by the emulator."""
    op: str | Path = options.reference or options.op
    if options.reference:
        ladder = shared.own_op(options, [options.op])
        rung = ladder.find(options.op)
    else:
        ladder, rung = shared.op_and_rung(options)
    rights = shared.unconfined(options, rung) or not rung.is_own_file
    if rung.is_own_file and not options.timeline:
        sandbox.require(op, rung, "emulated", rights)
    dims = _counted_shape(ladder, options)
    dtype = shared.dtype_of(ladder, rung, options, Emulated(warp=options.warp).target)
    title = f"{ladder.op.name} {rung.label}, {format_dims(dims)}, {dtype}"
    if options.timeline:
        if ladder.op.ranks:
            raise LadderError(f"--timeline draws blocks of one GPU; {options.op} is for several")
        report = sandbox.trace(op, rung.file, dtype, dims, rights, warp=options.warp, record=True)
        with sandbox.distrusted():
            _write(options.timeline, waits.of_report(report, rung, title))
        problem = next((seen.problem for seen in report.timelines if seen.problem), "")
        print(problem or "no barrier, wait or access is wrong in these runs")
        print(f"written to {options.timeline}")
        return int(bool(problem))
    report = sandbox.trace(op, rung.file, dtype, dims, rights, warp=options.warp)
    output = shared.Output(options)
    output.remark(title)
    counts = map(dataclasses.asdict, trace.own_lines(report, rung))
    output.add(lambda: shared.console().print(trace.table(report, rung)), counts)
    if options.picture:
        _write(options.picture, accesses.of_report(report, rung, title))
        output.remark(f"written to {options.picture}")
    output.end()
    return 0


def _write(path: Path, drawing: Drawing) -> None:
    with atomic_write(path) as file:
        file.write(drawing.svg().encode())


def _counted_shape(ladder: Ladder, options: argparse.Namespace) -> Dims:
    """The shape that --shape gives, or a small one."""
    given = shared.shape_to_run(ladder, options) if options.shape else None
    return given or source_code.small_shape(ladder.op)


def how_to_profile(options: argparse.Namespace) -> int:
    """How to profile a rung with Nsight Compute, and what it should count; needs NVRTC, no GPU."""
    ladder, rung = shared.op_and_rung(options)
    rights = shared.unconfined(options, rung)
    if rung.is_own_file:
        sandbox.require(options.op, rung, "emulated", rights)
    target_of = functools.partial(compiler.typical_target, options.arch)
    dtype = shared.dtype_of(ladder, rung, options, target_of)
    large, small = shared.shape_of(ladder, options), _counted_shape(ladder, options)
    counted = machine.kernels(ladder, rung, dtype, small, options.arch)
    timed = machine.kernels(ladder, rung, dtype, large, options.arch)
    sms = counted[0].multiprocessors
    given = options.op, rung.file, dtype, small, rights or not rung.is_own_file
    counts = sandbox.trace(*given, multiprocessors=sms).lines
    predicted = [list(ncu.predictions(kernel, counts)) for kernel in counted]
    metrics = list(dict.fromkeys(p.metric for values in predicted for p in values))
    call = options.op, options.rung, dtype

    print(
        f"Counts at {format_dims(small)}, {dtype}; the numbers are predictions, for {options.arch}:"
    )
    print(f"\n{ncu.count_command(*call, small, counted, metrics)}")
    for kernel, values in zip(counted, predicted, strict=True):
        print(f"\n{kernel.launch.kernel}")
        for p in values:
            print(f"{p.value:>12,}  {p.metric}: {p.meaning}")
    print(f"\nTime at {format_dims(large)}, {dtype}; a report, and which sections to open:")
    print(f"\n{ncu.report_command(*call, large, timed)}")
    for kernel in timed:
        print(f"\n{kernel.launch.kernel}")
        for item in ncu.advice(kernel, counts):
            print(f"  {item.section}: {item.why}")
    for left in rung.header.get("left", ()):
        print(f"\nWhat limits it, as its header says: {left}")
    return 0
