"""What the machine code of a rung takes of a compute unit of AMD's GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from ladder.common.errors import LadderError
from ladder.contract.dims import Dims
from ladder.contract.dtypes import DTYPES
from ladder.contract.ladder import Ladder
from ladder.contract.rung_file import Rung
from ladder.device.hip import compiler
from ladder.device.hip.occupancy import occupancy


def resources(
    ladder: Ladder, rungs: Sequence[Rung], architectures: Sequence[str], dtype: str, dims: Dims
) -> str:
    """Vector registers, LDS and waves of the kernel of each rung that has the op's name, as
    Markdown: one row for each rung, one column for each architecture.

    Raises LadderError where a rung cannot run at `dims`, or does not compile.
    """
    real = DTYPES[dtype]
    rows = [f"| rung | {' | '.join(architectures)} |", "|---|" + "---|" * len(architectures)]
    for rung in rungs:
        cells = []
        for name in architectures:
            target = compiler.typical_target(name, real)
            plan = rung.plan(dims, target)
            if plan.refusal is not None:
                raise LadderError(f"{ladder.op.name} {rung.label} cannot run: {plan.refusal}")
            module = compiler.compile_code_object(rung, plan.constants, real, name, target.warp)
            launch = next(of for of in plan.launches if of.kernel == ladder.op.kernel)
            takes = compiler.resources(module)[launch.kernel]
            found = occupancy(name, takes, launch)
            spilled = f", **{takes.spill} spilled**" if takes.spill else ""
            cells.append(
                f"{takes.vgprs} registers, {(takes.lds + launch.shared) / 1024:.3g} KB{spilled}: "
                f"{found.warps} of {found.most_warps} waves"
            )
        rows.append(f"| {rung.id} | {' | '.join(cells)} |")
    return "\n".join(rows)
