"""Changes of rungs in text files: the planted bugs, and the mutations that change no result.

A line that ends in `.cu` names the rung that the entries below it change, without its number, in
the folder of the layer that the text file is named after. An entry is the kind of the change, what
it is, the text of the rung and what replaces it:

    forward/block_per_row.cu

    numbers: the variance is divided by C - 1
    - block_sum(squares, partial) / C
    + block_sum(squares, partial) / (C - 1)

Several `-` or `+` lines are several lines of the file; an entry without `+` deletes the text. The
text must stand in the rung exactly once; with `@2` after the kind its second occurrence is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ladder.core.contract.ladder import PACKAGE

ENTRY = re.compile(r"([a-z]+)(?: @(\d+))?: (.+)")


@dataclass(frozen=True)
class Change:
    """One change of one rung."""

    layer: str
    file: str  # in the layer's folder, without its number
    kind: str
    what: str
    old: str
    new: str
    occurrence: int = 0  # 0: there is only one

    @property
    def path(self) -> Path:
        folder, _, idea = self.file.rpartition("/")
        (path,) = (PACKAGE / self.layer / folder).glob(f"[0-9]*_{idea}")
        return path

    @property
    def op(self) -> str:
        return f"{self.layer}.{self.file.partition('/')[0]}"

    def apply(self) -> str:
        """The rung's text after the change. Raises ValueError where it does not fit the rung."""
        source = self.path.read_text(encoding="utf-8")
        parts = source.split(self.old)
        where = f"{self.layer}/{self.file}: {self.what}"
        if len(parts) == 1:
            raise ValueError(f"{where}: the file has no text {self.old!r}")
        if (self.occurrence or 1) >= len(parts) or (not self.occurrence and len(parts) > 2):
            raise ValueError(f"{where}: {self.old!r} occurs {len(parts) - 1} times")
        at = self.occurrence or 1
        return self.old.join(parts[:at]) + self.new + self.old.join(parts[at:])


def read(folder: Path, kinds: tuple[str, ...]) -> list[Change]:
    """The changes in all text files of a folder, in the order of the files."""
    return [change for path in sorted(folder.glob("*.txt")) for change in _parse(path, kinds)]


def _parse(path: Path, kinds: tuple[str, ...]) -> Iterator[Change]:
    """The changes of one file. Raises ValueError, naming file and line, where it is malformed."""
    file, number = "", 1
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        first, number = number, number + block.count("\n") + 2
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        if lines[0].endswith(".cu") and len(lines) == 1:
            file = lines[0]
            continue
        entry = ENTRY.fullmatch(lines[0])
        sides = {sign: [at[2:] for at in lines[1:] if at[:1] == sign] for sign in "-+"}
        whole = sum(map(len, sides.values())) == len(lines) - 1
        if not (entry and entry[1] in kinds and file and sides["-"] and whole):
            raise ValueError(f"{path}:{first}: no entry as {__name__} explains it: {lines[0]}")
        kind, occurrence, what = entry.groups()
        old, new = "\n".join(sides["-"]), "\n".join(sides["+"])
        yield Change(path.stem, file, kind, what, old, new, int(occurrence or 0))
