"""What an instruction computes: types of its results and operands, and a function of NumPy arrays.

    "v_lshl_add_u32": computes("u32 = u32 u32 u32", lambda a, b, c: (a << (b & 31)) + c)

Its operands and modifiers are in an Instruction. Names are those of RDNA 3 (gfx11). `_OTHER_NAMES`
has what the same instruction is called on other generations, by the documents at
https://gpuopen.com/machine-readable-isa/ and LLVM's tables
(https://llvm.org/docs/AMDGPU/AMDGPUAsmGFX942.html and its siblings).
"""

import re
from collections.abc import Callable, Mapping, Sequence
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
        """The opcode as RDNA 3 has it, without its encoding."""
        return known_name(self.opcode)

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


_OTHER_NAMES: Mapping[str, str] = {
    # CDNA (gfx9)
    "v_add_u32": "v_add_nc_u32",
    "v_sub_u32": "v_sub_nc_u32",
    "v_subrev_u32": "v_subrev_nc_u32",
    "v_add_u16": "v_add_nc_u16",
    "v_sub_u16": "v_sub_nc_u16",
    "v_addc_co_u32": "v_add_co_ci_u32",
    "v_subb_co_u32": "v_sub_co_ci_u32",
    "v_subbrev_co_u32": "v_subrev_co_ci_u32",
    "s_ff1_i32_b32": "s_ctz_i32_b32",
    "s_ff1_i32_b64": "s_ctz_i32_b64",
    # RDNA 4 (gfx12)
    "v_mad_co_u64_u32": "v_mad_u64_u32",
    "v_mad_co_i64_i32": "v_mad_i64_i32",
    "s_add_co_i32": "s_add_i32",
    "s_sub_co_i32": "s_sub_i32",
    "s_add_co_u32": "s_add_u32",
    "s_sub_co_u32": "s_sub_u32",
    "s_add_co_ci_u32": "s_addc_u32",
    "s_sub_co_ci_u32": "s_subb_u32",
    "s_addk_co_i32": "s_addk_i32",
}
_PATTERNS = (
    (r"_(e32|e64|dpp|sdwa|e64_dpp)$", ""),  # encodings
    (r"^s_andn2_", "s_and_not1_"),
    (r"^s_orn2_", "s_or_not1_"),
    (r"(max3?|min3?|med3)_num_", r"\1_"),
)


def known_name(opcode: str) -> str:
    """The name under which an instruction is found here: v_add_nc_u32 for v_add_u32_e32."""
    for pattern, replacement in _PATTERNS:
        opcode = re.sub(pattern, replacement, opcode)
    return _OTHER_NAMES.get(opcode, opcode)
