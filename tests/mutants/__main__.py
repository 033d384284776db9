"""Mutation score of the checker: how many small changes to rungs it catches.

    python -m tests.mutants matmul.forward --rung 16bit-13
    python -m tests.mutants matmul --rung 16bit --kind wait,barrier,arrival,parity
    python -m tests.mutants --sample 12 --seed 1          12 of each layer, of all kinds in turn
    python -m tests.mutants --share 3/100                 one of 100 samples of all there are

All samples of --share are the whole set: 67,000 mutants, which take two days of one core, 2.6 s
each. So 100 of them are half an hour each, for -j cores, several machines or many nights: what has
been run stays run, since the same mutants are in a sample whatever else changes. `.ci/run` takes
one of 2,000, another one at each commit.

A mutant is a rung with one small change (operators.py). One that the checker passes survives. It is
a bug of the checker, unless the change computes the same: then it is listed with its reason in
tests/mutants/equivalent/. The status is 1 where any other survives.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder.core.contract.ladder import find, ladders
from ladder.core.contract.rung_file import Rung
from tests.mutants.changes import code, lot, read
from tests.mutants.operators import Mutation, mutations
from tests.mutants.trial import Trial, Verdict, judge_all

EQUIVALENT = Path(__file__).parent / "equivalent"
Key = tuple[Path, str, str]  # a file, and the code of its lines before and after a change


@dataclass(frozen=True)
class Mutant:
    """One mutation of one rung."""

    op: str
    rung: Rung
    mutation: Mutation

    @property
    def layer(self) -> str:
        return self.op.partition(".")[0]

    @property
    def lot(self) -> int:
        """What it is drawn by for a share: the same on every machine."""
        return lot((self.op, self.rung.id, self.mutation.operator, *self.key[1:]))

    @property
    def trial(self) -> Trial:
        return Trial(self.op, self.rung.file, self.mutation.apply(self.rung.source))

    @property
    def key(self) -> Key:
        """What names it in the list of equivalent ones, wherever in the file it stands."""
        return _key(self.rung.file, *self.mutation.lines(self.rung.source))

    def __str__(self) -> str:
        old, new = self.mutation.lines(self.rung.source)
        line = self.rung.source.count("\n", 0, self.mutation.start) + 1
        changed = "\n".join([*(f"    - {at}" for at in old.splitlines()), f"    + {new}"])
        return f"{self.op} {self.rung.name}, line {line}, {self.mutation.operator}\n{changed}"


def make(
    ops: Sequence[str], rung: str | None = None, kinds: Sequence[str] | None = None
) -> list[Mutant]:
    """All mutants of the rungs of some ops, or of the one, or the set, with that id.

    kinds  the operators that make them; default: all
    """
    return [
        Mutant(op, of, mutation)
        for op in ops
        for of in find(op).rungs
        if of.path is not None and rung in (None, of.id, of.id.rpartition("-")[0])
        for mutation in mutations(of.source)
        if kinds is None or mutation.operator in kinds
    ]


def sample(mutants: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    """The same `size` mutants of each layer for the same seed, of all kinds in turn."""

    def drawn(mutant: Mutant) -> int:
        return lot((seed, mutant.rung.id, mutant.mutation.operator, *mutant.key[1:]))

    kinds: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in sorted(mutants, key=drawn):
        kinds.setdefault((mutant.layer, mutant.mutation.operator), []).append(mutant)
    chosen: list[Mutant] = []
    for layer in dict.fromkeys(mutant.layer for mutant in mutants):
        turns = [of_kind for (of, _), of_kind in kinds.items() if of == layer]
        mixed = (m for row in itertools.zip_longest(*turns) for m in row if m is not None)
        chosen += itertools.islice(mixed, size)
    return chosen


def share(mutants: Sequence[Mutant], which: int, of: int) -> list[Mutant]:
    """One of so many samples, which together are all of them."""
    return [mutant for mutant in mutants if mutant.lot % of == which % of]


def equivalent() -> dict[Key, str]:
    """Mutations that compute the same: the reason of each."""
    changes = read(EQUIVALENT, ("same",))
    return {_key(change.path, change.old, change.new): change.what for change in changes}


def _key(path: Path, old: str, new: str) -> Key:
    return path, " ".join(code(old)), " ".join(code(new))


def table(mutants: Sequence[Mutant], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The score of each layer, and of all."""
    known = equivalent()
    yield (
        f"{'layer':20} {'made':>5} {'same':>5} {'killed':>7} {'with a line':>12} "
        f"{'survived':>9} {'score':>6}"
    )
    results = [(m, v) for m, v in zip(mutants, verdicts, strict=True) if v.status != "invalid"]
    for layer in (*dict.fromkeys(m.layer for m, _ in results), "all"):
        of_layer = [(m, v) for m, v in results if layer in (m.layer, "all")]
        killed = [v for _, v in of_layer if v.status == "caught"]
        same = sum(v.status == "survived" and m.key in known for m, v in of_layer)
        left = len(of_layer) - len(killed) - same
        score = len(killed) / max(1, len(killed) + left)
        yield (
            f"{layer:20} {len(of_layer):5} {same:5} {len(killed):7} "
            f"{sum(v.names_line for v in killed):12} {left:9} {score:6.0%}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("op", nargs="?", help="an op, or a layer; default: all")
    parser.add_argument("--rung", help="only this one of the op, or those of a set, as 16bit")
    parser.add_argument("--kind", help="only mutants of these kinds, with commas between")
    parser.add_argument("--sample", type=int, metavar="K", help="only K mutants of each layer")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("-j", "--processes", type=int, default=1)
    parser.add_argument(
        "--share", default="0/1", metavar="I/K", help="of K samples the one of I; I may pass K"
    )
    parser.add_argument(
        "--most", type=float, default=0, metavar="PART", help="of them that may survive; default 0"
    )
    options = parser.parse_args()
    which, of = map(int, options.share.split("/"))
    ops = [op for op in ladders() if options.op in (None, op, op.partition(".")[0])]
    mutants = make(ops, options.rung, options.kind.split(",") if options.kind else None)
    if options.sample:
        mutants = sample(mutants, options.sample, options.seed)
    mutants = share(mutants, which, of)
    known = equivalent()
    survivors = []

    def show(index: int, verdict: Verdict) -> None:
        mutant = mutants[index]
        left = verdict.status in ("survived", "undecided") and mutant.key not in known
        if left:
            survivors.append(f"{verdict.status}: {mutant}")
        shown = str(mutant) if left else str(mutant).partition("\n")[0]
        print(f"{verdict.status:9} {verdict.seconds:5.1f} s  {shown}", file=sys.stderr, flush=True)

    verdicts = judge_all([mutant.trial for mutant in mutants], options.processes, show)
    print("\n".join(table(mutants, verdicts)))
    for survivor in survivors:
        print(f"\n{survivor}")
    return int(len(survivors) > options.most * len(mutants))


if __name__ == "__main__":
    sys.exit(main())
