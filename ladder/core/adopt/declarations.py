"""The declarations of a `.cu` file, and those of them that a kernel needs.

    file = read(Path("softmax_forward.cu"))
    needed(file, {"softmax_forward_kernel1"})    the kernel, and the functions, types and constants
                                                 that it uses, in their order

A stranger's file is read as text, up to 1 MiB, and nothing of it is executed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ladder.core.adopt.cpp import (
    ATTRIBUTES,
    WORD,
    Node,
    expression,
    find,
    named,
    names,
    parse,
    part,
    parts,
    text,
)
from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.rung_file import MOST_BYTES

MOST_FILES = 64  # of one `#include` tree
BRANCHES = ("preproc_if", "preproc_ifdef", "preproc_elif", "preproc_elifdef", "preproc_else")
_KINDS = {
    **dict.fromkeys(("preproc_def", "preproc_function_def"), "macro"),
    **dict.fromkeys(("struct_specifier", "class_specifier", "union_specifier"), "type"),
    **dict.fromkeys(("enum_specifier", "type_definition", "alias_declaration"), "type"),
    **dict.fromkeys(("namespace_alias_definition", "declaration"), "type"),
    "using_declaration": "using",
}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n\0]+)".*$', re.MULTILINE)
_CUDAS = ("cuda", "cooperative_groups", "device_", "mma.h", "math", "std")  # headers begin so
_NAMESPACES = {"cooperative_groups", "nvcuda", "wmma", "cuda"}  # of CUDA's own headers
# A function of the host that does one of these is none that a kernel calls.
_OF_THE_HOST = re.compile(r"\bcuda[A-Z]\w+|\bcublas\w+|\bnccl\w+|\bmalloc\b|\bfree\b|<<<")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function: its name, its type without const and stars, whether it is a
    pointer, whether what it points to is const, and whether a call may leave it out."""

    name: str
    kind: str
    pointer: bool
    const: bool
    optional: bool = False


@dataclass(frozen=True, eq=False)
class Declaration:
    """A function, type, constant or macro of a file.

    kind      "kernel", "device", "host", "macro", "type", "variable" or "using"
    names     what it declares; a template's specialisations have the same name
    node      where it stands in the tree, and `inner`: without `template <...>`
    source    the file's text
    scope     the namespaces around it
    branches  the lines of the `#if`s around it, from the outside in
    """

    kind: str
    names: tuple[str, ...]
    node: Node
    inner: Node
    source: bytes
    scope: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.names[0] if self.names else self.text

    @property
    def body(self) -> Node | None:
        return part(self.inner, "body")

    @property
    def text(self) -> str:
        return self.source[self.node.start_byte : self.node.end_byte].decode().rstrip()

    @property
    def head(self) -> str:
        """What stands before a function's body."""
        end = self.body.start_byte if self.body else self.node.end_byte
        return self.source[self.node.start_byte : end].decode()

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Those of a function or a macro."""
        if self.kind == "macro":
            inside = parts(part(self.inner, "parameters"))
            return tuple(Parameter(text(one), "", False, False) for one in inside)
        listed = next(find(self.inner, "parameter_list"), None)
        return tuple(
            _parameter(one)
            for one in parts(listed)
            if one.type.endswith("parameter_declaration") and text(one) != "void"
        )

    @cached_property
    def uses(self) -> set[str]:
        """The names in it and in the `#if`s around it, without its own."""
        around = [*self.branches, *map(bytes.decode, ATTRIBUTES.findall(self.text.encode()))]
        return (names(self.node) - {*self.names}).union(*map(WORD.findall, around))

    @property
    def values(self) -> dict[str, Node | None]:
        """The expressions that constants, or a macro without arguments, stand for."""
        if self.kind == "macro":
            value = text(part(self.inner, "value"))
            return {} if self.inner.type != "preproc_def" else {self.name: expression(value)}
        constants = self.inner.children_by_field_name("declarator")
        given = {named(one): part(one, "value") for one in constants}
        return given if self.kind == "variable" else {}


@dataclass(frozen=True)
class SourceFile:
    """A file's text, tree and declarations, the headers of CUDA and the system that it includes,
    and those that it includes from its folder, but that are not there."""

    source: bytes
    root: Node
    declarations: tuple[Declaration, ...]
    headers: tuple[str, ...]
    missing: tuple[str, ...]

    def of(self, *kinds: str) -> dict[str, Declaration]:
        """The declarations of these kinds by name; of several, the last one."""
        return {one.name: one for one in self.declarations if one.kind in kinds and one.names}


def read(path: Path) -> SourceFile:
    """A file, with the files in its folder that it includes. Raises LadderError where it cannot be
    read."""
    missing: dict[str, None] = {}
    code = _flatten(path, set(), missing)
    if len(code) > MOST_BYTES:
        raise LadderError(f"{path}: it has more than {MOST_BYTES} bytes, with what it includes")
    headers = re.findall(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", code, re.MULTILINE)
    return of_text(code, headers, missing)


def of_text(code: str, headers: Iterable[str] = (), missing: Iterable[str] = ()) -> SourceFile:
    """The file that a text is."""
    source = code.encode()
    root = parse(source)
    declared = tuple(_declarations(root, source))
    return SourceFile(source, root, declared, tuple(dict.fromkeys(headers)), tuple(missing))


def _flatten(path: Path, seen: set[Path], missing: dict[str, None]) -> str:
    """The text, with that of the files beside it for their `#include "..."`, each file once.
    `missing` gets the names of those that are neither there nor CUDA's."""
    folder = path.parent.resolve()
    seen.add(path.resolve())
    if len(seen) > MOST_FILES:
        raise LadderError(f"{path}: it includes more than {MOST_FILES} files")

    def replace(match: re.Match[str]) -> str:
        included = (folder / match[1]).resolve()
        if not included.is_relative_to(folder) or not included.is_file():
            if not match[1].startswith(_CUDAS):
                missing[match[1]] = None
            return ""
        return "" if included in seen else _flatten(included, seen, missing)

    return _INCLUDE.sub(replace, read_text(path, MOST_BYTES))


def first_line(node: Node) -> str:
    """The line of an `#if`, with those that it continues on."""
    line = re.match(r"(?:\\\n|[^\n])*", (node.text or b"").decode())
    return re.sub(r"\s*//.*", "", line[0]) if line else ""


def _declarations(
    node: Node, source: bytes, scope: tuple[str, ...] = (), branches: tuple[str, ...] = ()
) -> Iterator[Declaration]:
    """The declarations below a node, in these namespaces and branches of `#if`s."""
    for child in node.children:
        inner = child
        while inner.type == "template_declaration" and parts(inner):
            inner = parts(inner)[-1]
        if child.type == "namespace_definition":
            spaces = WORD.findall(text(part(child, "name")))
            yield from _declarations(child, source, (*scope, *spaces), branches)
        elif child.type in BRANCHES:
            yield from _declarations(child, source, scope, (*branches, first_line(child)))
        elif child.type in ("linkage_specification", "declaration_list", "ERROR"):
            yield from _declarations(child, source, scope, branches)
        elif kind := _kind(inner):
            declared = tuple(name for name in _declared(inner) if name)
            if declared or kind == "using":
                yield Declaration(kind, declared, child, inner, source, scope, branches)


def _kind(node: Node) -> str:
    """What a node declares; "" for what declares nothing that a kernel could need."""
    if node.type == "function_definition":
        words = {child.type for child in node.children}
        return "kernel" if "__global__" in words else "device" if "__device__" in words else "host"
    if node.type == "declaration" and not part(node, "type", "body"):
        declarators = node.children_by_field_name("declarator")
        return "" if any(one.type == "function_declarator" for one in declarators) else "variable"
    return _KINDS.get(node.type, "")


def _declared(node: Node) -> list[str]:
    """The names that a node declares: of an enum, those of its values too."""
    kind = part(node, "type")
    own = kind if kind and part(kind, "body") else node
    values = parts(part(own, "body")) if own.type == "enum_specifier" else []
    declarators = node.children_by_field_name("declarator")
    if any(re.match(r"operator\b", named(one)) for one in declarators):
        return ["operator"]
    return [*(text(part(one, "name")) for one in (own, *values)), *map(named, declarators)]


def _parameter(node: Node) -> Parameter:
    before = [child.type for child in find(node, "pointer_declarator", "array_declarator",
                                           "abstract_pointer_declarator")]  # fmt: skip
    return Parameter(
        named(part(node, "declarator")),
        text(part(node, "type")),
        bool(before),
        any(child.type == "type_qualifier" and text(child) == "const" for child in node.children),
        node.type.startswith("optional"),
    )


def needed(file: Sequence[Declaration], wanted: set[str]) -> list[Declaration]:
    """The declarations of these names, and of those that they use, in the order of the file."""
    kept: set[int] = set()
    known, before = set(wanted), set[str]()
    opened = {word for one in file if one.kind == "using" for word in WORD.findall(one.text)
              if "namespace" in one.text.split()[1:2]}  # fmt: skip
    while known != before:
        before = set(known)
        types = {name for i in kept if file[i].kind == "type" for name in file[i].names}
        scopes = {name for i in kept for name in file[i].scope}
        kept |= {i for i, one in enumerate(file) if _is_needed(one, known, types, scopes, opened)}
        known = known.union(*(file[i].uses for i in kept))
    return [file[i] for i in sorted(kept)]


def _is_needed(
    one: Declaration, known: set[str], types: set[str], scopes: set[str], opened: set[str]
) -> bool:
    """Whether a declaration is, beside those that are kept already and use the names `known`.
    `opened`: the namespaces that the file uses with `using namespace`."""
    if one.kind == "using":
        last = WORD.findall(one.text)[-1]
        return last in scopes | _NAMESPACES or (last in known and "namespace" not in one.text)
    if one.names == ("operator",):
        return one.kind == "device" and bool(types & set(WORD.findall(one.head)))
    if one.kind == "host" and _OF_THE_HOST.search(one.text):
        return False
    if not known | opened >= {*one.scope}:
        return False  # of this namespace nothing is used
    qualified = {f"{one.scope[-1]}::{name}" for name in one.names} if one.scope else set()
    return bool(known & {*one.names, *qualified})
