"""Plants each bug of tests/planted into its rung, and says what the checker says.

The bugs are mistakes that people make, one text file for each layer; tests/mutants/changes.py
explains the form. Their kinds say what a report must name besides the failure:

    numbers           a wrong result; the report shows where it is wrong, and by which pattern
    synchronisation   a barrier, wait, fence, count or order; the report names line and cause
    address           an access outside of a buffer, or one that hardware cannot make; likewise

    python -m tests.planted                    all of them
    python -m tests.planted matmul             those whose rung, class or text contains a word
    python -m tests.planted --share 3/20       one of 20 samples, which together are all of them
    python -m tests.planted -v matmul          with the reports

The status is 1 where a bug is not caught.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.changes import Change, lot, read
from tests.mutants.trial import Trial, Verdict, judge_all

CLASSES = ("numbers", "synchronisation", "address")


def planted() -> list[Change]:
    """All planted bugs."""
    return read(Path(__file__).parent, CLASSES)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted")
    parser.add_argument("word", nargs="?", default="", help="only bugs that contain it")
    parser.add_argument(
        "--share", default="0/1", metavar="I/K", help="of K samples the one of I; I may pass K"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show the reports")
    parser.add_argument("-j", "--processes", type=int, default=1)
    options = parser.parse_args()
    which, of = map(int, options.share.split("/"))
    bugs = [b for b in planted() if options.word in str(b) and lot(b) % of == which % of]

    verdicts = judged(bugs, options.processes, options.verbose)
    print(summary(bugs, verdicts))
    return int(any(map(is_wrong, bugs, verdicts)))


def is_wrong(entry: Change, verdict: Verdict) -> bool:
    """Whether the checker is: a kernel that is `right` must pass, all others must be caught."""
    return verdict.status != ("survived" if entry.kind == "right" else "caught")


def judged(
    entries: Sequence[Change], processes: int = 1, verbose: bool = False
) -> Sequence[Verdict]:
    """What the checker says of each, a line as it comes; with its report where it is wrong."""

    def show(index: int, verdict: Verdict) -> None:
        line = "line" if verdict.names_line else "    "
        print(f"{verdict.status:9} {line} {verdict.seconds:5.1f} s  {entries[index]}", flush=True)
        if verbose or is_wrong(entries[index], verdict):
            print("    " + verdict.message.replace("\n", "\n    "), flush=True)

    return judge_all([trial_of(entry) for entry in entries], processes, show)


def trial_of(bug: Change) -> Trial:
    return Trial(bug.op, bug.path, bug.rung())


def summary(
    bugs: Sequence[Change],
    verdicts: Sequence[Verdict],
    kinds: Sequence[str] = (*CLASSES, "all"),
) -> str:
    """A table: how many of each class were planted, caught, and caught with a line named."""
    rows = [f"{'class':16} {'planted':>8} {'caught':>8} {'line named':>11}"]
    for kind in kinds:
        of_kind = [v for b, v in zip(bugs, verdicts, strict=True) if kind in (b.kind, "all")]
        caught = [verdict for verdict in of_kind if verdict.status == "caught"]
        named = sum(verdict.names_line for verdict in caught)
        rows.append(f"{kind:16} {len(of_kind):8} {len(caught):8} {named:11}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
