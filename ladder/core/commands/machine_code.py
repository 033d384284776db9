"""Rungs as machine code, without a GPU: `compile` all of them, look at one with `sass` or `isa`."""

import argparse
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np

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
from ladder.core.device.open import compile_for, typical_target


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


def _trouble(rung: Rung, target: Target, plan: LaunchPlan) -> str:
    """Why a rung is no good machine code; "" where it is."""
    try:
        made = compile_for(rung, plan.constants, target)
    except CompileError as error:
        return str(error)
    if lacking := {launch.kernel for launch in plan.launches} - set(made.kernels):
        return f"it launches {', '.join(sorted(lacking))}, which the file does not define"
    if spilled := [name for name, spill in made.kernels.items() if spill]:
        return f"{', '.join(spilled)} spill registers"
    return "the compiler warns; see compile.log in " + str(made.path.parent) if made.warned else ""


def show_sass(options: argparse.Namespace) -> int:
    """The machine code of a rung on an NVIDIA GPU, below the lines that it comes from."""
    rung, target, plan = _chosen(options, compiler.typical_target)
    cubin = compiler.compile_cubin(rung, plan.constants, target.real, target.arch)
    takes, remarks = compiler.resources(cubin), compiler.remarks(cubin)
    _print_code(options, rung, plan, sass, cubin, takes, remarks)
    return 0


def show_isa(options: argparse.Namespace) -> int:
    """The machine code of a rung on an AMD GPU, below the lines that it comes from."""
    rung, target, plan = _chosen(options, hip.typical_target)
    module = hip.compile_code_object(rung, plan.constants, target.real, target.arch, target.warp)
    _print_code(options, rung, plan, assembly, module, hip.resources(module))
    return 0


def _chosen(
    options: argparse.Namespace, typical_target: Callable[[str, np.dtype], Target]
) -> tuple[Rung, Target, LaunchPlan]:
    """The rung, what it is compiled for, and its launch. Raises LadderError where it cannot run."""
    ladder, rung = shared.op_and_rung(options)
    if rung.path is None:
        raise LadderError(f"{options.op} {rung.label} is no kernel: it has no machine code")
    dims = shared.shape_of(ladder, options)
    target_of = functools.partial(typical_target, options.arch)
    target = target_of(DTYPES[shared.dtype_of(ladder, rung, options, target_of)])
    plan = rung.plan(dims, target)
    if plan.refusal is not None:
        raise LadderError(f"{options.op} {rung.label} cannot run: {plan.refusal}")
    return rung, target, plan


def _print_code(
    options: argparse.Namespace,
    rung: Rung,
    plan: LaunchPlan,
    maker: ModuleType,
    binary: Path,
    takes: Mapping[str, object],
    remarks: Iterable[str] = (),
) -> None:
    """The listing, what each kernel takes and how many of it run at once, and how many instructions
    there are of each kind. `maker`: `sass` or `assembly`."""
    instructions = maker.instructions(binary, rung.file)
    if not options.summary:
        shared.console().print(machine_code.listing(instructions, rung.source), soft_wrap=True)
    launched = {launch.kernel: launch for launch in plan.launches}
    for name, resources in takes.items():
        launch = launched.get(name)
        dynamic = launch.shared if launch else 0
        added = f"; its launch adds {dynamic:,} bytes of shared memory" if dynamic else ""
        print(f"{name}: {resources}{added}")
        if launch is not None:
            threads = math.prod(launch.block)
            occupancy = maker.occupancy(options.arch, resources, launch)
            print(f"  {threads} threads per block: {occupancy}")
    for remark in remarks:
        print(f"  the compiler: {remark}")
    for group, kinds in machine_code.summary(instructions, maker.GROUPS).items():
        print(f"  {group}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
