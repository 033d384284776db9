"""The declarations of a `.cu` file, and those of them that a kernel needs.

    file = read(Path("softmax_forward.cu"))
    needed(file, {"softmax_forward_kernel1"})    the kernel, and the functions, types and constants
                                                 that it uses, in their order

A stranger's file is read as text, up to 1 MiB, and nothing of it is executed. What stands between
`#if` and `#endif` is kept together with these lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ladder.core.adopt.tokens import Token, closing, closing_angle, names, split, text_of, tokens
from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.rung_file import MOST_BYTES

MOST_FILES = 64  # of one `#include` tree
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)".*$', re.MULTILINE)
_TAKES_BRACKETS = {"__launch_bounds__", "__cluster_dims__", "__attribute__", "__align__", "alignas"}
_TYPES = {"struct", "class", "union", "enum"}
_CUDAS = ("cuda", "cooperative_groups", "device_", "mma.h", "math", "std")  # headers begin so
_NAMESPACES = {"cooperative_groups", "nvcuda", "wmma", "cuda"}  # of CUDA's own headers
# A function of the host that does one of these is none that a kernel calls.
_OF_THE_HOST = re.compile(r"\bcuda[A-Z]\w+|\bcublas\w+|\bnccl\w+|\bmalloc\b|\bfree\b|<<<")


class Branch(NamedTuple):
    """One branch of an `#if`: the number of the `#if`, and its lines down to this branch's."""

    number: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Declaration:
    """A function, type, constant or macro of a file.

    kind      "kernel", "device", "host", "macro", "type", "variable" or "using"
    names     what it declares; a template's specialisations have the same name
    text      as it stands in the file, with the comment above it
    head      for a function, what stands before its body
    body      for a function, what stands between its braces; for a macro, what it stands for
    parameters  of a function or macro
    branches  the `#if`s around it, from the outside in
    scope     the namespaces around it
    """

    kind: str
    names: tuple[str, ...]
    text: str
    head: str = ""
    body: str = ""
    parameters: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()
    scope: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class SourceFile:
    """The declarations of a file, the headers of CUDA and the system that it includes, and those
    that it includes from its folder, but that are not there."""

    declarations: tuple[Declaration, ...]
    headers: tuple[str, ...]
    missing: tuple[str, ...]

    def names(self) -> set[str]:
        """Every name that a declaration mentions."""
        return {name for one in self.declarations for name in names(one.text)}

    def of(self, *kinds: str) -> dict[str, Declaration]:
        """The declarations of these kinds by name; of several, the last one."""
        return {one.name: one for one in self.declarations if one.kind in kinds and one.names}


def read(path: Path) -> SourceFile:
    """A file, with the files in its folder that it includes. Raises LadderError where it cannot be
    read."""
    missing: dict[str, None] = {}
    text = _flatten(path, set(), missing)
    if len(text) > MOST_BYTES:
        raise LadderError(f"{path}: it has more than {MOST_BYTES} bytes, with what it includes")
    headers = dict.fromkeys(
        re.findall(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", text, re.MULTILINE)
    )
    return SourceFile(tuple(parse(text)), tuple(headers), tuple(missing))


def _flatten(path: Path, seen: set[Path], missing: dict[str, None]) -> str:
    """The text, with that of the files beside it for their `#include "..."`, each file once.
    `missing` gets the names of those that are neither there nor CUDA's."""
    folder = path.parent.resolve()
    seen.add(path.resolve())
    if len(seen) > MOST_FILES:
        raise LadderError(f"{path}: it includes more than {MOST_FILES} files")

    def replace(match: re.Match[str]) -> str:
        found = (folder / match[1]).resolve()
        if not found.is_relative_to(folder) or not found.is_file():
            if not match[1].startswith(_CUDAS):
                missing[match[1]] = None
            return ""
        return "" if found in seen else _flatten(found, seen, missing)

    return _INCLUDE.sub(replace, read_text(path, MOST_BYTES))


def parse(text: str) -> list[Declaration]:
    """The declarations of a text."""
    return _Parser(text).run()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Declaration] = []
        self.branches: list[Branch] = []
        self.scope: list[str] = []
        self.numbers = 0

    def run(self) -> list[Declaration]:
        everything = tokens(self.text)
        code: list[Token] = []  # of the declaration that is being read
        comment: int | None = None  # where the comment above it begins
        i = 0
        while i < len(everything):
            token = everything[i]
            if token.kind == "comment":
                above = comment is not None and not self._gap(everything[i - 1], token)
                if not code and not above:
                    comment = token.start
            elif token.kind == "directive" and not code:
                kept = comment if comment is not None else token.start
                self._directive(token, kept)
                comment = None
            elif token.kind == "directive":
                pass  # within a declaration: it is part of its text
            elif not code and token.text in (";", "}"):
                if token.text == "}" and self.scope:
                    self.scope.pop()
                comment = None
            else:
                if not code and comment is not None and self._gap(everything[i - 1], token):
                    comment = None
                code.append(token)
                if token.text in ("(", "["):
                    end = closing(everything, i)
                    code += _plain(everything[i + 1 : end + 1])
                    i = end
                elif token.text == "{":
                    if self._opens_scope(code):
                        code, comment, i = [], None, i + 1
                        continue
                    end = closing(everything, i)
                    body = (token.end, everything[end].start)
                    code += _plain(everything[i + 1 : end + 1])
                    i = end
                    if _is_function(code):
                        self._add(code, comment, body)
                        code, comment = [], None
                elif token.text == ";":
                    self._add(code, comment, None)
                    code, comment = [], None
            i += 1
        return self.found

    def _gap(self, before: Token, after: Token) -> bool:
        return self.text.count("\n", before.end, after.start) > 1

    def _opens_scope(self, code: list[Token]) -> bool:
        words = [token.text for token in code[:-1]]
        if words[:1] == ["namespace"]:
            self.scope.append(" ".join(words[1:]))
            return True
        if words[:1] == ["extern"] and len(words) == 2:  # extern "C" {
            self.scope.append("")
            return True
        return False

    def _directive(self, token: Token, start: int) -> None:
        line = (
            re.sub(r"\s*//.*", "", token.text.strip()) if "\\\n" not in token.text else token.text
        )
        word = re.match(r"\s*#\s*(\w+)", line)
        kind = word[1] if word else ""
        if kind in ("if", "ifdef", "ifndef"):
            self.numbers += 1
            self.branches.append(Branch(self.numbers, (line,)))
        elif kind in ("elif", "else") and self.branches:
            last = self.branches.pop()
            self.branches.append(Branch(last.number, (*last.lines, line)))
        elif kind == "endif" and self.branches:
            self.branches.pop()
        elif kind == "define":
            found = re.match(r"\s*#\s*define\s+(\w+)(\([^)]*\))?(.*)", line, re.DOTALL)
            if found:
                inside = (found[2] or "").strip("()").split(",")
                self._append(
                    "macro",
                    (found[1],),
                    self.text[start : token.end],
                    head=found[2] or "",
                    body=found[3].replace("\\\n", " ").strip(),
                    parameters=tuple(part.strip() for part in inside if part.strip()),
                )

    def _append(self, kind: str, declared: tuple[str, ...], text: str, **more: object) -> None:
        scope = tuple(name for name in self.scope if name)
        self.found.append(
            Declaration(kind, declared, text, branches=(*self.branches,), scope=scope, **more)  # type: ignore[arg-type]
        )

    def _add(self, code: list[Token], comment: int | None, body: tuple[int, int] | None) -> None:
        start = code[0].start if comment is None else comment
        text = self.text[start : code[-1].end]
        words = [token.text for token in code]
        rest = _without_template(code)
        if body is not None:
            declared, parameters = _function(rest)
            kind = "device" if "__device__" in words else "host"
            kind = "kernel" if "__global__" in words else kind
            head = self.text[code[0].start : body[0] - 1]
            inside = self.text[slice(*body)]
            self._append(kind, (declared,), text, head=head, body=inside, parameters=parameters)
            return
        first = rest[0].text if rest else ""
        if first == "using" and len(rest) > 2 and rest[2].text == "=":
            self._append("type", (rest[1].text,), text)
        elif first == "using":
            self._append("using", (), text)
        elif first == "namespace":
            self._append("type", (rest[1].text,), text)
        elif first == "typedef":
            pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", text)
            last = [token.text for token in rest if token.kind == "name"][-1:]
            self._append("type", (pointer[1],) if pointer else tuple(last), text)
        elif first in _TYPES and "{" in words:
            self._append("type", _type_names(rest), text)
        elif declared_names := _variables(rest):
            self._append("variable", declared_names, text)


def _plain(found: Iterable[Token]) -> list[Token]:
    return [token for token in found if token.kind not in ("comment", "directive")]


def _without_template(code: list[Token]) -> list[Token]:
    """What follows `template <...>`."""
    while len(code) > 1 and code[0].text == "template" and code[1].text == "<":
        code = code[closing_angle(code, 1) + 1 :]
    return code


def _is_function(code: list[Token]) -> bool:
    """Whether the braces that end `code` are a function's body."""
    code = _without_template(code)
    head, i = [], 0
    while code[i].text != "{":
        head.append(code[i].text)
        i = closing(code, i) + 1 if code[i].text in ("(", "[") else i + 1
    return "(" in head and "=" not in head and head[0] not in ("typedef", *_TYPES)


def _function(code: list[Token]) -> tuple[str, tuple[str, ...]]:
    """The name of a function, and its parameters."""
    i = 0
    while i < len(code):
        token = code[i]
        if token.text in _TAKES_BRACKETS and i + 1 < len(code):
            i = closing(code, i + 1)
        elif token.text == "operator":
            opening = next(j for j in range(i + 2, len(code)) if code[j].text == "(")
            return "operator", _parameters(code, opening)
        elif token.text == "(" and i and code[i - 1].kind == "name":
            return code[i - 1].text, _parameters(code, i)
        elif token.text == "<" and i and (end := closing_angle(code, i)) > i:
            if code[end + 1].text == "(":  # a specialisation: f<4>(...)
                return code[i - 1].text, _parameters(code, end + 1)
            i = end
        i += 1
    return "", ()


def _parameters(code: list[Token], opening: int) -> tuple[str, ...]:
    inside = code[opening + 1 : closing(code, opening)]
    return tuple(text for part in split(inside) if (text := text_of(part)) != "void")


def _type_names(code: list[Token]) -> tuple[str, ...]:
    """The name of a struct; of an enum, those of its values too."""
    opening = next(i for i, token in enumerate(code) if token.text == "{")
    found, i = [], 1
    while i < opening:
        if code[i].text in _TAKES_BRACKETS:
            i = closing(code, i + 1)
        elif code[i].text == ":":
            break
        elif code[i].kind == "name" and code[i].text != "class":
            found.append(code[i].text)
        i += 1
    if code[0].text == "enum":
        values = split(code[opening + 1 : closing(code, opening)])
        found += [value[0].text for value in values]
    return tuple(found[:1] + found[1:] * (code[0].text == "enum"))


def _variables(code: list[Token]) -> tuple[str, ...]:
    """The names that a statement declares at file scope; none for a function's declaration."""
    found = []
    for number, part in enumerate(split(code[:-1])):
        texts = [token.text for token in part]
        end = next((i for i, text in enumerate(texts) if text in ("=", "[", "{")), len(part))
        if "(" in texts[:end]:
            return ()
        if end > (number == 0) and part[end - 1].kind == "name":
            found.append(texts[end - 1])
    return tuple(found)


def needed(file: Sequence[Declaration], wanted: set[str]) -> list[Declaration]:
    """The declarations of these names, and of those that they use, in the order of the file."""
    kept: set[int] = set()
    known, before = set(wanted), set[str]()
    used: dict[int, set[str]] = {}  # by declaration
    while known != before:
        before = set(known)
        types = {name for i in kept if file[i].kind == "type" for name in file[i].names}
        scopes = {name for i in kept for name in file[i].scope}
        kept |= {i for i, one in enumerate(file) if _is_needed(one, known, types, scopes)}
        used |= {i: _used(file[i]) for i in kept - used.keys()}
        known = known.union(*used.values())
    return [file[i] for i in sorted(kept)]


def _is_needed(one: Declaration, known: set[str], types: set[str], scopes: set[str]) -> bool:
    """Whether a declaration is, beside those that are kept already and use the names `known`."""
    if one.kind == "using":
        *_, last = re.findall(r"\w+", one.text)
        return last in scopes | _NAMESPACES or (last in known and "namespace" not in one.text)
    if one.names == ("operator",):
        return one.kind == "device" and bool(types & names(one.head))
    if one.kind == "host" and _OF_THE_HOST.search(one.text):
        return False
    if one.scope and not known.issuperset(one.scope):
        return False  # of this namespace nothing is used
    qualified = {f"{one.scope[-1]}::{name}" for name in one.names} if one.scope else set()
    return bool(known & {*one.names, *qualified})


def _used(one: Declaration) -> set[str]:
    """The names that a declaration uses; behind the name of a namespace, together with it."""
    found, code_tokens = set(), [token for token in tokens(one.text) if token.kind != "comment"]
    for i, token in enumerate(code_tokens):
        before = [other.text for other in code_tokens[max(i - 2, 0) : i]]
        if token.kind == "directive":
            found |= names(token.text)
        elif token.kind == "name" and before[1:] == ["::"] and before[0].isidentifier():
            found.add("".join([*before, token.text]))
        elif token.kind == "name":
            found.add(token.text)
    lines = (line for branch in one.branches for line in branch.lines)
    return (found - {*one.names}).union(*map(names, lines))
