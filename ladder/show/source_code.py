"""What there is to look at: a rung's source, what changes from rung to rung, a shape to trace."""

from __future__ import annotations

import difflib
import inspect
import re

from ladder.contract.ladder import Ladder
from ladder.contract.op import Op
from ladder.contract.rung_file import Rung

MOST_FLOPS = 2e6  # of a trace: about a second of emulation
MACHINE_READ = re.compile(r"// (Needs|Define|Launch|Scratch|Tiles):")


def source(ladder: Ladder, rung: Rung) -> tuple[str, str]:
    """The text of a rung and its language: its file; the Python of the reference or a library call.

    The reference is its whole module, since the equations stand in the module's docstring.
    """
    if rung.path is not None:
        return rung.source, "cuda"
    if rung.run is not None:
        return inspect.getsource(rung.run), "python"
    return inspect.getsource(inspect.getmodule(ladder.op.reference)), "python"


def diff(ladder: Ladder, before: Rung, after: Rung, context: int = 3) -> str:
    """A unified diff of two rungs, with the names of their files."""
    sources = [source(ladder, rung)[0].splitlines(keepends=True) for rung in (before, after)]
    names = [rung.path.name if rung.path else rung.label for rung in (before, after)]
    return "".join(difflib.unified_diff(*sources, *names, n=context))


class _Line(str):
    """A line that equals another one where only the indentation differs."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.strip() == other.strip()

    def __hash__(self) -> int:
        return hash(self.strip())


def code_diff(ladder: Ladder, before: Rung, after: Rung, context: int = 1) -> str:
    """The same for a page that shows the headers' words beside it: what runs, and nothing else.

    Left out are the words of the headers, and lines that are only indented otherwise. What is
    left is for reading; `patch` would not take it.
    """
    lines = [
        [_Line(line) for line in _without_words(source(ladder, rung)[0]).splitlines(keepends=True)]
        for rung in (before, after)
    ]
    hunks = list(difflib.unified_diff(*lines, n=context))[2:]
    return "".join("@@\n" if line.startswith("@@") else line for line in hunks)


def _without_words(text: str) -> str:
    """A rung's file without the title and the lines of its header that only people read."""
    header = re.match(r"(?://.*\n)*", text).group()
    entries = re.findall(r"// [A-Z]\w*:.*\n(?://(?! [A-Z]\w*:).*\n)*", header)
    kept = [entry for entry in entries if MACHINE_READ.match(entry)]
    return "".join(kept) + text[len(header) :]


def small_shape(op: Op) -> dict[str, int]:
    """The op's first measured shape, with dimensions halved until it is quickly emulated.

    First the rows: they only repeat what happens. Then whatever is largest.
    """
    dims = dict(next(iter(op.bench.values())))
    rows = op.dims[0]
    while op.flops(dims) > MOST_FLOPS:
        name = rows if dims[rows] > 32 else max(dims, key=dims.__getitem__)
        dims[name] //= 2
    return dims
