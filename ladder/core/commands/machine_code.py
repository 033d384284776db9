"""Rungs as machine code, without a GPU: `compile` all of them, look at one with `sass` or `isa`."""

import argparse
import functools
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from ladder.core.amd.hip import assembly
from ladder.core.amd.hip import compiler as hip
from ladder.core.commands import shared
from ladder.core.common import machine_code
from ladder.core.common.errors import CompileError, LadderError
from ladder.core.contract.ladder import Ladder, find_rung, ladders
from ladder.core.contract.launch_plan import LaunchPlan
from ladder.core.contract.op import DTYPES
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.device.cuda import compiler, sass
from ladder.core.device.open import typical_target
from ladder.core.show.machine import plan_of


def add_to(commands: shared.Commands) -> None:
    parser = commands.add("compile", compile_rungs)
    parser.add_argument("op", nargs="?", help="an op, or a layer")
    parser.add_argument("rung", nargs="?", help=f"{shared.RUNG_HELP}; default: all")
    shared.switch(parser, "--all", "every rung of every op")
    parser.add_argument(
        "--arch",
        default="sm_90a",
        help="architectures, separated by commas: sm_80, sm_90a, gfx942, gfx1100, ...; "
        "default sm_90a",
    )
    shared.add_call_options(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="one line for each rung")

    for name, run, default, known in (
        ("sass", show_sass, "sm_90a", compiler.TYPICAL),
        ("isa", show_isa, "gfx942", hip.TYPICAL),
    ):
        parser = commands.add(name, run)
        shared.add_op_and_rung(parser)
        shared.add_call_options(parser)
        parser.add_argument(
            "--arch", default=default, help=f"{', '.join(known)}; default {default}"
        )
        shared.switch(parser, "--summary", "only counts and registers")


def compile_rungs(options: argparse.Namespace) -> int:
    """Compile rungs into the cache for architectures of NVIDIA and AMD; needs no GPU."""
    if options.all == (options.op is not None):
        raise LadderError("say what to compile: an op, a layer, or --all")
    chosen = list(ladders().values()) if options.all else shared.matching(options.op)
    failed, which = False, options.rung
    for arch in options.arch.split(","):
        jobs = [
            (f"{ladder.op.name} {rung.label}, {target.real.name}", rung, target, plan)
            for ladder in chosen
            for rung in ([find_rung(ladder.op.name, which)] if which else ladder.rungs)
            if rung.path is not None
            for target, plan in _plans(ladder, rung, arch, options)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            troubles = list(pool.map(lambda job: _trouble(*job[1:]), jobs))
        for (label, *_), trouble in zip(jobs, troubles, strict=True):
            if trouble or options.verbose:
                print(f"{arch} {label}: {trouble or 'compiles'}")
        bad = sum(trouble != "" for trouble in troubles)
        print(f"{arch}: {len(jobs) - bad} of {len(jobs)} compile, without spills or warnings")
        failed |= bad > 0 or not jobs
    return int(failed)


def _plans(
    ladder: Ladder, rung: Rung, arch: str, options: argparse.Namespace
) -> Iterator[tuple[Target, LaunchPlan]]:
    """For each real type that a rung claims there, its launch at the first shape that it takes."""
    shapes = [*ladder.op.bench.values(), *ladder.op.shapes]
    if options.shape:
        shapes = [shared.shape_of(ladder, options)]
    for dtype in options.dtype or ladder.op.reals:
        target = typical_target(arch, DTYPES[dtype])
        if rung.claims(target):
            plans = (rung.plan(dims, target) for dims in shapes)
            if plan := next((plan for plan in plans if plan.refusal is None), None):
                yield target, plan


def _vendor(arch: str) -> ModuleType:
    """The compiler for an architecture."""
    return hip if arch.startswith("gfx") else compiler


def _compiled(rung: Rung, target: Target, plan: LaunchPlan) -> Path:
    """A cubin or a code object, from the cache or compiled now. Raises CompileError."""
    given = rung, plan.constants, target.real, target.arch
    if _vendor(target.arch) is hip:
        return hip.compile_code_object(*given, target.warp)
    return compiler.compile_cubin(*given)


def _trouble(rung: Rung, target: Target, plan: LaunchPlan) -> str:
    """Why a rung is no good machine code; "" where it is."""
    try:
        path = _compiled(rung, target, plan)
    except CompileError as error:
        return str(error)
    takes = _vendor(target.arch).resources(path)
    if lacking := {launch.kernel for launch in plan.launches} - set(takes):
        return f"it launches {', '.join(sorted(lacking))}, which the file does not define"
    if spilled := [name for name, each in takes.items() if each.spill]:
        return f"{', '.join(spilled)} spill registers"
    warned = "warning" in _vendor(target.arch).compile_log(path)
    return f"the compiler warns; see compile.log in {path.parent}" if warned else ""


def show_sass(options: argparse.Namespace) -> int:
    """The machine code of a rung on an NVIDIA GPU, below the lines that it comes from."""
    return _show(options, compiler, sass)


def show_isa(options: argparse.Namespace) -> int:
    """The machine code of a rung on an AMD GPU, below the lines that it comes from."""
    return _show(options, hip, assembly)


def _show(options: argparse.Namespace, vendor: ModuleType, code: ModuleType) -> int:
    """The listing, what each kernel takes and how many of it run at once, and how many instructions
    there are of each kind. Raises LadderError where the rung cannot run."""
    ladder, rung = shared.op_and_rung(options)
    dims = shared.shape_of(ladder, options)
    target_of = functools.partial(vendor.typical_target, options.arch)
    target = target_of(DTYPES[shared.dtype_of(ladder, rung, options, target_of)])
    plan = plan_of(ladder, rung, dims, target)
    binary = _compiled(rung, target, plan)
    instructions = code.instructions(binary, rung.file)
    if not options.summary:
        shared.console().print(machine_code.listing(instructions, rung.source), soft_wrap=True)
    launched = {launch.kernel: launch for launch in plan.launches}
    for name, resources in vendor.resources(binary).items():
        launch = launched.get(name)
        dynamic = launch.shared if launch else 0
        added = f"; its launch adds {dynamic:,} bytes of shared memory" if dynamic else ""
        print(f"{name}: {resources}{added}")
        if launch is not None:
            threads = math.prod(launch.block)
            occupancy = code.occupancy(target.arch, resources, launch)
            print(f"  {threads} threads per block: {occupancy}")
    for remark in compiler.remarks(binary) if vendor is compiler else ():
        print(f"  the compiler: {remark}")
    for group, kinds in machine_code.summary(instructions, code.GROUPS).items():
        print(f"  {group}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
    return 0
