"""The parts of a rung's file, as tables: header keys, names, included files, what is launched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.device_code import INCLUDE, included
from ladder.core.contract.dims import Dims, format_dims
from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.ladder import Ladder, ladders
from ladder.core.contract.launch_plan import NAMES
from ladder.core.contract.rung_file import KEYS, Rung
from ladder.core.contract.runs_on import FAMILIES
from ladder.core.device.cuda import compiler
from ladder.core.emulator.emulated import Emulated
from ladder.core.verify.shapes import derive_shapes

ARCHITECTURE = "sm_90a"  # of the device that launches are worked out for


def keys(only: Collection[str] = (), without: Collection[str] = ()) -> str:
    """The keys of a header, all or some: for whom each is, and what it says."""
    if unknown := {*only, *without} - set(KEYS):
        raise LadderError(f"a header has no {', '.join(sorted(unknown))}; it has {', '.join(KEYS)}")
    chosen = [name for name in only or KEYS if name not in without]
    rows = (f"| `{name}` | {KEYS[name].reader} | {KEYS[name].says} |" for name in chosen)
    return "\n".join(["| key | for | says |", "|---|---|---|", *rows])


def names() -> str:
    """What the expressions of a header may name, beside dimensions and constants."""
    rows = (f"| `{name}` | {meaning} |" for name, meaning in NAMES.items())
    return "\n".join(["| name | is |", "|---|---|", *rows])


def generations() -> str:
    """The generations of GPUs, as the tables of rungs name them: what code for each is called."""
    rows = (
        f"| {family.maker} {generation.name} | `{generation.arch}` | {generation.cards} |"
        for family in FAMILIES
        for generation in family.generations
    )
    return "\n".join(["| in the tables | compiled for | such as |", "|---|---|---|", *rows])


def includes(link: Callable[[Path], str]) -> str:
    """The headers that rungs include, directly or not, with the first sentence of each, the most
    used one first."""
    users = Counter(
        path.relative_to(INCLUDE).as_posix()
        for ladder in ladders().values()
        for rung in ladder.rungs
        if rung.path is not None
        for path in included(rung.source, rung.path.parent)
        if path.suffix == ".cuh"
    )
    lines = ["| header | what it has | rungs that use it |", "|---|---|--:|"]
    for name in sorted(users, key=lambda name: (-users[name], name)):
        path = INCLUDE / name
        lines.append(f"| [{name}]({link(path)}) | {_first_sentence(path)} | {users[name]} |")
    return "\n".join(lines)


def _first_sentence(path: Path) -> str:
    """The first sentence of the comment that a header begins with, without sources in brackets."""
    comment = re.match(r"(?://.*\n)+", read_text(path))
    text = " ".join(line.removeprefix("//").strip() for line in (comment or [""])[0].splitlines())
    text = re.sub(r" \([^()]*\b\d{4}\)", "", text)
    return re.split(r"(?<=[^.])\.(?= [A-Z]|$)|  ", text)[0].rstrip(".")


def launches(
    ladder: Ladder, rung: Rung, dtypes: Sequence[str], shapes: Sequence[Dims] | None
) -> str:
    """What the header comes to: constants, grid and block, or why the rung is refused.

    shapes  None: those that the checker derives from the header, on the emulated device
    """
    lines = ["| type | shape | constants | grid | block |", "|---|---|---|---|---|"]
    for dtype in dtypes:
        real = DTYPES[dtype]
        if shapes is None:
            target = Emulated().target(real)
            wanted: Sequence[Dims] = derive_shapes(ladder.op, rung, target)
        else:
            target, wanted = compiler.typical_target(ARCHITECTURE, np.dtype(real)), shapes
        for dims in wanted:
            plan = rung.plan(dims, target)
            row = [dtype, format_dims(dims)]
            row.append(", ".join(f"{name} = {value}" for name, value in plan.constants.items()))
            if plan.refusal:
                row += [f"refused: {plan.refusal}", ""]
            else:
                row.append("; ".join(_size(launch.grid) for launch in plan.launches))
                row.append("; ".join(_size(launch.block) for launch in plan.launches))
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _size(size: tuple[int, int, int]) -> str:
    """A grid or block without the dimensions at its end that are 1: "(24, 32)", "1024"."""
    used = max((axis for axis in range(3) if size[axis] > 1), default=0) + 1
    return f"{size[0]:,}" if used == 1 else f"({', '.join(f'{n:,}' for n in size[:used])})"


def passage(path: Path, first: str, last: str) -> str:
    """The lines of a file from the first one that contains `first` to the next one with `last`.

    Raises LadderError where there is none.
    """
    lines = read_text(path).splitlines()
    start = next((i for i, line in enumerate(lines) if first in line), None)
    if start is None:
        raise LadderError(f"{path.name} has no line with {first}")
    stop = next((i for i in range(start, len(lines)) if last in lines[i]), None)
    if stop is None:
        raise LadderError(f"{path.name} has no line with {last} after the one with {first}")
    return "\n".join(lines[start : stop + 1])
