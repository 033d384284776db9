"""Kernels as clang's assembly has them: instructions, descriptors, and the layout of arguments.

    program = load(module, rung.file)
    program["gelu_forward"].lines[3].text       "v_mov_b32_e32 v1, 0"

The assembly is what the code object is assembled from, instruction by instruction
(ladder/core/amd/hip/compiler.py keeps both). Reading it needs no decoder; what it cannot show is a
wrong encoding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ladder.core.amd.hip import assembly, compiler
from ladder.core.common.errors import LadderError
from ladder.core.common.files import quote


@dataclass(frozen=True)
class Line:
    """An instruction, and where it comes from."""

    text: str  # "global_load_b32 v5, v[2:3], off offset:16"
    file: str
    number: int | None  # of the source line; None where it belongs to none

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number or '?'}"

    def problem(self, what: str, other: Line | None = None) -> LadderError:
        """The error that this instruction does something that it must not."""
        text = f"{self.place}: {self.text!r} {what}{quote(self.file, self.number or 0)}"
        if other is not None and other.number != self.number:
            text += quote(other.file, other.number or 0)
        return LadderError(text)


class Argument(NamedTuple):
    """Bytes that a kernel finds at an offset of its arguments."""

    offset: int
    size: int
    kind: str  # "global_buffer", "by_value", "hidden_block_count_x", ...


@dataclass
class Code:
    """One kernel.

    labels     name -> index of the instruction that follows
    descriptor the kernel descriptor, by the names of the directives without ".amdhsa_"
    """

    name: str
    lines: list[Line] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    descriptor: dict[str, int] = field(default_factory=dict)
    arguments: list[Argument] = field(default_factory=list)


def load(module: Path, source: Path) -> Mapping[str, Code]:
    """The kernels of a code object that `compile_code_object` made, by name."""
    kernels = {name: Code(name) for name in compiler.resources(module)}
    for item in assembly.listing(module, source):
        code = kernels[item.kernel]
        if isinstance(item, assembly.Label):
            code.labels[item.name] = len(code.lines)
        else:
            code.lines.append(Line(item.text, str(source), item.line))
    text = compiler.assembly(module)
    for name, directives in re.findall(
        r"\.amdhsa_kernel (\w+)\n(.*?)\.end_amdhsa_kernel", text, re.DOTALL
    ):
        pairs = re.findall(r"\.amdhsa_(\w+) (\d+)", directives)
        kernels[name].descriptor = {key: int(value) for key, value in pairs}
    argument = r"\.offset:\s+(\d+)\s+\.size:\s+(\d+)\s+\.value_kind:\s+(\w+)"
    for entry, values in compiler.metadata(module):
        kernels[values["name"]].arguments = [
            Argument(int(offset), int(size), kind)
            for offset, size, kind in re.findall(argument, entry)
        ]
    return kernels
