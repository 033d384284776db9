"""The style of a rung's file: what neither a compiler nor `check` asks for, and a reader does.

A ladder is read from rung to rung, so its files are alike: a header in one order, shapes at
pointers, and no change beyond the one idea. A rule is a function of RULES; a new one is a function
more. `python -m ladder lint` prints what they find, one line for each place.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.device_code import INCLUDE
from ladder.core.contract.ladder import PACKAGE, Ladder, find, find_rung
from ladder.core.contract.rung_file import KEYS, MOST_BYTES, Rung
from ladder.core.contract.signature import mismatch, parameters
from ladder.core.emulator.source import without_comments
from ladder.core.show.source_code import changed_lines

MOST_CHANGED = 100  # lines added and removed: what a person reads in one go
MOST_LINES = 300  # of a file
MOST_COLUMNS = 100
TOLD = ("before", "change", "expect", "needs", "left")  # by every header, beside the launch

_TITLE = re.compile(r"//\s*(\w+) (\w+)\s*[,:]")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MEASURED = re.compile(r"\d\s*(µs|us|ms|GB/s|TB/s|TFLOP|GFLOP)|\d\s*%|\dx faster|times faster")
_ERROR = re.compile(r"(.+?\.\w+)(?::(\d+))?: (.+)", re.DOTALL)  # of a file that cannot be read


@dataclass(frozen=True)
class Violation:
    """A place where a file breaks a rule, and in words: what stands there; what to do."""

    path: Path
    line: int
    rule: str
    words: str

    def __str__(self) -> str:
        near = os.path.relpath(self.path)
        return f"{self.path if near.startswith('..') else near}:{self.line}: {self.words}"


Places = Iterator[tuple[int, str]]  # lines, and words of a Violation
Rule = Callable[[Ladder, Rung], Places]


def rung_files(of: Iterable[Ladder]) -> list[Path]:
    """The files of all rungs of some ladders."""
    folders = [PACKAGE / ladder.op.name.replace(".", "/") for ladder in of]
    return [path for folder in folders for path in sorted(folder.rglob("*.cu"))]


def lint(path: Path) -> list[Violation]:
    """Where a rung's file breaks the rules; a header that cannot be read is one violation.

    Raises LadderError where there is no such file.
    """
    text = read_text(path, MOST_BYTES)
    try:
        ladder = _ladder_of(path, text)
        rung = find_rung(ladder.op.name, path)
        return [
            Violation(path, line, rule.__name__, words)
            for rule in RULES
            for line, words in rule(ladder, rung)
        ]
    except LadderError as error:
        if there := _ERROR.fullmatch(str(error)):  # perhaps another file of the ladder
            return [Violation(Path(there[1]), int(there[2] or 1), "header", there[3])]
        return [Violation(path, 1, "header", str(error))]


def _ladder_of(path: Path, text: str) -> Ladder:
    """The ladder that a file is in, or else the one that its title names."""
    if (there := path.resolve()).is_relative_to(PACKAGE):
        return find(".".join(there.relative_to(PACKAGE).parts[:2]))
    if names := _TITLE.match(text):
        return find(f"{names[1]}.{names[2]}")
    raise LadderError(
        f"{path}: the first line names no op; begin with '// layernorm forward: your idea'"
    )


def title(ladder: Ladder, rung: Rung) -> Places:
    """The pages and lists show it, with the number that the file's name has."""
    layer, _, direction = ladder.op.name.partition(".")
    number = "" if rung.is_own_file else f", {rung.name}"
    wanted = f"// {layer} {direction}{number}: {rung.idea}"
    if rung.source.splitlines()[0] != wanted:
        yield 1, f"the title is not of the usual form; write '{wanted}'"


def header(ladder: Ladder, rung: Rung) -> Places:
    """Why the rung is, in the same order everywhere."""
    for key in TOLD:
        if not rung.header.get(key):
            yield 1, f"the header lacks a line '// {key.capitalize()}: ...' (doc/rung_files.md)"
    order = [key.lower() for key in KEYS]
    for key, after in pairwise(rung.header):
        if order.index(after) < order.index(key):
            line = _line(rung, rf"// {after}:", re.IGNORECASE)
            yield line, f"{after.capitalize()} stands below {key.capitalize()}; put it above"


def parent(ladder: Ladder, rung: Rung) -> Places:
    """A rung grows from another one, by one idea."""
    before = ladder.parent(rung)
    if before is None:
        if rung not in ladder.rungs[:2]:
            yield 1, "the header has no line After; name the rung that it grew from"
    elif (lines := changed_lines(before, rung)) > MOST_CHANGED and "rewrite" not in rung.header:
        yield (
            _line(rung, "// After:"),
            f"{lines} lines of code differ from {before.label}, more than {MOST_CHANGED}; change "
            "less, or say why in a line '// Rewrite: ...'",
        )
    elif lines <= MOST_CHANGED and "rewrite" in rung.header:
        yield _line(rung, "// Rewrite:"), f"{before.label} is near; take this line out"


def length(ladder: Ladder, rung: Rung) -> Places:
    """A file is read in one sitting."""
    if (lines := rung.source.count("\n")) > MOST_LINES:
        yield MOST_LINES + 1, f"the file has {lines} lines; {MOST_LINES} are the most"


def alone(ladder: Ladder, rung: Rung) -> Places:
    """A rung of the repository includes the common headers, and no other rung's code."""
    for include in re.finditer(r'^#include "([^"]+)"', rung.source, re.MULTILINE):
        if not rung.is_own_file and not (INCLUDE / include[1]).exists():
            yield _at(rung, include.start()), f"{include[1]} is not in ladder/include; put it there"


def layout(ladder: Ladder, rung: Rung) -> Places:
    """100 columns, four spaces, nothing at the ends of lines."""
    before = ""
    for number, line in enumerate(rung.source.splitlines(), 1):
        if len(line) > MOST_COLUMNS:
            yield number, f"the line has {len(line)} columns; {MOST_COLUMNS} are the most"
        if "\t" in line:
            yield number, "there is a tab; write spaces"
        if line != line.rstrip():
            yield number, "there are blanks at the end of the line; delete them"
        if before.endswith("{") and line.strip() and (len(line) - len(line.lstrip(" "))) % 4:
            yield number, "the block is not indented by multiples of four spaces; indent it so"
        before = line


def portable(ladder: Ladder, rung: Rung) -> Places:
    """One source is for CUDA, HIP and the emulator."""
    code = without_comments(rung.source)
    for word in re.finditer(r"\basm\b", code):
        yield _at(rung, word.start()), "inline PTX; wrap it in a function of ladder/include"
    if not any("warp == 32" in condition for condition in rung.conditions()):
        for number in re.finditer(r"\b32\b", code):
            yield _at(rung, number.start()), "32 as a number; write WARP_SIZE, or name the constant"


def measured(ladder: Ladder, rung: Rung) -> Places:
    """A number of one GPU is wrong on the next: such numbers are in doc/results."""
    for comment in _COMMENT.finditer(rung.source):
        for number in _MEASURED.finditer(comment[0]):
            line = _at(rung, comment.start() + number.start())
            yield line, f"a measured number in a comment ({number[0]}); say why, not how much"


def barrier(ladder: Ladder, rung: Rung) -> Places:
    """A barrier without a hazard goes, and a reader has to see which one it is."""
    lines = rung.source.splitlines()
    for number, (before, line) in enumerate(pairwise(lines), 2):
        told = "//" in line or before.lstrip().startswith("//")
        if "__syncthreads();" in _COMMENT.sub("", line) and not told:
            yield number, "a barrier without a comment; name the hazard that it prevents"


def arguments(ladder: Ladder, rung: Rung) -> Places:
    """The kernel takes what the op hands it, and a reader sees the shapes."""
    if problem := mismatch(ladder.op, rung):
        yield _line(rung, rf"\b{problem.split()[0]}\("), problem
    for kernel in dict.fromkeys(launch.kernel for launch in rung.lines.launches):
        for _, name, pointer in parameters(rung.source, kernel) or ():
            if pointer and not re.search(rf"\b{name}\b[^\n]*/[/*][^\n]*[(\[]", rung.source):
                yield _line(rung, rf"\b{kernel}\("), f"no comment gives the shape of {name}; add it"


def name(ladder: Ladder, rung: Rung) -> Places:
    """A name says which rung is meant, where a track is known."""
    if rung.is_own_file:
        return
    idea = rung.file.name.partition("_")[2]
    for other in ladder.rungs:
        alike = other.path is not None and other.path.name.partition("_")[2] == idea
        if alike and other.track == rung.track and other is not rung:
            yield 1, f"{other.name} has the name {idea}, too; give one of them another"


RULES: tuple[Rule, ...] = (
    *(title, header, parent, length, alone, layout),
    *(portable, measured, barrier, arguments, name),
)


def _at(rung: Rung, position: int) -> int:
    return rung.source.count("\n", 0, position) + 1


def _line(rung: Rung, pattern: str, flags: int = 0) -> int:
    """The first line that has a pattern; the title's where none has."""
    match = re.search(pattern, rung.source, flags)
    return _at(rung, match.start()) if match else 1
