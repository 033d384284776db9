"""An examination of the checker: bugs and right kernels by someone who had never seen it.

They are edits of rungs, in the form of tests/planted, and were committed before any was run. What
is `right` must be accepted; everything else must be caught, for `synchronisation` and `address`
with a line.

    python -m tests.exam                all of them, half an hour on 2 cores
    python -m tests.exam attention      those whose rung, class or text contains a word

The status is 1 where the checker is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.mutants.changes import read
from tests.mutants.trial import Verdict, judge_all
from tests.planted.__main__ import CLASSES, trial_of

KINDS = (*CLASSES, "right")


def main(word: str = "") -> int:
    folders = sorted(path for path in Path(__file__).parent.iterdir() if path.is_dir())
    entries = [e for folder in folders for e in read(folder, KINDS) if word in str(e)]
    counts = {kind: [0, 0, 0] for kind in KINDS}

    def show(index: int, verdict: Verdict) -> None:
        entry = entries[index]
        expected = "survived" if entry.kind == "right" else "caught"
        each = counts[entry.kind]
        each[0] += 1
        each[1] += verdict.status == expected
        each[2] += verdict.names_line
        line = "line" if verdict.names_line else "    "
        print(f"{verdict.status:9} {line} {verdict.seconds:5.1f} s  {entry}", flush=True)
        if verdict.status != expected:
            print("    " + verdict.message.replace("\n", "\n    "), flush=True)

    judge_all([trial_of(entry) for entry in entries], 1, show)
    print(f"{'class':16} {'written':>8} {'as it is':>9} {'line named':>11}")
    for kind, (written, right, named) in counts.items():
        print(f"{kind:16} {written:8} {right:9} {named:11}")
    return int(any(written != right for written, right, _ in counts.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
