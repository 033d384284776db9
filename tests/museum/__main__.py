"""The bugs of doc/museum.md.

What the checker says of the wrong kernels, or with --kernel these alone:

    python -m tests.museum                   all
    python -m tests.museum parity --kernel   those whose file or text contains a word
"""

import argparse
import dataclasses
import re
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.museum")
    parser.add_argument("word", nargs="?", default="", help="only bugs that contain it")
    parser.add_argument("--kernel", action="store_true", help="show the wrong kernels, run none")
    options = parser.parse_args()
    bugs = [bug for bug in BUGS if options.word in f"{bug}{bug.old}{bug.new}"]
    if options.kernel:
        print(*(bug.trial.source for bug in bugs), sep="\n", end="")
        return
    for bug, verdict in zip(bugs, judge_all([bug.trial for bug in bugs]), strict=True):
        changed = [f"- {line}" for line in bug.old.splitlines()]
        changed += [f"+ {line}" for line in bug.new.splitlines()]
        report = re.sub(r"/[\w./-]+/(?=\w+\.cu)", "", verdict.message)  # without its folder
        print(f"{bug.what}: {bug.of}", *changed, report, sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
