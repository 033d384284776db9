"""The identity of the code of a rung: one name that changes when what runs changes.

Results, the pick cache, checkpoints, pages and compiled kernels compare it to notice an edit.
It is made of a rung's file, every header that the file includes, directly or not, the lines of its
own header that say how it is launched, and the tile heuristics that these name. Comments, blank
lines and blanks at line ends do not count, so rewording a file makes no result old. A compiler's
output does depend on comments, since machine code carries line numbers; the CUDA compiler's cache
asks for `exact=True`. (The emulator's cache is named by the one text that it compiles, which holds
all of these files.)
"""

from __future__ import annotations

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
from ladder.core.contract.ladder import PACKAGE
from ladder.core.contract.rung_file import MOST_BYTES, Rung
from ladder.core.contract.tilings import Tiling

INCLUDE = PACKAGE / "include"
LAUNCH_KEYS = ("define", "launch", "args", "scratch", "tiles", "prefetch")

_COMMENT_OR_STRING = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""", re.DOTALL
)


def code_identity(rung: Rung, exact: bool = False) -> str:
    """The identity of a rung's code, 16 hexadecimal digits; "" for the NumPy reference.

    exact  comments and blanks count too

    A rung that is a Python function (a library's) is identified by its id and that function.
    The version of the library is part of the device's description.
    """
    if rung.path is not None:
        headers = included(rung.source, rung.path.parent).values()
        texts = [rung.source, *(header.decode("utf-8", "replace") for header in headers)]
        if not exact:
            texts = [_without_comments(text) for text in texts]
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


def included(source: str, folder: Path) -> dict[Path, bytes]:
    """What a kernel file in `folder` includes, directly or not, with its content: files that lie
    beside the one that names them, or in ladder/include. The rest comes with the compiler.

    Raises LadderError where such a file is none, as /dev/zero: a compiler would read it for ever.
    """
    found: dict[Path, bytes] = {}

    def follow(text: str, beside: Path) -> None:
        for name in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', text, re.MULTILINE):
            for path in (beside / name, folder / name, INCLUDE / name):
                if path not in found and os.path.exists(path) and not path.is_dir():
                    found[path] = read_bytes(path, MOST_BYTES)
                    follow(found[path].decode("latin-1"), path.parent)

    follow(source, folder)
    return found


@functools.lru_cache(maxsize=1024)  # all rungs include the same few headers
def _without_comments(text: str) -> str:
    """CUDA C++ without comments, blank lines, and blanks at line ends."""
    return _without_blanks(_COMMENT_OR_STRING.sub(lambda match: match["string"] or "", text))


def _heuristic(function: Tiling) -> str:
    """A tile heuristic's code, and the constants of its module, which it may use."""
    module = vars(sys.modules[function.__module__])
    constants = {name: value for name, value in module.items() if name.isupper()}
    return _python_code(inspect.getsource(function)) + repr(sorted(constants.items()))


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
