"""What the machine code of a rung takes: of an SM registers, shared memory and instructions; of a
compute unit of AMD's GPUs registers, LDS and waves."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ladder.core.amd.hip import compiler as hip_compiler
from ladder.core.amd.hip.assembly import occupancy as hip_occupancy
from ladder.core.common.errors import LadderError
from ladder.core.common.machine_code import Occupancy
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.launch_plan import Launch, LaunchPlan
from ladder.core.contract.op import DTYPES, Dims, format_dims
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.device.cuda import compiler, sass
from ladder.core.device.cuda.compiler import Resources
from ladder.core.device.cuda.nvrtc import find_nvrtc
from ladder.core.show.tables import markdown

ARCHITECTURE = "sm_90a"


@dataclass(frozen=True)
class Built:
    """A kernel of a rung at one shape, as far as it is known without running it."""

    launch: Launch
    takes: Resources
    occupancy: Occupancy
    code: Sequence[sass.Instruction]
    multiprocessors: int

    @property
    def opcodes(self) -> Counter[str]:
        """How often each stands in the code, without what follows a dot."""
        return _counted(self.code)

    @property
    def waves(self) -> float:
        """How often the grid fills all SMs."""
        return math.prod(self.launch.grid) / (self.multiprocessors * self.occupancy.blocks)


def _counted(code: Sequence[sass.Instruction]) -> Counter[str]:
    """How often each opcode stands in some code, without what follows a dot."""
    return Counter(i.opcode.split(".")[0] for i in code)


def kernels(
    ladder: Ladder, rung: Rung, dtype: str, dims: Dims, arch: str = ARCHITECTURE
) -> list[Built]:
    """The kernels of a rung in the order of their launches.

    Raises LadderError where the rung is no kernel, is refused at `dims`, or does not compile.
    """
    real = DTYPES[dtype]
    target = compiler.typical_target(arch, real)
    plan = plan_of(ladder, rung, dims, target)
    cubin = compiler.compile_cubin(rung, plan.constants, real, target.arch)
    takes, code = compiler.resources(cubin), sass.instructions(cubin, rung.file)
    return [
        Built(
            launch,
            takes[launch.kernel],
            sass.occupancy(target.arch, takes[launch.kernel], launch),
            [i for i in code if i.kernel == launch.kernel],
            target.multiprocessors,
        )
        for launch in plan.launches
    ]


def machine_table(
    ladder: Ladder,
    rungs: Sequence[Rung],
    dtype: str,
    dims: Dims,
    opcodes: Sequence[str],
    loop: bool = False,
) -> str:
    """One row for each kernel of the rungs, as Markdown. `opcodes` are counted: "R2UR", "LDS";
    one that no kernel has gets no column.

    A rung's main kernel has the op's name. Of the others, the row shows what follows that name.

    loop  count in the longest loop only, inner loops included

    Counts are of instructions in the text, not of executions.
    Raises LadderError where a rung does not compile for ARCHITECTURE, or cannot run at `dims`.
    """
    made = [(rung, kernel) for rung in rungs for kernel in kernels(ladder, rung, dtype, dims)]
    part = sass.longest_loop if loop else list
    counted = [_counted(part(kernel.code)) for _, kernel in made]
    shown = [name for name in opcodes if any(counts[name] for counts in counted)]
    titles = ["registers", "shared memory of a block", "blocks on an SM"]
    titles += ["in the loop" if loop else "instructions", *shown]
    rows = []
    for (rung, kernel), counts in zip(made, counted, strict=True):
        shared = kernel.takes.shared + kernel.launch.shared
        numbers = (kernel.takes.registers, shared, kernel.occupancy.blocks, counts.total())
        cells = (f"{number:,}" for number in (*numbers, *(counts[name] for name in shown)))
        rows.append([_label(ladder, rung, kernel.launch.kernel), *cells])
    of = f"{format_dims(dims)}, {dtype}; {ARCHITECTURE}"
    version = ".".join(map(str, find_nvrtc().version))
    return f"{markdown(['rung', *titles], rows)}\n\n{of}, NVRTC {version}."


def resources_table(
    ladder: Ladder, rungs: Sequence[Rung], dtype: str, dims: Dims, architectures: Sequence[str]
) -> str:
    """Vector registers, LDS and waves of rungs, as Markdown: one column for each architecture, and
    one row for each rung, of the kernel that has the op's name; where none has, for each kernel.

    Raises LadderError where a rung cannot run at `dims`, or does not compile.
    """
    rows, titles = [], ["rung", *architectures]
    for rung in rungs:
        columns = [_of_kernels(ladder, rung, name, dtype, dims) for name in architectures]
        own = [ladder.op.kernel] if ladder.op.kernel in columns[0] else list(columns[0])
        rows += [[_label(ladder, rung, name), *(of[name] for of in columns)] for name in own]
    table = markdown(titles, rows, left=len(titles))
    return f"{table}\n\n{format_dims(dims)}, {dtype}; compiled by clang, not run."


def _of_kernels(ladder: Ladder, rung: Rung, name: str, dtype: str, dims: Dims) -> dict[str, str]:
    """What each kernel of a rung takes on the architecture `name` of AMD's, in launch order."""
    real = DTYPES[dtype]
    target = hip_compiler.typical_target(name, real)
    plan = plan_of(ladder, rung, dims, target)
    module = hip_compiler.compile_code_object(rung, plan.constants, real, name, target.warp)
    cells = {}
    for launch in plan.launches:
        takes = hip_compiler.resources(module)[launch.kernel]
        waves = hip_occupancy(name, takes, launch)
        spilled = f", **{takes.spill} spilled**" if takes.spill else ""
        cells[launch.kernel] = (
            f"{takes.vgprs} registers, {(takes.lds + launch.shared) / 1024:.3g} KB{spilled}: "
            f"{waves.warps} of {waves.most_warps} waves on {waves.place}"
        )
    return cells


def plan_of(ladder: Ladder, rung: Rung, dims: Dims, target: Target) -> LaunchPlan:
    """How a rung is launched. Raises LadderError where it is no kernel, or is refused."""
    if rung.path is None:
        raise LadderError(f"{ladder.op.name} {rung.label} is no kernel: it has no machine code")
    plan = rung.plan(dims, target)
    if plan.refusal is not None:
        raise LadderError(f"{ladder.op.name} {rung.label} cannot run: {plan.refusal}")
    return plan


def _label(ladder: Ladder, rung: Rung, kernel: str) -> str:
    """A rung in a table, with what follows the op's name in that of the kernel."""
    suffix = kernel.removeprefix(ladder.op.kernel)
    return f"{rung.id}, `{suffix}`" if suffix else rung.id
