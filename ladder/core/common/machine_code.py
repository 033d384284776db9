"""What the machine code of any GPU tells: its instructions below the source lines that they come
from, their counts, and how many blocks of a kernel an SM or a compute unit holds at once."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.text import Text


@dataclass(frozen=True)
class Instruction:
    """One machine instruction of a kernel; each vendor has a subclass.

    text  as the disassembler writes it
    line  of the rung's file, that it was compiled from; None for what belongs to none
    """

    kernel: str
    text: str
    line: int | None

    @property
    def kind(self) -> str:
        """Its opcode without what says little."""
        raise NotImplementedError

    @property
    def purpose(self) -> tuple[str, str]:
        """What it does, in words, and its style on a terminal: ("shared memory", "yellow")."""
        raise NotImplementedError

    @property
    def group(self) -> str:
        return self.purpose[0]


def summary(
    instructions: Iterable[Instruction], groups: Iterable[tuple[str, str, str]]
) -> dict[str, dict[str, int]]:
    """How many of each kind the code holds, group by group: {"special functions": {"MUFU.RSQ": 1}}.

    groups  GROUPS of the vendor, for their order; what is in none of them comes last

    Instructions in the text, not executions: a loop's body counts once, an unrolled one often.
    """
    counts = Counter((i.group, i.kind) for i in instructions)
    numbers: dict[str, dict[str, int]] = {}
    for what in dict.fromkeys([*(what for what, *_ in groups), *(group for group, _ in counts)]):
        if kinds := {kind: n for (group, kind), n in counts.most_common() if group == what}:
            numbers[what] = kinds
    return numbers


def listing(instructions: Iterable[Instruction], source: str) -> Text:
    """The instructions below the source lines that they come from, coloured by group."""
    code = source.splitlines()
    text = Text()
    kernel = None
    for (name, line), same in itertools.groupby(instructions, lambda i: (i.kernel, i.line)):
        if name != kernel:
            text.append(f"{name}\n", "bold underline")
            kernel = name
        if line is not None and line <= len(code):
            text.append(f"{line:4}  {code[line - 1].strip()}\n", "dim")
        for instruction in same:
            text.append(f"          {instruction.text}\n", instruction.purpose[1])
    return text


@dataclass(frozen=True)
class Occupancy:
    """What follows for a kernel from what it takes and what there is room for.

    limits           how many blocks each resource has room for; the scarcest one decides
    warps_per_block  AMD calls a warp a wave
    most_warps       that there is room for
    place, warp      the words for them: "an SM", "warps"; "a CU", "waves"
    """

    limits: Mapping[str, int]
    warps_per_block: int
    most_warps: int
    place: str = "an SM"
    warp: str = "warps"

    @property
    def blocks(self) -> int:
        return min(self.limits.values())

    @property
    def warps(self) -> int:
        return self.blocks * self.warps_per_block

    @property
    def share(self) -> float:
        """The warps as a part of the most that there is room for."""
        return self.warps / self.most_warps

    @property
    def limited_by(self) -> str:
        """The scarcest resources: "registers", or "warps and registers"."""
        return " and ".join(name for name, most in self.limits.items() if most == self.blocks)

    def __str__(self) -> str:
        if self.blocks == 0:
            limits = self.limited_by
            return f"cannot be launched: one block takes more {limits} than {self.place} has"
        blocks = "1 block" if self.blocks == 1 else f"{self.blocks} blocks"
        warps = f"{self.warps} of {self.most_warps} {self.warp} ({self.share:.0%})"
        return f"{blocks} on {self.place}, {warps}, limited by {self.limited_by}"
