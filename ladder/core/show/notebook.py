"""What the notebooks call: each function shows one thing, made by the rest of the package.

    from ladder.core.show import notebook as nb

    nb.show("layernorm.forward", 1)          the source of a rung
    nb.access("layernorm.forward", 1)        a picture: which lane touches which address
    nb.check("layernorm.forward", MY_KERNEL) the verdict on a kernel, here in a string
    %%kernel layernorm.forward               the same at the top of a cell, with the kernel below it

`python -m ladder notebooks` runs the notebooks and saves them with what comes out.
"""

import base64
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from IPython import get_ipython
from IPython.core.magic import no_var_expand
from IPython.display import Markdown, display

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.common.moved import gone
from ladder.core.contract.binding import bind
from ladder.core.contract.ladder import find, find_rung
from ladder.core.contract.op import DTYPES, Dims, format_dims, resolve_dtype
from ladder.core.contract.rung_file import Rung
from ladder.core.device.open import default_device, open_device
from ladder.core.emulator.report import Report
from ladder.core.measure import bench
from ladder.core.show import diagrams, limits, pages, pictures, source_code, tables
from ladder.core.show import progress as progress_file
from ladder.core.show import trace as tracer
from ladder.core.show.pictures import accesses, charts, measured, recording
from ladder.core.show.pictures import banks as bank_pictures
from ladder.core.show.pictures import ring as ring_pictures
from ladder.core.show.pictures import timeline as timeline_pictures
from ladder.core.show.pictures import waits as wait_pictures
from ladder.core.verify import check as checker
from ladder.core.verify import sandbox
from ladder.core.verify.inputs import scalars

FOLDER = pages.ROOT / "notebooks"
SLOT = pages.Slot(FOLDER / "notebook.ipynb", old="", draw=False)  # what links are relative to
SOLUTION = re.compile(r"<summary>Solution</summary>\n\n```(\w+)\n(.*?)```", re.DOTALL)

__getattr__ = functools.partial(gone, __name__)


# ---- kernels ------------------------------------------------------------------------------------


def rungs(op: str) -> None:
    """The ladder of an op: its rungs, with links to their files."""
    display(Markdown(pages.rungs(SLOT, op)))


def show(op: str, rung: int | str, words: bool = True) -> None:
    """The whole file of a rung; without the words of its header where they answer a question."""
    fence, _, file = pages.source(SLOT, op, str(rung)).partition("\n")
    display(Markdown(f"{fence}\n{file if words else source_code.without_words(file)}"))


def passage(op: str, rung: int | str, first: str, last: str) -> None:
    """Some lines of a rung, below a link to its file: from the first one that contains `first` to
    the next one with `last`."""
    file = find(op).rung(rung).file
    lines = pages.passage(SLOT, op, str(rung), first=first, last=last)
    display(Markdown(f"[{file.name}]({SLOT.link(file)})\n\n{lines}"))


def diff(
    op: str, rung: int | str, other: int | str = "", first: str = "", last: str | None = None
) -> None:
    """What changes in the code from one rung to another, or to a rung from the one that it grew
    from; links to both files. The words of the headers are left out: `show` has them.

    first, last  only from the first line that contains `first` to the next one with `last`, or to
                 the end; 40 lines at most
    """
    display(Markdown(pages.diff(SLOT, op, str(rung), str(other), first, last)))


def spec(op: str, **_: int) -> None:  # sizes of the example, in version 0.1
    """What a puzzle computes: its reference, and an example that is drawn in doc/img."""
    text = inspect.getsource(find(op).op.reference)
    display(Markdown(f"```python\n{text[text.index('def ') :].rstrip()}\n```"))
    drawing(op.replace(".", "-"))


def run(op: str, kernel: int | str, dims: Dims, **inputs: Any) -> dict[str, np.ndarray]:
    """Run a rung, or a kernel in a string, on float32 arrays; what it wrote, by argument.

    It runs in this process: a kernel that may crash should go through `check` first.
    """
    device, contract, real = open_device(default_device()), find(op).op, DTYPES["float32"]
    arrays = {}
    for arg in contract.args:
        shape, dtype = arg.resolve_shape(dims), resolve_dtype(arg.dtype, real)
        arrays[arg.name] = device.empty(shape, dtype)
        start = np.broadcast_to(np.asarray(inputs.get(arg.name, 0)), shape)
        device.upload(arrays[arg.name], start.astype(dtype))
    bind(contract, rung_of(op, kernel), device, real, dims, arrays, scalars(contract))()
    device.synchronize()
    return {
        arg.name: device.download(arrays[arg.name]) for arg in contract.args if arg.role != "in"
    }


def check(
    op: str,
    kernel: int | str,
    dtypes: Sequence[str] = ("float32",),
    device: str | None = None,
    shapes: Sequence[Dims] | None = None,
    at_most: Mapping[str, float] | None = None,
    at_least: Mapping[str, float] | None = None,
    **dims: int,
) -> None:
    """Print the checker's verdict on a rung, or on a kernel in a string.

    shapes   by default those that take the kernel through all of its code
    at_most  limits of an exercise, `{"sectors of inp": 256}` (ladder/core/show/limits.py), which
             the emulator counts at the shape `dims`, in the first of `dtypes`, once the result is
             right
    at_least what a kernel that has the idea of the exercise cannot do without, counted likewise

    A kernel in a string runs in a child process, where it cannot take the notebook down.
    """
    counts = (at_most or {}, at_least or {})
    _say(*_judge(op, kernel, dtypes, device, shapes, counts, dims)[1:])


def puzzle(
    op: str,
    kernel: str,
    at_most: Mapping[str, float] | None = None,
    at_least: Mapping[str, float] | None = None,
) -> None:
    """Grade a kernel for a puzzle, with the limits of `check` at the last shape of its op. Below
    the verdict, what it asks of memory, beside the least; and which lane touches which address."""
    contract = find(op).op
    dims = contract.shapes[-1]
    counts = (at_most or {}, at_least or {})
    ran, passed, text = _judge(op, kernel, ("float32",), None, contract.shapes, counts, dims)
    if not passed:  # without what a report begins with, and without the tolerance
        text = f"Not yet: {text.partition(': FAILED ')[2] or text}"
    _say(passed, "\n".join(line for line in text.splitlines() if "tolerance: " not in line))
    if not ran:  # it may crash, or never end
        return
    try:
        rung, report, _ = _trace(op, kernel, **dims)
    except LadderError:  # a race, or an access outside of an array: the verdict has said so
        return
    if passed or "The result is right" in text:
        print(tracer.beside_least(contract, report, dims))
    title = f"{rung.idea}, {format_dims(dims)}"
    if any(access.space == "global" for access in report.accesses):
        _draw(accesses.of_report(report, rung, title).svg())
    for access in report.accesses:
        if access.space == "shared" and bank_pictures.conflicts(access):
            what = f"bank conflict: line {access.line} {access.kind}s {access.buffer}"
            _draw(bank_pictures.of_request(what, access).svg())
            break


def kernel(line: str, body: str, names: dict[str, Any]) -> None:
    """The magic `%%kernel OP option=value, …` at the top of a cell grades the kernel below it, as
    `puzzle` or `check` do with these options. Other cells know the kernel as MINE.

    names  those of the notebook, which values may use

    Raises LadderError where the options cannot be evaluated.
    """
    op, _, options = line.strip().partition(" ")
    try:
        given = eval(f"dict({options})", names)
    except Exception as error:
        example = '%%kernel start.sum at_most={"atomics": 256}, N=1000'
        raise LadderError(f"%%kernel {line}: {error}; a line that works: {example}") from None
    names["MINE"] = body
    (puzzle if op.startswith("puzzle.") else check)(op, body, **given)


def _judge(
    op: str,
    kernel: int | str,
    dtypes: Sequence[str],
    device: str | None,
    shapes: Sequence[Dims] | None,
    counts: tuple[Mapping[str, float], Mapping[str, float]],
    dims: Dims,
) -> tuple[bool, bool, str]:
    """Whether a kernel ran to its end, whether it passed, and what to say about it."""
    device = device or default_device()
    with sandbox.as_file(str(kernel)) as path:
        try:
            if isinstance(kernel, int):
                rung, opened = rung_of(op, kernel), open_device(device)
                report = checker.check(find(op), rung, opened, dtypes, shapes)
            else:
                report = sandbox.check(op, path, device, dtypes, shapes)
            ran = not any(outcome.status == "fault" for outcome in report.outcomes)
            passed, text = report.passed, str(report)
            refused = [outcome for outcome in report.outcomes if outcome.status == "refused"]
            if passed and shapes is not None and refused:
                passed, why = False, refused[0].detail
                text = f"it must take every shape here, and refuses {refused[0].label}: {why}"
            if passed and any(counts):
                rung = rung_of(op, str(path))
                passed, said = limits.judge(find(op), rung, dims, *counts, dtypes[0])
                text = "\n".join([text, *said] if passed else said)
            if passed and isinstance(kernel, str) and not isinstance(kernel, Given):
                text = "\n".join([text, progress_file.record(rung_of(op, str(path)).idea)]).rstrip()
        except LadderError as error:  # it does not compile, or its header does not fit
            ran, passed, text = False, False, str(error)
        text = text.replace(f"{path.parent}/", "")
    if "\n" in str(kernel):  # it has no file that a command could name
        text = "\n".join(line for line in text.splitlines() if "more: python -m" not in line)
    if not passed:  # an exercise that is not solved yet need not use all that it is given
        text = re.sub(r"\n[^\n]*warning: unused variable [^\n]*", "", text)
    return ran, passed, text


def _say(passed: bool, text: str) -> None:
    lines = [textwrap.fill(line, 100, subsequent_indent="  ") for line in text.splitlines()]
    print("✓" if passed else "✗", "\n".join(lines))


class Given(str):
    """A kernel that the notebook gives: that it passes is no exercise of the reader's solved."""


def solution(title: str) -> Given:
    """The kernel behind the fold "Solution" of the exercise that begins with `// op: title`.

    A notebook goes on with it, without showing it below the exercise. Raises LadderError where no
    notebook has such an exercise.
    """
    for path in sorted(FOLDER.glob("[0-9]*.ipynb")):
        for kernel in solutions(path, "cpp"):
            if kernel.partition("\n")[0].partition(": ")[2] == title:
                return Given(kernel)
    raise LadderError(f"no notebook has an exercise with the title {title!r}")


def solutions(notebook: Path, language: str) -> list[str]:
    """The code in a language that stands behind the folds "Solution" of a notebook."""
    cells = nbformat.read(notebook, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return [code for name, code in SOLUTION.findall(text) if name == language]


def rung_of(op: str, kernel: int | str) -> Rung:
    """A rung by its id or name, or what a kernel in a string says."""
    with sandbox.as_file(str(kernel)) as path:
        return find_rung(op, path)


def progress() -> None:
    """A bar for each notebook: how many of its exercises are solved, now or in earlier sessions."""
    _draw(progress_file.draw().svg())


# ---- pictures -----------------------------------------------------------------------------------


def access(op: str, which: int | str, text: str = "", dtype: str = "float32", **dims: int) -> None:
    """Which lane touches which address, in the lines of a rung that contain `text`."""
    rung, report, shape = _trace(op, which, dtype, **dims)
    lines = [i for i, line in enumerate(rung.source.splitlines(), 1) if text in line]
    title = f"{op}, {rung.label}, {format_dims(shape)}, {dtype}"
    _draw(accesses.of_report(report, rung, title, lines).svg())


def picture(kind: str, *args: int | str, **options: int | str) -> None:
    """A picture of what cannot be seen; ladder/core/show/pictures lists the kinds."""
    drawing = pictures.make(kind, *map(str, args), **{k: str(v) for k, v in options.items()})
    _draw(drawing.svg())


def drawing(name: str) -> None:
    """A drawing that is kept in doc/img."""
    _draw(read_text(pages.ROOT / "doc" / "img" / f"{name}.svg"))


def banks(
    op: str, which: int | str, text: str, array: str, request: int = 0, dtype: str = "float32",
    **dims: int,
) -> None:  # fmt: skip
    """Which bank of shared memory serves which lane, in one request of the line with `text`."""
    rung, report, _ = _trace(op, which, dtype, request + 1, **dims)
    seen = bank_pictures.requests(report, rung, text, array)[request]
    line = rung.source.splitlines()[seen.line - 1].strip().rstrip(";")
    _draw(bank_pictures.of_request(f"{rung.idea}: {line}", seen).svg())


def ring(op: str, kernel: int | str, dtype: str = "bfloat16", **dims: int) -> None:
    """The stages of a rung's cp.async pipeline, or of that of a kernel in a string, over time."""
    rung = rung_of(op, kernel)
    seen = ring_pictures.record(find(op), rung, dtype, dims)
    _draw(ring_pictures.of_ring(rung.idea, seen).svg())


def timeline(
    op: str, kernel: int | str, dtype: str = "bfloat16", until: float = 60, **dims: int
) -> None:
    """A TMA pipeline over time, of a rung or of a kernel in a string; durations are assumed."""
    rung = rung_of(op, kernel)
    events = recording.record(op, rung, dtype, dims)
    lasts = timeline_pictures.Durations(5, 2, 1)
    _draw(timeline_pictures.of_events(rung.idea, events, lasts, until=until).svg())


def waits(op: str, kernel: int | str, dtype: str = "bfloat16", **dims: int) -> None:
    """Who waits for whom in a block of a rung, or of a kernel in a string, which may be wrong."""
    rung = rung_of(op, kernel)
    with sandbox.as_file(str(kernel)) as path, sandbox.distrusted():
        report = sandbox.trace(op, path, dtype, dims, not rung.is_own_file, record=True)
        _draw(wait_pictures.of_report(report, rung, rung.idea).svg())


def deliveries(op: str, kernels: Sequence[int | str], **dims: int) -> None:
    """What it takes to deliver the factors of the multiply-adds: loads, sectors, wavefronts."""
    chosen, reports, (shape, *_) = zip(*(_trace(op, k, **dims) for k in kernels), strict=True)
    title = f"{op}, {format_dims(shape)}, float32: counted by the emulator"
    draw(diagrams.deliveries(reports, chosen, find(op).op.flops(shape), title))


def traffic(op: str, kernels: Sequence[int | str], **dims: int) -> None:
    """Which arrays the sectors belong to that each rung, or kernel in a string, moves."""
    chosen, reports, (shape, *_) = zip(*(_trace(op, k, **dims) for k in kernels), strict=True)
    title = f"{op}, {format_dims(shape)}, float32: sectors by array, counted by the emulator"
    draw(diagrams.traffic(reports, chosen, title))


def climb(op: str, kernels: Sequence[int | str] | None = None, dtype: str = "float32") -> None:
    """What each rung, or kernel in a string, asks of memory; by default the whole ladder.

    It runs in this process, in the emulator: a kernel that may crash should pass `check` first.
    """
    kernels = kernels or [rung.id for rung in find(op).rungs if rung.path]
    chosen, reports, (dims, *_) = zip(*(_trace(op, k, dtype) for k in kernels), strict=True)
    title = f"{op}, {format_dims(dims)}, {dtype}: counted by the emulator"
    least = find(op).op.least_bytes(dims, DTYPES[dtype])
    draw(diagrams.climb(reports, chosen, least, title))


@functools.lru_cache(maxsize=64)  # what a cell shows once more is not counted again
def _trace(
    op: str, kernel: int | str, dtype: str = "float32", keep: int = 8, **dims: int
) -> tuple[Rung, Report, Dims]:
    """A rung, its memory accesses, and the shape that it ran at."""
    rung, shape = rung_of(op, kernel), dims or source_code.small_shape(find(op).op)
    return rung, tracer.trace(find(op), rung, dtype, shape, keep=keep), shape


def draw(figure: Any, alt: str = "") -> None:
    """Show a picture, on light and dark pages; `alt` says in words what is in it, by default with
    the title."""
    _draw(charts.svg(figure, alt or figure.get_suptitle()))


class Picture:
    """The text of an SVG file as an `<img>` of HTML, described by its title and description.

    An `<svg>` shows in trusted notebooks only. An `<img>`, which runs no scripts, shows in all of
    them, and in the viewers of GitHub and GitLab.
    """

    def __init__(self, svg: str) -> None:
        words = re.findall(r"<(?:title|desc)>(.*?)</", svg, re.DOTALL)[:2]
        self._said = ". ".join(unescape(text).rstrip(".") for text in words)
        data = base64.b64encode(svg.encode()).decode()
        self.html = f'<img alt="{escape(self._said)}" src="data:image/svg+xml;base64,{data}">'

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self._said


def _draw(svg: str) -> None:
    display(Picture(svg))


def draw_for_all_pages() -> None:
    """Nothing, for notebooks of version 0.1: pyplot draws for a white page."""


# ---- measurements -------------------------------------------------------------------------------


def bars(op: str, dtype: str = "", shape: str = "", roofline: bool = False) -> None:
    """The speed of every rung: measured now if there is a GPU, or on another.

    roofline  show also every rung under what memory and arithmetic allow
    """
    here = default_device() == "cuda"
    try:
        find_it = _measure if here else tables.find_measurement
        device, measurement = find_it(op, dtype=dtype, shape=shape)
    except LadderError as error:
        where = "" if here else " --save, on a machine with an NVIDIA GPU"
        display(Markdown(f"*No measurement to show yet: {error}{where}.*"))
        return
    shown = measured.of(device, measurement, ", measured just now" if here else "")
    _draw(measured.ladder(shown).svg())
    if roofline:
        _draw(measured.roofline(shown).svg())


@functools.lru_cache(maxsize=16)
def _measure(op: str, dtype: str, shape: str) -> Any:
    """Measure an op on this machine's GPU, by default at the first of its shapes, and in the type
    that the trainer would choose: float16 where no tensor core multiplies bfloat16."""
    ladder, device = find(op), open_device("cuda")
    shape = shape or next(iter(ladder.op.bench))
    half = "bfloat16" if device.bfloat16 else "float16"
    dtype = dtype or (half if half in ladder.op.reals else ladder.op.reals[0])

    def say(line: str, wrong: bool) -> None:
        if wrong:
            print(line)

    sizes = {shape: ladder.op.bench[shape]}
    (measurement,) = bench.bench(ladder, device, [dtype], sizes, say=say)
    return device.description(), measurement


# ---- what goes wrong -----------------------------------------------------------------------------


def _say_plainly(
    shell: Any, kind: type, error: LadderError, trace: Any, tb_offset: Any = None
) -> None:
    """An error that names its remedy needs no traceback."""
    print(f"ladder: {error}", file=sys.stderr)


if (_shell := get_ipython()) is not None:
    _shell.set_custom_exc((LadderError,), _say_plainly)

    @no_var_expand  # braces in the line are Python's, not IPython's
    def _kernel(line: str, cell: str) -> None:
        kernel(line, cell, _shell.user_ns)

    _shell.register_magic_function(_kernel, "cell", "kernel")
