"""What the instructions of a kernel's loop are for, rung beside rung, from its machine code."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.show.pictures.drawing import GLYPH, MARGIN, WIDTH, Drawing
from ladder.core.show.source_code import parse_shape

HIGH = 20.0  # of a bar
CONTROL = "BAR BRA BSSY BSYNC DEPBAR ELECT FENCE LDGDEPBAR MEMBAR NOP SYNCS WARPGROUP WARPSYNC"
KINDS = {  # of instructions: what they are for, the colour, the first letters of the mnemonics
    "products on tensor cores": ("pale purple", ("HGMMA", "HMMA")),
    "float32 and exponentials": ("pale blue", ("F", "MUFU", "H")),
    "to uniform registers (R2UR)": ("red", ("R2UR",)),
    "copies from memory": ("pale gold", ("LDG", "UTMALDG", "UBLKCP")),
    "shared memory, shuffles": ("line", ("LDS", "STS", "SHFL")),
    "waiting and control": ("panel", tuple(CONTROL.split())),
    "addresses and counters, once for the warp": ("pale green", ("U", "S2UR")),
    "addresses and masks, in each lane": ("pale orange", ("",)),
}


class Loop(NamedTuple):
    """The longest loop of a kernel, inner loops included: how many instructions of each kind."""

    rung: str
    kernel: str
    counts: Counter[str]


def kind_of(opcode: str) -> str:
    """The kind of an instruction, the one with the longest first letters that fit: a key of KINDS.

    opcode  without what follows a dot
    """
    fits = (
        (len(first), kind)
        for kind, (_, names) in KINDS.items()
        for first in names
        if opcode.startswith(first)
    )
    return max(fits)[1]


def loops(op: str, rungs: Sequence[str], dtype: str, shape: str, kernel: str) -> list[Loop]:
    """Of each kernel of each rung, or of the one that is named. Needs NVRTC and nvdisasm, no GPU.

    Raises LadderError where there is no such kernel.
    """
    from ladder.core.show import machine  # needs NVIDIA's wheels

    ladder = find(op)
    dims = parse_shape(ladder.op, shape) if shape else dict(next(iter(ladder.op.bench.values())))
    found = []
    for rung in map(ladder.rung, rungs):
        for of in machine.kernels(ladder, rung, dtype, dims):
            if kernel in ("", of.launch.kernel):
                counts = Counter(map(kind_of, of.loop.elements()))
                found.append(Loop(rung.name, of.launch.kernel, counts))
    if not found:
        raise LadderError(f"picture instructions: {op} has no kernel {kernel}")
    return found


def draw(
    op: str, *rungs: str, dtype: str = "bfloat16", shape: str = "", kernel: str = ""
) -> Drawing:
    """A bar for each kernel of each rung, and a table of the numbers in it."""
    return of_loops(op, loops(op, rungs, dtype, shape, kernel), kernel)


def of_loops(op: str, shown: Sequence[Loop], kernel: str = "") -> Drawing:
    """The picture of some loops."""
    kinds = [kind for kind in KINDS if any(loop.counts[kind] for loop in shown)]
    names = [
        loop.rung
        if kernel or len({i.kernel for i in shown}) == 1
        else f"{loop.rung}, {loop.kernel}"
        for loop in shown
    ]
    said = "; ".join(
        f"{name}: {loop.counts.total()}, of them "
        + ", ".join(f"{loop.counts[kind]} {kind}" for kind in kinds)
        for name, loop in zip(names, shown, strict=True)
    )
    where = f"{op}, {kernel}" if kernel else op
    drawing = Drawing(
        f"{where}: instructions in the loop",
        f"Instructions in the machine code of the longest loop. {said}.",
    )
    y, most = drawing.top, max(loop.counts.total() for loop in shown)
    for name, loop in zip(names, shown, strict=True):
        drawing.text(MARGIN, y + 4, f"{name}: {loop.counts.total()} instructions", 12)
        x = float(MARGIN)
        for kind in kinds:
            wide, fill = (WIDTH - 2 * MARGIN) * loop.counts[kind] / most, KINDS[kind][0]
            if wide:
                title = f"{kind}: {loop.counts[kind]}"
                drawing.box(x, y + 10, wide, HIGH, fill, "paper", 1, title)
            if wide > GLYPH * 11 * len(str(loop.counts[kind])) + 4:
                ink = "paper" if fill == "red" else "ink"
                number = str(loop.counts[kind])
                drawing.text(x + wide / 2, y + 24, number, 11, "middle", ink)
            x += wide
        y += HIGH + 28
    _numbers(drawing, y, kinds, shown)
    return drawing


def _numbers(drawing: Drawing, y: float, kinds: Sequence[str], shown: Sequence[Loop]) -> None:
    """What the colours mean, with the numbers of each bar below each other."""
    for number, loop in enumerate(shown):
        x = WIDTH - MARGIN - 62.0 * (len(shown) - 1 - number)
        drawing.text(x, y, loop.rung.removeprefix("16bit "), 11, "end", "muted")
    for kind in kinds:
        y += 19
        drawing.box(MARGIN, y - 11, 13, 13, KINDS[kind][0], "line")
        drawing.text(MARGIN + 20, y, kind, 12)
        for number, loop in enumerate(shown):
            x = WIDTH - MARGIN - 62.0 * (len(shown) - 1 - number)
            drawing.text(x, y, str(loop.counts[kind]), 12, "end")
