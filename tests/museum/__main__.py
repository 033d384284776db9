"""The bugs of doc/museum.md: each wrong kernel, and what the checker says of it.

python -m tests.museum           all of them
python -m tests.museum parity    those whose file or text contains a word
"""

import dataclasses
import re
import sys
from pathlib import Path

from tests.mutants.changes import Change, read
from tests.mutants.trial import Trial, judge_all

MUSEUM = Path(__file__).parents[2] / "doc" / "museum"


class Exhibit(Change):
    """A bug that a public project had; the heading names an op and the file of a kernel."""

    @property
    def path(self) -> Path:
        return MUSEUM / self.of

    @property
    def trial(self) -> Trial:
        """The wrong kernel; a comment whose code is gone goes, too."""
        source = re.sub(r"^ +//.*\n", "", self.rung(), flags=re.MULTILINE)
        return Trial(self.path.parent.name, self.path, source)


BUGS = [Exhibit(*dataclasses.astuple(bug)) for bug in read(MUSEUM, ("line", "pattern"))]

if __name__ == "__main__":
    words = " ".join(sys.argv[1:])
    if not (bugs := [bug for bug in BUGS if words in f"{bug}{bug.old}{bug.new}"]):
        sys.exit(f"no bug has {words!r} in its text; doc/museum/bugs.txt has them all")
    for bug, verdict in zip(bugs, judge_all([bug.trial for bug in bugs]), strict=True):
        for number, line in enumerate(bug.trial.source.splitlines(), 1):
            print(f"{number:3} | {line}".rstrip())
        changed = [f"- {line}" for line in bug.old.splitlines()]
        changed += [f"+ {line}" for line in bug.new.splitlines()]
        report = re.sub(r"/[\w./-]+/(?=\w+\.cu)", "", verdict.message)  # without its folder
        print("", f"{bug.what}: {bug.of}", *changed, report, sep="\n", end="\n\n")
