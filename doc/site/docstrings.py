"""Docstrings of this repository as Sphinx wants them.

They are plain text with Markdown's `code`, indented examples, and tables of two columns, a name and
what it means. reStructuredText writes these as ``code``, blocks of code and definition lists.
"""

import ast
import re
import textwrap
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(?<![`:\w])`([^`]+)`(?!`)")
_MODULES = re.compile(r"('[^']*')|~?\b(?:[A-Za-z_]\w*\.)+(?=\w)|~")  # not those in texts
_ENTRY = re.compile(r"(\S.*?\S|\S) {2,}(\S.*)")


def as_rst(text: str) -> str:
    """A docstring in reStructuredText."""
    return "\n\n".join(map(_block, re.split(r"\n\s*\n", text.strip("\n"))))


def _block(block: str) -> str:
    lines = block.splitlines()
    if all(line.startswith("    ") for line in lines):
        return "\n".join([f".. code-block:: {_language(block)}", "", *lines])
    if not _ENTRY.fullmatch(lines[0]):
        return _CODE.sub(r"``\1``", block)
    entries = []
    for line in lines:
        if (entry := _ENTRY.fullmatch(line)) and not line.startswith(" "):
            name = entry[1].strip("`")
            entries += [f"``{name}``", f"   {entry[2]}"]
        else:
            entries.append(f"   {line.strip()}")
    return _CODE.sub(r"``\1``", "\n".join(entries))


def _language(example: str) -> str:
    try:
        ast.parse(textwrap.dedent(example))
    except SyntaxError:
        return "none"
    return "python"


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [*as_rst("\n".join(lines)).splitlines(), ""]


def short(signature: str) -> str:
    """A signature without the modules of types, and without defaults that are no expressions."""
    names = _MODULES.sub(lambda found: found[1] or "", signature)
    return re.sub(r"<(?:[^<>]|<[^<>]*>)*>", "...", names)


def _shorten(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, takes: str | None, gives: str | None
) -> tuple[str | None, str | None]:
    return takes and short(takes), gives and short(gives)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
