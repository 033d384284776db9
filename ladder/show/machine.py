"""What the machine code of a rung takes of an SM: registers, shared memory, instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ladder.common.errors import LadderError
from ladder.contract.dims import Dims
from ladder.contract.dtypes import DTYPES
from ladder.contract.ladder import Ladder
from ladder.contract.rung_file import Rung
from ladder.device.cuda import compiler, sass

ARCHITECTURE = "sm_90a"

# Of an SM of that architecture: https://docs.nvidia.com/cuda/cuda-c-programming-guide (technical
# specifications). Each of its four parts has 16,384 registers and room for 16 warps; all of them
# together, for 32 blocks.
PARTS, REGISTERS, WARPS, BLOCKS = 4, 16_384, 16, 32
SHARED, RESERVED = 228 * 1024, 1024  # bytes of an SM; of these for each block


def blocks_per_sm(registers: int, shared: int, threads: int) -> int:
    """How many blocks fit on an SM at once. Registers are dealt out to warps, in eights a lane."""
    per_warp = -(-registers // 8) * 8 * 32
    warps = PARTS * min(WARPS, REGISTERS // per_warp)
    return min(warps // -(-threads // 32), SHARED // (shared + RESERVED), BLOCKS)


def table(
    ladder: Ladder,
    rungs: Sequence[Rung],
    dtype: str,
    dims: Dims,
    opcodes: Sequence[str],
    loop: bool = False,
) -> str:
    """One row for each kernel of the rungs, as Markdown. `opcodes` are counted: "R2UR", "LDS".

    loop  count in the longest loop only

    Counts are of instructions in the text, not of executions.
    Raises LadderError where a rung does not compile for ARCHITECTURE, or cannot run at `dims`.
    """
    titles = ["registers", "shared memory of a block", "blocks on an SM"]
    titles += ["in the loop" if loop else "instructions", *opcodes]
    rows = [f"| rung | kernel | {' | '.join(titles)} |", "|---|---|" + "--:|" * len(titles)]
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
            registers = takes[launch.kernel].registers
            shared = takes[launch.kernel].shared + launch.shared
            x, y, z = launch.block
            cells = (
                registers,
                shared,
                blocks_per_sm(registers, shared, x * y * z),
                found.total(),
                *(found[opcode] for opcode in opcodes),
            )
            numbers = " | ".join(f"{cell:,}" for cell in cells)
            rows.append(f"| {rung.id} | `{launch.kernel}` | {numbers} |")
    return "\n".join(rows)
