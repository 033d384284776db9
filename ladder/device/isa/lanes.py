"""Instructions between vector and scalar registers, and between the lanes of a wave.

Of the ways to move a value to another lane, clang uses these for the rungs. DPP, a modifier that
lets an instruction read another lane's register, is not interpreted: it is an error that names it.
"""

from __future__ import annotations

import numpy as np

from ladder.device.isa.machine import Machine, Step
from ladder.device.isa.meaning import Instruction
from ladder.device.isa.operands import reader, touched, writer
from ladder.device.isa.waits import LDS
from ladder.device.isa.waves import Waves


def exchange(instruction: Instruction) -> Step | None:
    """The step of such an instruction; None for another one."""
    name, operands, line = instruction.name, instruction.operands, instruction.line
    touches = touched(operands)
    if name == "v_readfirstlane_b32":
        result, source = writer(operands[0], "u32"), reader(operands[1], "u32")

        def first(waves: Waves, machine: Machine) -> None:
            lane = waves.active.argmax(axis=1)[:, None]  # lane 0 where none is active
            result(waves, np.take_along_axis(_all_lanes(source(waves), waves), lane, axis=1))

        return Step(first, touches, line)
    if name == "v_readlane_b32":
        result, source = writer(operands[0], "u32"), reader(operands[1], "u32")
        which = reader(operands[2], "u32")

        def read(waves: Waves, machine: Machine) -> None:
            lane = np.broadcast_to(which(waves), (len(waves), 1)) & (waves.active.shape[1] - 1)
            values = _all_lanes(source(waves), waves)
            result(waves, np.take_along_axis(values, lane.astype(np.intp), axis=1))

        return Step(read, touches, line)
    if name == "v_writelane_b32":
        target, value = operands[0].first, reader(operands[1], "u32")
        which = reader(operands[2], "u32")

        def write(waves: Waves, machine: Machine) -> None:
            lane = np.broadcast_to(which(waves), (len(waves), 1)) & (waves.active.shape[1] - 1)
            put = np.broadcast_to(value(waves), (len(waves), 1))
            np.put_along_axis(waves.v[target], lane.astype(np.intp), put, axis=1)

        return Step(write, touches, line)
    if name in ("v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32"):
        result, mask, base = (
            writer(operands[0], "u32"),
            reader(operands[1], "u32"),
            reader(operands[2], "u32"),
        )
        start = 32 if name.endswith("hi_u32_b32") else 0

        def count(waves: Waves, machine: Machine) -> None:
            """How many bits of the mask belong to lanes below each lane."""
            number = np.arange(waves.active.shape[1])
            below = np.clip(number - start, 0, 32).astype(np.uint64)
            wanted = mask(waves).astype(np.uint64) & ((np.uint64(1) << below) - np.uint64(1))
            bits = np.unpackbits(np.ascontiguousarray(wanted)[..., None].view(np.uint8), axis=-1)
            result(waves, bits.sum(axis=-1, dtype=np.uint32) + base(waves))

        return Step(count, touches, line)
    return None


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


def _all_lanes(values: np.ndarray, waves: Waves) -> np.ndarray:
    return np.broadcast_to(values, waves.active.shape)
