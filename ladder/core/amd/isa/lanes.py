"""Instructions between vector and scalar registers, between the lanes of a wave, and of all its
lanes together: matrix cores.

Of the ways to move a value to another lane, clang uses these for the rungs. DPP, a modifier that
lets an instruction read another lane's register, is not interpreted: it is an error that names it.

Matrix cores, MFMA (CDNA) and WMMA (RDNA), compute D = A @ B^T + C of a wave's registers.

    v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[0:3]
    v_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], v[0:7]

Which lane holds which element: AMD's "Instinct MI300 ISA", matrix arithmetic instructions, and
"RDNA3 ISA" and "RDNA4 ISA", wave matrix multiply accumulate. All lanes take part, whatever EXEC is.
The sums are computed in float64 and rounded once; in which order the hardware rounds is not said.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ladder.core.amd.isa.meaning import Instruction
from ladder.core.amd.isa.operands import TYPES, Operand, Read, constant, reader, touched, writer
from ladder.core.amd.isa.scalar import bit_count
from ladder.core.amd.isa.waits import LDS
from ladder.core.amd.isa.waves import Machine, Ready, Run, Waves
from ladder.core.common.errors import LadderError

_NAME = re.compile(r"v_(mfma|wmma)_f32_(\d+)x(\d+)x(\d+)_?(f16|bf16|f32)(?:_1k)?")


def exchange(instruction: Instruction) -> Ready | None:
    """The step of an instruction in EXCHANGES; None for another one."""
    make = EXCHANGES.get(instruction.name)
    if make is None:
        return None
    return Ready(make(instruction.operands), touched(instruction.operands), instruction.line)


def _read_lane(operands: Sequence[Operand]) -> Run:
    """A scalar register takes the value of the lane that is named, active or not; where none is
    named, of the first active lane."""
    result, source = writer(operands[0], "u32"), reader(operands[1], "u32")
    named = [reader(operand, "u32") for operand in operands[2:]]

    def run(waves: Waves, machine: Machine) -> None:
        lane = waves.active.argmax(axis=1)[:, None]  # lane 0 where none is active
        for which in named:
            lane = _lane(which, waves)
        values = np.broadcast_to(source(waves), waves.active.shape)
        result(waves, np.take_along_axis(values, lane, axis=1))

    return run


def _write_lane(operands: Sequence[Operand]) -> Run:
    """A scalar value goes to one lane of a vector register."""
    target, value = operands[0].first, reader(operands[1], "u32")
    which = reader(operands[2], "u32")

    def run(waves: Waves, machine: Machine) -> None:
        put = np.broadcast_to(value(waves), (len(waves), 1))
        np.put_along_axis(waves.v[target], _lane(which, waves), put, axis=1)

    return run


def _count_below(first: int) -> Callable[[Sequence[Operand]], Run]:
    """Each lane counts the bits of a mask that belong to lanes below it, of the 32 from `first`."""

    def make(operands: Sequence[Operand]) -> Run:
        result = writer(operands[0], "u32")
        mask, base = reader(operands[1], "u32"), reader(operands[2], "u32")

        def run(waves: Waves, machine: Machine) -> None:
            number = np.arange(waves.active.shape[1])
            below = np.clip(number - first, 0, 32).astype(np.uint64)
            wanted = mask(waves).astype(np.uint64) & ((np.uint64(1) << below) - np.uint64(1))
            result(waves, bit_count(wanted) + base(waves))

        return run

    return make


EXCHANGES: Mapping[str, Callable[[Sequence[Operand]], Run]] = {
    "v_readfirstlane_b32": _read_lane,
    "v_readlane_b32": _read_lane,
    "v_writelane_b32": _write_lane,
    "v_mbcnt_lo_u32_b32": _count_below(0),
    "v_mbcnt_hi_u32_b32": _count_below(32),
}


def permute(instruction: Instruction) -> Ready | None:
    """ds_bpermute_b32: each lane reads a register of the lane that it names, times 4.

    A lane that is not active has nothing to read: its value is 0.
    """
    if instruction.opcode != "ds_bpermute_b32":
        return None
    operands, line = instruction.operands, instruction.line
    target, place, data = operands[0], reader(operands[1], "u32"), reader(operands[2], "u32")

    def run(waves: Waves, machine: Machine) -> None:
        waves.outstanding.issue((LDS,), target.registers(), line)
        lanes = waves.active.shape[1]
        which = np.broadcast_to(place(waves), waves.active.shape) >> 2 & (lanes - 1)
        values = np.where(waves.active, data(waves), np.uint32(0))
        result = np.take_along_axis(values, which.astype(np.intp), axis=1)
        np.copyto(waves.v[target.first], result, where=waves.active)

    return Ready(run, touched(operands[1:]), line)


def _lane(which: Read, waves: Waves) -> np.ndarray:
    """The lane that each wave names, (waves, 1); the upper bits of the number do not count."""
    number = np.broadcast_to(which(waves), (len(waves), 1))
    return (number & (waves.active.shape[1] - 1)).astype(np.intp)


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


def product(instruction: Instruction) -> Ready | None:
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

    return Ready(run, touched(operands), line)
