"""What there is to look at: a rung's source, what changes from rung to rung, a shape to trace."""

import difflib
import inspect
import re
import sys
from collections.abc import Iterator

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import PACKAGE, Ladder
from ladder.core.contract.op import Dims, Op
from ladder.core.contract.rung_file import MACHINE_READ, Rung

MOST_FLOPS = 2e6  # of a trace: about a second of emulation


def source(ladder: Ladder, rung: Rung) -> tuple[str, str]:
    """The text of a rung and its language: its file; the Python of the reference or a library call.

    The reference is its whole module, since the equations stand in the module's docstring.
    """
    if rung.path is not None:
        return rung.source, "cuda"
    if rung.run is not None:
        return inspect.getsource(rung.run), "python"
    return inspect.getsource(sys.modules[ladder.op.reference.__module__]), "python"


def diff(ladder: Ladder, before: Rung, after: Rung, context: int = 3, header: bool = False) -> str:
    """A unified diff of two rungs, with the names of their files; "" where they are the same.

    header  with the words of the headers: the whole files, as `patch` takes them
    """
    was, now = file_names(before, after)
    if header:
        old, new = (source(ladder, rung)[0].splitlines(True) for rung in (before, after))
        return "".join(difflib.unified_diff(old, new, was, now, n=context))
    changed = code_diff(ladder, before, after, context)
    return f"--- {was}\n+++ {now}\n{changed}" if changed else ""


def file_names(before: Rung, after: Rung) -> list[str]:
    """What a diff calls the files of two rungs; with folders where they are of two ladders."""
    pair = (before, after)
    folders = {r.path.parents[1 if r.track else 0] for r in pair if r.path and r.number}
    if len(folders) == 2:
        return [rung.file.relative_to(PACKAGE).as_posix() for rung in pair]
    return [rung.path.name if rung.path else rung.label for rung in pair]


class _Line(str):
    """A line that equals another one where only the indentation differs."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.strip() == other.strip()

    def __hash__(self) -> int:
        return hash(self.strip())


def code_diff(ladder: Ladder, before: Rung, after: Rung, context: int = 1) -> str:
    """The hunks of a diff of what runs: without the words of the headers, without lines that are
    only indented otherwise, and without line numbers. `patch` would not take it.

    A line that both rungs have is indented as in the later one, like the added lines around it.
    """
    texts = [without_words(source(ladder, rung)[0]) for rung in (before, after)]
    old, new = ([_Line(line) for line in text.splitlines(True)] for text in texts)
    lines: list[str] = []
    for hunk in difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(context):
        lines.append("@@\n")
        for kind, i1, i2, j1, j2 in hunk:
            if kind != "equal":
                lines += ["-" + line for line in old[i1:i2]]
            lines += [(" " if kind == "equal" else "+") + line for line in new[j1:j2]]
    return "".join(lines)


def without_words(text: str) -> str:
    """A rung's file without the title and the lines of its header that only people read."""
    header, code = split_header(text)
    entries = re.findall(r"// [A-Z]\w*:.*\n(?://(?! [A-Z]\w*:).*\n)*", header)
    kept = [entry for entry in entries if entry[3 : entry.index(":")] in MACHINE_READ]
    return "".join(kept) + code


def split_header(text: str) -> tuple[str, str]:
    """The header of a rung's file, which is the comment that it begins with, and the rest."""
    comment = re.match(r"(?://.*\n)*", text)
    end = comment.end() if comment else 0
    return text[:end], text[end:]


def changed_lines(before: Rung, after: Rung) -> int:
    """How many lines of code a rung adds and removes, header, comments and indentation apart."""
    codes = []
    for rung in (before, after):
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", split_header(rung.source)[1], flags=re.DOTALL)
        codes.append([line.strip() for line in code.splitlines() if line.strip()])
    old, new = codes
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return sum(
        (i2 - i1) + (j2 - j1) for kind, i1, i2, j1, j2 in matcher.get_opcodes() if kind != "equal"
    )


def tree(ladder: Ladder) -> Iterator[tuple[str, str, Rung]]:
    """Every rung, what is drawn before it, and its id: a branch wherever several grew from one.

    A rung that is the only one to grow from another stands right below it, without indentation. A
    rung of another ladder, from which some of these grew, is among them, with its op's name.
    """
    grown: dict[str, list[Rung]] = {}
    for rung in ladder.rungs:
        grown.setdefault(" ".join(filter(None, rung.after or ())), []).append(rung)

    def climb(rung: Rung, first: str, rest: str) -> Iterator[tuple[str, str, Rung]]:
        yield first, rung.id, rung
        children = grown.get(rung.id, [])
        if len(children) == 1:
            yield from climb(children[0], rest, rest)
        else:
            yield from fork(children, rest)

    def fork(children: list[Rung], rest: str) -> Iterator[tuple[str, str, Rung]]:
        for child in children:
            last = child is children[-1]
            yield from climb(
                child, rest + ("└ " if last else "├ "), rest + ("  " if last else "│ ")
            )

    for rung in ladder.rungs:
        parent, (op, id) = ladder.parent(rung), rung.after or ("", "")
        if parent is None:
            yield from climb(rung, "", "")
        elif op and (children := grown.pop(f"{op} {id}", [])):
            yield "", f"{op} {id}", parent
            yield from fork(children, "")


def lines_with(rung: Rung, texts: str) -> dict[int, str]:
    """The lines of a rung that contain one of the texts, which `|` separates, by their number.

    Raises LadderError where there is none.
    """
    lines = {
        number: line.strip()
        for number, line in enumerate(rung.source.splitlines(), 1)
        if any(text in line for text in texts.split("|"))
    }
    if not lines:
        raise LadderError(f"{rung.label} has no line with {texts}")
    return lines


def small_shape(op: Op) -> dict[str, int]:
    """The op's first measured shape, with dimensions halved until it is quickly emulated.

    First the rows: they only repeat what happens. Then whatever is largest.
    """
    dims = dict(next(iter(op.bench.values())))
    rows = op.dims[0]
    while op.flops(dims) > MOST_FLOPS:
        name = rows if dims[rows] > 32 else max(dims, key=dims.__getitem__)
        dims[name] //= 2
    return dims


def parse_shape(op: Op, text: str) -> Dims:
    """`"N=64 C=32 OC=64"` as dimensions; the op's small shape where the text is empty."""
    if not text:
        return small_shape(op)
    return {name: int(size) for name, size in (entry.split("=") for entry in text.split())}
