"""What the machine code of a rung takes of an SM: registers, shared memory, instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ladder.core.common.errors import LadderError
from ladder.core.contract.dims import Dims
from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.rung_file import Rung
from ladder.core.device.cuda import compiler, sass
from ladder.core.device.cuda.occupancy import occupancy

ARCHITECTURE = "sm_90a"


def loops(rung: Rung, dtype: str, dims: Dims) -> dict[str, list[sass.Instruction]]:
    """The longest loop of each kernel that a rung launches, by the kernel's name.

    Raises LadderError where the rung does not compile for ARCHITECTURE.
    """
    real = DTYPES[dtype]
    target = compiler.typical_target(ARCHITECTURE, real)
    plan = rung.plan(dims, target)
    code = sass.instructions(
        compiler.compile_cubin(rung, plan.constants, real, target.arch), rung.file
    )
    return {
        launch.kernel: sass.longest_loop([i for i in code if i.kernel == launch.kernel])
        for launch in plan.launches
    }


def table(
    ladder: Ladder,
    rungs: Sequence[Rung],
    dtype: str,
    dims: Dims,
    opcodes: Sequence[str],
    loop: bool = False,
) -> str:
    """One row for each kernel of the rungs, as Markdown. `opcodes` are counted: "R2UR", "LDS".

    A rung's main kernel has the op's name. Of the others, the row shows what follows that name.

    loop  count in the longest loop only

    Counts are of instructions in the text, not of executions.
    Raises LadderError where a rung does not compile for ARCHITECTURE, or cannot run at `dims`.
    """
    titles = ["registers", "shared memory of a block", "blocks on an SM"]
    titles += ["in the loop" if loop else "instructions", *opcodes]
    rows = [f"| rung | {' | '.join(titles)} |", "|---|" + "--:|" * len(titles)]
    real = DTYPES[dtype]
    target = compiler.typical_target(ARCHITECTURE, real)
    for rung in rungs:
        plan = rung.plan(dims, target)
        if plan.refusal is not None:
            raise LadderError(f"{ladder.op.name} {rung.label} cannot run: {plan.refusal}")
        cubin = compiler.compile_cubin(rung, plan.constants, real, target.arch)
        takes, code = compiler.resources(cubin), sass.instructions(cubin, rung.file)
        for launch in plan.launches:
            kernel = [i for i in code if i.kernel == launch.kernel]
            counted = sass.longest_loop(kernel) if loop else kernel
            found = Counter(i.opcode.split(".")[0] for i in counted)
            kernel_takes = takes[launch.kernel]
            cells = (
                kernel_takes.registers,
                kernel_takes.shared + launch.shared,
                occupancy(ARCHITECTURE, kernel_takes, launch).blocks,
                found.total(),
                *(found[opcode] for opcode in opcodes),
            )
            numbers = " | ".join(f"{cell:,}" for cell in cells)
            suffix = launch.kernel.removeprefix(ladder.op.kernel)
            which = f"{rung.id}, `{suffix}`" if suffix else rung.id
            rows.append(f"| {which} | {numbers} |")
    return "\n".join(rows)
