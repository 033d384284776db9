"""Operands of instructions: what is read for one, and where a result goes.

A type says how many registers an operand takes and what its bits are: "u32", "i32", "f32", 64 and
16 bits of these, "bf16", and "mask", one bit for each lane. `reader` and `writer` make a function
of an operand and a type; the functions take the waves that execute the instruction.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ladder.core.amd.isa.waits import SCALAR_KEY
from ladder.core.amd.isa.waves import EXEC, M0, NULL, TTMP, VCC, Waves
from ladder.core.common.errors import LadderError

TYPES: Mapping[str, np.dtype] = {
    "u16": np.dtype(np.uint16),
    "i16": np.dtype(np.int16),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "u32": np.dtype(np.uint32),
    "i32": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
    "u64": np.dtype(np.uint64),
    "i64": np.dtype(np.int64),
    "f64": np.dtype(np.float64),
}

Read = Callable[[Waves], np.ndarray]
Write = Callable[[Waves, np.ndarray], None]

_SPECIAL = {
    **{"vcc": VCC, "vcc_lo": VCC, "vcc_hi": VCC + 1},
    **{"exec": EXEC, "exec_lo": EXEC, "exec_hi": EXEC + 1},
    **{"m0": M0, "null": NULL},
}
# The upper half of generic addresses of LDS and of scratch memory, which s_mov from
# src_shared_base and src_private_base begins with. No array of the host lies there.
APERTURES = {"src_shared_base": 0x0F000000, "src_private_base": 0x0E000000}
_REGISTER = re.compile(
    r"(?:sext\()?(?P<minus>-)?(?P<bars>\||abs\()?(?P<file>v|a|s|ttmp)"
    r"(?:(?P<one>\d+)|\[(?P<first>\d+):(?P<last>\d+)\])(?:\.(?P<half>[lh]))?(?:\||\))?"
)


@dataclass(frozen=True)
class Operand:
    """One operand.

    file    "v" vector registers, "s" scalar ones, "constant", or "off" for none
    first   the number of its first register
    number  how many registers it names
    half    "l" or "h" of a register, where only these 16 bits are meant
    """

    text: str
    file: str
    first: int = 0
    number: int = 1
    negated: bool = False
    absolute: bool = False
    half: str = ""

    def registers(self, registers: int | None = None) -> range:
        """Keys of its registers for `Outstanding`; `registers`: of so many."""
        if self.file not in ("v", "s"):
            return range(0)
        start = self.first + (SCALAR_KEY if self.file == "s" else 0)
        return range(start, start + (registers or self.number))


def touched(operands: Sequence[Operand]) -> frozenset[int]:
    """Keys of the registers that they name."""
    return frozenset(key for operand in operands for key in operand.registers())


def parse(text: str, accumulators: int = 0) -> Operand:
    """An operand as the assembly has it. accumulators: the register that a0 of CDNA is."""
    if text == "off":
        return Operand(text, "off")
    if match := _REGISTER.fullmatch(text):
        first = int(match["one"] or match["first"])
        last = int(match["one"] or match["last"])
        base = {"v": 0, "a": accumulators, "s": 0, "ttmp": TTMP}[match["file"]]
        return Operand(
            text,
            "v" if match["file"] in "va" else "s",
            base + first,
            last - first + 1,
            match["minus"] is not None,
            match["bars"] is not None,
            match["half"] or "",
        )
    bare = text.strip("-|")
    if bare in _SPECIAL:
        number = 2 if bare in ("vcc", "exec") else 1
        return Operand(text, "s", _SPECIAL[bare], number, text[0] == "-", "|" in text)
    return Operand(text, "constant", number=0)


def constant(text: str, kind: str) -> np.ndarray:
    """The bits that a constant has as an operand of this type, as (1, 1)."""
    dtype = TYPES[kind]
    if text in APERTURES:
        value = APERTURES[text] << 32 if dtype.itemsize == 8 else APERTURES[text]
        return np.array([[value]], f"u{dtype.itemsize}").view(dtype)
    try:
        if "." in text:  # a number of the operand's own size
            floats = {2: kind if kind == "bf16" else "f16", 4: "f32", 8: "f64"}[dtype.itemsize]
            return np.array([[float(text)]]).astype(TYPES[floats]).view(dtype)
        bits = int(text, 0)
    except ValueError:
        raise LadderError(f"the operand {text!r} is not understood") from None
    if kind == "f64" and text.startswith("0x"):  # a literal has 32 bits, the upper ones
        bits <<= 32
    size = 8 * dtype.itemsize
    return np.array([[bits % (1 << size)]], f"u{dtype.itemsize}").view(dtype)


def registers_of(kind: str, wide: bool) -> int:
    """How many registers an operand of this type takes; `wide`: with 64 lanes."""
    if kind == "mask":
        return 2 if wide else 1
    return max(1, TYPES[kind].itemsize // 4)


def reader(operand: Operand, kind: str) -> Read:
    """Reads an operand as (waves, lanes), or (waves, 1) or (1, 1) where all lanes have the same.

    It may be a view of the registers.
    """
    read = _bare_reader(operand, kind)
    if operand.file == "constant" or not (operand.negated or operand.absolute):
        return read
    if operand.absolute and operand.negated:
        return lambda waves: -np.abs(read(waves))
    return (lambda waves: np.abs(read(waves))) if operand.absolute else lambda waves: -read(waves)


def _bare_reader(operand: Operand, kind: str) -> Read:
    n = operand.first
    if operand.file == "constant":
        if operand.text == "scc":
            return lambda waves: waves.scc.astype(np.uint32)
        if operand.text in ("vccz", "execz"):
            mask = VCC if operand.text == "vccz" else EXEC
            return lambda waves: ~np.any(waves.lanes(mask), axis=1, keepdims=True)
        value = constant(operand.text, kind)
        return lambda waves: value
    if operand.file == "off":
        raise LadderError(f"{operand.text!r} is no value")
    if operand.first == NULL and operand.file == "s":
        zero = np.zeros((1, 1), bool if kind == "mask" else TYPES[kind])
        return lambda waves: zero
    if kind == "mask":
        return lambda waves: waves.lanes(n)
    dtype = TYPES[kind]
    if dtype.itemsize == 4:
        return _word(operand.file, n, kind)
    low = _word(operand.file, n, "u32")
    if dtype.itemsize == 8:
        high = _word(operand.file, n + 1, "u32")
        return lambda waves: ((high(waves).astype(np.uint64) << 32) | low(waves)).view(dtype)
    shift = 16 if operand.half == "h" else 0
    return lambda waves: (low(waves) >> shift).astype(np.uint16).view(dtype)


def _word(file: str, n: int, kind: str) -> Read:
    """Register n as numbers of 32 bits."""
    view = file + {"u32": "", "i32": "i", "f32": "f"}[kind]
    return lambda waves: getattr(waves, view)[n]


def writer(operand: Operand, kind: str) -> Write:
    """Writes an operand: a vector register in the active lanes, a scalar one in all waves."""
    n = operand.first
    if operand.file == "s":
        return _scalar_writer(n, kind)
    if operand.file != "v":
        raise LadderError(f"nothing can be written to {operand.text!r}")
    size = TYPES[kind].itemsize
    if size == 8:

        def write_pair(waves: Waves, value: np.ndarray) -> None:
            bits = value.view(np.uint64)
            put(waves, n, bits.astype(np.uint32))
            put(waves, n + 1, (bits >> 32).astype(np.uint32))

        return write_pair
    if size == 4:
        return lambda waves, value: put(waves, n, value.view(np.uint32))

    def write_half(waves: Waves, value: np.ndarray) -> None:
        bits = value.view(np.uint16).astype(np.uint32)
        if operand.half == "h":
            put(waves, n, (waves.v[n] & 0xFFFF) | (bits << 16))
        elif operand.half == "l":
            put(waves, n, (waves.v[n] & 0xFFFF0000) | bits)
        else:
            put(waves, n, bits)

    return write_half


def put(waves: Waves, register: int, bits: np.ndarray) -> None:
    """Write uint32 to a vector register, in the active lanes."""
    if waves.full:
        waves.v[register] = bits
    else:
        np.copyto(waves.v[register], bits, where=waves.active)


def _scalar_writer(n: int, kind: str) -> Write:
    if n == NULL:
        return lambda waves, value: None
    if kind == "mask":

        def write_mask(waves: Waves, value: np.ndarray) -> None:
            waves.set_lanes(n, value & waves.active)
            if n == EXEC:
                waves.refresh()

        return write_mask
    pair = TYPES[kind].itemsize == 8

    def write(waves: Waves, value: np.ndarray) -> None:
        if pair:
            bits = value.view(np.uint64)
            waves.s[n] = bits.astype(np.uint32)
            waves.s[n + 1] = (bits >> 32).astype(np.uint32)
        else:
            waves.s[n] = value.view(np.uint32)
        if n >= EXEC:
            waves.refresh()

    return write
