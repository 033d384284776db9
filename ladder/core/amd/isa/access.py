"""Loads, stores and atomics: of global and flat addresses, scratch memory, LDS, and scalar loads.

    global_load_b128 v[2:5], v[0:1], off offset:16      address: 64 bits of registers
    global_store_b32 v3, v7, s[4:5]                     address: v3 (32 bits) + s[4:5]
    scratch_load_b64 v[0:1], off, s2 offset:8           address within the lane's own bytes
    buffer_load_dword v0, v1, s[0:3], 0 offen           the same on CDNA 2 and RDNA 2
    ds_load_2addr_b32 v[4:5], v9 offset0:2 offset1:3    two places of LDS, in units of 4 bytes
    s_load_b64 s[2:3], s[0:1], 0x30
    global_atomic_add_f32 v1, v2, s[4:5]                adds v2; nothing comes back
    global_atomic_cmpswap_b32 v4, v1, v[2:3], s[4:5] glc    the old value comes back in v4
    ds_add_u32 v0, v1

Each of them is counted in a queue (waits.py), and the registers that it writes are marked there.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ladder.core.amd.isa.meaning import Instruction
from ladder.core.amd.isa.memory import Part, Request
from ladder.core.amd.isa.operands import APERTURES, Operand, Read, reader, touched
from ladder.core.amd.isa.program import Line
from ladder.core.amd.isa.waits import FLAT_LDS, FLAT_MEMORY, LDS, LOADS, SCALAR, STORES, Queue
from ladder.core.amd.isa.waves import Machine, Ready, Waves
from ladder.core.common.errors import LadderError

_SIZES: Mapping[str, int] = {
    **{"u8": 1, "i8": 1, "b8": 1, "ubyte": 1, "sbyte": 1, "byte": 1},
    **{"u16": 2, "i16": 2, "b16": 2, "ushort": 2, "sshort": 2, "short": 2},
    **{"b32": 4, "b64": 8, "b96": 12, "b128": 16, "b256": 32, "b512": 64},
    **{"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "dwordx8": 32, "dwordx16": 64},
}
_SIGNED = ("i8", "i16", "sbyte", "sshort")
_MOVE = re.compile(
    r"(global|flat|scratch|buffer|ds)_(load|store|read|write)(2st64|2|_2addr_stride64|_2addr)?_(\w+)"
)
_ATOMIC = re.compile(r"(global|flat|ds)_(?:atomic_)?(?P<what>[a-z]+)(?:_rtn)?(?:_(?P<type>\w+))?")

# old value, operand -> new value
ATOMICS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
    "swap": lambda old, new: new,
    "wrxchg": lambda old, new: new,
    # The operand is a pair of registers: the new value, and above it the one to compare with.
    "cmpswap": lambda old, pair: np.where(old == pair >> 32, pair, old).astype(np.uint32),
}


@dataclass(frozen=True)
class Address:
    """Where an instruction accesses memory.

    space  "global", "flat", "scratch" or "ds"
    terms  readers of what is added up: registers of each lane, scalar registers
    offset bytes
    """

    space: str
    terms: tuple[Read, ...]
    offset: int = 0

    def parts(self, waves: Waves, machine: Machine, request: Request) -> Iterator[Part]:
        """The places that the active lanes access, in order of the lanes."""
        total: np.ndarray = np.full((1, 1), self.offset % (1 << 64), np.uint64)
        for term in self.terms:
            total = total + term(waves)
        if total.shape != waves.active.shape:
            total = np.broadcast_to(total, waves.active.shape)
        addresses = total.reshape(-1) if waves.full else total[waves.active]
        if self.space == "flat":
            yield from _flat(waves, machine, addresses, request)
        elif self.space == "global":
            yield from machine.memory.parts(addresses, request)
        else:
            yield _own(self.space, waves, machine, addresses, slice(None), request)


def _flat(
    waves: Waves, machine: Machine, addresses: np.ndarray, request: Request
) -> Iterator[Part]:
    """The upper half of a generic address tells LDS and scratch memory from the rest."""
    high = addresses >> 32
    others = np.ones(len(addresses), bool)
    for space, name in (("ds", "src_shared_base"), ("scratch", "src_private_base")):
        inside = high == APERTURES[name]
        if inside.any():
            lanes = np.flatnonzero(inside)
            low = addresses[lanes] & np.uint64(0xFFFFFFFF)
            yield _own(space, waves, machine, low, lanes, request)
        others &= ~inside
    if others.any():
        lanes = np.flatnonzero(others)
        for part in machine.memory.parts(addresses[lanes], request):
            yield part._replace(lanes=lanes[part.lanes])


def _own(
    space: str,
    waves: Waves,
    machine: Machine,
    addresses: np.ndarray,
    lanes: slice | np.ndarray,
    request: Request,
) -> Part:
    """Places in the LDS of the lanes' blocks, or in scratch memory of the lanes."""
    rows = waves.rows[lanes]
    if space == "ds":
        what, content, own = "LDS", machine.lds, waves.blocks[rows]
        size_of, room = machine.lds_size, machine.lds_room
    else:
        columns = np.nonzero(waves.active)[1][lanes]
        own = waves.ids[rows] * waves.active.shape[1] + columns
        what, content = "scratch memory", machine.scratch
        size_of = room = machine.scratch_size
    places = (addresses & np.uint64(0xFFFFFFFF)).view(np.int64)
    outside = places + request.size > size_of
    if outside.any():
        at = f"{places[np.argmax(outside)]:,} of {what}"
        raise request.problem(f"at {at}, of which there are {size_of:,} bytes")
    return Part(content, lanes, places + own * room)


def _extended(values: np.ndarray, size: int, signed: bool) -> np.ndarray:
    """Loads of less than 4 bytes as uint32, with copies of their sign above them."""
    return values.astype(f"i{size}").astype(np.int32).view(np.uint32) if signed else values


@dataclass(frozen=True)
class Piece:
    """What one place of memory and some registers exchange."""

    address: Address
    size: int
    registers: range
    half: str = ""  # "h" or "l": 16 bits that go to this half of the register and leave the other
    signed: bool = False

    def read(self, waves: Waves, machine: Machine, line: Line, index: int) -> np.ndarray:
        """What is at the places of the active lanes, (n, words)."""
        values = np.empty((np.count_nonzero(waves.active), len(self.registers)), np.uint32)
        for part in self.address.parts(waves, machine, Request(line, "reads", self.size)):
            values[part.lanes] = part.content.read(part.places, self.size)
            if part.content is machine.lds:
                note(waves, machine, part, self.size, index)
        return _extended(values, self.size, self.signed)

    def put(self, waves: Waves, values: np.ndarray) -> None:
        """Write it to the registers."""
        for register, column in zip(self.registers, values.T, strict=True):
            if self.half:
                old = waves.v[register][waves.active]
                low, high = (old, column) if self.half == "h" else (column, old >> 16)
                column = low & 0xFFFF | high << 16
            if waves.full:
                waves.v[register] = column.reshape(waves.active.shape)
            else:
                waves.v[register][waves.active] = column

    def store(self, waves: Waves, machine: Machine, line: Line, index: int) -> None:
        columns = [waves.v[register][waves.active] for register in self.registers]
        if self.half == "h":
            columns = [column >> 16 for column in columns]
        values = np.stack(columns, axis=1)
        for part in self.address.parts(waves, machine, Request(line, "writes", self.size)):
            if part.content is machine.lds:
                note(waves, machine, part, self.size, index, written=True)
            part.content.write(part.places, self.size, values[part.lanes])


def note(
    waves: Waves,
    machine: Machine,
    part: Part,
    size: int,
    index: int,
    written: bool = False,
    atomic: bool = False,
) -> None:
    """Tell the search for races of an access to LDS. A write has been issued already."""
    rows = waves.rows[part.lanes]
    where = machine.races.at(part.places, size)
    ids, blocks = waves.ids[rows], waves.blocks[rows]
    if written:
        numbers = waves.outstanding.issued[LDS][rows]
        machine.races.write(where, ids, blocks, numbers, index, atomic)
    else:
        machine.races.read(where, ids, blocks, index)


def offsets_of(modifiers: Sequence[str]) -> dict[str, int]:
    matches = (re.fullmatch(r"(offset[01]?):(-?\w+)", modifier) for modifier in modifiers)
    return {match[1]: int(match[2], 0) for match in matches if match}


def global_address(space: str, operands: Sequence[Operand], offset: int) -> Address:
    """operands: the vector address and, but for flat accesses, the scalar one, or "off"."""
    given = (operand for operand in operands[:2] if operand.file != "off")
    terms = tuple(reader(each, "u64" if each.number == 2 else "u32") for each in given)
    return Address(space, terms, offset)


def queues_of(space: str, loads: bool, arch: str) -> tuple[Queue, ...]:
    """Those that count an access. CDNA counts stores with loads."""
    if space == "ds":
        return (LDS,)
    if loads or arch.startswith("gfx9"):
        return (FLAT_MEMORY, FLAT_LDS) if space == "flat" else (LOADS,)
    return (STORES, FLAT_LDS) if space == "flat" else (STORES,)


def move(instruction: Instruction) -> Ready | None:
    """The step of a load or store; None for other instructions."""
    opcode, operands, modifiers, line, index, arch = instruction
    match = _MOVE.fullmatch(re.sub("_d16(_hi)?", "", opcode))
    if match is None or match[4] not in _SIZES:
        return None
    space, loads, size = match[1], match[2] in ("load", "read"), _SIZES[match[4]]
    if loads:
        data, rest = operands[:1], operands[1:]
    elif space == "ds":
        data, rest = operands[1:], operands[:1]
    else:
        data, rest = operands[1:2], [operands[0], *operands[2:]]
    if space == "buffer":  # scratch memory by a descriptor, whose base is 0 here (kernel.py)
        data, rest = operands[:1], [operands[1], operands[3]]
        space = "scratch"
    offsets = offsets_of(modifiers)
    if space != "ds":
        addresses = [global_address(space, rest, offsets.get("offset", 0))]
    else:
        places = [offsets.get("offset", 0)]
        if match[3]:  # two places, in units of the size or of 64 such
            unit = size * (64 if "st" in match[3] else 1)
            places = [unit * offsets.get(name, 0) for name in ("offset0", "offset1")]
        addresses = [Address("ds", (reader(rest[0], "u32"),), place) for place in places]
    each = max(1, size // 4)
    starts = [operand.first for operand in data]
    if loads and len(addresses) == 2:  # both results in consecutive registers
        starts = [data[0].first, data[0].first + each]
    half = "h" if "d16_hi" in opcode else "l" if "d16" in opcode else data[0].half
    pieces = [
        Piece(address, size, range(start, start + each), half, match[4] in _SIGNED)
        for address, start in zip(addresses, starts, strict=True)
    ]
    written = [register for piece in pieces for register in piece.registers] if loads else []
    queues = queues_of(space, loads, arch)

    def run(waves: Waves, machine: Machine) -> None:
        waves.outstanding.issue(queues, written, line)
        if not waves.active.any():
            return
        if loads:  # all of them before the first result, which may replace the address
            loaded = [piece.read(waves, machine, line, index) for piece in pieces]
            for piece, values in zip(pieces, loaded, strict=True):
                piece.put(waves, values)
        else:
            for piece in pieces:
                piece.store(waves, machine, line, index)

    return Ready(run, touched(rest if loads else operands), line)


def scalar_load(instruction: Instruction) -> Ready | None:
    """The step of a scalar load: of the kernel's arguments, and what is the same for all lanes."""
    opcode, operands, modifiers, line, _, _ = instruction
    match = re.fullmatch(r"s_load_(\w+)", opcode)
    if match is None or match[1] not in _SIZES:
        return None
    target, base, *offsets = operands
    size = _SIZES[match[1]]
    terms = [reader(base, "u64"), *(reader(offset, "u32") for offset in offsets)]
    fixed = np.uint64(offsets_of(modifiers).get("offset", 0) % (1 << 64))

    def run(waves: Waves, machine: Machine) -> None:
        addresses = np.full((len(waves), 1), fixed)
        for term in terms:
            addresses = addresses + term(waves)
        addresses = addresses[:, 0] & ~np.uint64(min(size, 4) - 1)
        waves.outstanding.issue((SCALAR,), target.registers(), line)
        for part in machine.memory.parts(addresses, Request(line, "reads", size)):
            values = _extended(part.content.read(part.places, size), size, match[1] in _SIGNED)
            for register in range(max(1, size // 4)):
                waves.s[target.first + register, part.lanes, 0] = values[:, register]

    return Ready(run, touched(operands[1:]), line)


def atomic(instruction: Instruction) -> Ready | None:
    """The step of an atomic operation; lanes take their turn in order."""
    opcode, operands, modifiers, line, index, arch = instruction
    match = _ATOMIC.fullmatch(opcode)
    if match is None or match["what"] not in ATOMICS:
        return None
    space, what = match[1], match["what"]
    kind = match["type"] or "u32"
    size = 8 if kind.endswith(("64", "x2")) else 4
    dtype = np.dtype({"f": f"f{size}", "i": f"i{size}"}.get(kind[0], f"u{size}"))
    pairs = what == "cmpswap"
    if size != 4 or (pairs and space == "ds"):
        raise LadderError("atomics of this type are not interpreted")
    sources = 2 if space in ("ds", "flat") else 3
    returns = len(operands) > sources
    target, rest = (operands[0], operands[1:]) if returns else (None, operands)
    offset = offsets_of(modifiers).get("offset", 0)
    data, given = reader(rest[1], "u64" if pairs else "u32"), np.uint64 if pairs else dtype
    if space == "ds":
        address = Address("ds", (reader(rest[0], "u32"),), offset)
    else:
        address = global_address(space, [rest[0], *rest[2:]], offset)
    function = ATOMICS[what]
    queues = queues_of(space, returns, arch)
    written = target.registers() if target else range(0)

    def run(waves: Waves, machine: Machine) -> None:
        waves.outstanding.issue(queues, written, line)
        if not waves.active.any():
            return
        values = np.broadcast_to(data(waves), waves.active.shape)[waves.active].view(given)
        before = np.empty(len(values), dtype)
        for part in address.parts(waves, machine, Request(line, "writes", size)):
            if part.content is machine.lds:
                note(waves, machine, part, size, index, written=True, atomic=True)
            if (part.places & 3).any():
                raise line.problem("is atomic, and not at a multiple of 4 bytes")
            words, places = part.content.words.view(dtype), part.places >> 2
            if what == "add" and target is None:
                np.add.at(words, places, values[part.lanes])
            else:
                lanes = np.arange(len(values))[part.lanes]
                for lane, place in zip(lanes, places, strict=True):
                    before[lane] = words[place]
                    words[place] = function(words[place : place + 1], values[lane : lane + 1])[0]
        if target is not None:
            waves.v[target.first][waves.active] = before.view(np.uint32)

    return Ready(run, touched(rest), line)
