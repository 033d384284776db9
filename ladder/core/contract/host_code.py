"""Host code: a function that launches kernels, as load_inline and online judges take it.

extern "C" void solve(const float* A, float* C, int N) { scale<<<(N + 255) / 256, 256>>>(A, C, N); }

A Python file is read for such C++ in its strings. It is never executed.
"""

import ast
import re
from pathlib import Path

from ladder.core.common.errors import LadderError

_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_FUNCTION = re.compile(r"([^;{}#()]*)\b(\w+)\s*\(([^(){};]*)\)\s*\{")
_NAMED = re.compile(r"""(?:\.def\(\s*"\w+"\s*,\s*&?\s*|\bfunctions\s*=\s*\[\s*["'])(\w+)""")
_GOES_ON = re.compile(r"(?<!\\)((?:\\\\)*)\\\n")
_STRING = re.compile(r"^\s*#\s*include|__global__|^\s*(torch|at)::Tensor \w+\(", re.MULTILINE)


def find_host(path: Path, source: str) -> tuple[str, str]:
    """The C++ of a file and its host function: the first that PYBIND11_MODULE or load_inline names,
    or solve, or the last that takes or returns tensors, or has C linkage; "" without a launch."""
    named = _NAMED.findall(source)
    source = _in_strings(path, source) if path.suffix == ".py" else source
    code = _NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    hosts = [
        name
        for before, name, parameters in _FUNCTION.findall(code if "<<<" in code else "")
        if not re.search(r"__global__|__device__", before)
        if re.search(r"Tensor|\bextern\b", before + parameters) or name == "solve"
    ]
    names = (*named, "solve", *reversed(hosts))
    if path.suffix == ".py" and not hosts:
        raise LadderError(f"{path}: no string in it has a function that launches kernels by <<<>>>")
    return source, next((name for name in names if name in hosts), "")


def _in_strings(path: Path, text: str) -> str:
    """The C++ in the strings of a Python file, each line where it is in that file. Raises
    LadderError where it is not Python, or the program makes a string."""
    lines: list[str] = []
    try:
        nodes = ast.walk(ast.parse(text))
        strings = [each for each in nodes if isinstance(each, ast.Constant | ast.JoinedStr)]
        for each in sorted(strings, key=lambda each: each.lineno):
            if isinstance(each, ast.JoinedStr) and _STRING.search(ast.unparse(each)):
                raise LadderError(f"{path}:{each.lineno}: an f-string; write C++ as a plain string")
            if isinstance(each, ast.Constant) and _STRING.search(str(each.value)):
                lines += [""] * (each.lineno - 1 - len(lines))
                value, literal = str(each.value), ast.get_source_segment(text, each) or ""
                if literal[:1] not in "rR":  # a line that goes on does so in C++, too
                    value = ast.literal_eval("(" + _GOES_ON.sub(r"\1\\\\\n", literal) + ")")
                lines += value.split("\n")
        return "\n".join(lines)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise LadderError(f"{path}: {error}") from None
