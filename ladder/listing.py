"""Source code to look at: of one rung, and of what changes from one rung to the next."""

from __future__ import annotations

import difflib
import inspect

from ladder.contract import Ladder
from ladder.rungfile import Rung


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
