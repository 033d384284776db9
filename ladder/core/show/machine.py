"""What the machine code of a rung takes of an SM: registers, shared memory, instructions."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ladder.core.common.errors import LadderError
from ladder.core.common.machine_code import Occupancy
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.op import DTYPES, Dims, format_dims
from ladder.core.contract.rung_file import Rung
from ladder.core.device.cuda import compiler, sass
from ladder.core.device.cuda.compiler import Resources
from ladder.core.device.cuda.nvrtc import find_nvrtc
from ladder.core.device.cuda.occupancy import occupancy

ARCHITECTURE = "sm_90a"


@dataclass(frozen=True)
class Kernel:
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
    def loop(self) -> Counter[str]:
        """The same of its longest loop, inner loops included."""
        return _counted(sass.longest_loop(self.code))

    @property
    def waves(self) -> float:
        """How often the grid fills all SMs."""
        return math.prod(self.launch.grid) / (self.multiprocessors * self.occupancy.blocks)


def _counted(code: Sequence[sass.Instruction]) -> Counter[str]:
    """How often each opcode stands in some code, without what follows a dot."""
    return Counter(i.opcode.split(".")[0] for i in code)


def kernels(
    ladder: Ladder, rung: Rung, dtype: str, dims: Dims, arch: str = ARCHITECTURE
) -> list[Kernel]:
    """The kernels of a rung in the order of their launches.

    Raises LadderError where the rung is no kernel, is refused at `dims`, or does not compile.
    """
    if rung.path is None:
        raise LadderError(f"{ladder.op.name} {rung.label} is no kernel: nothing to profile")
    real = DTYPES[dtype]
    target = compiler.typical_target(arch, real)
    plan = rung.plan(dims, target)
    if plan.refusal is not None:
        raise LadderError(f"{ladder.op.name} {rung.label} cannot run: {plan.refusal}")
    cubin = compiler.compile_cubin(rung, plan.constants, real, target.arch)
    takes, code = compiler.resources(cubin), sass.instructions(cubin, rung.file)
    return [
        Kernel(
            launch,
            takes[launch.kernel],
            occupancy(target.arch, takes[launch.kernel], launch),
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

    loop  count in the longest loop only

    Counts are of instructions in the text, not of executions.
    Raises LadderError where a rung does not compile for ARCHITECTURE, or cannot run at `dims`.
    """
    made = [(rung, kernel) for rung in rungs for kernel in kernels(ladder, rung, dtype, dims)]
    counted = [kernel.loop if loop else kernel.opcodes for _, kernel in made]
    shown = [name for name in opcodes if any(found[name] for found in counted)]
    titles = ["registers", "shared memory of a block", "blocks on an SM"]
    titles += ["in the loop" if loop else "instructions", *shown]
    rows = [f"| rung | {' | '.join(titles)} |", "|---|" + "--:|" * len(titles)]
    for (rung, kernel), found in zip(made, counted, strict=True):
        shared = kernel.takes.shared + kernel.launch.shared
        numbers = (kernel.takes.registers, shared, kernel.occupancy.blocks, found.total())
        cells = (f"{number:,}" for number in (*numbers, *(found[name] for name in shown)))
        suffix = kernel.launch.kernel.removeprefix(ladder.op.kernel)
        which = f"{rung.id}, `{suffix}`" if suffix else rung.id
        rows.append(f"| {which} | {' | '.join(cells)} |")
    of = f"{format_dims(dims)}, {dtype}; {ARCHITECTURE}"
    version = ".".join(map(str, find_nvrtc().version))
    return "\n".join([*rows, "", f"{of}, NVRTC {version}."])
