"""A ladder: one op and the rungs that compute it, found in the folder of its layer."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ladder.common.errors import LadderError
from ladder.contract import rung_file
from ladder.contract.device import Device
from ladder.contract.op import Op
from ladder.contract.rung_file import Rung

PACKAGE = Path(__file__).parents[1]  # the folder of the layers


@dataclass(frozen=True)
class Ladder:
    """An op and its rungs in climbing order. Rung 0, the op's NumPy reference, is added here.

    `extra` holds the rungs that are Python functions: vendor libraries and unfused sequences.
    """

    op: Op
    extra: tuple[Rung, ...] = ()

    @functools.cached_property
    def rungs(self) -> tuple[Rung, ...]:
        folder = PACKAGE / self.op.layer / self.op.name.split(".")[1]
        files = (rung_file.parse(path, self.op.kernel) for path in folder.glob("[0-9]*.cu"))
        rounds = {"rounds": ("what it reads again",)} if self.op.rereads else {}
        return tuple(
            sorted(
                [Rung(0, "the NumPy reference", header=rounds), *files, *self.extra],
                key=lambda rung: rung.number,
            )
        )

    def on(self, device: Device) -> tuple[Rung, ...]:
        """The rungs that make sense on a device: the reference, kernels, or a library's."""

        def fits(rung: Rung) -> bool:
            if rung.number == 0:
                return device.runs_reference
            return bool(device.libraries) if rung.library else device.runs_kernels

        return tuple(rung for rung in self.rungs if fits(rung))

    def rung(self, number: int) -> Rung:
        for rung in self.rungs:
            if rung.number == number:
                return rung
        numbers = ", ".join(str(rung.number) for rung in self.rungs)
        raise LadderError(f"{self.op.name} has no rung {number}; it has {numbers}")


@functools.cache
def ladders() -> Mapping[str, Ladder]:
    """Every ladder of the repository by op name, found in the `ops.py` of the layer folders."""
    found = {}
    for path in sorted(PACKAGE.glob("*/ops.py")):
        for ladder in importlib.import_module(f"ladder.{path.parent.name}.ops").LADDERS:
            found[ladder.op.name] = ladder
    return found


def find(op: str) -> Ladder:
    """The ladder of an op; an unknown name is refused with the nearest known ones."""
    known = ladders()
    if op in known:
        return known[op]
    near = difflib.get_close_matches(op, known, n=3, cutoff=0.4)
    remedy = f"did you mean {' or '.join(near)}?" if near else "'python -m ladder list' shows them"
    raise LadderError(f"no op is named {op!r}; {remedy}")


def find_rung(op: str, which: str | int | Path) -> Rung:
    """The rung of an op by its number, or the one in a `.cu` file.

    Raises LadderError where there is no such op, rung or file.
    """
    ladder, text = find(op), str(which)
    if text.isdecimal():
        return ladder.rung(int(text))
    if not text.endswith(".cu"):
        raise LadderError(f"{text!r} is neither the number of a rung of {op} nor a .cu file")
    path = Path(os.path.expanduser(text))  # no shell does it behind the = of OP=~/mine.cu
    rung = rung_file.parse(path, ladder.op.kernel)
    if any(path.resolve() == known.path.resolve() for known in ladder.rungs if known.path):
        return rung
    return dataclasses.replace(rung, number=-1)  # a copy may have kept the name "3_idea.cu"
