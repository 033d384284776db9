"""A ladder: one op and the rungs that compute it, found in the folder of its layer."""

from __future__ import annotations

import difflib
import functools
import importlib
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.contract import rung_file
from ladder.core.contract.device import Device
from ladder.core.contract.op import Op
from ladder.core.contract.rung_file import TRACKS, Rung

PACKAGE = Path(__file__).parents[2]  # the folder of the layers


@dataclass(frozen=True)
class Ladder:
    """An op and its rungs in climbing order: the reference, the trunk, tracks, libraries.

    Where float32, 16 bits and AMD's matrix cores part ways, each has a track: a folder of that name
    whose rungs go on with the numbers of the trunk. Rung 0, the op's NumPy reference, is added
    here. `extra` holds the rungs that are Python functions: vendor libraries and unfused sequences.
    """

    op: Op
    extra: tuple[Rung, ...] = ()

    @functools.cached_property
    def rungs(self) -> tuple[Rung, ...]:
        """All rungs, in climbing order; rung 0 is the reference."""
        folder = PACKAGE / self.op.layer / self.op.name.split(".")[1]
        found = [*folder.glob("*.cu"), *(p for t in TRACKS for p in (folder / t).glob("*.cu"))]
        files = (rung_file.parse(path, self.op.kernel, rung_file.id_of(path)) for path in found)
        rounds = {"rounds": ("what it reads again",)} if self.op.rereads else {}
        reference = Rung("0", "the NumPy reference", header=rounds)
        return tuple(sorted([reference, *files, *self.extra], key=_climbing_order))

    def on(self, device: Device) -> tuple[Rung, ...]:
        """The rungs that make sense on a device: the reference, kernels, or a library's."""

        def fits(rung: Rung) -> bool:
            if rung.is_reference:
                return device.runs_reference
            return rung.id in device.libraries.ids if rung.library else device.runs_kernels

        return tuple(rung for rung in self.rungs if fits(rung))

    def rung(self, which: str | int) -> Rung:
        """The rung with an id, or with a bare number that only one rung has.

        Raises LadderError, with the nearest ids, where there is none or more than one.
        """
        which = str(which)
        by_id = {rung.id: rung for rung in self.rungs}
        if which in by_id:
            return by_id[which]
        numbered = [rung.id for rung in self.rungs if str(rung.number) == which]
        if len(numbered) == 1:
            return by_id[numbered[0]]
        if numbered:
            choices = f"{', '.join(numbered[:-1])} and {numbered[-1]}"
            raise LadderError(
                f"{self.op.name} has several rungs {which}, {choices}: choose one of them"
            )
        raise LadderError(f"{self.op.name} has no rung {which!r}; {self._instead_of(which)}")

    def parent(self, rung: Rung) -> Rung | None:
        """The rung that its header says it grew from; None for one that starts a ladder."""
        named = rung.header.get("after")
        return self.rung(named[0]) if named else None

    def _instead_of(self, which: str) -> str:
        """What there is: for a number all ids, for another word those that are spelled alike."""
        if which.isdecimal():
            return f"it has {', '.join(self.spans())}"
        near = difflib.get_close_matches(which, [rung.id for rung in self.rungs], n=2, cutoff=0.5)
        if near:
            return f"did you mean {' or '.join(near)}?"
        return f"'python -m ladder list {self.op.name}' names all"

    def spans(self) -> list[str]:
        """The ids of all rungs, in short: "0 to 4", "16bit-5 to 16bit-16", "cublas"."""
        spans = []
        for _, group in itertools.groupby(self.rungs, lambda rung: rung.track):
            ids = [rung.id for rung in group if rung.number is not None]
            spans += [f"{ids[0]} to {ids[-1]}" if len(ids) > 1 else ids[0]] if ids else []
        return spans + [rung.id for rung in self.rungs if rung.number is None]


def _climbing_order(rung: Rung) -> tuple[bool, int, int, str]:
    track = TRACKS.index(rung.track) + 1 if rung.track else 0
    return rung.number is None, track, rung.number or 0, rung.id


@functools.cache
def ladders() -> Mapping[str, Ladder]:
    """Every ladder of the repository by op name, found in the `ops.py` of the layer folders."""
    found = {}
    for path in sorted(PACKAGE.glob("*/ops.py")):
        for ladder in importlib.import_module(f"ladder.{path.parent.name}.ops").LADDERS:
            found[ladder.op.name] = ladder
    return found


@functools.cache
def puzzles() -> Mapping[str, Ladder]:
    """The ops of the notebook of puzzles, by name: no layers, so `ladders` leaves them out."""
    specs = importlib.import_module("ladder.core.puzzle.specs").LADDERS
    return {ladder.op.name: ladder for ladder in specs}


def find(op: str) -> Ladder:
    """The ladder of an op, or of a puzzle; an unknown name is refused with the nearest ones."""
    known = ladders()
    if op in known:
        return known[op]
    known = {**known, **puzzles()}
    if op in known:
        return known[op]
    if ops := [name for name, ladder in known.items() if ladder.op.layer == op]:
        raise LadderError(f"{op} has the ops {', '.join(ops)}; name one")
    near = difflib.get_close_matches(op, known, n=3, cutoff=0.5)
    remedy = f"did you mean {' or '.join(near)}?" if near else "'python -m ladder list' shows them"
    raise LadderError(f"no op is named {op!r}; {remedy}")


def find_rung(op: str, which: str | int | Path) -> Rung:
    """The rung of an op by its id, or the one in a `.cu` file.

    Raises LadderError where there is no such op, rung or file.
    """
    ladder, text = find(op), str(which)
    if not text.endswith(".cu"):
        if "." in text or os.sep in text:
            raise LadderError(f"{text!r} is neither the id of a rung of {op} nor a .cu file")
        return ladder.rung(text)
    path = Path(os.path.expanduser(text))  # no shell does it behind the = of OP=~/mine.cu
    for rung in ladder.rungs:
        if rung.path is not None and os.path.realpath(path) == os.path.realpath(rung.path):
            return rung
    return rung_file.parse(path, ladder.op.kernel)
