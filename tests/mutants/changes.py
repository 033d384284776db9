"""Changes of code in text files: planted bugs, mutations that change no result, wrong answers.

A line alone is a heading: it names what the entries below it change. For a rung, it is the file
without its number, in the folder of the layer that the text file is named after; for a wrong
answer, the title of an exercise. An entry is the kind of the change, what it is, the text that is
there and what replaces it:

    forward/block_per_row.cu

    numbers: the variance is divided by C - 1
    - block_sum(squares, partial) / C
    + block_sum(squares, partial) / (C - 1)

Several `-` or `+` lines are several lines of the file; an entry without `+` deletes the text. The
text is found by its code: blanks and comments may differ. Where the code stands there several
times, the comments around it say which is meant: the place that is most alike.
"""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ladder.core.contract.ladder import PACKAGE

ENTRY = re.compile(r"([a-z]+): (.+)")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Change:
    """One change of a text: of a rung, or of the solution of an exercise."""

    group: str  # the text file that it stands in, without its suffix: a layer, a notebook
    of: str  # the heading above it: a rung's file without its number, an exercise
    kind: str
    what: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.group}/{self.of}: {self.kind}: {self.what}"

    def apply(self, source: str) -> str:
        """A text after the change. Raises ValueError where it does not fit the text."""
        if not (places := _places(source, self.old)):
            raise ValueError(f"{self}: there is no code as {self.old!r}")
        begin, end = max(places, key=lambda place: _likeness(source, *place, self.old))
        return source[:begin] + self.new + source[end:]

    @property
    def path(self) -> Path:
        """The rung."""
        folder, _, idea = self.of.rpartition("/")
        (path,) = (PACKAGE / self.group / folder).glob(f"[0-9]*_{idea}")
        return path

    @property
    def op(self) -> str:
        """The rung's op."""
        return f"{self.group}.{self.of.partition('/')[0]}"

    def rung(self) -> str:
        """The rung's text after the change."""
        return self.apply(self.path.read_text(encoding="utf-8"))


def lot(named: object) -> int:
    """A number that looks random, from what names a change alone: a sample taken by it stays as it
    is when other changes come and go."""
    return zlib.crc32(str(named).encode())


def code(text: str) -> list[str]:
    """The words and signs of a text, without comments; those of a line of a header with them."""
    if not text.lstrip().startswith("//"):
        text = COMMENT.sub(" ", text)
    return re.findall(r"\w+|[^\w\s]", text)


def _places(source: str, text: str) -> list[tuple[int, int]]:
    """Where a source has the code of a text, begins and ends; else, where its header has it."""
    pattern = r"\s*".join(map(re.escape, code(text)))
    pattern = rf"\b{pattern}" if pattern[0].isalnum() else pattern
    bare = COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), source)
    matches = re.finditer(pattern, bare), re.finditer(pattern, source)
    return next(filter(None, ([place.span() for place in places] for places in matches)), [])


def _likeness(source: str, begin: int, end: int, text: str) -> float:
    """How alike a text and the lines of a place are, with their comments."""
    first, last = source.rfind("\n", 0, begin) + 1, source.find("\n", end)
    return difflib.SequenceMatcher(None, source[first:last].split(), text.split()).ratio()


def read(folder: Path, kinds: tuple[str, ...]) -> list[Change]:
    """The changes in all text files of a folder, in the order of the files."""
    return [change for path in sorted(folder.glob("*.txt")) for change in _parse(path, kinds)]


def _parse(path: Path, kinds: tuple[str, ...]) -> Iterator[Change]:
    """The changes of one file. Raises ValueError, naming file and line, where it is malformed."""
    heading, number = "", 1
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        first, number = number, number + block.count("\n") + 2
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if len(lines) < 2:
            heading = lines[0] if lines else heading
            continue
        entry = ENTRY.fullmatch(lines[0])
        sides = {sign: [at[2:] for at in lines[1:] if at[:1] == sign] for sign in "-+"}
        whole = sum(map(len, sides.values())) == len(lines) - 1
        if not (entry and entry[1] in kinds and heading and sides["-"] and whole):
            raise ValueError(f"{path}:{first}: no entry as {__name__} explains it: {lines[0]}")
        old, new = "\n".join(sides["-"]), "\n".join(sides["+"])
        yield Change(path.stem, heading, entry[1], entry[2], old, new)
