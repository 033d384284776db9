"""The identity of the code of a rung: one name that changes when what runs changes.

Results, the pick cache, checkpoints, pages and compiled kernels compare it to notice an edit.
It is made of the code that a rung runs on a GPU (device_code.py), the lines of its header that say
how it is launched, and the tile heuristics that these name. So neither a comment, nor a helper in
a header that the rung does not use, makes a result old. A compiler's output does depend on
comments, since machine code carries line numbers; the CUDA compiler's cache asks for `exact=True`.
(The emulator's cache is named by the one text that it compiles, which holds all of these files.)
"""

import ast
import functools
import inspect
import io
import sys
import textwrap
import tokenize

from ladder.core.common import cache
from ladder.core.contract.device_code import device_code, included
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.tilings import Tiling

LAUNCH_KEYS = ("args", "define", "launch", "scratch", "tiles", "prefetch")


def code_identity(rung: Rung, exact: bool = False) -> str:
    """The identity of a rung's code, 16 hexadecimal digits; "" for the NumPy reference.

    exact  comments and blanks count too

    A rung that is a Python function (a library's) is identified by its id and that function.
    The version of the library is part of the device's description.
    """
    if rung.path is not None:
        folder = rung.path.parent
        texts = [device_code(rung.source, folder)]
        if exact:
            headers = included(rung.source, folder).values()
            texts = [rung.source, *(header.decode("utf-8", "replace") for header in headers)]
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
