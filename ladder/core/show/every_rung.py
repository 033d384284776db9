"""The page doc/<layer>/measured.md: all ops of a layer, and an entry for every rung.

It is a lesson's other half. Nothing on it is typed: what stands here decides which blocks it has,
and pages.py fills them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from ladder.core.contract.ladder import Ladder, ladders
from ladder.core.contract.op import DTYPES, Dims, format_dims
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.device.cuda.compiler import typical_target
from ladder.core.emulator.emulated import Emulated
from ladder.core.measure import results
from ladder.core.show import source_code, tables
from ladder.core.show.machine import ARCHITECTURE

TOP = """\
# {layer}: every rung

`python -m ladder docs` makes this page from the kernels, from what the
[emulator](../emulator.md) counts, and from [doc/results](../results/README.md).
[The lesson](../{layer}.md) says which rungs matter, and why.
[What the columns mean](../rung_files.md#how-to-read-the-tables).
Times are of {machines}."""
OPCODES = "LDG STG LDGSTS LDSM LDS STS SHFL BAR MUFU FFMA HMMA HGMMA R2UR"
AMD = "gfx942 gfx950 gfx1100 gfx1201"
COUNTED = {  # dimensions -> a shape at which tiles are full
    ("B", "T", "C", "NH"): {"B": 1, "T": 256, "C": 64, "NH": 1},
    ("N", "C", "OC"): {"N": 128, "C": 256, "OC": 256},
}


def template(page: Path, root: Path) -> str:
    """The page of a layer with empty blocks; "" where `page` is another one."""
    layer = page.parent.name
    own = [ladder for ladder in ladders().values() if ladder.op.layer == layer]
    if page != root / "doc" / layer / "measured.md" or not own:
        return ""
    machines = {tables.machine(content["device"]) for content in results.load_all().values()}
    parts = [TOP.format(layer=layer, machines=" and ".join(sorted(machines)))]
    for ladder in own:
        kernels = [rung for rung in ladder.rungs if rung.path is not None]
        parts += [f"## {ladder.op.name}", *map(_block, _of_all(ladder, kernels))]
        for rung in kernels:
            parts.append(f"### {ladder.op.name} {rung.name}: {rung.idea}")
            parts += map(_block, _of_one(ladder, rung))
    return "\n\n".join(parts) + "\n"


def _block(request: str) -> str:
    return f"<!-- ladder:begin {request} -->\n<!-- ladder:end -->"


def _of_all(ladder: Ladder, kernels: Sequence[Rung]) -> Iterator[str]:
    """What shows the rungs of a ladder beside each other."""
    op, first, left = ladder.op, next(iter(ladder.op.bench.values())), kernels
    yield from (f"rungs {op.name}", f"picture ladder {op.name}")
    if op.flops(first):  # one that only moves has no place on a roofline
        yield f"picture roofline {op.name}"
    for shape, dtype in itertools.product(op.bench, op.reals):
        with contextlib.suppress(tables.NotMeasured):
            tables.find_measurement(op.name, dtype, shape)
            yield f'table {op.name} dtype={dtype} shape="{shape}"'
    for dtype in reversed(op.reals):
        target = typical_target(ARCHITECTURE, DTYPES[dtype])
        ids = " ".join(rung.id for rung in left if _runs(rung, target, first))
        left = [rung for rung in left if rung.id not in ids.split()]
        if ids:
            code = f'machine {op.name} {ids} dtype={dtype} opcodes="{OPCODES}"'
            yield from (code, f"{code} loop=longest")
    if ids := " ".join(rung.id for rung in kernels if rung.track == "amd"):
        yield f'resources {op.name} {ids} on="{AMD}"'


def _of_one(ladder: Ladder, rung: Rung) -> Iterator[str]:
    """The entry of a rung, and what it asks of memory, in the first type that it takes."""
    op = ladder.op
    yield f"entry {op.name} {rung.id}"
    dims: Dims = COUNTED.get(op.dims, {})
    if not dims or op.misfit(dims):
        dims = source_code.small_shape(op)
    for dtype in reversed(op.reals):
        if _runs(rung, Emulated().target(DTYPES[dtype]), dims):
            yield f'traffic {op.name} {rung.id} dtype={dtype} shape="{format_dims(dims)}"'
            return


def _runs(rung: Rung, target: Target, dims: Dims) -> bool:
    return rung.claims(target) and rung.plan(dims, target).refusal is None
