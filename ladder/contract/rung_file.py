"""A rung is one `.cu` file; its header says in words why, and in expressions how it is launched.

    // layernorm forward, rung 3: one warp per row
    // Before: rung 2 reduces through shared memory, with a barrier per step.
    // Change: reduce in registers with warp shuffles; no shared memory.
    // Needs:  C % vector == 0; sm >= 80
    // Define: ROWS = 4
    // Launch: layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
    // Scratch: float32 partial[multiprocessors, C]
    // Tiles:  inp[128, 64]
    // Deterministic: no, float atomics land in any order
    // Accurate: no, E[x^2] - E[x]^2 cancels where the mean is large
    // Rounds: probs to real, to be a factor of the second product
    // Pays:   no, the barrier it saves was hidden behind the loads
    // After:  2
    // Left:   loads are 2 or 4 bytes wide -> rung 4.

Launch geometry thus stands beside the kernel that depends on it, and a file from outside the
repository (`--rung layernorm.forward=mine.cu`) is a rung like any other. A line may be continued
on the next one by indenting it. The lines that a machine reads:

    Needs    conditions, separated by `;`, or `nothing`; where one fails the rung is refused
    Define   preprocessor constants, `NAME = expression`, separated by `;`
    Launch   `kernel<<<grid, block>>>` or `kernel<<<grid, block, shared bytes>>>`; grid and block
             are an integer or a tuple; several Launch lines run one after the other, all with
             the same arguments; one that ends in `if condition` only where that holds
    Scratch  `dtype name[shape]`, separated by `;`: buffers passed after all other arguments,
             their content undefined at the start
    Tiles    `argument[rows, columns]`, separated by `;`: passed last, as `TensorMap argument_tiles`
             (include/hopper.cuh), for copies of such tiles of it by TMA; a row has 128 bytes
    After    the id of the rung that it grew from; the first of a ladder has none

Expressions are Python's over the call's dimensions (N, C, ...), the constants of Define, `warp`
(its width), `multiprocessors`, `shared_bytes` (the most one block can have), `vector` (reals in 16
bytes), `real` (one of `float32`, `float16`, `bfloat16`), `sizeof_real`, `sm` (75, 80, 90, ...; 0 if
not NVIDIA), and the functions `ceil_div`, `min`, `max`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ladder.common.errors import LadderError
from ladder.contract.dims import Dims
from ladder.contract.dtypes import REALS
from ladder.contract.target import Target

# What an entry of these lines looks like, and how to say so.
_FORMS = {
    "define": (r"[A-Za-z_]\w*\s*=[^=].*", "NAME = expression; NAME = expression"),
    "scratch": (r"(?:real|u?int32|float32)\s+[A-Za-z_]\w*\s*\[.+\]", "float32 name[N, C]"),
    "tiles": (r"[A-Za-z_]\w*\s*\[.+\]", "argument[rows, columns]"),
}
TRACKS = ("16bit", "float32")  # where a ladder forks by real type; also the folders' names
_LAUNCH = r"(\w+)\s*<<<(.*)>>>(?:\s*if\s+(.+))?"


def ceil_div(a: int, b: int) -> int:
    """Blocks of `b` that cover `a`."""
    return -(-a // b)


@dataclass(frozen=True)
class Launch:
    """One kernel launch: grid and block as in CUDA, dynamic shared memory in bytes."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0


@dataclass(frozen=True)
class Rung:
    """One implementation of an op: a `.cu` file, the reference (id "0"), or a Python function.

    id       what the rung is called everywhere: "3" on the trunk of its ladder, "float32-5" on a
             track, "cublas" for a library's, the resolved path for a user's own file
    run      for library rungs and unfused sequences: a function
             `(device, {argument: array}, dims, scalars)` in place of a file
    prepare  what `run` needs done once, before a graph may record it: `(device, real type, dims)`
    library  a vendor's library: the measuring stick beside the ladder, not a step of it
    """

    id: str
    idea: str
    path: Path | None = None
    source: str = field(default="", repr=False)
    header: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    run: Callable[..., None] | None = None
    prepare: Callable[..., None] | None = None
    library: bool = False

    @property
    def deterministic(self) -> bool:
        """Two runs on the same input give the same bits."""
        return not self.header.get("deterministic", ("yes",))[0].startswith("no")

    @property
    def accurate(self) -> bool:
        """False where it is known to lose its digits on the op's hard inputs."""
        return not self.header.get("accurate", ("yes",))[0].startswith("no")

    @property
    def rounds(self) -> bool:
        """It rounds a result on the way to its outputs to `real`: a little less exact."""
        return "rounds" in self.header

    @property
    def number(self) -> int | None:
        """Its place on the trunk or track; None for a library's and a user's own file."""
        _, number = _split(self.id)
        return number

    @property
    def track(self) -> str:
        """The track that it is on, one of TRACKS; "" on the trunk."""
        track, _ = _split(self.id)
        return track

    @property
    def is_reference(self) -> bool:
        """Rung 0, the op's NumPy reference."""
        return self.path is None and self.run is None

    @property
    def is_own_file(self) -> bool:
        """A user's own `.cu` file: no rung of the repository."""
        return self.path is not None and self.number is None

    @property
    def file(self) -> Path:
        """The path of its `.cu` file. Raises LadderError for a rung that has none."""
        if self.path is None:
            raise LadderError(f"{self.label} is no kernel: it has no .cu file")
        return self.path

    @property
    def name(self) -> str:
        """As titles and headings have it: "rung 3", "float32 rung 5", "cublas", "mine.cu"."""
        if self.number is None:
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
        conditions = entries(self.header.get("needs", ()))
        return [condition for condition in conditions if condition != "nothing"]

    def refusal(self, dims: Dims, target: Target) -> str | None:
        """Why the rung cannot run this call on this device, as half a sentence; None if it can."""
        names = self._names(dims, target)
        for condition in self._conditions_on(target):
            if not self._evaluate(condition, names):
                values = [
                    f"{n} = {names[n]}"
                    for n in sorted(_words(condition), key=condition.index)
                    if n in names and n not in REALS
                ]
                values = [value for value in values if "function" not in value]
                return f"it needs {condition}, and here {', '.join(dict.fromkeys(values))}"
        return None

    def claims(self, target: Target) -> bool:
        """Whether it is written for this architecture and real type, whatever the shape."""
        known = {"sm", "real", "warp", *REALS, "in", "and", "or", "not"}
        return all(
            self._evaluate(condition, self._names({}, target))
            for condition in self._conditions_on(target)
            if _words(condition) <= known
        )

    def _conditions_on(self, target: Target) -> list[str]:
        """The conditions that count there: the emulator has the features of every generation."""
        emulated = target.arch == "emulated"
        return [c for c in self.conditions() if not (emulated and "sm" in _words(c))]

    def defines(self, dims: Dims, target: Target) -> dict[str, int]:
        """Preprocessor constants that the file is compiled with."""
        names = self._names(dims, target)
        return {name: names[name] for name, _ in self._define_lines()}

    def launches(self, dims: Dims, target: Target) -> tuple[Launch, ...]:
        """The launches of one call, in order, on one stream."""
        names = self._names(dims, target)
        launches = []
        for line in self.header["launch"]:
            kernel, geometry, condition = re.fullmatch(_LAUNCH, line).groups()
            if condition and not self._evaluate(condition, names):
                continue
            parts = self._evaluate(f"({geometry},)", names)
            if len(parts) not in (2, 3):
                raise LadderError(f"{self.path}: write grid, block and perhaps bytes: {line}")
            grid, block = (self._dim3(part, line) for part in parts[:2])
            (shared,) = self._whole(parts[2:] or (0,), line)
            launches.append(Launch(kernel, grid, block, shared))
        return tuple(launches)

    def scratch(self, dims: Dims, target: Target) -> dict[str, tuple[tuple[int, ...], str]]:
        """Buffers beside the arguments: name -> (shape, dtype as declared)."""
        names = self._names(dims, target)
        buffers = {}
        for entry in entries(self.header.get("scratch", ())):
            dtype, name, shape = re.fullmatch(r"(\w+)\s+(\w+)\s*\[(.*)\]", entry).groups()
            sizes = self._whole(self._evaluate(f"({shape},)", names), entry)
            buffers[name] = (sizes, dtype)
        return buffers

    def tiles(self, dims: Dims, target: Target) -> dict[str, tuple[int, int]]:
        """Of which arguments the kernels copy tiles by TMA: name -> (rows, columns) of a tile."""
        names = self._names(dims, target)
        boxes = {}
        for entry in entries(self.header.get("tiles", ())):
            name, shape = re.fullmatch(r"(\w+)\s*\[(.*)\]", entry).groups()
            box = self._whole(self._evaluate(f"({shape},)", names), entry)
            if len(box) != 2:
                raise LadderError(f"{self.path}: a tile has rows and columns: {entry}")
            boxes[name] = box
        return boxes

    def _dim3(self, value: object, line: str) -> tuple[int, int, int]:
        sizes = self._whole(value if isinstance(value, tuple) else (value,), line)
        if len(sizes) > 3:
            raise LadderError(f"{self.path}: grid and block have three dimensions at most: {line}")
        return (*sizes, 1, 1)[:3]

    def _whole(self, values: tuple[object, ...], line: str) -> tuple[int, ...]:
        for value in values:
            if not isinstance(value, int) or value < 0:
                raise LadderError(f"{self.path}: {value!r} is not a whole number from 0 on: {line}")
        return values

    def _define_lines(self) -> list[tuple[str, str]]:
        lines = entries(self.header.get("define", ()))
        return [(name.strip(), value.strip()) for name, value in (x.split("=", 1) for x in lines)]

    def _names(self, dims: Dims, target: Target) -> dict[str, object]:
        """What an expression may use. Without dims, only what the target alone settles."""
        names = {
            **dims,
            "warp": target.warp,
            "multiprocessors": target.multiprocessors,
            "shared_bytes": target.shared_bytes,
            "vector": target.vector,
            "real": target.real.name,
            "sizeof_real": target.real.itemsize,
            "sm": target.sm,
            **{name: name for name in REALS},
            **{"ceil_div": ceil_div, "min": min, "max": max},
        }
        if dims:
            for name, expression in self._define_lines():
                names[name] = self._evaluate(expression, names)
        return names

    def _evaluate(self, expression: str, names: Mapping[str, object]):
        # Not a security boundary: whoever hands us this file has us compile and run it anyway.
        try:
            return eval(expression, {"__builtins__": {}}, dict(names))
        except Exception as error:
            raise LadderError(f"{self.path}: cannot evaluate {expression!r}: {error}") from None


def _split(id: str) -> tuple[str, int | None]:
    """The track and the number in an id: ("float32", 5) for "float32-5", ("", 3) for "3"."""
    track, _, number = id.rpartition("-")
    if number.isdecimal() and track in ("", *TRACKS):
        return track, int(number)
    return "", None


def id_of(path: Path) -> str:
    """The id that a rung file has by its place in a ladder: forward/float32/5_idea.cu: float32-5.

    Raises LadderError where the name does not begin with a number.
    """
    number, _, _ = path.name.partition("_")
    if not number.isdecimal():
        raise LadderError(f"{path}: a rung's file is named by number and idea: 3_warp_per_row.cu")
    track = path.parent.name
    return f"{track}-{number}" if track in TRACKS else number


def parse(path: Path, kernel: str, id: str | None = None) -> Rung:
    """Read a rung file of the ladder whose kernel is called `kernel`.

    id  in the ladder; without it, the file is a user's own and has its resolved path as its id

    Raises LadderError, naming the file and what to write, where the header is not as the module
    docstring says.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LadderError(f"cannot read the kernel file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LadderError(f"cannot read the kernel file {path}: no text, {error}") from None
    comment = re.match(r"(?://.*\n?)*", source)
    lines = [line.removeprefix("//").rstrip() for line in comment.group().splitlines()]
    title = re.fullmatch(r"\s*[\w +]+?(?:, (?:\w+ )?rung \d+)?\s*:\s*(.+)", (lines or [""])[0])
    if title is None:
        raise LadderError(
            f"{path}: the first line must read '// layer direction, rung N: its idea'"
        )
    header: dict[str, list[str]] = {}
    key = None
    for line in lines[1:]:
        entry = re.fullmatch(r" ([A-Z]\w*):\s*(.*)", line)
        if entry:
            key = entry.group(1).lower()
            header.setdefault(key, []).append(entry.group(2).strip())
        elif key and line.strip():
            header[key][-1] += " " + line.strip()
    if "launch" not in header:
        example = f"// Launch: {kernel}<<<ceil_div(N, 4), 4 * warp>>>"
        raise LadderError(f"{path}: the header says nothing of the launch; write e.g. '{example}'")
    for line in header["launch"]:
        if not re.fullmatch(_LAUNCH, line):
            raise LadderError(f"{path}: a Launch line must read 'kernel<<<grid, block>>>': {line}")
    for key, (form, example) in _FORMS.items():
        for entry in entries(tuple(header.get(key, ()))):
            if not re.fullmatch(form, entry):
                raise LadderError(f"{path}: {key.title()} must read '{example}': {entry}")
    if kernel not in source:
        raise LadderError(f"{path}: it defines no kernel named {kernel}")
    return Rung(
        id=id or str(path.resolve()),
        idea=title.group(1),
        path=path,
        source=source,
        header={key: tuple(values) for key, values in header.items()},
    )


def entries(lines: tuple[str, ...]) -> list[str]:
    """What stands between the `;` of a header's lines."""
    return [part.strip() for line in lines for part in line.split(";") if part.strip()]


def _words(expression: str) -> set[str]:
    return set(re.findall(r"\b[A-Za-z_]\w*\b", expression))
