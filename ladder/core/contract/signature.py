"""Which arguments of the contract a kernel takes: those that its parameters name, in any order.

Nothing in CUDA checks a call: a kernel that is passed another list reads its arguments from the
wrong places. So the parameters are read from the source, where `Args` of the header may rename
them, and compared with the contract before the first launch.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.device_code import included
from ladder.core.contract.launch_plan import FLAG
from ladder.core.contract.op import Op
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target


class Parameter(NamedTuple):
    """A parameter of a kernel, or an argument of a contract; `kind` is its type without `*`."""

    kind: str
    name: str
    pointer: bool

    @property
    def unnamed(self) -> bool:
        """What was read as its name is its type."""
        return not self.kind or self.name in _WHOLE

    def __str__(self) -> str:
        if self.kind.endswith("Tensor"):  # of host code
            return f"torch::Tensor {self.name}"
        if self.unnamed:
            return f"{self.kind} {self.name}{'*' * self.pointer}".strip()
        return f"{self.kind}{'*' * self.pointer} {self.name}"


_SIGNED: Mapping[str, type[np.integer]] = {
    **dict.fromkeys(("int", "int32_t", "signed", "signed int"), np.int32),
    **dict.fromkeys(("long", "long long", "int64_t", "ptrdiff_t"), np.int64),
}
_UNSIGNED: Mapping[str, type[np.integer]] = {
    **dict.fromkeys(("unsigned", "unsigned int", "uint32_t", "uint"), np.uint32),
    **dict.fromkeys(("unsigned long", "unsigned long long", "uint64_t", "size_t"), np.uint64),
}
_WHOLE = {**_SIGNED, **_UNSIGNED}
_VALUES = {  # how a kernel may spell the type of what it takes by value
    "int32": set(_WHOLE),  # a dimension, which is not negative
    "uint32": set(_UNSIGNED),
    "float32": {"float"},
    "TensorMap": {"TensorMap"},
    "Peers real": {"Peers real"},
    "Peers float32": {"Peers float"},
    "Peers uint32": {"Peers unsigned"},
}

_C_TYPES = {
    **{"int8": "signed char", "uint8": "unsigned char", "int32": "int", "uint32": "unsigned"},
    **{"int64": "long long", "float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"},
}
_QUALIFIERS = ("const", "volatile", "__restrict__", "__restrict", "__grid_constant__")
_HALF = Target("emulated", 32, 1, 0, np.dtype(np.float16))


def expected(op: Op, rung: Rung) -> list[Parameter]:
    """What the kernels of a rung may take; `kind` is a dtype."""
    prefix, pointer = ("Peers ", False) if op.ranks else ("", True)
    return [
        *(Parameter(prefix + arg.dtype, arg.name, pointer) for arg in op.args),
        *(Parameter("int32", name, False) for name in op.dims),
        *(Parameter("int32", "first_rank", False) for _ in op.ranks[:1]),
        *(Parameter(scalar.dtype, scalar.name, False) for scalar in op.scalars),
        *(
            Parameter(prefix + ("uint32" if line.dtype == FLAG else line.dtype), line.name, pointer)
            for line in rung.lines.scratch
        ),
        *(Parameter("TensorMap", f"{line.name}_tiles", False) for line in rung.lines.tiles),
    ]


@functools.lru_cache(maxsize=256)  # a check binds one kernel a hundred times
def parameters(source: str, kernel: str) -> Sequence[Parameter] | None:
    """The parameters of a function; None where its definition is not recognised."""
    code = re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", " ", source, flags=re.DOTALL)
    definition = re.search(rf"\b{kernel}\s*\(([^()]*)\)\s*\{{", code)
    if definition is None:
        return None
    result = []
    for text in filter(None, (part.strip() for part in definition[1].split(","))):
        declared, _, _ = text.partition("=")  # host code may have a default
        words = [word for word in re.findall(r"\w+", declared) if word not in _QUALIFIERS]
        if not words:  # no parameter: the compiler says what it is
            return None
        pointer = re.search(r"\*|\[\s*\]|\bTensor\b", text) is not None
        result.append(Parameter(" ".join(words[:-1]), words[-1], pointer))
    return [] if result == [Parameter("", "void", False)] else result


def arguments(rung: Rung, kernel: str) -> list[Parameter]:
    """What a kernel takes, in its order, by the names of the contract. Raises LadderError where its
    definition is not recognised."""
    ours, taken = rung.lines.args, _defined(rung, kernel)
    if taken is None:
        raise LadderError(
            f"{rung.path}: the parameters of {kernel} are not recognised; write them "
            'as plain types and names: extern "C" __global__ void name(float* out, int N) {'
        )
    return [each._replace(name=ours.get(each.name, each.name)) for each in taken]


def _defined(rung: Rung, kernel: str) -> Sequence[Parameter] | None:
    """The parameters of a kernel by its definition in the rung's file, or in one that it includes;
    None where neither is recognised."""
    if (taken := parameters(rung.source, kernel)) is not None:
        return taken
    headers = included(rung.source, rung.file.parent).values()
    lists = (parameters(header.decode("utf-8", "replace"), kernel) for header in headers)
    return next((taken for taken in lists if taken is not None), None)


def passed(taken: Sequence[Parameter], values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a kernel that takes these `arguments` is launched with. `values`: all of the contract,
    by name."""
    result = []
    for kind, name, _ in taken:
        value = values[name]
        if isinstance(value, np.integer) and kind in _WHOLE:
            value = _WHOLE[kind](value)  # a size_t has 8 bytes
        result.append(value)
    return tuple(result)


def with_c_linkage(rung: Rung) -> str:
    """A rung's source, with `extern "C"` where a kernel that it launches lacks it: in machine code
    the kernel then has the name that the launch gives it. Lines keep their numbers."""
    source = rung.source
    for kernel in {line.kernel for line in rung.lines.launches}:
        source = re.sub(
            rf'(\bextern\s+"C"\s+)?(\bstatic\s+)?__global__\b(?=[^;{{}}]*?\b{kernel}\s*\()',
            lambda match: match[0] if match[1] else 'extern "C" __global__',
            source,
        )
    return source


def mismatch(op: Op, rung: Rung) -> str | None:
    """What of the kernels' parameters does not fit the contract, and the remedy; or None."""
    return next(_mismatches(op, rung), None)


def format_expected(op: Op, rung: Rung) -> str:
    """The arguments as they would stand in the file: "real* out, float* mean, int N"."""
    return ", ".join(_declared(op, each) for each in expected(op, rung))


def _mismatches(op: Op, rung: Rung) -> Iterator[str]:
    renamed = rung.lines.args
    wanted = {each.name: each for each in expected(op, rung)}
    for theirs, ours in renamed.items():
        if ours not in wanted:
            has = format_expected(op, rung)
            yield f"Args says {theirs} = {ours}, and {op.name} has no {ours}; it has ({has})"
    lists = {line.kernel: _defined(rung, line.kernel) for line in rung.lines.launches}
    for kernel, taken in lists.items():
        yield from _mismatches_of(kernel, taken or [], op, rung, wanted)
    if None in lists.values():
        return  # the compiler says what is wrong with the definition
    names = {each.name for taken in lists.values() for each in taken or ()}
    for theirs, ours in renamed.items():
        if theirs not in names:
            yield f"Args says {theirs} = {ours}, and {' and '.join(lists)} takes no {theirs}"
    names = {renamed.get(name, name) for name in names}
    written = [a.name for a in op.args if a.role != "in" and not (a.optional or rung.host)]
    must = {name: {name, f"{name}_tiles"} for name in written}
    must |= {line.name: {line.name, f"{line.name}_tiles"} for line in rung.lines.scratch}
    must |= {f"{line.name}_tiles": {f"{line.name}_tiles"} for line in rung.lines.tiles}
    for name, either in must.items():
        if not names & either:
            yield (
                f"{' and '.join(lists)} takes no {name}; add '{_declared(op, wanted[name])}', or "
                f"say which parameter it is in the header, '// Args: ... = {name}'"
            )


def _mismatches_of(
    kernel: str,
    taken: Sequence[Parameter],
    op: Op,
    rung: Rung,
    wanted: Mapping[str, Parameter],
) -> Iterator[str]:
    seen: dict[str, Parameter] = {}
    for each in taken:
        name = rung.lines.args.get(each.name, each.name)
        if each.unnamed:
            yield (
                f"{kernel} takes '{each}' without a name, and kernels get the arguments that they "
                "name; name it, or leave it out"
            )
            continue
        if name not in wanted:
            adopts = ", or let 'python -m ladder adopt' write a kernel that calls it"
            yield (
                f"{kernel} takes '{each}', and {op.name} has no {name}; say in "
                f"{'a comment' if rung.host else 'the header'} which of its arguments that is, "
                f"'// Args: {name} = ...'{'' if rung.host else adopts}; "
                f"{op.name} has ({format_expected(op, rung)})"
            )
            continue
        remedy = f"declare it as '{_declared(op, wanted[name], each.name)}'"
        if name in seen:
            yield f"{kernel} takes {name} twice, as '{seen[name]}' and '{each}'; leave one out"
        elif not _fits(each, wanted[name]) and not (rung.host and each.kind == "double"):
            yield f"{kernel} takes '{each}'; {remedy}"
        elif each.kind == "float" and wanted[name].kind == "real" and rung.claims(_HALF):
            yield (
                f"{kernel} takes '{each}', which is right in float32 only; say so in the header, "
                f"'// Needs: real == float32', or {remedy}"
            )
        seen[name] = each


def _declared(op: Op, argument: Parameter, called: str | None = None) -> str:
    """An argument of the contract as a kernel declares it that has this name for it."""
    dtype, name, pointer = argument
    _, peers, element = dtype.rpartition("Peers ")
    kind = _C_TYPES.get(element, element)
    if peers:
        kind = f"Peers<{kind}>"
    read_only = pointer and name in {arg.name for arg in op.args if arg.role == "in"}
    prefix = "const __grid_constant__ " if dtype == "TensorMap" else "const " * read_only
    return f"{prefix}{Parameter(kind, called or name, pointer)}"


def _fits(has: Parameter, want: Parameter) -> bool:
    """Pointers may be to any type (float4, void), but `real` and float32 are not the same."""
    if has.pointer != want.pointer:
        return False
    if want.pointer:
        return has.kind != "real" or want.kind == "real"
    return has.kind in _VALUES[want.kind]
