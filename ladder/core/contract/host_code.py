"""Host code: a function that launches kernels, as load_inline and online judges take it.

extern "C" void solve(const float* A, float* C, int N) { scale<<<(N + 255) / 256, 256>>>(A, C, N); }

A Python file is read for such C++ in its strings. It is never executed.
"""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from ladder.core.common.errors import LadderError

SUFFIXES = (".cu", ".py")  # of a kernel's file
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_FUNCTION = re.compile(r"([^;{}#()]*)\b(\w+)\s*\(([^(){};]*)\)\s*\{")
_BOUND = re.compile(r'\.def\(\s*"\w+"\s*,\s*&?\s*(\w+)')  # what PYBIND11_MODULE exports
_STRING = re.compile(r"^\s*#\s*include|__global__|^\s*(torch|at)::Tensor \w+\(", re.MULTILINE)


def find_host(source: str, exported: Sequence[str]) -> str:
    """The host function of a file: the first that is exported, or solve, or the last that takes or
    returns tensors, or has C linkage; "" where no kernel is launched."""
    code = _NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)
    found = [
        name
        for before, name, parameters in _FUNCTION.findall(code if "<<<" in code else "")
        if not re.search(r"__global__|__device__", before)
        if re.search(r"Tensor|\bextern\b", before + parameters) or name == "solve"
    ]
    names = (*exported, *_BOUND.findall(source), "solve", *reversed(found))
    return next((name for name in names if name in found), "")


def inline_source(path: Path, text: str) -> tuple[str, Sequence[str]]:
    """The C++ in the strings of a Python file, each line where it is in that file, and the names in
    its `functions=`. Raises LadderError where it is not Python, or a string is made by the program.
    """
    lines: list[str] = []
    try:
        nodes = list(ast.walk(ast.parse(text)))
        strings = [each for each in nodes if isinstance(each, ast.Constant | ast.JoinedStr)]
        for each in sorted(strings, key=lambda each: each.lineno):
            if isinstance(each, ast.JoinedStr) and _STRING.search(ast.unparse(each)):
                raise LadderError(f"{path}:{each.lineno}: an f-string; write C++ as a plain string")
            if isinstance(each, ast.Constant) and _STRING.search(str(each.value)):
                lines += [""] * (each.lineno - 1 - len(lines))
                lines += str(each.value).split("\n")
        exported = [n for n in nodes if isinstance(n, ast.keyword) and n.arg == "functions"]
        return "\n".join(lines), re.findall(r"'(\w+)'", "".join(map(ast.unparse, exported)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise LadderError(f"{path}: {error}") from None
