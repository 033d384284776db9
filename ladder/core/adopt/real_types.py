"""Which real types a kernel of somebody else serves, by the types of its parameters."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ladder.core.adopt.cpp import WORD
from ladder.core.adopt.declarations import Declaration, Parameter, SourceFile
from ladder.core.common.errors import LadderError
from ladder.core.contract.op import REAL, Arg

KINDS = {  # by their names in C++, as the build's macros REAL_... have them
    "float": "FLOAT32",
    "__nv_bfloat16": "BFLOAT16",
    "nv_bfloat16": "BFLOAT16",
    "__half": "FLOAT16",
    "half": "FLOAT16",
}
_MACRO = re.compile(r"#\s*(?:ifdef|if|elif)\b[^!]*?(\w+)\)?\s*$")  # that a branch asks for
_CASTS = re.compile(r"^(\([^()]*\))+")


@dataclass(frozen=True)
class RealNames:
    """A file's own names for a type that is float, half or bfloat16, as macros say.

    macros  {"BFLOAT16": the macro}; "" for the type without one, that of the `#else`
    """

    names: tuple[str, ...]
    macros: Mapping[str, str]


def real_names(file: SourceFile) -> RealNames:
    """Such names of a file; none in most."""
    variants: dict[str, dict[str, str]] = {}
    for one in file.declarations:
        kinds = [KINDS[word] for word in WORD.findall(one.text) if word in KINDS]
        if one.kind == "type" and one.branches and kinds:
            macro = _MACRO.search(one.branches[-1])
            variants.setdefault(one.name, {})[kinds[0]] = macro[1] if macro else ""
    names = tuple(name for name, kinds in variants.items() if len(kinds) > 1 and "FLOAT32" in kinds)
    return RealNames(names, {kind: macro for n in names for kind, macro in variants[n].items()})


def plain(argument: str) -> str:
    """An argument of a launch without its casts."""
    return _CASTS.sub("", argument)


def is_template_parameter(kernel: Declaration, kind: str) -> bool:
    """Whether a type is a template parameter of the kernel."""
    head = kernel.head.partition("__global__")[0]
    return bool(kind and re.search(rf"\b(?:typename|class)\s+{re.escape(kind)}\b", head))


def pairs(
    kernel: Declaration, arguments: Sequence[str], buffers: Mapping[str, Arg]
) -> Iterator[tuple[Parameter, Arg]]:
    """The kernel's pointers with the op's buffers that they are given."""
    for one, argument in zip(kernel.parameters, arguments, strict=False):
        if one.pointer and (arg := buffers.get(plain(argument))):
            yield one, arg


def refuse_wrong_types(
    kernel: Declaration,
    arguments: Sequence[str],
    buffers: Mapping[str, Arg],
    real: RealNames,
    written: set[str],
) -> None:
    """Raise LadderError for a pointer that cannot be to what it is given. `written`: the outputs
    that an earlier kernel has written; this one's are added."""
    least = sum(not one.optional for one in kernel.parameters)
    if not least <= len(arguments) <= len(kernel.parameters):
        raise LadderError(
            f"{kernel.name} takes {len(kernel.parameters)} arguments, not {len(arguments)}"
        )
    for one, arg in pairs(kernel, arguments, buffers):
        remedy = f"name another argument by --arg {one.name}=OURS"
        whole = arg.dtype in ("int32", "uint32")
        if one.kind in (("float", "double", *real.names) if whole else ("double", "int")):
            raise LadderError(
                f"{one.name} of {kernel.name} points to {one.kind}, and {arg.name} holds "
                f"{arg.dtype}: {remedy}"
            )
        if not one.const:
            written.add(arg.name)
        elif arg.role == "out" and arg.name not in written:
            raise LadderError(
                f"{kernel.name} only reads {one.name} (const), and {arg.name} is an output: "
                f"{remedy}"
            )


def float32_only(
    kernel: Declaration,
    arguments: Sequence[str],
    buffers: Mapping[str, Arg],
    real: RealNames,
) -> str:
    """Why it serves float32 only; "" if it serves the narrower types too."""
    if not real.names:
        return "its types are float"
    for one, argument in zip(kernel.parameters, arguments, strict=False):
        if one.pointer and not re.fullmatch(r"\w+", plain(argument)):
            return f"{one.name} is given an expression"
    of_parameter: dict[str, str] = {}
    for one, arg in pairs(kernel, arguments, buffers):
        if arg.dtype in ("int32", "uint32"):
            continue
        if is_template_parameter(kernel, one.kind):
            if of_parameter.setdefault(one.kind, arg.dtype) != arg.dtype:
                return f"its type {one.kind} would be both real and float32"
        elif (one.kind in real.names) != (arg.dtype == REAL):
            return f"{one.name} is {one.kind}"
    return ""
