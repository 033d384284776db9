"""A rung is one `.cu` file; its header says in words why, and in expressions how it is launched.

    // layernorm forward, rung 3: one warp per row
    // Before: rung 2 reduces through shared memory, with a barrier per step.
    // Change: reduce in registers with warp shuffles; no shared memory.
    // Needs:  C % vector == 0; sm >= 80
    // Define: ROWS = 4
    // Launch: layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
    // Args:   x = inp; rows = N
    // Scratch: float32 partial[multiprocessors, C]
    // Tiles:  inp[128, 64]
    // Prefetch: weight; bias
    // Deterministic: no, float atomics land in any order
    // Accurate: no, E[x^2] - E[x]^2 cancels where the mean is large
    // Rounds: probs to real, to be a factor of the second product
    // TF32:   both factors, rounded to nearest by TMA
    // Pays:   no, the barrier it saves was hidden behind the loads
    // After:  2
    // Replaces: 4 barrier_per_step
    // Left:   loads are 2 or 4 bytes wide -> rung 5.

Launch geometry thus stands beside the kernel that depends on it, and a file from outside the
repository (`--rung layernorm.forward=mine.cu`) is a rung like any other. A key stands one space
after `//`; a line that continues the one above it is indented further. There are no other keys than
KEYS; doc/rung_files.md says what each means, and which names an expression may use;
expressions.py, what an expression may be. A choice of tile sizes that takes more than a line or two
is a function (`tiling`), which may return several constants:
`ROWS, PARTS = matmul.tiles.split_tiles(N, C, multiprocessors)`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.host_code import find_host
from ladder.core.contract.launch_plan import LaunchLines, LaunchPlan, entries
from ladder.core.contract.op import Dims
from ladder.core.contract.target import Target

KEYS = (  # in the order in which they stand
    *("Before", "Change", "Expect", "Needs", "Define", "Launch", "Args", "Scratch", "Tiles"),
    *("Prefetch", "Deterministic", "Accurate", "Rounds", "TF32", "Pays", "After", "Rewrite"),
    *("Replaces", "Left"),
)
MACHINE_READ = ("Needs", "Define", "Launch", "Args", "Scratch", "Tiles", "Prefetch")
# Where a ladder forks: by real type, and for AMD's matrix cores. Also the folders' names.
TRACKS = ("16bit", "float32", "amd")
_NUMBER = r"[0-9]+[b-z]?"  # 1b was put between 1 and 2
_ID = rf"(?:(?:{'|'.join(TRACKS)})-)?{_NUMBER}"
_ANSWER = re.compile(r"(yes|no)\b.*")
_KERNEL = re.compile(r"__global__[^;]*?\b(?!__)([A-Za-z_]\w*)\s*\(")
_FORMS = {  # what some of the other lines must look like, and how to say so
    "deterministic": (_ANSWER, "no, and why"),
    "accurate": (_ANSWER, "no, and why"),
    "pays": (_ANSWER, "no, and why"),
    "after": (re.compile(rf"([a-z_]+\.[a-z_]+ )?{_ID}"), "3, 16bit-5, or gelu.forward 2"),
    "replaces": (re.compile(rf"{_ID} \w+(; {_ID} \w+)*"), "16bit-6 tile_shape; 16bit-7 wgmma"),
}
_OF_HOST = re.compile(r"^// (Needs|Args|Deterministic|Accurate): +(.+)", re.MULTILINE)
SUFFIXES = (".cu", ".py")  # of a kernel's file
MOST_BYTES = 1 << 20  # of a kernel file, and of a file that it includes


@dataclass(frozen=True)
class Rung:
    """One implementation of an op: a `.cu` file, the reference (id "0"), or a Python function.

    id       what the rung is called everywhere: "3" on the trunk of its ladder, "float32-5" on a
             track, "cublas" for a library's, the resolved path for a user's own file; it is never
             given to another rung
    run      for library rungs and unfused sequences: a function
             `(device, {argument: array}, dims, scalars)` in place of a file
    prepare  what `run` needs done once, before a graph may record it: `(device, real type, dims)`
    library  a vendor's library: the measuring stick beside the ladder, not a step of it
    host     the function that launches the kernels, where no header does; it is planned as a kernel
    """

    id: str
    idea: str
    path: Path | None = None
    source: str = field(default="", repr=False)
    header: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    run: Callable[..., None] | None = None
    prepare: Callable[..., None] | None = None
    library: bool = False
    host: str = ""

    @property
    def deterministic(self) -> bool:
        """Two runs on the same input give the same bits."""
        return not self.header.get("deterministic", ("yes",))[0].startswith("no")

    @property
    def accurate(self) -> bool:
        """False where it is known to lose its digits in the op's hard cases."""
        return not self.header.get("accurate", ("yes",))[0].startswith("no")

    @property
    def rounds(self) -> bool:
        """It rounds a result on the way to its outputs to `real`: a little less exact."""
        return "rounds" in self.header

    @property
    def tf32(self) -> bool:
        """It multiplies float32 factors as TF32: only a run that allows TF32 may take it."""
        return "tf32" in self.header

    @property
    def number(self) -> str:
        """Its number on the trunk or track, "3" or "1b"; "" for a library's and a user's own."""
        return number_of(self.id)

    @property
    def track(self) -> str:
        """The track that it is on, one of TRACKS; "" on the trunk."""
        return self.id.rpartition("-")[0] if self.number else ""

    @property
    def slug(self) -> str:
        """The name of its file without the number: "warp_per_row"; "" where it has no number."""
        return self.path.stem.partition("_")[2] if self.path and self.number else ""

    @property
    def replaces(self) -> list[tuple[str, str]]:
        """Id and name of each rung that was taken out and for which this one stands."""
        pairs = (entry.split() for entry in entries(self.header.get("replaces", ())))
        return [(id, slug) for id, slug in pairs]

    @property
    def after(self) -> tuple[str, str] | None:
        """The rung that it grew from: the op's name, "" for its own, and the id; None without."""
        if "after" not in self.header:
            return None
        op, _, id = self.header["after"][0].rpartition(" ")
        return op, id

    @property
    def is_reference(self) -> bool:
        """Rung 0, the op's NumPy reference."""
        return self.path is None and self.run is None

    @property
    def is_own_file(self) -> bool:
        """A user's own `.cu` file: no rung of the repository."""
        return self.path is not None and not self.number

    @property
    def file(self) -> Path:
        """The path of its `.cu` file. Raises LadderError for a rung that has none."""
        if self.path is None:
            raise LadderError(f"{self.label} is no kernel: it has no .cu file")
        return self.path

    @property
    def name(self) -> str:
        """As titles and headings have it: "rung 3", "float32 rung 5", "cublas", "mine.cu"."""
        if not self.number:
            return self.path.name if self.path else self.id
        return f"{self.track} rung {self.number}".lstrip()

    @property
    def label(self) -> str:
        """What messages call it: "rung 3 (one warp per row)", "mine.cu (one warp per row)"."""
        return f"{self.name} ({self.idea})"

    @property
    def pays(self) -> bool:
        """False for a good idea that turned out no faster, kept for what it teaches."""
        return not self.header.get("pays", ("yes",))[0].startswith("no")

    def conditions(self) -> list[str]:
        """The machine-read conditions of the `Needs` line."""
        return [condition.text for condition in self.lines.needs]

    def shape_conditions(self) -> list[str]:
        """Those of them that depend on the shape, too; `runs_on` has the others in words."""
        return [condition.text for condition in self.lines.needs_of_shape]

    @functools.cached_property
    def lines(self) -> LaunchLines:
        """The machine-read lines of the header."""
        return LaunchLines.parse(self.header)

    @functools.cached_property
    def _plans(self) -> dict[tuple[object, ...], LaunchPlan]:
        return {}

    def plan(self, dims: Dims, target: Target) -> LaunchPlan:
        """What it needs to run a call of these dimensions on a device; worked out once.

        Raises LadderError where a line of the header makes no sense there.
        """
        if self.host and target.arch != "emulated":
            return LaunchPlan("its host code runs on the emulator only: --device emulated", {})
        key = (*dims.items(), target)
        if key not in self._plans:
            try:
                self._plans[key] = self.lines.plan(dims, target)
            except LadderError as error:
                raise LadderError(f"{self.path or self.name}: {error}") from None
        return self._plans[key]

    def claims(self, target: Target) -> bool:
        """Whether it is written for this architecture and real type, whatever the shape."""
        return self.lines.claims(target)

    def with_constant(self, name: str, value: int) -> Rung:
        """The same kernel with another value of a constant that its Define lines set.

        Raises LadderError where none of them sets it alone.
        """
        defines = entries(self.header.get("define", ()))
        alone = {d.names[0]: at for at, d in enumerate(self.lines.definitions) if len(d.names) == 1}
        if name not in alone:
            known = f"it defines {', '.join(alone)}" if alone else "its header defines no constant"
            raise LadderError(f"{self.label} has no constant {name} to set; {known}")
        defines[alone[name]] = f"{name} = {value}"
        idea = f"{self.idea}, {name} = {value}"
        return dataclasses.replace(self, idea=idea, header={**self.header, "define": (*defines,)})


def number_of(id: str) -> str:
    """The number in an id: "5" in "float32-5", "1b" in "1b"; "" in one without."""
    return id.rpartition("-")[2] if re.fullmatch(_ID, id) else ""


def spellings(id: str, slug: str) -> set[str]:
    """What names a rung of a ladder: its id, its number, its name, and that with its track."""
    if not slug:
        return {id}
    number = number_of(id)
    return {id, number, slug, id.removesuffix(number).replace("-", "/") + slug}


def id_of(path: Path) -> str:
    """The id that a rung file has by its place in a ladder: forward/float32/5_idea.cu: float32-5.

    Raises LadderError where the name does not begin with a number.
    """
    number, _, _ = path.name.partition("_")
    if not re.fullmatch(_NUMBER, number):
        raise LadderError(f"{path}: a rung's file is named by number and idea: 3_warp_per_row.cu")
    track = path.parent.name
    return f"{track}-{number}" if track in TRACKS else number


def parse(path: Path, kernel: str, id: str | None = None, op: str = "") -> Rung:
    """Read a rung file of the ladder whose kernel is called `kernel`.

    id  in the ladder; without it, the file is a user's own and has its resolved path as its id
    op  the name that `adopt` takes

    Raises LadderError, naming the file and what to write, where the header is not as the module
    docstring says.
    """
    source, host = read_text(path, MOST_BYTES), ""
    if id is None and not op and "// Launch:" not in source:
        source, host = find_host(path, source)
        if not host:
            example = f"{[kernel, *_KERNEL.findall(source)][-1]}<<<ceil_div(N, 256), 256>>>"
            raise LadderError(
                f'{path} has neither a host function to call, such as extern "C" void solve(...), '
                f"nor '// {kernel}: its idea' and '// Launch: {example}' (doc/any_kernel.md)"
            )
    if host:
        keys = {key.lower(): (text,) for key, text in _OF_HOST.findall(source)}
        launch = {"launch": (f"{host}<<<1, 1>>>",)}
        return Rung(os.path.realpath(path), host, path, source, keys | launch, host=host)
    comment = re.match(r"(?://.*\n?)*", source)
    lines = comment.group().splitlines() if comment else []
    title = re.fullmatch(
        r"//\s*[\w +]+?(?:, (?:\w+ )?rung \w+)?\s*:\s*(.+)", lines[0].rstrip() if lines else ""
    )
    if title is None or lines[0].removeprefix("//").partition(":")[0].strip() in KEYS:
        name, theirs = " ".join(kernel.rsplit("_", 1)), _KERNEL.findall(source)
        words = shlex.join(["adopt", str(path), *theirs[-1:], "--op", op])
        hint = f"; to have it written: python -m ladder {words}" if theirs and op else ""
        raise LadderError(
            f"{path}: the first line must be a title, '// {name}: its idea'; the other lines of "
            f"the header come below it{hint}"
        )
    header = _read_header(path, lines)
    if "launch" not in header:
        example = f"// Launch: {kernel}<<<ceil_div(N, 4), 4 * warp>>>"
        raise LadderError(f"{path}: the header says nothing of the launch; write e.g. '{example}'")
    for key, (form, example) in _FORMS.items():
        for text in header.get(key, ())[:2]:
            if not form.fullmatch(text) or len(header[key]) > 1:
                raise LadderError(f"{path}: write one line '// {key.title()}: {example}': {text}")
    try:
        LaunchLines.parse(header)
    except LadderError as error:
        raise LadderError(f"{path}: {error}") from None
    return Rung(id or os.path.realpath(path), title.group(1), path, source, header)


def _read_header(path: Path, lines: list[str]) -> dict[str, tuple[str, ...]]:
    """The entries of a header by key, in lower case; `lines` begin with the title."""
    header: dict[str, list[str]] = {}
    key = None
    for number, line in enumerate(lines[1:], 2):
        where, text = f"{path}:{number}", line.removeprefix("//").rstrip()
        entry = re.match(r" (\w+):(?:\s+|$)", text)
        if entry and entry[1] in KEYS:
            key = entry[1].lower()
            header.setdefault(key, []).append(text[entry.end() :])
        elif entry:
            near = difflib.get_close_matches(entry[1].capitalize(), KEYS, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}:?" if near else f"there are {', '.join(KEYS)}"
            raise LadderError(f"{where}: no header line begins with {entry[1]}:; {hint}")
        elif text.strip() and (key is None or not re.match(r"\s{2}|\t", text)):
            raise LadderError(
                f"{where}: begin the line with a key ('// Change: ...'), or indent it further to "
                f"continue the line above: {line}"
            )
        elif text.strip():
            if (word := re.match(r"\s*(\w+):", text)) and word[1] in KEYS:
                raise LadderError(f"{where}: '{word[1]}:' must stand one space after '//'")
            assert key is not None
            header[key][-1] += " " + text.strip()
    return {key: tuple(values) for key, values in header.items()}
