"""Atomic operations in global memory and in LDS: read, compute and write, one lane after the other.

global_atomic_add_f32 v1, v2, s[4:5]                adds v2; nothing comes back
global_atomic_cmpswap_b32 v4, v1, v[2:3], s[4:5] glc    the old value comes back in v4
ds_add_u32 v0, v1
"""

import re
from collections.abc import Callable, Mapping

import numpy as np

from ladder.core.amd.isa import access
from ladder.core.amd.isa.meaning import Instruction
from ladder.core.amd.isa.memory import Request
from ladder.core.amd.isa.operands import reader, touched
from ladder.core.amd.isa.waves import Machine, Step, Waves
from ladder.core.common.errors import LadderError

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


def atomic(instruction: Instruction) -> Step | None:
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
    offset = access.offsets_of(modifiers).get("offset", 0)
    data, given = reader(rest[1], "u64" if pairs else "u32"), np.uint64 if pairs else dtype
    if space == "ds":
        address = access.Address("ds", (reader(rest[0], "u32"),), offset)
    else:
        address = access.global_address(space, [rest[0], *rest[2:]], offset)
    function = ATOMICS[what]
    queues = access.queues_of(space, returns, arch)
    written = target.registers() if target else range(0)

    def run(waves: Waves, machine: Machine) -> None:
        waves.outstanding.issue(queues, written, line)
        if not waves.active.any():
            return
        values = np.broadcast_to(data(waves), waves.active.shape)[waves.active].view(given)
        before = np.empty(len(values), dtype)
        for part in address.parts(waves, machine, Request(line, "writes", size)):
            if part.content is machine.lds:
                access.note(waves, machine, part, size, index, written=True, atomic=True)
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

    return Step(run, touched(rest), line)
