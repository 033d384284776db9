"""What pages show of the ladder is written into them from the files, never typed.

Between two comments of a Markdown file stands what the first one asks for:

    <!-- ladder:begin table layernorm.forward -->
    ...
    <!-- ladder:end -->

`python -m ladder docs` writes it anew, and `docs --check` says where a page has drifted from the
kernels and the results. What can be asked for, with `key=value` options (dtype=bfloat16
shape="N=65536 C=768"):

    rungs OP        the ladder: number, idea, what a rung needs
    entry OP N      a rung in short: its file, what it grew from, its header, its times
    change OP N M   what changes in the code from rung N to M, without the words of the headers.
                    N alone means: from the rung that N grew from; of that the lines from first=
                    to last= (texts that they contain)
    source OP N     the whole file
    solution OP X   what the solution X of an exercise, doc/solutions/<layer>/<direction>/X.cu,
                    changes in the rung that its line `After` names
    passage OP N    of that the lines from first= to last=; without last=, one line.
                    `passage FILE`: of a file in ladder/include
    table OP        what was measured; rungs="1 3 6": of these, and of the libraries
    gain OP N M     of these two rungs, at every shape and type
    overview        every op that was measured: its best rung beside the library and PyTorch
    counts OP N     memory accesses by source line, counted by the emulator
    reuse OP N M …  how often each rung uses what it loads, counted likewise
    traffic OP N M … how many sectors of each array the rungs move, counted likewise
    machine OP N M … registers, shared memory and instructions of the rungs' machine code;
                    opcodes="R2UR LDS" counts these, loop=longest in the longest loop only
    resources OP N M … what the rungs take of a compute unit of AMD's GPUs, and how many waves run;
                    on="gfx942 gfx1100"
    picture KIND    a picture of what cannot be seen, or of what was measured;
                    ladder/core/show/pictures lists the kinds
    step-times DEVICE           the time of a training step, ours and PyTorch's
    step-summary DEVICE DTYPE   of that the least: ours, and PyTorch's fastest
    log LOG                     output that is kept in doc/results/logs; of that the lines from
                                first= to last=, as of a passage
    cards           the last rung that each generation of NVIDIA's cards runs in bfloat16
    tally           how many kernels and ladders there are

`counts`, `reuse` and `traffic` take dtype= and shape=, `machine` dtype=. `counts` takes
lines="x[i]|y[i]": only lines of the source that contain one of these. `reuse` takes warp=64, for
rungs of AMD's GPUs. Where nothing has been measured yet, `table` says how to,
and pictures are left out.

The page doc/<layer>/measured.md consists of such blocks, and is written as a whole (every_rung.py).

A generated picture or count names what it was made from in a comment after it, so that looking for
drift needs no C++ compiler.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder.core.common import cache
from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.device_code import INCLUDE, code_identity
from ladder.core.contract.ladder import PACKAGE, Ladder, find, find_rung, ladders
from ladder.core.contract.op import DTYPES, Dims, format_dims
from ladder.core.contract.rung_file import KEYS, Rung
from ladder.core.contract.runs_on import NVIDIA, runs_on
from ladder.core.device.cuda import compiler
from ladder.core.show import citations, pictures, source_code, tables, trace
from ladder.core.show.every_rung import template
from ladder.core.show.machine import machine_table, resources_table

ROOT = PACKAGE.parent
MOST_LINES = 40  # of a diff in a notebook: more than fit a screen are not read
_BLOCK = re.compile(
    r"^(?P<indent> *)(?P<begin><!-- ladder:begin (?P<request>[^\n]*?) -->\n)(?P<body>.*?)"
    r"(?P<end> *<!-- ladder:end -->)",
    re.DOTALL | re.MULTILINE,
)
_OF_ALL = re.compile("<!-- ladder:begin (tally|cards|overview|step-)")  # they name no layers
_CITED = re.compile(r"<!-- from ([^:>]+):")
_SOURCE = re.compile(r"\(([^)\s]+\.svg)\)\n<!-- made from (\w+) -->")


@dataclass(frozen=True)
class Slot:
    """Where a block stands. `old`: its text so far; `draw`: whether pictures may be written."""

    page: Path
    old: str
    draw: bool

    def link(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.page.parent)).as_posix()

    def picture(self, name: str) -> Path:
        above = (parent for parent in self.page.parents if parent.name == "doc")
        doc = next(above, self.page.parent / "doc")  # README.md is not in it
        return doc / "img" / f"{name}.svg"


def cites(page: Path, root: Path) -> bool:
    """Whether a page has measured numbers in its sentences, each of which names its source: README,
    the lessons and the pages on training. The others leave numbers to tables and logs."""
    if page == root / "README.md":
        return True
    subjects = {"training", *(ladder.op.layer for ladder in ladders().values())}
    return page.relative_to(root / "doc").with_suffix("").parts[0] in subjects


def update(write: bool, root: Path = ROOT) -> list[str]:
    """Bring README.md and the pages in doc/ up to date, or only look; what differs, line by line.
    A page that was right is looked at again when what it is made from has changed.

    Raises LadderError, with file and line, for a request that is not understood.
    """
    drifted: list[str] = []
    mark_of, right, marks = _marks(root), root / "build" / "pages", list[str]()
    known = right.read_text(encoding="utf-8").split() if right.exists() else []
    for page in filter(Path.exists, [root / "README.md", *sorted((root / "doc").rglob("*.md"))]):
        old = page.read_text(encoding="utf-8")
        if (mark := mark_of(old)) in known and not any(_lost(old, page)):
            marks.append(mark)
            continue
        new = render(old, page, write, template(page, root))
        problems = [] if new == old else ["the generated parts have changed"]
        if problems and write:
            page.write_text(new, encoding="utf-8")
        problems += [*_lost(new, page), *_citations(new, page, root)]
        drifted += [f"{page.relative_to(root)}: {problem}" for problem in problems]
        marks += [] if problems else [mark]
    with contextlib.suppress(OSError):  # a folder that cannot be written is looked at as a whole
        right.parent.mkdir(exist_ok=True)
        right.write_text("\n".join(marks), encoding="utf-8")
    return drifted


def _marks(root: Path) -> Callable[[str], str]:
    """Of a page's text, a mark that changes with it, with the files that it cites, with the kernels
    of the layers that it names, and with the code and results that all pages are made from."""
    layers = {ladder.op.layer for ladder in ladders().values()}
    files: dict[str, list[bytes | str]] = {layer: [] for layer in ("", *layers)}
    for path in (*sorted(PACKAGE.rglob("*.*")), *sorted((root / "doc").rglob("*.*"))):
        if path.is_file() and path.suffix not in (".md", ".pyc", ".svg"):
            for layer in layers.intersection(path.parts * (path.suffix == ".cu")) or [""]:
                files[layer] += [str(path), path.read_bytes()]
    digests = {layer: cache.digest(*parts) for layer, parts in files.items()}

    def mark(text: str) -> str:
        named = layers if _OF_ALL.search(text) else layers.intersection(re.findall(r"\w+", text))
        cited = {root / name for names in _CITED.findall(text) for name in names.split(", ")}
        contents = [path.read_bytes() for path in sorted(cited) if path.is_file()]
        return cache.digest(text, *contents, *(digests[layer] for layer in ["", *sorted(named)]))

    return mark


def _lost(text: str, page: Path) -> Iterator[str]:
    for picture, digest in _SOURCE.findall(text):
        if pictures.drawn_from(page.parent / picture) != digest:
            yield f"{picture} is missing or out of date"


def render(text: str, page: Path, draw: bool, instead: str = "") -> str:
    """The page with every block renewed; `draw`: the pictures too.

    instead  a page that takes its place, and has from it what is still true of a block
    """
    old = {block["request"]: textwrap.dedent(block["body"]) for block in _BLOCK.finditer(text)}
    new = instead or text

    def renew(block: re.Match[str]) -> str:
        words = shlex.split(block["request"])
        options = dict(word.split("=", 1) for word in words if "=" in word)
        words = [word for word in words if "=" not in word]
        line = new.count("\n", 0, block.start()) + 1
        where = f"{page}:{line}: ladder:begin {block['request']}"
        if not words or words[0] not in BLOCKS:
            raise LadderError(f"{where}: there are {', '.join(BLOCKS)}")
        slot = Slot(page, old.get(block["request"], ""), draw)
        try:
            body = BLOCKS[words[0]](slot, *words[1:], **options)
        except (TypeError, ValueError, LadderError) as error:  # words that it does not take
            raise LadderError(f"{where}: {error}") from None
        indent = block["indent"]  # of a block in a list
        body = textwrap.indent(body.strip(), indent)
        return f"{indent}{block['begin']}{body}\n{indent}{block['end'].lstrip()}"

    return _BLOCK.sub(renew, new)


def _citations(text: str, page: Path, root: Path) -> Iterator[str]:
    """What is wrong with the measured numbers in a page's sentences."""
    if cites(page, root):
        yield from citations.problems(text, root)
        for number in citations.uncited(text):
            yield f"no comment names the source of {number!r} (ladder/core/show/citations.py)"
    elif page != root / "doc" / "results" / "peers.md":  # what others have measured
        for number in citations.in_sentences(text):
            yield f"{number!r} stands in a sentence: leave it to a table or a log"


# ---- from the kernels ---------------------------------------------------------------------------


def tally(slot: Slot) -> str:
    """How much there is to climb. Rung 0, NumPy, and the libraries' rungs do not count."""
    kernels = [rung for ladder in ladders().values() for rung in ladder.rungs if rung.path]
    return (
        f"**{len(kernels)} kernels on {len(ladders())} ladders**, each in one file that reads "
        "alone, in fp32, bf16 and fp16."
    )


def rungs(slot: Slot, op: str) -> str:
    """The rungs of a ladder: a link to each file, and on which GPUs and shapes it runs."""
    lines, ladder = [], find(op)
    for rung in ladder.rungs:
        idea, where = rung.idea + tables.remarks(rung), runs_on(rung, ladder.op.reals)
        shapes = "; ".join(f"`{condition}`" for condition in rung.shape_conditions())
        lines.append([link(slot, rung), idea, where, shapes])
    return tables.markdown(["rung", "idea", "runs on", "needs"], lines, left=4)


def cards(slot: Slot) -> str:
    """The last rung that a card of each generation runs in bfloat16, of the ops where it differs:
    at the first shape that is measured, within the shared memory that a block has there."""
    generations = [g for g in NVIDIA if g.name != "sm_75"]  # has no bfloat16
    targets = [compiler.typical_target(g.arch, DTYPES["bfloat16"]) for g in generations]
    lines = []
    for name, ladder in ladders().items():
        kernels, dims = [r for r in ladder.rungs if r.path and r.pays], _measured_shape(name)
        last = [
            [rung for rung in kernels if rung.plan(dims, target).refusal is None][-1:]
            for target in targets
        ]
        if any(rungs != last[0] for rungs in last):
            lines.append([f"`{name}`", *(link(slot, rung) for rungs in last for rung in rungs)])
    return tables.markdown(["", *(f"{g.name}<br>{g.cards}" for g in generations)], lines)


def _header(rung: Rung) -> str:
    """What the header of a rung says: before, change, expectation, what is left."""
    lines = []
    because = ("before", "change", "rewrite", "expect")
    remarks = ("deterministic", "accurate", "rounds", "tf32", "pays", "left")
    titles = {key.lower(): key for key in KEYS}
    for key in because + remarks:
        for text in rung.header.get(key, ()):
            prose = re.sub(r"([*<>_|])", r"\\\1", text)  # which are not meant as markup
            lines.append(f"- **{titles[key]}:** {prose}")
    return "\n".join(lines)


def diff(
    slot: Slot, op: str, rung: str, other: str = "", first: str = "", last: str | None = None
) -> str:
    """What `change` shows and a line more around it, below links to both files: at most MOST_LINES
    of it, then how many are left, and the command that shows all."""
    before, after = _pair(op, rung, other)
    names = source_code.file_names(before, after)
    files = " → ".join(
        f"[{name}]({slot.link(rung.path)})" if rung.path else name
        for name, rung in zip(names, (before, after), strict=True)
    )
    text = source_code.code_diff(find(op), before, after, context=2).rstrip()
    part = _lines(f"what changes in {op} {rung}", text, first, last) if first else text
    lines = part.splitlines()[:MOST_LINES]
    shown = "\n".join([files, "", "```diff", *lines, "```"])
    if left := len(text.splitlines()) - len(lines):
        command = f"python -m ladder diff {op} {rung} {other}".rstrip()
        shown += f"\n\n{left} more lines: `{command}`"
    return shown


def change(slot: Slot, op: str, rung: str, other: str = "", first: str = "", last: str = "") -> str:
    text = source_code.code_diff(find(op), *_pair(op, rung, other)).rstrip()
    if first:
        text = _lines(f"what changes in {op} {rung}", text, first, last or first)
    return f"```diff\n{text}\n```"


def entry(slot: Slot, op: str, id: str) -> str:
    ladder, rung = find(op), find(op).rung(id)
    facts = [f"[{rung.file.name}]({slot.link(rung.file)})"]
    if (parent := ladder.parent(rung)) is not None:
        facts += [
            f"grew from [{' '.join(rung.after or ()).strip()}]({slot.link(parent.file)})",
            f"lines that change: {source_code.changed_lines(parent, rung)}",
            f"`python -m ladder diff {op} {id}`",
        ]
    parts = [" · ".join(facts), _header(rung)]
    if (before := ladder.predecessor(rung)) is not None:
        with contextlib.suppress(tables.NotMeasured):
            parts.append(tables.gain(op, before, rung))
    return "\n\n".join(parts)


def _pair(op: str, rung: str, other: str) -> tuple[Rung, Rung]:
    """From which rung to which: `rung` to `other`, or to `rung` from its parent."""
    ladder = find(op)
    first = ladder.rung(rung)
    if other:
        return first, ladder.rung(other)
    if (earlier := ladder.parent(first)) is None:
        raise LadderError(f"{first.name} starts the ladder: name two rungs")
    return earlier, first


def source(slot: Slot, op: str, number: str) -> str:
    ladder = find(op)
    text, language = source_code.source(ladder, ladder.rung(number))
    return f"```{'cpp' if language == 'cuda' else language}\n{text.rstrip()}\n```"


def solution(slot: Slot, op: str, name: str) -> str:
    ladder = find(op)
    file = ROOT / "doc" / "solutions" / ladder.op.layer / op.split(".")[1] / f"{name}.cu"
    answer = find_rung(op, file)
    if (parent := ladder.parent(answer)) is None:
        raise ValueError(f"{file} has no line such as '// After: 3'")
    text = source_code.code_diff(ladder, parent, answer)
    return f"```diff\n{text.rstrip()}\n```\n\nThe whole file: [{file.name}]({slot.link(file)})."


def passage(slot: Slot, *where: str, first: str, last: str = "") -> str:
    if len(where) not in (1, 2):
        raise ValueError("name an op and a rung, or a file in ladder/include")
    path = find(where[0]).rung(where[1]).file if len(where) == 2 else INCLUDE / where[0]
    return f"```cpp\n{_lines(path.name, read_text(path), first, last or first)}\n```"


def _lines(name: str, text: str, first: str, last: str | None) -> str:
    """The lines of a file from the first one that contains `first` to the next one with `last`;
    None: to the end."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if first in line), None)
    if start is None:
        raise LadderError(f"{name} has no line with {first}")
    if last is None:
        return "\n".join(lines[start:])
    stop = next((i for i in range(start, len(lines)) if last in lines[i]), None)
    if stop is None:
        raise LadderError(f"{name} has no line with {last} after the one with {first}")
    return "\n".join(lines[start : stop + 1])


# ---- counted in the emulator, or in machine code ------------------------------------------------


def _made(
    slot: Slot, table: Callable[..., str], kind: str, op: str, ids: Sequence[str], dtype: str,
    dims: Dims, *more: str,
) -> str:  # fmt: skip
    """A table of some rungs of an op, and a comment that changes with the code of any of them, or
    with the run. Nothing is run where the block was made from the same."""
    rungs = [find(op).rung(id) for id in ids]
    code = (code_identity(rung) for rung in rungs)
    digest = cache.digest(kind, op, *code, dtype, format_dims(dims), *more)[:12]
    made = f"<!-- made from {digest} -->"
    if made in slot.old:
        return slot.old
    return f"{table(find(op), rungs, dtype, dims)}\n{made}"


def counts(slot: Slot, op: str, number: str, *, dtype: str, shape: str, lines: str) -> str:
    """What each line asks of memory per request of a warp, beside the least that it could."""
    rung, dims = find(op).rung(number), source_code.parse_shape(find(op).op, shape)
    wanted = source_code.lines_with(rung, lines)

    def rows(ladder: Ladder, rungs: Sequence[Rung], dtype: str, dims: Dims) -> str:
        report = trace.trace(ladder, rung, dtype, dims)
        lines = []
        for count in trace.own_lines(report, rung):
            if count.line not in wanted:
                continue
            takes, ideal, unit = trace.per_request(count)
            shown = f"**{takes:.1f}**" if takes > 1.5 * ideal else f"{takes:.1f}"
            text = wanted[count.line].replace("|", r"\|")  # a bar would end the cell
            cells = [f"`{text}`", f"{count.kind} `{count.buffer}`", f"{count.requests:,}"]
            lines.append([*cells, f"{shown} {unit}", f"{ideal:.1f}"])
        titles = ["source", "access", "requests", "takes", "ideal"]
        of = f"{format_dims(dims)}, {dtype}; per request of a warp, counted by the emulator."
        return f"{tables.markdown(titles, lines, left=2)}\n\n{of}"

    return _made(slot, rows, "counts", op, [number], dtype, dims, *wanted.values())


def reuse(slot: Slot, op: str, *ids: str, dtype: str, shape: str, warp: str = "32") -> str:
    if warp not in ("32", "64"):
        raise ValueError(f"a warp has 32 or 64 lanes, not {warp}")
    table = functools.partial(trace.reuse_table, warp=64 if warp == "64" else 32)
    dims, more = source_code.parse_shape(find(op).op, shape), [warp] if warp == "64" else []
    return _made(slot, table, "reuse", op, ids, dtype, dims, *more)


def traffic(slot: Slot, op: str, *ids: str, dtype: str, shape: str) -> str:
    dims = source_code.parse_shape(find(op).op, shape)
    return _made(slot, trace.traffic_table, "traffic", op, ids, dtype, dims)


def machine(slot: Slot, op: str, *ids: str, dtype: str, opcodes: str, loop: str = "") -> str:
    table = functools.partial(machine_table, opcodes=opcodes.split(), loop=bool(loop))
    dims, more = _measured_shape(op), [opcodes, *([loop] if loop else [])]
    return _made(slot, table, "machine", op, ids, dtype, dims, *more)


def resources(slot: Slot, op: str, *ids: str, on: str) -> str:
    table = functools.partial(resources_table, architectures=on.split())
    return _made(slot, table, "resources", op, ids, "bfloat16", _measured_shape(op), on)


def _measured_shape(op: str) -> Dims:
    """The first shape that the op is measured at."""
    return next(iter(find(op).op.bench.values()))


def picture(slot: Slot, kind: str, *args: str, **options: str) -> str:
    """A computed picture; its description in words is for those who do not see it."""
    try:
        digest = pictures.made_from(kind, *args, **options)
    except tables.NotMeasured:
        return ""  # the table says so
    words = [kind, *args, *(f"{key}-{value}" for key, value in options.items())]
    path = slot.picture(re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-"))
    made = f"<!-- made from {digest} -->"
    drawn = pictures.drawn_from(path) == digest
    if made in slot.old and (drawn or not slot.draw):
        return slot.old
    drawing = pictures.make(kind, *args, **options)  # may need a C++ compiler
    if slot.draw:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(drawing.svg(digest), encoding="utf-8")
    text = re.sub(r"([][<>*_])", r"\\\1", f"{drawing.title}. {drawing.description}")
    return f"![{text}]({slot.link(path)})\n{made}"


# ---- from the results ---------------------------------------------------------------------------


def table(slot: Slot, op: str, rungs: str = "", **which: str) -> str:
    try:
        return tables.table(op, lambda rung: link(slot, rung), rungs.split(), **which)
    except tables.NotMeasured:
        wanted = f" ({', '.join(which.values())})" if which else ""
        return f"_Not measured yet{wanted}: `python -m ladder bench {op} --save`, on a GPU._"


def log(slot: Slot, name: str, first: str = "", last: str = "") -> str:
    text = tables.log(name)
    return f"```\n{_lines(name, text, first, last or first) if first else text}\n```"


def link(slot: Slot, rung: Rung) -> str:
    """The rung's id as a link to its file; an id alone where there is no file."""
    return f"[{rung.id}]({slot.link(rung.path)})" if rung.path else rung.id


BLOCKS: dict[str, Callable[..., str]] = {
    block.__name__.replace("_", "-"): block
    for block in (
        rungs, entry, change, source, solution, passage, counts,
        reuse, traffic, machine, resources, picture, table, log, cards, tally,
    )
}  # fmt: skip
BLOCKS["overview"] = lambda slot: tables.overview(lambda rung: link(slot, rung))
BLOCKS["gain"] = lambda slot, op, *pair: tables.gain(op, *map(find(op).rung, pair))
BLOCKS["step-times"] = lambda slot, device: tables.step_times(device)
BLOCKS["step-summary"] = lambda slot, *which: tables.step_summary(*which)
