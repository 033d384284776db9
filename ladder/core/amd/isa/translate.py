"""From an instruction's text to a step that executes it.

Each kind of instruction has its own function, which returns None for what it does not know. What
none of them knows is an error as soon as the kernel is loaded.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ladder.core.amd.isa import access, lanes, parts
from ladder.core.amd.isa.meaning import Instruction, Meaning
from ladder.core.amd.isa.operands import Operand, Read, Write, parse, registers_of, writer
from ladder.core.amd.isa.program import Code, Line
from ladder.core.amd.isa.scalar import SCALAR
from ladder.core.amd.isa.vector import VECTOR, by_truth_table
from ladder.core.amd.isa.waits import SCALAR_KEY, waits
from ladder.core.amd.isa.waves import EXEC, VCC, Kind, Machine, Ready, Waves
from ladder.core.common.errors import LadderError

# What changes nothing here: hints for speed; caches, of which there are none; and delays for
# hazards of the pipeline, which LLVM's GCNHazardRecognizer inserts and nothing here can check.
_IGNORED = re.compile(
    r"s_(nop|clause|delay_alu|waitcnt_depctr|wait_alu|set_inst_prefetch_distance|sendmsg|inst_prefetch"
    r"|setprio|icache_inv|dcache_inv|barrier_signal|code_end)"
    r"|buffer_(gl0_inv|gl1_inv|inv|wbl2|invl2|wbinvl1_vol)|global_(inv|wb|wbinv)"
)
_CONDITIONS: dict[str, Callable[[Waves], np.ndarray]] = {
    "s_branch": lambda waves: np.ones(len(waves), bool),
    "s_cbranch_scc0": lambda waves: ~waves.scc[:, 0],
    "s_cbranch_scc1": lambda waves: waves.scc[:, 0],
    "s_cbranch_vccz": lambda waves: ~np.any(waves.lanes(VCC), axis=1),
    "s_cbranch_vccnz": lambda waves: np.any(waves.lanes(VCC), axis=1),
    "s_cbranch_execz": lambda waves: ~np.any(waves.active, axis=1),
    "s_cbranch_execnz": lambda waves: np.any(waves.active, axis=1),
}
_TRANSLATORS = (
    access.move,
    access.scalar_load,
    access.atomic,
    lanes.exchange,
    lanes.permute,
    lanes.product,
    parts.packed,
    parts.mixed,
)
_COMMA = re.compile(r",\s*(?![^\[(]*[\])])")  # not within brackets


def steps(code: Code, arch: str) -> list[Ready]:
    """A kernel's instructions, ready to be executed. Raises LadderError for one that is unknown."""
    return [_step(line, index, code, arch) for index, line in enumerate(code.lines)]


def _step(line: Line, index: int, code: Code, arch: str) -> Ready:
    try:
        if (control := _control(line, code, arch)) is not None:
            return control
        instructions = [_parsed(text, line, index, code, arch) for text in line.text.split(" :: ")]
        for translator in _TRANSLATORS if len(instructions) == 1 else ():
            if (step := translator(instructions[0])) is not None:
                return step
        return _computing(instructions)
    except LadderError as error:
        raise LadderError(f"{line.place}: {line.text!r}: {error}") from None


def _parsed(text: str, line: Line, index: int, code: Code, arch: str) -> Instruction:
    opcode, _, rest = text.partition(" ")
    words = _COMMA.split(rest) if rest else []
    modifiers: list[str] = []
    if words:
        words[-1], *modifiers = re.split(r"\s+(?![^\[]*\])", words[-1].strip())
    accumulators = code.descriptor.get("accum_offset", 0)
    operands = [parse(word.strip(), accumulators) for word in words]
    return Instruction(opcode, operands, modifiers, line, index, arch)


def _control(line: Line, code: Code, arch: str) -> Ready | None:
    """The step of a branch, a barrier, a wait, the end; None for another instruction."""
    opcode, _, rest = line.text.partition(" ")
    nothing: frozenset[int] = frozenset()

    def ignore(waves: Waves, machine: Machine) -> None:
        pass

    if opcode in _CONDITIONS:
        condition = _CONDITIONS[opcode]
        touches = {"v": [VCC, VCC + 1], "e": [EXEC, EXEC + 1]}.get(opcode[10:11], [])
        keys = frozenset(SCALAR_KEY + register for register in touches)
        return Ready(
            lambda waves, machine: condition(waves), keys, line, Kind.BRANCH, code.labels[rest]
        )
    if opcode.startswith("s_wait") and not _IGNORED.fullmatch(opcode):
        asked = waits(line.text, arch)

        def wait(waves: Waves, machine: Machine) -> None:
            for queues, number in asked:
                waves.outstanding.wait(queues, number)

        return Ready(wait, nothing, line)
    if opcode == "s_endpgm":
        return Ready(ignore, nothing, line, Kind.END)
    if opcode in ("s_barrier", "s_barrier_wait"):
        return Ready(ignore, nothing, line, Kind.BARRIER)
    if opcode == "s_sleep":
        return Ready(ignore, nothing, line, Kind.SLEEP)
    return Ready(ignore, nothing, line) if _IGNORED.fullmatch(opcode) else None


class _Operation:
    """An arithmetic instruction in two halves: reading and computing, then writing."""

    def __init__(self, instruction: Instruction):
        wide = instruction.wide
        selection = parts.Selection(instruction.modifiers)
        self.meaning, operands = _meaning(instruction)
        self.reads: list[Read] = []
        self.writes: list[Write] = []
        keys: set[int] = set()
        left = list(operands)
        for kind in self.meaning.results:
            if kind == "scc":
                self.writes.append(_write_scc)
            elif kind.startswith("exec"):
                self.writes.append(writer(_pair_of(EXEC, wide), f"u{kind[4:]}"))
            else:
                operand = left.pop(0)
                self.writes.append(selection.writer(operand, kind))
                keys.update(operand.registers(registers_of(kind, wide)))
        for place, kind in enumerate(self.meaning.sources):
            if kind == "scc":
                self.reads.append(lambda waves: waves.scc)
                continue
            if kind == "vcc":
                operand, kind = _pair_of(VCC, wide), "mask"
            elif kind.startswith("exec"):
                operand, kind = _pair_of(EXEC, wide), f"u{kind[4:]}"
            else:
                operand = left.pop(0)
            self.reads.append(selection.reader(operand, kind, place))
            keys.update(operand.registers(registers_of(kind, wide)))
        if left:
            raise LadderError(f"has {len(left)} operands too many")
        self.keys = frozenset(keys)

    def compute(self, waves: Waves) -> Any:
        return self.meaning.function(*[read(waves) for read in self.reads])

    def write(self, waves: Waves, value: Any) -> None:
        if len(self.writes) == 1:
            self.writes[0](waves, value)
        else:
            for write, part in zip(self.writes, value, strict=True):
                write(waves, part)


def _write_scc(waves: Waves, value: np.ndarray) -> None:
    waves.scc = value if len(value) == len(waves) else np.broadcast_to(value, (len(waves), 1))


def _pair_of(register: int, wide: bool) -> Operand:
    return Operand("", "s", register, 2 if wide else 1)


def _meaning(instruction: Instruction) -> tuple[Meaning, list[Operand]]:
    """What an instruction computes, and its operands with those that are not written out."""
    name, operands, wide = instruction.name, list(instruction.operands), instruction.wide
    meaning = SCALAR.get(name) or VECTOR.get(name)
    if meaning is None:  # RDNA 4 computes in float32 on scalars, too: s_ceil_f32, v_s_exp_f32
        meaning = VECTOR.get(re.sub(r"^(s|v_s)_(?=\w*f32)", "v_", name))
    if name.startswith("v_bitop3_b"):
        table = parts.named(instruction.modifiers).get("bitop3", "0")
        meaning = by_truth_table(int(table, 0), int(name.removeprefix("v_bitop3_b")))
    if meaning is None and name.startswith("v_cmpx_"):  # the result goes to EXEC
        meaning = VECTOR.get(name.replace("v_cmpx_", "v_cmp_"))
        operands = [_pair_of(EXEC, wide), *operands]
    if meaning is None and name.startswith("v_dual_"):
        meaning = VECTOR.get(name.replace("v_dual_", "v_"))
        if name == "v_dual_cndmask_b32":
            operands = [*operands, _pair_of(VCC, wide)]
    if meaning is None:
        raise LadderError("this instruction is not interpreted")
    if re.match(r"[vs]_(dual_)?(fmac|dot2acc|dot2c)_|s_bitset", name):  # it changes its result
        operands = [*operands, operands[0]]
    if re.match(r"s_(add|mul)k_", name):
        operands = [operands[0], *operands]
    if re.match(r"s_(movk|addk|mulk|cmpk_\w+)_i32$", name):  # 16 bits with a sign
        number = int(operands[-1].text, 0) & 0xFFFF
        signed = number - 0x10000 if number & 0x8000 else number
        operands = [*operands[:-1], Operand(str(signed), "constant", number=0)]
    return meaning, operands


def _computing(instructions: Sequence[Instruction]) -> Ready:
    """Of one, or of a pair of RDNA's, v_dual_...: both read their operands before either writes."""
    operations = [_Operation(instruction) for instruction in instructions]

    def run(waves: Waves, machine: Machine) -> None:
        values = [operation.compute(waves) for operation in operations]
        for operation, value in zip(operations, values, strict=True):
            operation.write(waves, value)

    keys = frozenset().union(*(operation.keys for operation in operations))
    return Ready(run, keys, instructions[0].line)
