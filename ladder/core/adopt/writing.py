"""Writes the file of an adopted kernel: header, what came along, and the kernels that call it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ladder.core.adopt.cpp import WORD, Node, part, text
from ladder.core.adopt.declarations import Declaration, SourceFile, first_line
from ladder.core.adopt.real_types import RealNames
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
    """A kernel with arguments of the op: its name, its body, and the launch line that calls it."""

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
    file      the kernel's own
    kept      the declarations of it that come along
    renamed   {name: another}, where a name of the file is one of a kernel of the op
    real      the file's names for real; none where it serves float32 only
    args      {their name: ours} where the file needs only a header above its text; else None
    """

    op: Op
    title: str
    needs: Sequence[str]
    defines: dict[str, str]
    scratch: dict[str, str]
    wrappers: Sequence[Wrapper]
    file: SourceFile
    kept: Sequence[Declaration]
    renamed: Mapping[str, str]
    real: RealNames
    args: Mapping[str, str] | None


def kind_of(dtype: str, real: RealNames) -> str:
    """The type that a wrapper has for a dtype of the op."""
    return OURS.get(dtype) or (real.names[0] if real.names else "float")


def rename(code: str, renamed: Mapping[str, str]) -> str:
    for name, other in renamed.items():
        code = re.sub(rf"\b{name}\b", other, code)
    return code


def write(contents: Contents) -> str:
    """The text of the file."""
    kept = {one.node.id: as_device_code(one, contents.renamed) for one in contents.kept}
    body = "\n".join(emit(contents.file.root, kept))
    bodies = set(WORD.findall("".join(wrapper.body for wrapper in contents.wrappers)))
    scratch = [entry for name, entry in contents.scratch.items() if name in bodies]
    header = [*_header(contents, body, scratch), ""]
    if contents.args is not None:
        theirs = contents.file.source.decode().strip("\n")
        return "\n".join([*header, '#include "foreign.cuh"', "", theirs, ""])
    lines = [
        *header,
        "// Adopted by `python -m ladder adopt`: what the kernel needs of its file, itself as a",
        "// device function, shared memory aligned to 16 bytes, and at the end a kernel that takes",
        "// arguments of the op and calls it.",
        "",
        *_includes(contents, body),
        "",
        body.strip("\n"),
    ]
    macros = {name for one in contents.kept if one.kind == "macro" for name in one.names}
    ours = {*contents.scratch, *contents.op.dims, *(arg.name for arg in contents.op.args)}
    taken = sorted(macros & ours & bodies)
    lines += [""] * bool(taken) + [f"#undef {name}  // an argument of the op" for name in taken]
    for wrapper in contents.wrappers:
        lines += ["", f'extern "C" __global__ void {wrapper.bounds}{wrapper.name}(']
        lines += [f"    {one}" for one in _arguments(contents, set(WORD.findall(wrapper.body)))]
        lines += [") {", rename(wrapper.body, contents.renamed).rstrip("\n"), "}"]
    return "\n".join(lines) + "\n"


def _header(contents: Contents, body: str, scratch: Sequence[str]) -> list[str]:
    needs = [*contents.needs, *(["warp == 32"] if _WARPS.search(body) else [])]
    needs += ["sm >= 70"] if _OF_NVIDIA.search(body) else []
    defines = [f"{name} = {value}" for name, value in contents.defines.items()]
    args = "; ".join(
        f"{one} = {ours}" for one, ours in (contents.args or {}).items() if one != ours
    )
    layer, direction = contents.op.name.split(".")
    return [
        f"// {layer} {direction}: {contents.title}",
        f"// Needs:  {'; '.join(dict.fromkeys(needs)) or 'nothing'}",
        *([f"// Define: {'; '.join(defines)}"] if defines else []),
        *(f"// Launch: {wrapper.launch}" for wrapper in contents.wrappers),
        *([f"// Args:   {args}"] if args else []),
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
        header = {"BFLOAT16": "cuda_bf16.h", "FLOAT16": "cuda_fp16.h"}.get(kind)
        chosen = [f"#include <{header}>"] * bool(header) + [f"#define {macro}"] * bool(macro)
        lines += [f"#if defined(REAL_{kind})", *chosen, "#endif"] if chosen else []
    words = set(WORD.findall(body))
    for header in contents.file.headers:
        groups = header.startswith("cooperative_groups") and "cooperative_groups" in words
        if groups or (header in _HEADERS and re.search(_HEADERS[header], body)):
            lines.append(f"#include <{header}>")
    return lines


def _arguments(contents: Contents, used: set[str]) -> list[str]:
    """The parameters of a wrapper: of the op's arguments those that it uses, with their shapes."""
    op, real = contents.op, contents.real
    listed = []
    for arg in op.args:
        const = "const " if arg.role == "in" else ""
        declared = f"{const}{kind_of(arg.dtype, real)}* __restrict__ {arg.name}"
        listed.append((arg.name, declared, f"  // ({', '.join(arg.shape.split())})"))
    listed += [(name, f"int {name}", "") for name in op.dims]
    listed += [(one.name, f"{OURS[one.dtype]} {one.name}", "") for one in op.scalars]
    for name, entry in contents.scratch.items():
        kind = kind_of(entry.split()[0].replace("flag", "uint32"), real)
        listed.append((name, f"{kind}* __restrict__ {name}", ""))
    listed = [one for one in listed if one[0] in used]
    width = max((len(declared) for _, declared, _ in listed), default=0) + 1
    commas = [","] * (len(listed) - 1) + [""]
    return [
        f"{declared + comma:{width if shape else 0}}{shape}"
        for (_, declared, shape), comma in zip(listed, commas, strict=True)
    ]


def emit(node: Node, kept: Mapping[int, str]) -> list[str]:
    """The lines of the declarations in `kept`, by their nodes below this one, with the namespaces
    and the `#if`s around them."""
    lines: list[str] = []
    for child in node.children:
        if (code := kept.get(child.id)) is not None:
            lines += [""] * ("\n" in code or code.startswith("//")) + [code]
            continue
        inside = emit(child, kept)
        if child.type.startswith(("preproc_el", "preproc_if")):
            first = child.type.startswith("preproc_if")
            if not first or any(not line.startswith("#el") for line in inside):
                lines += [first_line(child), *inside, *["#endif"] * first]
        elif inside and child.type == "namespace_definition":
            lines += [f"namespace {text(part(child, 'name'))} {{", *inside, "}"]
        else:
            lines += inside
    return lines


def as_device_code(one: Declaration, renamed: Mapping[str, str]) -> str:
    """A declaration's text with the comment above; a kernel, and a function of the host, as a
    device function."""
    code, head = one.text, one.head
    if one.kind == "host":
        at = one.inner.start_byte - one.node.start_byte
        code = f"{code[:at]}__device__ {code[at:]}"
    elif one.kind == "kernel":
        code = _BOUNDS.sub("", head).replace("__global__", "__device__") + code[len(head) :]
    elif one.kind == "macro":  # the build defines some, such as WARP_SIZE
        code = f"#undef {one.name}\n{code}"
    following = one.node.next_sibling
    if following is not None and following.type == ";":
        code += ";"
    code = _UNALIGNED.sub(r"\1 __align__(16) ", rename(code, renamed))
    return comment_above(one) + code


def comment_above(one: Declaration) -> str:
    """The comment that ends on the line before a declaration, with its newline."""
    first, node = one.node, one.node.prev_sibling
    while node is not None and node.type == "comment":
        beside = one.source[one.source.rfind(b"\n", 0, node.start_byte) + 1 : node.start_byte]
        if beside.strip() or node.end_point.row + 1 != first.start_point.row:
            break
        first, node = node, node.prev_sibling
    return one.source[first.start_byte : one.node.start_byte].decode()
