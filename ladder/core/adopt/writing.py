"""Writes the file of an adopted kernel: header, what came along, and the kernels that call it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ladder.core.adopt.declarations import Branch, Declaration
from ladder.core.adopt.real_types import RealNames
from ladder.core.adopt.tokens import names
from ladder.core.contract.op import Op

OURS = {"float32": "float", "int32": "int", "uint32": "unsigned"}
_WARPS = re.compile(
    r"__shfl|__syncwarp|_sync\(|cooperative_groups|\bwarp|WARP|\b32U?\b|0x1f|nvcuda"
)
_ATOMIC = re.compile(r"\batomicAdd\w*\s*\(")
_UNALIGNED = re.compile(r"(?m)^([^/\n]*\b__shared__)\s+(?!__align__|alignas)")
_BOUNDS = re.compile(r"__(?:launch_bounds|cluster_dims)__\s*\((?:[^()]|\([^()]*\))*\)\s*")
_HEADERS = {
    **{"cuda_bf16.h": "bfloat16", "cuda_fp16.h": "half", "mma.h": "wmma"},
    **{"cuda/barrier": r"\bbarrier\b|aligned_size_t", "cuda/pipeline": r"\b(make_)?pipeline"},
    **dict.fromkeys(("cuda_pipeline.h", "cuda_pipeline_primitives.h"), r"\b__pipeline_"),
}
_OF_NVIDIA = re.compile(r"\bcuda::\w|\b__pipeline_")  # what only its GPUs have, from Volta on


@dataclass(frozen=True)
class Wrapper:
    """A kernel with the op's arguments: its name, its body, and the launch line that calls it."""

    name: str
    body: str
    launch: str
    bounds: str = ""


@dataclass(frozen=True)
class Contents:
    """What the file holds.

    title     who the kernel is, and of which file
    needs     conditions, beside those that follow from the code
    scratch   {name: entry of a Scratch line}
    kept      the declarations that come along
    headers   those that the kernel's own file includes
    real      the file's names for real; none where it serves float32 only
    dropped   macros that do not come along: those that choose the file's types
    """

    op: Op
    title: str
    needs: Sequence[str]
    defines: dict[str, str]
    scratch: dict[str, str]
    wrappers: Sequence[Wrapper]
    kept: Sequence[Declaration]
    headers: Sequence[str]
    real: RealNames
    dropped: frozenset[str]


def kind_of(dtype: str, real: RealNames) -> str:
    """The type that a wrapper has for a dtype of the op."""
    return OURS.get(dtype) or (real.names[0] if real.names else "float")


def write(contents: Contents) -> str:
    """The text of the file."""
    body = emit(contents.kept, contents.dropped)
    bodies = names("".join(wrapper.body for wrapper in contents.wrappers))
    scratch = [entry for name, entry in contents.scratch.items() if name in bodies]
    lines = [
        *_header(contents, body, scratch),
        "",
        "// Adopted by `python -m ladder adopt`: what the kernel needs of its file, itself as a",
        "// device function, shared memory aligned to 16 bytes, and at the end a kernel with the",
        "// arguments of the op, which calls it.",
        "",
        *_includes(contents, body),
        "",
        body.strip("\n"),
    ]
    arguments = _arguments(contents, scratch)
    macros = {name for one in contents.kept if one.kind == "macro" for name in one.names}
    taken = sorted(macros & names(" ".join(arguments)))
    lines += [""] * bool(taken) + [f"#undef {name}  // an argument of the op" for name in taken]
    for wrapper in contents.wrappers:
        lines += ["", f'extern "C" __global__ void {wrapper.bounds}{wrapper.name}(']
        lines += [f"    {text}" for text in arguments[:-1]]
        lines += [f"    {arguments[-1]}) {{", wrapper.body.rstrip("\n"), "}"]
    return "\n".join(lines) + "\n"


def _header(contents: Contents, body: str, scratch: Sequence[str]) -> list[str]:
    needs = [*contents.needs, *(["warp == 32"] if _WARPS.search(body) else [])]
    needs += ["sm >= 70"] if _OF_NVIDIA.search(body) else []
    defines = [f"{name} = {value}" for name, value in contents.defines.items()]
    layer, direction = contents.op.name.split(".")
    return [
        f"// {layer} {direction}: {contents.title}",
        f"// Needs:  {'; '.join(dict.fromkeys(needs)) or 'nothing'}",
        *([f"// Define: {'; '.join(defines)}"] if defines else []),
        *(f"// Launch: {wrapper.launch}" for wrapper in contents.wrappers),
        *([f"// Scratch: {'; '.join(scratch)}"] if scratch else []),
        *(
            ["// Deterministic: no, float atomics are added in any order"]
            if _ATOMIC.search(body)
            else []
        ),
    ]


def _includes(contents: Contents, body: str) -> list[str]:
    lines = ['#include "foreign.cuh"']
    for kind, macro in contents.real.macros.items():
        header = "cuda_bf16.h" if kind == "BFLOAT16" else "cuda_fp16.h"
        lines += [f"#if defined(REAL_{kind})", f"#include <{header}>", f"#define {macro}", "#endif"]
    found = names(body)
    for header in contents.headers:
        groups = header.startswith("cooperative_groups") and "cooperative_groups" in found
        if groups or (header in _HEADERS and re.search(_HEADERS[header], body)):
            lines.append(f"#include <{header}>")
    return lines


def _arguments(contents: Contents, scratch: Sequence[str]) -> list[str]:
    """The parameters of a wrapper, a line each, with the shapes of the buffers."""
    shapes = {}
    for arg in contents.op.args:
        const = "const " if arg.role == "in" else ""
        declared = f"{const}{kind_of(arg.dtype, contents.real)}* __restrict__ {arg.name},"
        shapes[declared] = ", ".join(arg.shape.split())
    width = max(map(len, shapes))
    lines = [f"{declared:{width}}  // ({shape})" for declared, shape in shapes.items()]
    values = [f"int {name}" for name in contents.op.dims]
    values += [f"{OURS[scalar.dtype]} {scalar.name}" for scalar in contents.op.scalars]
    for entry in scratch:
        dtype, name = entry.partition("[")[0].split()
        kind = "unsigned" if dtype == "flag" else kind_of(dtype, contents.real)
        values.append(f"{kind}* __restrict__ {name}")
    return [*lines, ", ".join(values)]


def emit(kept: Sequence[Declaration], dropped: frozenset[str]) -> str:
    """Declarations as a text, with the namespaces and the `#if`s around them; without the macros
    in `dropped`."""
    lines: list[str] = []
    branches: list[Branch] = []  # that are open
    scope: tuple[str, ...] = ()

    def close(depth: int) -> None:
        while len(branches) > depth:
            branches.pop()
            lines.append("#endif")

    for one in kept:
        if one.kind == "macro" and one.name in dropped:
            continue
        if one.scope != scope:
            close(0)
            lines += ["}" for _ in scope]
            lines += [f"namespace {name} {{" for name in one.scope]
            scope = one.scope
        depth = 0
        for mine, theirs in zip(one.branches, branches, strict=False):
            if mine.number != theirs.number:
                break
            if mine.lines != theirs.lines:  # another branch of the same #if
                close(depth + 1)
                lines += mine.lines[len(theirs.lines) :]
                branches[depth] = mine
            depth += 1
        close(depth)
        for branch in one.branches[depth:]:
            lines += branch.lines
            branches.append(branch)
        if one.kind == "macro":
            lines.append(f"#undef {one.name}")  # the build defines some, such as WARP_SIZE
        text = as_device_code(one)
        lines += [""] * ("\n" in text or text.startswith("//"))
        lines.append(text)
    close(0)
    lines += ["}" for _ in scope]
    return "\n".join(lines)


def as_device_code(one: Declaration) -> str:
    """A declaration's text; a kernel, and a function of the host, as a device function."""
    text = _UNALIGNED.sub(r"\1 __align__(16) ", one.text)
    if one.kind not in ("host", "kernel"):
        return text
    head = one.head
    if one.kind == "host":
        template = re.match(r"(?:template\s*<[^{}]*?>\s*(?=\w))?", head)
        at = template.end() if template else 0
        head = f"{head[:at]}__device__ {head[at:]}"
    else:
        head = re.sub(r'extern\s+"C"\s+', "", _BOUNDS.sub("", head))
        head = head.replace("__global__", "__device__")
    before, _, after = text.partition(one.head)
    return before + head + after
