"""What there is to look at: a rung's source, what changes from rung to rung, a shape to trace."""

from __future__ import annotations

import difflib
import inspect

from ladder.contract import Ladder, Op
from ladder.rungfile import Rung

MOST_FLOPS = 2e6  # of a trace: about a second of emulation


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
