"""What a rung runs on a GPU, out of its file and the headers that it includes.

    text = device_code(rung.source, rung.path.parent)

Comments are left out, and so are the emulator's branches (`#ifdef KERNEL_LADDER_EMULATOR`) and the
declarations of headers that the rung does not use, directly or through others. So this text changes
only with what a compiler for GPUs makes something of. It is for comparison, not for compiling.

`code_identity` is one name that changes when what runs changes: results, the pick cache,
checkpoints, pages and compiled kernels compare it to notice an edit. It is made of that text, the
lines of the rung's header that say how it is launched, and the tile heuristics that these name. So
neither a comment, nor a helper in a header that the rung does not use, makes a result old. A
compiler's output does depend on comments, since machine code carries line numbers; the CUDA
compiler's cache asks for `exact=True`. (The emulator's cache is named by the one text that it
compiles, which holds all of these files.)
"""

import ast
import functools
import inspect
import io
import os
import re
import sys
import textwrap
import tokenize
from pathlib import Path

from ladder.core.common import cache
from ladder.core.common.files import read_bytes
from ladder.core.contract.expressions import Function
from ladder.core.contract.ladder import PACKAGE
from ladder.core.contract.rung_file import MOST_BYTES, Rung

INCLUDE = PACKAGE / "include"
_COMMENT_OR_STRING = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""", re.DOTALL
)
_included_names = functools.lru_cache(maxsize=2048)(
    re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE).findall
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_BRANCH = re.compile(r"#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)")
_EMULATOR = "KERNEL_LADDER_EMULATOR"
LAUNCH_KEYS = ("args", "define", "launch", "scratch", "tiles", "prefetch")


def device_code(source: str, folder: Path) -> str:
    """The code of a kernel file in `folder`, then what it uses of its headers, in their order."""
    headers = included(source, folder).values()
    return _used(source, tuple(header.decode("utf-8", "replace") for header in headers))


@functools.lru_cache(maxsize=2048)  # pages ask for every rung, many times
def _used(source: str, headers: tuple[str, ...]) -> str:
    declarations = [declaration for header in headers for declaration in _declarations(header)]
    code = _without_emulator(without_comments(source))
    used, new = set[int](), [code]
    while new:  # what was taken in last may use further declarations
        words = set(_NAME.findall("\n".join(new)))
        taken = [
            number
            for number, (names, _) in enumerate(declarations)
            if number not in used and (not names or names & words)
        ]
        used.update(taken)
        new = [declarations[number][1] for number in taken]
    return "\n".join([code, *(declarations[number][1] for number in sorted(used))])


def included(source: str, folder: Path) -> dict[Path, bytes]:
    """What a kernel file in `folder` includes, directly or not, with its content: files that lie
    beside the one that names them, or in ladder/include. The rest comes with the compiler.

    Raises LadderError where such a file is none, as /dev/zero: a compiler would read it for ever.
    """
    files: dict[Path, bytes] = {}

    def follow(text: str, beside: Path) -> None:
        for name in _included_names(text):
            for path in dict.fromkeys((beside / name, folder / name, INCLUDE / name)):
                if path not in files and os.path.exists(path) and not path.is_dir():
                    files[path] = read_bytes(path, MOST_BYTES)
                    follow(files[path].decode("latin-1"), path.parent)

    follow(source, folder)
    return files


@functools.lru_cache(maxsize=1024)  # all rungs include the same few headers
def without_comments(text: str) -> str:
    """CUDA C++ without comments, blank lines, and blanks at line ends."""
    return _without_blanks(_COMMENT_OR_STRING.sub(lambda match: match["string"] or "", text))


def _without_emulator(code: str) -> str:
    """The code without what only the emulator compiles, and without the directives around it."""
    kept: list[str] = []
    left_out: list[bool | None] = []  # for each open #if; None: it is not about the emulator
    negated = False
    for line in code.splitlines():
        word, condition = _branch(line)
        if word in ("if", "ifdef", "ifndef"):
            about = _EMULATOR in condition
            if about:
                negated = word == "ifndef" or "!" in condition
            left_out.append(not negated if about else None)
        about_emulator = bool(word) and left_out[-1] is not None
        if about_emulator and word in ("elif", "else"):
            left_out[-1] = negated
        if word == "endif":
            left_out.pop()
        if not about_emulator and True not in left_out:
            kept.append(line)
    return "\n".join(kept)


def _branch(line: str) -> tuple[str, str]:
    """The word and the condition of a line such as `#if A`; two empty strings for another."""
    match = _BRANCH.match(line.strip())
    return (match[1], match[2]) if match else ("", "")


@functools.lru_cache(maxsize=256)
def _declarations(header: str) -> tuple[tuple[frozenset[str], str], ...]:
    """Each declaration and macro of a header below the conditions (#if) that it stands in, with the
    names by which others use it. One without a name is not understood, and always counts."""
    suffixes = ("", *re.findall(r"\w##(\w+)", header))  # NAME##_registers, of a macro
    declared: list[tuple[frozenset[str], str]] = []
    conditions: list[str] = []
    lines: list[str] = []
    depth = 0
    for line in _without_emulator(without_comments(header)).splitlines():
        word, _ = _branch(line)
        if word and not lines:  # between two declarations
            if word in ("elif", "else"):
                conditions[-1] += line
            elif word == "endif":
                conditions.pop()
            else:
                conditions.append(line)
            continue
        macro = line.lstrip().startswith("#") if not lines else lines[0].lstrip().startswith("#")
        lines.append(line)
        if not macro:
            depth += line.count("{") - line.count("}")
        ends = not line.endswith("\\") if macro else line.endswith((";", "}", ")"))
        if ends and depth == 0:
            text = "\n".join(lines)
            if not re.match(r"\s*#\s*(include|pragma|error)", text):
                names = frozenset(name + end for name in _names(text) for end in suffixes)
                declared.append((names, "\n".join([*conditions, text])))
            lines = []
    return (*declared, *([(frozenset[str](), "\n".join(lines))] if lines else []))


def _names(declaration: str) -> frozenset[str]:
    """The names that a declaration introduces; none where it is not understood."""
    if macro := re.match(r"\s*#\s*(?:define|undef)\s+(\w+)", declaration):
        return frozenset({macro[1]})
    text = re.sub(r"^\s*template\s*<[^{;]*?>\s*(?=\w)", "", declaration)
    text = re.sub(r"alignas\s*\([^)]*\)", "", text)
    if kind := re.match(r"\s*(?:struct|class|union|enum(?: class)?|using|namespace)\s+(\w+)", text):
        return frozenset({kind[1]})
    if call := re.match(r"\s*(\w+)\s*\(([^(){}]*)\)\s*$", text):  # a macro that defines functions
        return frozenset(_NAME.findall(call[2]))
    if re.match(r"\s*(static\s+)?(constexpr|const)\b[^({]*=", text):  # perhaps several
        return frozenset(re.findall(r"(\w+)\s*=", text))
    if "operator" not in text and (head := re.match(r"[^=;({\[]*?(\w+)\s*[=;({\[]", text)):
        return frozenset({head[1]})
    return frozenset()


# ---- its identity -------------------------------------------------------------------------------


def code_identity(rung: Rung, exact: bool = False) -> str:
    """The identity of a rung's code, 16 hexadecimal digits; "" for the NumPy reference.

    exact  comments and blanks count too

    A rung that is a Python function (a library's) is identified by its id and that function.
    The version of the library is part of the device's description.
    """
    if rung.path is not None:
        folder = rung.path.parent
        if exact:
            headers = included(rung.source, folder).values()
            texts = [rung.source, *(header.decode("utf-8", "replace") for header in headers)]
        else:
            texts = [device_code(rung.source, folder)]
        launch = [line for key in LAUNCH_KEYS for line in rung.header.get(key, ())]
        heuristics = [_heuristic(function) for function in rung.lines.heuristics.values()]
        return cache.digest(
            *texts,
            *(" ".join(line.split()) for line in launch),
            *heuristics,
        )[:16]
    if rung.run is None:
        return ""
    function = rung.run.func if isinstance(rung.run, functools.partial) else rung.run
    return cache.digest(rung.id, _python_code(inspect.getsource(function)))[:16]


def _heuristic(function: Function) -> str:
    """A tile heuristic's code, and the constants of its module, which it may use."""
    module = vars(sys.modules[function.__module__])
    constants = {name: value for name, value in module.items() if name.isupper()}
    return _python_code(inspect.getsource(function)) + repr(sorted(constants.items()))


@functools.lru_cache(maxsize=256)
def _python_code(text: str) -> str:
    """A Python function without comments, docstring, blank lines, and blanks at line ends."""
    text = textwrap.dedent(text)
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        for row in range(docstring.lineno, (docstring.end_lineno or 0) + 1):
            lines[row - 1] = ""
    return _without_blanks("\n".join(lines))


def _without_blanks(text: str) -> str:
    return "\n".join(line for line in map(str.rstrip, text.splitlines()) if line)
