"""Turns a `.cu` file into C++ that a CPU compiler accepts.

Little has to change: CUDA's keywords are macros and its functions are C++ functions, both in
`include/`. Only shared memory has no counterpart in C++. A declaration

    __shared__ float tile[32][33];

becomes a reference to memory that the runtime allocates for each block:

    static const char tile_key = 0;
    auto &tile = *(float (*)[32][33])emulator::emulator_shared(&tile_key, "tile", size, alignment);

The text of included files replaces their `#include "..."`, so that their declarations are rewritten
too. `#line` directives keep every line's own file and number in error messages and reports.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.rung_file import MOST_BYTES
from ladder.core.contract.signature import parameters

# What is not code (comments, strings), and what is looked for in code.
TOKENS = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
  | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
  | (?P<shared>
      (?:(?:(?<=[;{}/])|^)[ \t]*(?:[\w:]+(?:<[^;{}]*?>)?[ \t*]+)+  # the type comes first
        |\b(?:(?:extern|static|volatile)\s+|(?:alignas|__align__)\s*\([^()]*\)\s*)*)
      \b__shared__\b[^;]*;)
  | (?P<open>\{)
  | (?P<close>\})
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)".*$', re.MULTILINE)
ALIGNMENT = re.compile(
    r"(?:alignas|__align__)\s*\(([^()]*)\)|__attribute__\s*\(\(\s*aligned\s*\((.*?)\)\s*\)\)"
)
KERNEL = re.compile(r'extern\s+"C"\s+__global__\b')
ANY_KERNEL = re.compile(r"\b__global__\b")
LAUNCH = re.compile(r"\b([\w:]+)(\s*<[^;{}]*?>)?\s*<<<((?:(?!<<<)[^;])*?)>>>")
# Headers of which include/host_code.h has what there is.
OF_HOST = re.compile(
    r"#\s*include\s*<((torch|ATen|c10)/.*|cuda\.h|c?stdlib(\.h)?|string|utility|vector|"
    r"algorithm|iostream)>"
)
TEMPLATE = re.compile(r"\btemplate\s*<[^;{}]*>[\s\w]*$")
ATTRIBUTE = re.compile(r"\b(__launch_bounds__|__cluster_dims__)\s*$")


@dataclass(frozen=True)
class DeclaredKernel:
    """A kernel as the source declares it."""

    name: str
    parameters: tuple[str, ...]
    cluster: str = "1"  # blocks along x: an expression of C++
    bound: str = "0"  # the most threads of a block that it promises, likewise; 0: any number


def prepare(
    path: Path, source: str, include: Sequence[Path], host: str = ""
) -> tuple[str, tuple[DeclaredKernel, ...]]:
    """The C++ text of a rung file, and the kernels that it defines. `host`: what launches them.

    Raises LadderError, naming file and line, for what the emulator cannot run.
    """
    source = re.sub(r"\b__builtin_(?=mem(?:cpy|set)\b)", "", source)  # which counting mode misses
    text = _flatten(path, source, include, set())
    if ptx := re.search(r"\b(?:asm|__asm|__asm__)\b", without_comments(source)):
        raise LadderError(
            f"{path}:{_line(source, ptx.start())}: inline PTX cannot run on a CPU; "
            "use the wrappers in ladder/include, which have a CPU twin"
        )
    try:
        kernels = _kernels(text, ANY_KERNEL if host else KERNEL)
    except ValueError:  # no parenthesis follows a kernel's name
        raise LadderError(f"{path}: a kernel's declaration is not complete") from None
    if host:
        bounds = {one.name: one.bound for one in kernels}
        launch = 'emulator::launch("{0}", __LINE__, {1}, {0}{2}, {3})'.format
        text = OF_HOST.sub("", text)
        text = LAUNCH.sub(lambda m: launch(m[1], bounds.get(m[1], 0), m[2] or "", m[3]), text)
        call = f"emulator::run({host}, python, arguments);"
        text += f'\n#line 1 "the call of {host}"\nEMULATOR_HOST {{ {call} }}\n'
        return f'#include "host_code.h"\n{text}', kernels
    launchers = "".join(
        f"EMULATOR_KERNEL({kernel.name}, {kernel.cluster}, {kernel.bound})\n" for kernel in kernels
    )
    return f"{text}\n{launchers}", kernels


def _flatten(path: Path, source: str, include: Sequence[Path], seen: set[Path]) -> str:
    """The file with its `#include "..."` replaced by the included text, each file once."""
    seen.add(path.resolve())

    def replace(match: re.Match[str]) -> str:
        for folder in (path.parent, *include):
            included = folder / match.group(1)
            if os.path.exists(included) and not included.is_dir():
                break
        else:
            return match.group()  # a system header, or an error that the compiler explains best
        if included.resolve() in seen:
            return ""
        text = _flatten(included, read_text(included, MOST_BYTES), include, seen)
        return f'{text}\n#line {_line(source, match.end()) + 1} "{path}"'

    source = rewrite_shared(source, path)
    body = INCLUDE.sub(replace, source)
    body = re.sub(r"^[ \t]*#[ \t]*pragma[ \t]+once\b.*$", "", body, flags=re.MULTILINE)
    return f'#line 1 "{path}"\n{body}'


def rewrite_shared(source: str, path: Path) -> str:
    """`source` with its `__shared__` declarations rewritten; every line keeps its number."""
    depth = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal depth
        text = match.group()
        depth += (match.lastgroup == "open") - (match.lastgroup == "close")
        if match.lastgroup != "shared":
            return text
        line = _line(source, match.start())
        if depth == 0:
            raise LadderError(
                f"{path}:{line}: declare shared memory inside the kernel, not at file scope"
            )
        try:
            return _declarations(text) + "\n" * text.count("\n")
        except ValueError as error:
            raise LadderError(f"{path}:{line}: {error}") from None

    return TOKENS.sub(replace, source)


def _declarations(statement: str) -> str:
    """The C++ for one `__shared__` statement, which may declare several variables."""
    dynamic = re.search(r"\bextern\b", without_comments(statement)) is not None
    aligned = [match.group(1) or match.group(2) for match in ALIGNMENT.finditer(statement)]
    plain = ALIGNMENT.sub(" ", without_comments(statement)).rstrip("; \n")
    plain = " ".join(re.sub(r"\b(?:extern|__shared__|static)\b", " ", plain).split())
    first, *others = _split(plain)
    parts = re.fullmatch(r"(.+?[\s>*&])\s*(\w+\s*(?:\[.*\])?)", first)
    if re.search(r"(?<![=<>!])=(?!=)", plain):
        raise ValueError(
            f"shared memory has no initial value: '{plain}'; let a thread write it, and "
            "__syncthreads() follow"
        )
    if parts is None:
        raise ValueError(f"cannot understand the shared memory declaration '{plain}'")
    kind = parts.group(1).strip()
    alignment = f"emulator::alignment({', '.join([f'alignof({kind})', *aligned])})"
    result = []
    for declarator in (parts.group(2), *others):
        declared = re.fullmatch(r"(\w+)\s*((?:\[.*\])?)", declarator)
        if declared is None:
            raise ValueError(f"cannot understand '{declarator}' in a shared memory declaration")
        name, shape = declared.groups()
        if dynamic:
            call = f'emulator::emulator_dynamic_shared("{name}", {alignment})'
            return f"{kind} *{name} = ({kind} *){call};"
        # The address of the key tells declarations apart, also those of two template instances.
        result.append(
            f"static const char {name}_key = 0; auto &{name} = *({kind} (*){shape})"
            f'emulator::emulator_shared(&{name}_key, "{name}", sizeof({kind}{shape}), {alignment});'
        )
    return " ".join(result)


def _kernels(text: str, form: re.Pattern[str]) -> tuple[DeclaredKernel, ...]:
    """The functions of a file that begin so, in order."""
    text = without_comments(text)
    kernels = []
    for match in form.finditer(text):
        head = match.end()
        opening, cluster, bound = text.index("(", head), "1", "0"
        while attribute := ATTRIBUTE.search(text[head:opening]):
            head = closing(text, opening)
            first = _split(text[opening + 1 : head - 1])[0]
            if attribute.group(1) == "__cluster_dims__":
                cluster = first
            elif first.isdigit() or not TEMPLATE.search(text[: match.start()]):
                bound = first
            opening = text.index("(", head)
        name = re.search(r"(\w+)\s*$", text[head:opening])
        defined = text[closing(text, opening) :].lstrip().startswith("{")  # not only declared
        if name and defined:
            names = tuple(each.name for each in parameters(text, name.group(1)) or ())
            kernels.append(DeclaredKernel(name.group(1), names, cluster, bound))
    return tuple(kernels)


def closing(text: str, opening: int) -> int:
    """The position after the parenthesis that closes the one at `opening`."""
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i + 1
    return len(text)


def _split(text: str) -> list[str]:
    """Splits at the commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part for part in (part.strip() for part in [*parts, text[start:]]) if part]


def without_comments(text: str) -> str:
    """`text` with its comments blanked out; positions stay the same."""

    def blank(match: re.Match[str]) -> str:
        if match.lastgroup != "comment":
            return match.group()
        return re.sub(r"[^\n]", " ", match.group())

    return TOKENS.sub(blank, text)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
