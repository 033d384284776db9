"""Which tile each block computes, from the lines of the kernel that work it out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from ladder.core.common.errors import LadderError
from ladder.core.contract.dims import Dims
from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.ladder import find
from ladder.core.contract.launch_plan import LaunchPlan
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target

SMS = 132  # of an H200 and an H100 SXM
SHARED_BYTES = 227 << 10
_DECLARATION = re.compile(r"^ +(?:int )?(\w+ = .*?)(?:;|$)")


def plan_on_gpu(rung: Rung, dtype: str, dims: Dims, sms: int = SMS) -> LaunchPlan:
    """How a rung is launched on a Hopper GPU of so many SMs. Raises LadderError where it is not."""
    target = Target("sm_90a", 32, sms, SHARED_BYTES, DTYPES[dtype])
    plan = rung.plan(dims, target)
    if plan.refusal:
        raise LadderError(f"{rung.label}: {plan.refusal}")
    return plan


def tiles_in_order(op: str, rung: str, dtype: str, dims: Dims, sms: int) -> list[tuple[int, ...]]:
    """(row, column) of the first element of each tile of the result, in the order in which tiles
    are started: that of the blocks, or of a persistent kernel's tile numbers.

    The kernel's own assignments are evaluated, down to those of `row` and `column`.
    """
    chosen = find(op).rung(rung)
    plan = plan_on_gpu(chosen, dtype, dims, sms)
    lines = list(_assignments(chosen.source))
    across, down, _ = plan.launches[0].grid
    count = plan.constants.get("TILES", across * down)
    found: list[tuple[int, ...]] = []
    for number in range(count):
        names = {**dims, **plan.constants, "tile": number, "pair": number}
        names |= {"blockIdx.x": number % across, "blockIdx.y": number // across}
        if "TILES" in plan.constants:  # a persistent kernel's blocks take them by their number
            names["blockIdx.x"] = number
        found.append(_place(lines, names, ("row", "column"), chosen))
    return found


def heads_in_order(
    op: str, rung: str, dtype: str, dims: Dims, kernel: str
) -> list[tuple[int, ...]]:
    """(first token, head) of each block of a kernel of attention, in the order in which blocks are
    started: x first, then y, then z. Heads are numbered over the batch: b * NH + h."""
    chosen = find(op).rung(rung)
    plan = plan_on_gpu(chosen, dtype, dims)
    (grid,) = (launch.grid for launch in plan.launches if launch.kernel == kernel)
    _, _, body = chosen.source.partition(f" {kernel}(")
    lines = list(_assignments(body.partition('extern "C"')[0]))
    found: list[tuple[int, ...]] = []
    for z, y, x in itertools.product(*(range(size) for size in reversed(grid))):
        at = {"blockIdx.x": x, "blockIdx.y": y, "blockIdx.z": z}
        size = dict(zip(("gridDim.x", "gridDim.y", "gridDim.z"), grid, strict=True))
        names = {**dims, **plan.constants, **at, **size}
        first, b, h = _place(lines, names, ("first", "b", "h"), chosen)
        if b < dims["B"]:  # the last group may have fewer heads
            found.append((first, b * dims["NH"] + h))
    return found


def _assignments(source: str) -> Iterator[tuple[str, str]]:
    """(name, expression) of a kernel's declarations of whole numbers, in order."""
    for line in source.splitlines():
        if not (match := _DECLARATION.match(line.split("//")[0].rstrip())):
            continue
        for part in re.split(r",\s*(?=\w+ = )", match[1]):
            name, _, expression = part.partition(" = ")
            yield name, expression


def _place(
    lines: list[tuple[str, str]], names: Mapping[str, int], wanted: Sequence[str], rung: Rung
) -> tuple[int, ...]:
    """The values of the wanted variables, by the kernel's declarations."""
    known = dict(names)
    for name, expression in lines * 2:  # a function may stand above what it is called with
        text = re.sub(r"\b(blockIdx|gridDim)\.(\w)", r"\1_\2", expression)
        words = set(re.findall(r"[A-Za-z_]\w*", text)) - {"min"}
        usable = {key.replace(".", "_"): value for key, value in known.items()}
        if name in names or not words <= set(usable) or not re.fullmatch(r"[\w\s+*/%(),-]+", text):
            continue
        known[name] = eval(text.replace("/", "//"), {"__builtins__": {}, "min": min}, usable)
        if all(name in known for name in wanted):
            return tuple(known[name] for name in wanted)
    raise LadderError(f"{rung.label} does not say in plain terms where a block's tile begins")
