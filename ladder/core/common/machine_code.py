"""Machine instructions of any GPU below the source lines that they come from, and their counts."""

import itertools
from collections import Counter
from collections.abc import Iterable
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
    instructions: Iterable[Instruction], groups: Iterable[str]
) -> dict[str, dict[str, int]]:
    """How many of each kind the code holds, group by group: {"special functions": {"MUFU.RSQ": 1}}.

    groups  their order

    Instructions in the text, not executions: a loop's body counts once, an unrolled one often.
    """
    counts = Counter((i.group, i.kind) for i in instructions)
    found: dict[str, dict[str, int]] = {}
    for what in groups:
        kinds = {kind: n for (group, kind), n in counts.most_common() if group == what}
        if kinds:
            found[what] = kinds
    return found


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
