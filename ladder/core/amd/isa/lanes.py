"""Instructions between vector and scalar registers, and between the lanes of a wave.

Of the ways to move a value to another lane, clang uses these for the rungs. DPP, a modifier that
lets an instruction read another lane's register, is not interpreted: it is an error that names it.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ladder.core.amd.isa.meaning import Instruction
from ladder.core.amd.isa.operands import Operand, Read, reader, touched, writer
from ladder.core.amd.isa.scalar import bit_count
from ladder.core.amd.isa.waits import LDS
from ladder.core.amd.isa.waves import Machine, Run, Step, Waves


def exchange(instruction: Instruction) -> Step | None:
    """The step of an instruction in EXCHANGES; None for another one."""
    make = EXCHANGES.get(instruction.name)
    if make is None:
        return None
    return Step(make(instruction.operands), touched(instruction.operands), instruction.line)


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


def permute(instruction: Instruction) -> Step | None:
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
        found = np.take_along_axis(values, which.astype(np.intp), axis=1)
        np.copyto(waves.v[target.first], found, where=waves.active)

    return Step(run, touched(operands[1:]), line)


def _lane(which: Read, waves: Waves) -> np.ndarray:
    """The lane that each wave names, (waves, 1); the upper bits of the number do not count."""
    number = np.broadcast_to(which(waves), (len(waves), 1))
    return (number & (waves.active.shape[1] - 1)).astype(np.intp)
