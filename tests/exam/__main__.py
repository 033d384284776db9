"""An examination of the checker: bugs and right kernels by someone who had never seen it.

They are edits of rungs, in the form of tests/planted, and were committed before any was run. What
is `right` must be accepted; everything else must be caught, for `synchronisation` and `address`
with a line.

    python -m tests.exam                all of them, half an hour on 2 cores
    python -m tests.exam numbers/       those whose half, rung, class or text contains a word

The status is 1 where the checker is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.mutants.changes import read
from tests.planted.__main__ import CLASSES, is_wrong, judged, summary

KINDS = (*CLASSES, "right")


def main(word: str = "") -> int:
    folders = sorted(path for path in Path(__file__).parent.iterdir() if path.is_dir())
    entries = [e for folder in folders for e in read(folder, KINDS) if word in f"{folder.name}/{e}"]
    verdicts = judged(entries)
    print(summary(entries, verdicts, KINDS))
    return int(any(map(is_wrong, entries, verdicts)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
