"""What the machine code of a rung takes of a compute unit of AMD's GPUs."""

from collections.abc import Sequence

from ladder.core.amd.hip import compiler
from ladder.core.amd.hip.occupancy import occupancy
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import DTYPES, Dims, format_dims
from ladder.core.contract.rung_file import Rung


def resources_table(
    ladder: Ladder, rungs: Sequence[Rung], dtype: str, dims: Dims, architectures: Sequence[str]
) -> str:
    """Vector registers, LDS and waves of rungs, as Markdown: one column for each architecture, and
    one row for each rung, of the kernel that has the op's name; where none has, for each kernel.

    Raises LadderError where a rung cannot run at `dims`, or does not compile.
    """
    rows = [f"| rung | {' | '.join(architectures)} |", "|---|" + "---|" * len(architectures)]
    for rung in rungs:
        found = [_of_kernels(ladder, rung, name, dtype, dims) for name in architectures]
        own = [ladder.op.kernel] if ladder.op.kernel in found[0] else list(found[0])
        for kernel in own:
            suffix = kernel.removeprefix(ladder.op.kernel)
            label = f"{rung.id}, `{suffix}`" if suffix else rung.id
            rows.append(f"| {label} | {' | '.join(of[kernel] for of in found)} |")
    return "\n".join([*rows, "", f"{format_dims(dims)}, {dtype}; compiled by clang, not run."])


def _of_kernels(ladder: Ladder, rung: Rung, name: str, dtype: str, dims: Dims) -> dict[str, str]:
    """What each kernel of a rung takes on the architecture `name`, in launch order."""
    real = DTYPES[dtype]
    target = compiler.typical_target(name, real)
    plan = rung.plan(dims, target)
    if plan.refusal is not None:
        raise LadderError(f"{ladder.op.name} {rung.label} cannot run: {plan.refusal}")
    module = compiler.compile_code_object(rung, plan.constants, real, name, target.warp)
    cells = {}
    for launch in plan.launches:
        takes = compiler.resources(module)[launch.kernel]
        waves = occupancy(name, takes, launch)
        spilled = f", **{takes.spill} spilled**" if takes.spill else ""
        cells[launch.kernel] = (
            f"{takes.vgprs} registers, {(takes.lds + launch.shared) / 1024:.3g} KB{spilled}: "
            f"{waves.warps} of {waves.most_warps} waves on {waves.place}"
        )
    return cells
