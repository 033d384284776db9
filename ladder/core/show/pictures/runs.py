"""What pictures ask of the emulator: one run of a rung, counted or recorded."""

import contextlib
import dataclasses
import functools
import io

from ladder.core.contract.ladder import Ladder, find
from ladder.core.contract.launch_plan import LaunchPlan
from ladder.core.contract.op import DTYPES, Dims
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import Emulated, KernelError
from ladder.core.emulator.report import Report
from ladder.core.show.source_code import parse_shape
from ladder.core.show.trace import trace
from ladder.core.verify.inputs import run_on

ALL = 1 << 20  # requests of a line that are kept in full


@functools.lru_cache(maxsize=8)
def counted(op: str, rung: str, dtype: str, shape: str) -> Report:
    """Everything that a rung asks of memory in one call."""
    ladder = find(op)
    return trace(ladder, ladder.rung(rung), dtype, parse_shape(ladder.op, shape), keep=ALL)


def emulated_plan(rung: Rung, dtype: str, dims: Dims) -> LaunchPlan:
    """How the emulator launches a rung. Raises LadderError where it cannot."""
    return rung.plan(dims, Emulated().target(DTYPES[dtype]))


def recorded(
    ladder: Ladder,
    rung: Rung,
    macros: str,
    dtype: str,
    dims: Dims,
    wrong: bool = False,
) -> list[list[str]]:
    """The words of each line that begins with "@" in what a copy of a rung prints, below whose
    includes stand macros. Lines keep their numbers.

    wrong  a kernel that does something wrong is recorded, too, as far as it gets
    """
    lines = rung.source.splitlines()
    first = 1 + max((i for i, line in enumerate(lines) if line.startswith("#include")), default=-1)
    source = "\n".join([*lines[:first], macros, f"#line {first + 1}", *lines[first:], ""])
    copy, printed = dataclasses.replace(rung, source=source), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(*[KernelError] * wrong):
        run_on(Emulated(), ladder, copy, dtype, dims)
    words = (line.split() for line in printed.getvalue().splitlines())
    return [line[1:] for line in words if line[:1] == ["@"]]


def default_dtype(op: str, rung: str) -> str:
    """float32 where a rung takes it, else bfloat16."""
    claims, target = find(op).rung(rung).claims, Emulated().target
    others = (name for name in ("float32", "bfloat16") if claims(target(DTYPES[name])))
    return next(others, "float32")
