"""Instructions on parts of registers.

Modifiers behind the operands say which: op_sel a half for operands of 16 bits, SDWA (CDNA) a byte
or a half. Packed instructions, v_pk_..., compute two results, each from halves of the operands:
op_sel picks those for the low result, op_sel_hi those for the high one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ladder.core.amd.isa import floats
from ladder.core.amd.isa.meaning import Instruction
from ladder.core.amd.isa.operands import TYPES, Operand, Read, Write, reader, touched, writer
from ladder.core.amd.isa.vector import VECTOR
from ladder.core.amd.isa.waves import Machine, Ready, Waves
from ladder.core.common.errors import LadderError

Bits = tuple[int, ...]

# SDWA's names of parts: (first bit, bits).
_SELECTED = {
    "DWORD": (0, 32),
    **{f"WORD_{place}": (16 * place, 16) for place in range(2)},
    **{f"BYTE_{place}": (8 * place, 8) for place in range(4)},
}
_KNOWN = {"op_sel", "src0_sel", "src1_sel", "dst_sel", "dst_unused", "bitop3"}


def named(modifiers: Sequence[str]) -> dict[str, str]:
    """Modifiers by name: {"op_sel": "[0,1]"}."""
    return {name: value for name, _, value in (text.partition(":") for text in modifiers)}


def _bits(text: str) -> Bits:
    return tuple(int(bit) for bit in re.findall("[01]", text))


class Selection:
    """Which parts of its operands an instruction reads and writes."""

    def __init__(self, modifiers: Sequence[str]):
        self._named = named(modifiers)
        if others := [text for text in modifiers if text.partition(":")[0] not in _KNOWN]:
            raise LadderError(f"{' '.join(others)} is not interpreted")
        self._halves = _bits(self._named.get("op_sel", ""))

    def reader(self, operand: Operand, kind: str, place: int) -> Read:
        """place: of the operand among the sources."""
        first, width = _SELECTED[self._named.get(f"src{place}_sel", "DWORD")]
        if width < 32:
            return _part(operand, kind, first, width)
        return reader(self._half(operand, kind, place), kind)

    def writer(self, operand: Operand, kind: str) -> Write:
        first, width = _SELECTED[self._named.get("dst_sel", "DWORD")]
        if width == 32:
            return writer(self._half(operand, kind, 3), kind)
        if operand.file != "v" or TYPES[kind].itemsize > 4:
            raise LadderError(f"dst_sel of {operand.text!r} is not interpreted")
        keep = self._named.get("dst_unused") == "UNUSED_PRESERVE"
        old, put = reader(operand, "u32"), writer(operand, "u32")
        mask = np.uint32(((1 << width) - 1) << first)

        def write(waves: Waves, value: np.ndarray) -> None:
            bits = value.view(f"u{value.itemsize}").astype(np.uint32) << first & mask
            put(waves, bits | (old(waves) & ~mask if keep else np.uint32(0)))

        return write

    def _half(self, operand: Operand, kind: str, place: int) -> Operand:
        """place: 3 for the result, whose bit stands behind those of the sources."""
        if not self._halves or kind == "mask" or TYPES[kind].itemsize != 2:
            return operand
        bit = self._halves[-1 if place == 3 else place]
        return replace(operand, half="h" if bit else "l" if place == 3 else "")


def _part(operand: Operand, kind: str, first: int, width: int) -> Read:
    """Some bits of a register, zeros or copies of its sign above them."""
    signed = operand.text.startswith("sext(")
    read, room, dtype = reader(replace(operand, negated=False), "i32"), 32 - width, TYPES[kind]

    def part(waves: Waves) -> np.ndarray:
        bits = read(waves) << (room - first)
        value = bits >> room if signed else (bits.view(np.uint32) >> room).view(np.int32)
        return value.astype(f"i{dtype.itemsize}").view(dtype)

    return part


# ---- packed instructions ----

_PACKED: Mapping[str, Callable[..., np.ndarray]] = {
    "v_pk_mov_b32": lambda a, b: np.copy(a),
    **dict.fromkeys(("v_pk_add_u16", "v_pk_add_i16"), np.add),
    **dict.fromkeys(("v_pk_sub_u16", "v_pk_sub_i16"), np.subtract),
    **{
        f"v_pk_{name}": VECTOR[f"v_{name}"].function
        for name in (
            *("add_f32", "mul_f32", "fma_f32", "add_f16", "mul_f16", "fma_f16", "max_f16"),
            *("min_f16", "mul_lo_u16", "lshlrev_b16", "lshrrev_b16"),
        )
    },
}


def packed(instruction: Instruction) -> Ready | None:
    """The step of a packed instruction; None for another one."""
    name, operands, modifiers = instruction.name, instruction.operands, instruction.modifiers
    function = _PACKED.get(name.replace("_num_", "_"))
    if function is None:
        return None
    kind = name.rpartition("_")[2].replace("b", "u")
    wide = kind.endswith("32")
    target, *sources = operands
    count = len(sources)
    given = named(modifiers)
    if others := set(given) - {"op_sel", "op_sel_hi", "neg_lo", "neg_hi"}:
        raise LadderError(f"{', '.join(sorted(others))} is not interpreted")
    zeros, ones = (0,) * count, (1,) * count
    halves: list[list[Read]] = []
    for select, negate in (
        (_bits(given.get("op_sel", "")) or zeros, _bits(given.get("neg_lo", "")) or zeros),
        (_bits(given.get("op_sel_hi", "")) or ones, _bits(given.get("neg_hi", "")) or zeros),
    ):
        parts = [_packed_half(op, bit, wide) for op, bit in zip(sources, select, strict=True)]
        signs = [replace(p, negated=bool(n)) for p, n in zip(parts, negate, strict=True)]
        halves.append([reader(part, kind) for part in signs])
    if wide:
        low, high = (replace(target, first=target.first + half, number=1) for half in range(2))
    else:
        low, high = (replace(target, half=half) for half in "lh")
    writes = writer(low, kind), writer(high, kind)

    def run(waves: Waves, machine: Machine) -> None:
        results = [function(*[read(waves) for read in reads]) for reads in halves]
        for write, result in zip(writes, results, strict=True):
            write(waves, result)

    return Ready(run, touched(operands), instruction.line)


def _packed_half(operand: Operand, bit: int, wide: bool) -> Operand:
    """The half of a source that a result is computed from."""
    if operand.file == "constant":
        if bit and operand.text != "0":
            raise LadderError("the upper half of a constant is not interpreted")
        return operand
    if wide:
        return replace(operand, first=operand.first + bit, number=1)
    return replace(operand, half="h" if bit else "l")


def mixed(instruction: Instruction) -> Ready | None:
    """v_fma_mix: a multiply-add in float32 of operands that are float32 or a half, float16."""
    name, operands, modifiers = instruction.name, instruction.operands, instruction.modifiers
    if name not in ("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"):
        return None
    given = named(modifiers)
    if others := set(given) - {"op_sel", "op_sel_hi"}:
        raise LadderError(f"{', '.join(sorted(others))} is not interpreted")
    small = _bits(given.get("op_sel_hi", "")) or (0, 0, 0)
    upper = _bits(given.get("op_sel", "")) or (0, 0, 0)
    target, *sources = operands
    reads = [
        reader(replace(source, half="h" if high else ""), "f16") if half else reader(source, "f32")
        for source, half, high in zip(sources, small, upper, strict=True)
    ]
    half = {"mixlo": "l", "mixhi": "h"}.get(name.split("_")[2], "")
    write = writer(replace(target, half=half), "f16" if half else "f32")

    def run(waves: Waves, machine: Machine) -> None:
        result = floats.fma32(*[read(waves).astype(np.float32) for read in reads])
        write(waves, result.astype(np.float16) if half else result)

    return Ready(run, touched(operands), instruction.line)
