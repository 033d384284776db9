"""Does a kernel take the arguments that its contract hands it?

Nothing in CUDA checks this: a kernel that expects another list reads its arguments from the wrong
places. So the parameter list in the source is compared with the contract before the first launch.
"""

from __future__ import annotations

import re

from ladder.core.contract.launch_plan import FLAG
from ladder.core.contract.op import Op
from ladder.core.contract.rung_file import Rung

_VALUES = {
    "int32": {"int", "int32_t", "signed"},
    "uint32": {"unsigned", "unsigned int", "uint32_t", "uint"},
    "float32": {"float"},
    "TensorMap": {"TensorMap"},
    "Peers real": {"Peers real"},
    "Peers float32": {"Peers float"},
    "Peers uint32": {"Peers unsigned"},
}

_QUALIFIERS = ("const", "volatile", "__restrict__", "__grid_constant__")


def expected(op: Op, rung: Rung) -> list[tuple[str, str, bool]]:
    """(dtype, name, is a pointer) of each argument, in order."""
    prefix, pointer = ("Peers ", False) if op.ranks else ("", True)
    return [
        *((prefix + arg.dtype, arg.name, pointer) for arg in op.args),
        *(("int32", name, False) for name in op.dims),
        *(("int32", "first_rank", False) for _ in op.ranks[:1]),
        *((scalar.dtype, scalar.name, False) for scalar in op.scalars),
        *(
            (prefix + ("uint32" if line.dtype == FLAG else line.dtype), line.name, pointer)
            for line in rung.lines.scratch
        ),
        *(("TensorMap", f"{line.name}_tiles", False) for line in rung.lines.tiles),
    ]


def parameters(source: str, kernel: str) -> list[tuple[str, str, bool]] | None:
    """(type, name, is a pointer) of each parameter; None where the definition is not recognised."""
    code = re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", " ", source, flags=re.DOTALL)
    found = re.search(rf"\b{kernel}\s*\(([^()]*)\)\s*\{{", code)
    if found is None:
        return None
    result = []
    for text in filter(None, (part.strip() for part in found.group(1).split(","))):
        words = re.findall(r"\w+", text)
        words = [word for word in words if word not in _QUALIFIERS]
        if not words:  # no parameter: the compiler says what it is
            return None
        result.append((" ".join(words[:-1]), words[-1], "*" in text))
    return result


def mismatch(op: Op, rung: Rung) -> str | None:
    """How the file's kernels differ from the contract, with the list that it should be; or None."""
    wanted = expected(op, rung)
    names = {name for _, name, _ in wanted}
    for kernel in {line.kernel for line in rung.lines.launches}:
        found = parameters(rung.source, kernel)
        if found is None:
            continue
        problem = None
        if len(found) != len(wanted):
            problem = f"takes {len(found)} arguments, not {len(wanted)}"
        for number, (has, want) in enumerate(zip(found, wanted, strict=False), 1):
            if problem is None and not _fits(has, want):
                problem = f"takes {_format(*has)!r} as argument {number}"
            if problem is None and has[1] != want[1] and has[1] in names:
                problem = f"takes {has[1]} as argument {number}, where the op has {want[1]}"
        if problem is not None:
            return f"{kernel} {problem}; its arguments must be ({format_expected(op, rung)})"
    return None


def format_expected(op: Op, rung: Rung) -> str:
    """The parameter list as it would stand in the file: "real* out, float* mean, int N"."""
    names = {"int32": "int", "uint32": "unsigned", "float32": "float"}
    names |= {f"Peers {dtype}": f"Peers<{name}>" for dtype, name in names.items()}
    names["Peers real"] = "Peers<real>"
    read_only = {arg.name for arg in op.args if arg.role == "in"}
    prefixes = {"TensorMap": "const __grid_constant__ "}
    return ", ".join(
        ("const " if name in read_only and pointer else prefixes.get(dtype, ""))
        + _format(names.get(dtype, dtype), name, pointer)
        for dtype, name, pointer in expected(op, rung)
    )


def _fits(has: tuple[str, str, bool], want: tuple[str, str, bool]) -> bool:
    """Pointers may be to any type (float4, void), but `real` and float32 are not the same."""
    if has[2] != want[2]:
        return False
    if want[2]:
        return not (has[0] == "real" and want[0] != "real")
    return has[0] in _VALUES[want[0]]


def _format(dtype: str, name: str, pointer: bool) -> str:
    return f"{dtype}{'*' if pointer else ''} {name}"
