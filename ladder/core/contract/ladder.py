"""A ladder: one op and the rungs that compute it, found in the folder of its layer."""

import difflib
import functools
import importlib
import itertools
import os
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.install import ROOT
from ladder.core.contract import rung_file
from ladder.core.contract.device import Device
from ladder.core.contract.op import Op
from ladder.core.contract.rung_file import SUFFIXES, TRACKS, Rung

PACKAGE = Path(__file__).parents[2]  # the folder of the layers


@dataclass(frozen=True)
class Ladder:
    """An op and its rungs in climbing order: the reference, the trunk, tracks, libraries.

    Where float32, 16 bits and AMD's matrix cores part ways, each has a track: a folder of that name
    whose first rungs went on with the numbers of the trunk. A number never moves: a rung that is
    put between 1 and 2 is 1b. Rung 0, the op's NumPy reference, is added here. `extra` holds the
    rungs that are Python functions: vendor libraries and unfused sequences.
    """

    op: Op
    extra: tuple[Rung, ...] = ()

    @functools.cached_property
    def rungs(self) -> tuple[Rung, ...]:
        """All rungs, in climbing order; rung 0 is the reference."""
        folder = PACKAGE.joinpath(*self.op.name.split("."))
        places = [] if self.op.own else [folder, *(folder / track for track in TRACKS)]
        paths = [path for place in places for path in place.glob("*.cu")]
        files = [rung_file.parse(path, self.op.kernel, rung_file.id_of(path)) for path in paths]
        rounds = {"rounds": ("what it reads again",)} if self.op.rereads else {}
        _refuse_what_is_taken(files)
        reference = Rung("0", "the NumPy reference", header=rounds)
        return tuple(sorted([reference, *files, *self.extra], key=_climbing_order))

    def on(self, device: Device) -> tuple[Rung, ...]:
        """The rungs that make sense on a device: the reference, kernels, or a library's."""

        def fits(rung: Rung) -> bool:
            if rung.is_reference:
                return device.runs_reference
            return rung.id in device.library_rungs if rung.library else device.runs_kernels

        return tuple(rung for rung in self.rungs if fits(rung))

    def find(self, which: str | int | Path) -> Rung:
        """The rung with an id or name, as `rung` takes it, or the one in a `.cu` file. Raises
        LadderError where there is none."""
        text = str(which)
        if not text.endswith(SUFFIXES):
            if "." in text:
                raise LadderError(f"{text!r} is neither a rung of {self.op.name} nor a .cu file")
            return self.rung(text)
        path = Path(os.path.expanduser(text))  # no shell does it behind the = of OP=~/mine.cu
        for rung in self.rungs:
            if rung.path is not None and os.path.realpath(path) == os.path.realpath(rung.path):
                return rung
        return rung_file.parse(path, self.op.kernel, op="" if self.op.own else self.op.name)

    def rung(self, which: str | int) -> Rung:
        """The rung with an id; or the only one with this number or name, or name on this track.

        So 3, "16bit-6", "warp_per_row" and "16bit/double_buffering" are taken. Raises LadderError,
        with the nearest ids and names, where there is none or more than one, and with the rung
        that stands for it where it was taken out.
        """
        which, named = str(which), self._named
        meant = [id for id, (_, names) in named.items() if which in names]
        if which in named:
            meant = [which]
        if len(meant) > 1:
            choices = f"{', '.join(meant[:-1])} and {meant[-1]}"
            raise LadderError(
                f"{self.op.name} has several rungs {which}, {choices}: choose one of them"
            )
        if not meant:
            raise LadderError(f"{self.op.name} has no rung {which!r}; {self._instead_of(which)}")
        rung, _ = named[meant[0]]
        if rung.id != meant[0]:
            words = dict(rung.replaces)[meant[0]].replace("_", " ")
            raise LadderError(
                f"{self.op.name} {meant[0]} ({words}) is gone; {rung.id} stands for it"
            )
        return rung

    @functools.cached_property
    def _named(self) -> dict[str, tuple[Rung, set[str]]]:
        """By id, also of one that was taken out: the rung that it leads to, and what names it."""
        return {
            id: (rung, rung_file.spellings(id, slug))
            for rung in self.rungs
            for id, slug in ((rung.id, rung.slug), *rung.replaces)
        }

    def parent(self, rung: Rung) -> Rung | None:
        """The rung that its header says it grew from, of this or another ladder; None without."""
        if rung.after is None:
            return None
        op, id = rung.after
        return (find(op) if op else self).rung(id)

    def predecessor(self, rung: Rung) -> Rung | None:
        """The rung of this ladder that its time is compared with: its parent; where that is of
        another ladder, the one before it on its track, or else on the trunk."""
        if rung.after is None or not rung.after[0]:
            return self.parent(rung)
        ahead = itertools.takewhile(lambda other: other.id != rung.id, self.rungs)
        on_the_way = [other for other in ahead if other.path and other.track in ("", rung.track)]
        return on_the_way[-1] if on_the_way else None

    def _instead_of(self, which: str) -> str:
        """What there is: for a number all ids, for another word those that are spelled alike."""
        if which.isdecimal():
            return f"it has {', '.join(self.spans())}"
        names = sorted({name for rung in self.rungs for name in self._named[rung.id][1]})
        near = difflib.get_close_matches(which, names, n=2, cutoff=0.5)
        if near:
            return f"did you mean {' or '.join(near)}?"
        return f"'python -m ladder list {self.op.name}' names all"

    def spans(self, of: Sequence[Rung] | None = None) -> list[str]:
        """The ids of all rungs, or of some, in short: "0 to 4", "16bit-5 to 16bit-16", "cublas".

        Between the first and the last of a span no number is missing.
        """
        runs: list[list[Rung]] = []
        last = None  # the rung before, if it is one of them
        for rung in self.rungs:
            if of is not None and rung not in of:
                last = None
                continue
            if last is not None and _follows(last, rung):
                runs[-1].append(rung)
            else:
                runs.append([rung])
            last = rung
        spans = []
        for run in runs:
            ids = [rung.id for rung in run]
            spans += [f"{ids[0]} to {ids[-1]}"] if len(ids) > 2 else ids
        return spans


def _follows(before: Rung, rung: Rung) -> bool:
    """Whether no number is missing between a rung and the one before it in the ladder."""
    if not before.number or not rung.number or before.track != rung.track:
        return False
    return _without_letter(rung) - _without_letter(before) <= 1


def _without_letter(rung: Rung) -> int:
    return int(rung.number.rstrip(string.ascii_lowercase) or 0)


def _climbing_order(rung: Rung) -> tuple[bool, int, int, str]:
    track = TRACKS.index(rung.track) + 1 if rung.track else 0
    return not rung.number, track, _without_letter(rung), rung.id


def _refuse_what_is_taken(rungs: Iterable[Rung]) -> None:
    """Raise LadderError where a number, or a name on a track, is given twice, or was given before
    to a rung that is gone: what is saved, typed or linked must not change its meaning."""
    taken: dict[str, Path] = {}
    for rung in rungs:
        for id, slug in ((rung.id, rung.slug), *rung.replaces):
            on_track = id.removesuffix(rung_file.number_of(id)).replace("-", "/")
            for name in (id, on_track + slug):
                if name in taken:
                    raise LadderError(f"{rung.path}: {name} is taken, by {taken[name]}")
                taken[name] = rung.file


@functools.cache
def ladders() -> Mapping[str, Ladder]:
    """Every ladder of the repository by op name, found in the `ops.py` of the layer folders."""
    layers = (path.parent.name for path in sorted(PACKAGE.glob("*/ops.py")))
    modules = (importlib.import_module(f"{ROOT}ladder.{layer}.ops") for layer in layers)
    return {ladder.op.name: ladder for module in modules for ladder in module.LADDERS}


@functools.cache
def puzzles() -> Mapping[str, Ladder]:
    """The ops of the notebook of puzzles, by name: no layers, so `ladders` leaves them out."""
    specs = importlib.import_module(f"{ROOT}ladder.core.puzzle.specs").LADDERS
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
    if op.endswith(SUFFIXES):
        why = "is a file: name its op first, such as relu.forward, or --reference ref.py after it"
        raise LadderError(f"{op} {why}" if os.path.exists(op) else f"{op}: no such file")
    near = difflib.get_close_matches(op, known, n=3, cutoff=0.5)
    remedy = f"did you mean {' or '.join(near)}?" if near else "'python -m ladder list' shows them"
    raise LadderError(f"no op is named {op!r}; {remedy}")


def find_rung(op: str, which: str | int | Path) -> Rung:
    """The rung of an op, as `Ladder.find` takes it. Raises LadderError where there is no such op,
    rung or file."""
    return find(op).find(which)
