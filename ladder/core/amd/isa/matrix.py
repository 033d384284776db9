"""Matrix cores: MFMA (CDNA) and WMMA (RDNA), D = A @ B^T + C of a wave's registers.

    v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[0:3]
    v_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], v[0:7]

Which lane holds which element: AMD's "Instinct MI300 ISA", matrix arithmetic instructions, and
"RDNA3 ISA" and "RDNA4 ISA", wave matrix multiply accumulate. All lanes take part, whatever EXEC is.
The sums are computed in float64 and rounded once; in which order the hardware rounds is not said.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ladder.core.amd.isa.meaning import Instruction
from ladder.core.amd.isa.operands import TYPES, Operand, constant, touched
from ladder.core.amd.isa.waves import Machine, Step, Waves
from ladder.core.common.errors import LadderError

_NAME = re.compile(r"v_(mfma|wmma)_f32_(\d+)x(\d+)x(\d+)_?(f16|bf16|f32)(?:_1k)?")


class Layout(NamedTuple):
    """Where the elements of a product are.

    factors  a lane's elements of A: from which element of which row on; of B the same
    sums     the row of D that a lane's i-th register belongs to; the column is lane % rows of B
    """

    factors: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    sums: Callable[[int, np.ndarray], np.ndarray]


def _layout(kind: str, side: int, each: int, arch: str) -> Layout:
    """each: elements of a factor in a lane."""
    if kind == "mfma":
        groups = 64 // side
        return Layout(
            lambda lane: (lane % side, lane // side * each),
            lambda i, lane: i // 4 * (4 * groups) + lane // side * 4 + i % 4,
        )
    if arch.startswith("gfx11"):  # lanes 16 to 31 repeat what lanes 0 to 15 hold of A and B
        return Layout(
            lambda lane: (lane % 16, np.zeros_like(lane)), lambda i, lane: 2 * i + lane // 16
        )
    return Layout(lambda lane: (lane % 16, lane // 16 * each), lambda i, lane: 8 * (lane // 16) + i)


def product(instruction: Instruction) -> Step | None:
    """The step of a matrix instruction; None for another one."""
    name, operands, modifiers, line, _, arch = instruction
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    rows, columns, depth = (int(size) for size in match.groups()[1:4])
    lanes = 64 if match[1] == "mfma" else 32
    repeated = match[1] == "wmma" and arch.startswith("gfx11")
    if modifiers or rows != columns or rows * depth % lanes:
        raise LadderError(f"{' '.join(modifiers) or name} is not interpreted")
    each = depth if repeated else rows * depth // lanes
    layout = _layout(match[1], rows, each, arch)
    dtype = TYPES[match[5]]
    target, first, second, added = operands
    lane = np.arange(lanes)
    count = rows * columns // lanes

    def factor(waves: Waves, operand: Operand) -> np.ndarray:
        """(waves, rows, depth), in float64."""
        registers = waves.v[operand.first : operand.first + each * dtype.itemsize // 4]
        values = np.ascontiguousarray(registers.transpose(1, 2, 0)).view(dtype)  # (waves, 64, each)
        if repeated and (registers[:, :, :16] != registers[:, :, 16:]).any():
            raise line.problem("needs the same factors in lanes 16 to 31 as in lanes 0 to 15")
        matrix = np.zeros((len(waves), rows, depth))
        row, start = layout.factors(lane)
        for j in range(each):
            matrix[:, row, start + j] = values[:, :, j].astype(np.float64)
        return matrix

    def run(waves: Waves, machine: Machine) -> None:
        result = factor(waves, first) @ factor(waves, second).swapaxes(1, 2)
        for i in range(count):
            sums = result[:, layout.sums(i, lane), lane % columns]
            if added.file == "v":
                sums = sums + waves.vf[added.first + i]
            else:
                sums = sums + constant(added.text, "f32")
            waves.vf[target.first + i] = sums.astype(np.float32)

    return Step(run, touched(operands), line)
