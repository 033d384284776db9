"""What the page "try it" runs in a browser: kernels, inputs, and what must come out of them.

    python doc/site/exercises.py FOLDER

writes a JSON file for each exercise: a rung or a puzzle with a few cases of the checker. Their
inputs and expected outputs, with tolerances, are computed here by the float64 reference, since a
browser has no NumPy. doc/site/browser/src/judge.ts reads the files.
"""

import ast
import base64
import hashlib
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from markdown_it import MarkdownIt

from ladder.core.contract.ladder import Ladder, find
from ladder.core.contract.launch_plan import names_of
from ladder.core.contract.op import Dims, Op, format_dims, resolve_dtype
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.structures import ACCESSES, COUNTS, KINDS
from ladder.core.emulator.toolchain import FILL, KERNEL
from ladder.core.show.limits import BARRIER, CALL, LESSONS
from ladder.core.show.notebook import rung_of
from ladder.core.verify.cases import cases
from ladder.core.verify.check import what_to_run
from ladder.core.verify.inputs import NORMAL, scalars, starts
from ladder.core.verify.tolerance import Expected

ROOT = Path(__file__).parents[2]
REAL = np.dtype(np.float32)
TARGET = Emulated().target(REAL)
OPS = (  # whose rungs on the trunk become exercises, and up to which one
    *(("start.add", "3"), ("start.sum", "5"), ("layernorm.forward", "8"), ("softmax.forward", "5")),
    *(("gelu.forward", "4"), ("embedding.forward", "3"), ("matmul.forward", "4")),
)
MOST_BYTES, MOST_FLOPS = 140_000, 300_000  # of a case
# A kernel is compiled anew for other constants: so many, each at so many shapes, or only one.
MOST_CONSTANTS, SHAPES_EACH, MOST_SHAPES = 3, 2, 5
# As toolchain.py compiles for counting; the hooks of -fsanitize=thread, for a target that has not
# the sanitizer itself. clang optimises, so that it counts as gcc does: a[i] * a[i] is one read. It
# leaves copies of float4 whole and where they are, and a loop without an end in its place.
FLAGS = [
    *(f for f in KERNEL if not f.startswith(("-shared", "-g", "-fno-plt", "-Werror=frame"))),
    "-gline-directives-only",  # compile.ts reads the lines in the assembly
    *("-DEMULATOR_COUNT", "-Xclang", "-fsanitize=thread", "-O1", "-fno-finite-loops", *FILL),
    *("-mllvm", "-opt-disable=sroa,memcpyopt,loop-idiom,loop-unroll-full,loop-unroll"),
    *("-mllvm", "-tsan-instrument-read-before-write"),  # of x += 1, too, the read is counted
    *("-mllvm", "-tsan-instrument-func-entry-exit=0", "-Wno-unknown-pragmas"),
    "-Wno-pass-failed",  # that a loop is not unrolled, which takes long to say
    *(f"-Wframe-larger-than={48 << 10}", "-Werror=frame-larger-than"),  # of a fiber's 64 KiB
    *("-Iinclude", "-DREAL_FLOAT32=1", "-DWARP_SIZE=32"),
]
PUZZLES = ROOT / "notebooks" / "12_puzzles.ipynb"


@dataclass(frozen=True)
class Exercise:
    """A kernel to begin with, its contract and the limits that it must keep."""

    id: str
    group: str
    title: str
    ladder: Ladder
    rung: Rung
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    text: str = ""  # Markdown: what is asked for


def exercises() -> Iterator[Exercise]:
    """The rungs of OPS, in reading order."""
    for name, last in OPS:
        ladder = find(name)
        for rung in ladder.rungs:
            if rung.path is not None and not rung.track:
                title = f"{name}, rung {rung.number}: {rung.idea}"
                yield Exercise(f"{name}-{rung.number}", name, title, ladder, rung)
            if rung.id == last:
                break


def chosen(op: Op, rung: Rung) -> list[tuple[Dims, str]]:
    """A puzzle's own shapes; else those that a page can carry, the largest first. Then the op's
    cases at the first of them."""
    found = [dims for dims in op.shapes if rung.plan(dims, TARGET).refusal is None]
    if not _is_puzzle(op):
        found = _small(op, rung, found)
    found.sort(key=lambda dims: op.least_bytes(dims, REAL), reverse=True)
    cases = [name for name, case in op.cases.items() if rung.accurate or not case.hard]
    return [(dims, NORMAL) for dims in found] + [(found[0], name) for name in cases]


def _small(op: Op, rung: Rung, own: Sequence[Dims]) -> list[Dims]:
    """The most telling shapes, as `check` derives them, and others of the op's own."""
    derived = [
        dims for dims, case in what_to_run(op, rung, Emulated(), REAL.name) if case == NORMAL
    ]
    own, telling = ([d for d in shapes if not _too_large(op, d)] for shapes in (own, derived))
    # One dimension taken for another shows where all differ.
    differ = sorted(own, key=lambda dims: len(set(dims.values())))[-1:]
    fit = {
        tuple(dims.items()): tuple(rung.plan(dims, TARGET).constants.items())
        for dims in [*telling[:3], *differ, *telling[3:], *own]
    }
    each = MOST_SHAPES if len(set(fit.values())) == 1 else SHAPES_EACH
    used: Counter[tuple[tuple[str, int], ...]] = Counter()
    found: list[Dims] = []
    for sizes, key in fit.items():
        if used[key] < each and (used[key] or len(+used) < MOST_CONSTANTS):
            used[key] += 1
            found.append(dict(sizes))
    return found


def _is_puzzle(op: Op) -> bool:
    return op.name.startswith("puzzle.")


def _too_large(op: Op, dims: Dims) -> bool:
    size = sum(4 * math.prod(arg.resolve_shape(dims)) for arg in op.args)
    return size > MOST_BYTES or op.flops(dims) > MOST_FLOPS


def content(exercise: Exercise) -> dict[str, Any]:
    """The JSON of an exercise, as judge.ts has its type."""
    op, rung = exercise.ladder.op, exercise.rung
    written = []
    counted = 0
    for dims, case in chosen(op, rung):
        # Without optional arguments only at the first, the largest shape.
        for values, expected in islice(cases(op, dims, REAL, case, 0), 1 if written else None):
            label = format_dims(dims) + ("" if case == NORMAL else f", {case}")
            written.append(_case(op, rung, dims, case, label, values, expected))
            if _is_puzzle(op) and dims == next(iter(op.bench.values())):
                counted = len(written) - 1
    bounds = [
        (name, word, limit)
        for bound, word in (("at_most", "many"), ("at_least", "few"))
        for name, limit in exercise.limits.get(bound, {}).items()
    ]
    return {
        "name": op.name,
        "file": os.path.relpath(rung.file, ROOT) if rung.number else rung.file.name,
        "source": rung.source,
        "flags": FLAGS,
        "device": dict(names_of(TARGET)),
        "outputs": [arg.name for arg in op.args if arg.role != "in"],
        "optional": [arg.name for arg in op.args if arg.optional],
        "kinds": KINDS,
        "accesses": ACCESSES,
        "counts": COUNTS,
        "cases": written,
        "every": _is_puzzle(op),
        "limits": {"case": counted, "bounds": bounds},
        "marks": _marks(exercise.limits),
        "lessons": LESSONS if exercise.limits else {},
    }


def _marks(limits: Mapping[str, Mapping[str, float]]) -> str:
    """The macros for a limit on barriers or on calls, of which the page counts one."""
    names = {name for named in limits.values() for name in named}
    found = [BARRIER for name in names if name == "barriers"]
    found += [CALL.format(name[9:]) for name in names if name.startswith("calls of ")]
    if len(found) > 1:
        raise ValueError(f"the page counts either barriers or one function's calls: {names}")
    return "".join(found)


def _case(
    op: Op,
    rung: Rung,
    dims: Dims,
    case: str,
    label: str,
    values: Mapping[str, np.ndarray],
    expected: Sequence[Expected],
) -> dict[str, Any]:
    start = starts(op, dims, case)
    arrays = []
    for arg in op.args:
        if arg.role != "out" and arg.name not in values:
            continue
        array = {
            "name": arg.name,
            "type": resolve_dtype(arg.dtype, REAL).name,
            "elements": math.prod(arg.resolve_shape(dims)),
            "start": start.get(arg.name, 0),
        }
        arrays.append(array | ({"data": _text(values[arg.name])} if arg.name in values else {}))
    numbers = scalars(op, case, dims)
    return {
        "label": label,
        "dims": dict(dims),
        "arrays": arrays,
        "scalars": {
            scalar.name: {
                "type": "float" if np.dtype(scalar.dtype).kind == "f" else "int",
                "value": numbers[scalar.name],
            }
            for scalar in op.scalars
        },
        "expected": [_expected(rung, output) for output in expected],
    }


def _expected(rung: Rung, output: Expected) -> dict[str, Any]:
    others = [_text(other) for other in output.others]
    made = {"name": output.arg.name, "value": _text(output.value), "others": others}
    if output.value.dtype.kind not in "iu":
        allowed = output.allowed(rung.rounds, rung.tf32).astype(np.float32)
        made["tolerance"] = _text(np.nextafter(allowed, np.float32(np.inf)))
    return made


def _text(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


HEADING = re.compile(r"^#+ (Puzzle \d+ .*)$", re.MULTILINE)


def puzzles() -> Iterator[Exercise]:
    """The puzzles of the notebook, with the code and the limits that it begins with."""
    title, texts = "An example", []
    for cell in nbformat.read(PUZZLES, as_version=4).cells:
        head, _, source = cell.source.partition("\n")
        if cell.cell_type == "markdown":
            *_, found = [None, *HEADING.finditer(cell.source)]
            if found:
                title, texts = found[1], [cell.source[found.end() :]]
            else:
                texts.append(cell.source)
        elif head.startswith("%%kernel "):
            _, name, *limits = head.split(" ", 2)
            number = found[1] if (found := re.match(r"Puzzle (\d+)", title)) else "0"
            yield Exercise(
                f"puzzle-{number}",
                "Puzzles",
                title,
                find(name),
                rung_of(name, source),
                _limits(*limits),
                "\n\n".join(texts),
            )


def _limits(text: str = "") -> dict[str, dict[str, float]]:
    """Of a cell's first line: `at_most={"sectors of x": 64}, at_least={...}`."""
    call = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    return {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    index = []
    for exercise in [*exercises(), *puzzles()]:
        made = content(exercise)
        made["digest"] = hashlib.sha256(json.dumps(made).encode()).hexdigest()
        file = folder / f"{exercise.id}.json"
        # One that is there has its verdict already, which takes seconds.
        if not file.exists() or json.loads(file.read_bytes())["digest"] != made["digest"]:
            file.write_text(json.dumps(made), encoding="utf-8")
        asked = re.sub(
            r'(href="(?!https?:)[^"#]*)\.(?:md|ipynb)\b', r"\1.html", markdown.render(exercise.text)
        )
        assert exercise.id not in {entry["id"] for entry in index}
        index.append(
            {"id": exercise.id, "group": exercise.group, "title": exercise.title, "text": asked}
        )
    for file in folder.glob("*.json"):
        if file.stem not in {entry["id"] for entry in index}:
            file.unlink()  # of an exercise that is gone, or the index, which follows
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")


if __name__ == "__main__":
    main()
