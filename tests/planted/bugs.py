"""The planted bugs: files of small changes to rungs, each of which makes the rung wrong.

One file for each layer, `tests/planted/<layer>.txt`. A line that ends in `.cu` names the rung that
the entries below it change, relative to the layer's folder. An entry is the class of the bug, what
is wrong, the text of the rung and what replaces it:

    forward/2_block_per_row.cu

    numbers: the variance is divided by C - 1
    - block_sum(squares, partial) / C
    + block_sum(squares, partial) / (C - 1)

Several `-` or `+` lines are several lines of the file; an entry without `+` deletes the text. The
text must stand in the rung exactly once; with `@2` after the class its second occurrence is
meant. A class is what the report must name besides the failure:

    numbers           a wrong result; the report shows where and by which pattern it is wrong
    synchronisation   a barrier, wait, fence, count or order; the report names line and cause
    address           an access outside of a buffer, or one that hardware cannot make; likewise
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ladder.contract.ladder import PACKAGE

HERE = Path(__file__).parent
CLASSES = ("numbers", "synchronisation", "address")
ENTRY = re.compile(rf"({'|'.join(CLASSES)})(?: @(\d+))?: (.+)")


@dataclass(frozen=True)
class Bug:
    """One change of one rung."""

    layer: str
    file: str  # relative to the layer's folder
    kind: str  # one of CLASSES
    what: str
    old: str
    new: str
    occurrence: int = 0  # 0: there is only one

    @property
    def path(self) -> Path:
        return PACKAGE / self.layer / self.file

    @property
    def op(self) -> str:
        return f"{self.layer}.{self.file.partition('/')[0]}"

    def apply(self) -> str:
        """The rung's text with the bug in it."""
        source = self.path.read_text(encoding="utf-8")
        parts = source.split(self.old)
        where = f"{self.layer}/{self.file}: {self.what}"
        if len(parts) == 1:
            raise ValueError(f"{where}: the file has no text {self.old!r}")
        if (self.occurrence or 1) >= len(parts) or (not self.occurrence and len(parts) > 2):
            raise ValueError(f"{where}: {self.old!r} occurs {len(parts) - 1} times")
        at = self.occurrence or 1
        return self.old.join(parts[:at]) + self.new + self.old.join(parts[at:])


def planted() -> list[Bug]:
    """All bugs, in the order of the files."""
    return [bug for path in sorted(HERE.glob("*.txt")) for bug in parse(path)]


def parse(path: Path) -> Iterator[Bug]:
    """The bugs of one file. Raises ValueError, naming file and line, where it is malformed."""
    file, text = "", path.read_text(encoding="utf-8")
    number = 1
    for block in text.split("\n\n"):
        first, number = number, number + block.count("\n") + 2
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        if lines[0].endswith(".cu") and len(lines) == 1:
            file = lines[0]
            continue
        entry = ENTRY.fullmatch(lines[0])
        sides = {sign: [at[2:] for at in lines[1:] if at[:1] == sign] for sign in "-+"}
        if not (entry and file and sides["-"]) or sum(map(len, sides.values())) < len(lines) - 1:
            raise ValueError(f"{path}:{first}: no entry as {__name__} explains it: {lines[0]}")
        kind, occurrence, what = entry.groups()
        old, new = "\n".join(sides["-"]), "\n".join(sides["+"])
        yield Bug(path.stem, file, kind, what, old, new, int(occurrence or 0))
