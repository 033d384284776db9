"""What an instruction computes: types of its results and operands, and a function of NumPy arrays.

    "v_lshl_add_u32": computes("u32 = u32 u32 u32", lambda a, b, c: (a << (b & 31)) + c)

Its operands and modifiers are in an Instruction. Names are those of RDNA 3 (gfx11). `_OTHER_NAMES`
has what the same instruction is called on other generations, by the documents at
https://gpuopen.com/machine-readable-isa/ and LLVM's tables
(https://llvm.org/docs/AMDGPU/AMDGPUAsmGFX942.html and its siblings).
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ladder.core.amd.isa.operands import Operand
from ladder.core.amd.isa.program import Line


class Instruction(NamedTuple):
    """An instruction of a kernel, its text taken apart.

    place  how many instructions of the kernel are before it
    """

    opcode: str
    operands: Sequence[Operand]
    modifiers: Sequence[str]
    line: Line
    place: int
    arch: str

    @property
    def name(self) -> str:
        """The opcode as RDNA 3 has it, without its encoding: v_add_nc_u32 for v_add_u32_e32."""
        name = self.opcode
        for pattern, replacement in _OTHER_NAMES:
            name = re.sub(pattern, replacement, name)
        return name

    @property
    def wide(self) -> bool:
        """Whether waves have 64 lanes."""
        return self.arch.startswith("gfx9")


class Meaning(NamedTuple):
    """results and sources: types as operands.TYPES has them, "mask" and "scc"."""

    results: tuple[str, ...]
    sources: tuple[str, ...]
    function: Callable[..., Any]


def computes(signature: str, function: Callable[..., Any]) -> Meaning:
    """A Meaning; in the signature, the results stand before "="."""
    results, _, sources = signature.partition("=")
    return Meaning(tuple(results.split()), tuple(sources.split()), function)


def alike(names: str, sources: int, function: Callable[..., Any]) -> dict[str, Meaning]:
    """Meanings by name of instructions that compute the same, each with so many sources and a
    result of the type that its name ends in; bits, as in b32, are u32."""
    table = {}
    for name in names.split():
        kind = name.rpartition("_")[2].replace("b", "u")
        table[name] = computes(" ".join([kind, "=", *[kind] * sources]), function)
    return table


_OTHER_NAMES = (
    (r"_(e32|e64|dpp|sdwa|e64_dpp)$", ""),  # encodings
    # CDNA (gfx9)
    (r"^v_(add|sub|subrev)_(u16|u32)$", r"v_\1_nc_\2"),
    (r"^v_addc_co_", "v_add_co_ci_"),
    (r"^v_subb(rev)?_co_", r"v_sub\1_co_ci_"),
    (r"^s_(and|or)n2_", r"s_\1_not1_"),
    (r"^s_ff1_", "s_ctz_"),
    # RDNA 4 (gfx12)
    (r"(max3?|min3?|med3)_num_", r"\1_"),
    (r"^s_add_co_ci_", "s_addc_"),
    (r"^s_sub_co_ci_", "s_subb_"),
    (r"^(v_mad|s_addk?|s_sub)_co_", r"\1_"),
)
