"""What a rung does: `trace` counts accesses or draws waits, `ncu` says how to profile it."""

import argparse
import contextlib
import dataclasses
import functools
from pathlib import Path

from ladder.core.commands.options import (
    Commands,
    Output,
    add_call_options,
    add_format,
    add_op_and_rung,
    add_reference,
    add_unconfined,
    console,
    dtype_of,
    op_and_rung,
    own_op,
    shape_of,
    unconfined,
)
from ladder.core.common.errors import LadderError
from ladder.core.contract.op import format_dims
from ladder.core.device.cuda import compiler
from ladder.core.emulator.emulated import Emulated
from ladder.core.show import machine, ncu, source_code, trace
from ladder.core.show.pictures import accesses, waits
from ladder.core.show.pictures.drawing import Drawing
from ladder.core.verify import sandbox


def add_to(commands: Commands) -> None:
    parser = commands.add("trace", trace_rung)
    add_op_and_rung(parser)
    add_reference(parser)
    add_unconfined(parser)
    add_call_options(parser)
    parser.add_argument(
        "--warp", type=int, default=32, choices=(32, 64), help="lanes of a warp; default 32"
    )
    parser.add_argument(
        "--picture", metavar="FILE", help="also draw which lane touches what (an SVG file)"
    )
    parser.add_argument(
        "--timeline",
        metavar="FILE",
        help="draw instead who waits where (an SVG file), also of a kernel that is wrong",
    )
    add_format(parser, "counts, each of a source line and a buffer")

    parser = commands.add("ncu", how_to_profile)
    add_op_and_rung(parser)
    add_unconfined(parser)
    add_call_options(parser)
    parser.add_argument("--arch", default="sm_90a", help="of the GPU; default sm_90a")


def trace_rung(options: argparse.Namespace) -> int:
    """Memory accesses, line by line, counted by the emulator."""
    name: str | Path = options.reference or options.op
    if options.reference:
        ladder = own_op(options, [options.op] if options.rung is None else [])
        rung = ladder.find(options.op)
    else:
        ladder, rung = op_and_rung(options)
    rights = unconfined(options, rung)
    if rung.is_own_file and not options.timeline:
        sandbox.require(name, rung, "emulated", rights)
    dims = shape_of(ladder, options) if options.shape else source_code.small_shape(ladder.op)
    dtype = dtype_of(ladder, rung, options, Emulated(warp=options.warp).target)
    title = f"{options.op} {rung.label}, {format_dims(dims)}, {dtype}"
    if options.timeline:
        if ladder.op.ranks:
            raise LadderError(
                f"--timeline draws a block of one GPU; {ladder.op.name} is for several"
            )
        if rung.is_own_file:
            seen = sandbox.timeline(name, rung.file, dtype, dims, rights, options.warp)
        else:
            seen = trace.timeline(ladder, rung, dtype, dims, options.warp)
        with sandbox.distrusted() if rung.is_own_file else contextlib.nullcontext():
            drawing = waits.of_timeline(seen, rung.source, title)
        _write("--timeline", options.timeline, drawing)
        print(seen.problem or "no barrier, wait or access is wrong in these runs")
        print(f"written to {options.timeline}")
        return int(bool(seen.problem))
    if rung.is_own_file:
        report = sandbox.trace(name, rung.file, dtype, dims, rights, warp=options.warp)
    else:
        report = trace.trace(ladder, rung, dtype, dims, options.warp)
    output = Output(options)
    output.remark(title)
    counts = map(dataclasses.asdict, trace.own_lines(report, rung))
    output.add(lambda: console().print(trace.table(report, rung)), counts)
    if options.picture:
        _write("--picture", options.picture, accesses.of_report(report, rung, title))
        output.remark(f"written to {options.picture}")
    output.end()
    return 0


def _write(flag: str, path: str, drawing: Drawing) -> None:
    try:
        Path(path).write_text(drawing.svg(), encoding="utf-8")
    except OSError as error:
        raise LadderError(f"cannot draw {flag} {path}: {error.strerror}") from None


def how_to_profile(options: argparse.Namespace) -> int:
    """How to profile a rung with Nsight Compute, and what it should count; needs no GPU."""
    ladder, rung = op_and_rung(options)
    rights = unconfined(options, rung)
    if rung.is_own_file:
        sandbox.require(options.op, rung, "emulated", rights)
    target_of = functools.partial(compiler.typical_target, options.arch)
    dtype = dtype_of(ladder, rung, options, target_of)
    large = shape_of(ladder, options)
    small = large if options.shape else source_code.small_shape(ladder.op)
    counted = machine.kernels(ladder, rung, dtype, small, options.arch)
    timed = machine.kernels(ladder, rung, dtype, large, options.arch)
    sms = counted[0].multiprocessors
    if rung.is_own_file:
        given = options.op, rung.file, dtype, small, rights
        counts = sandbox.trace(*given, multiprocessors=sms).lines
    else:
        counts = ncu.count(ladder, rung, dtype, small, sms)
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
