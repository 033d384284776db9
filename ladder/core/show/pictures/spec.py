"""What an op computes, on a small example: the values, and what two elements of the output need."""

from dataclasses import dataclass

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.op import Dims, Op, format_dims, resolve_dtype
from ladder.core.show.pictures.drawing import GLYPH, MARGIN, WIDTH, Drawing
from ladder.core.show.source_code import parse_shape

CELL, LEAST, HIGH = 24, 18, 20  # width of a cell, and the least that has room for a number; height
MOST_COLUMNS = int((WIDTH - 2 * MARGIN) / LEAST)  # of an array whose numbers are shown
BETWEEN = 28  # arrays that stand side by side
MOST_ELEMENTS = 1024  # of an input: the reference runs once for each
COLOURS = ("blue", "orange", "purple")  # of the first element, the second, both; pale below numbers
SMALL = (-3, -2, -1, 1, 2, 3, 4)  # values of the inputs
FLOAT64 = np.dtype(np.float64)


@dataclass(frozen=True)
class Example:
    """An op at a small shape.

    arrays  its inputs and then its outputs, by name, as matrices: a vector is one row
    chosen  of the first output, the places (flat) of two elements, or of the only one
    needed  for each of them, which elements of each input it depends on
    """

    arrays: dict[str, np.ndarray]
    output: str
    chosen: tuple[int, ...]
    needed: tuple[dict[str, np.ndarray], ...]


def example(op: Op, dims: Dims) -> Example:
    """Run the reference on small whole numbers. An output element needs an input element if a NaN
    in its place, or any other of the integers, changes the output."""
    rng = np.random.default_rng(0)
    given = op.make_inputs(dims, rng) if op.make_inputs else {}
    arrays: dict[str, np.ndarray] = {}
    for arg in op.args:
        shape = arg.resolve_shape(dims)
        drawn = given.get(arg.name, rng.choice(SMALL, shape))
        arrays[arg.name] = np.broadcast_to(drawn, shape).astype(resolve_dtype(arg.dtype, FLOAT64))
    inputs = [arg for arg in op.args if arg.role == "in"]
    outputs = [arg for arg in op.args if arg.role != "in"]
    if (most := max(arrays[arg.name].size for arg in inputs)) > MOST_ELEMENTS:
        raise LadderError(f"an array of {most} elements is no small example; choose fewer")
    result = _compute(op, dims, arrays)
    size = result[outputs[0].name].size
    chosen = (size // 5, size - 1 - size // 6) if size > 1 else (0,)
    needed = [{arg.name: np.ones(arrays[arg.name].shape, bool) for arg in inputs} for _ in chosen]
    before = result[outputs[0].name].ravel()[list(chosen)]
    for name in needed[0]:
        for place in np.ndindex(arrays[name].shape):
            for value in _others(arrays[name], place):
                changed = arrays[name].copy()
                changed[place] = value
                after = _compute(op, dims, {**arrays, name: changed})[outputs[0].name]
                for flags, differs in zip(
                    needed, after.ravel()[list(chosen)] != before, strict=True
                ):
                    flags[name][place] &= differs
    shown = {arg.name: np.atleast_2d(result[arg.name]) for arg in (*inputs, *outputs)}
    as_matrices = ({name: np.atleast_2d(flags) for name, flags in own.items()} for own in needed)
    return Example(shown, outputs[0].name, chosen, tuple(as_matrices))


def _others(array: np.ndarray, place: tuple[int, ...]) -> list[float]:
    """What to replace an element by."""
    if array.dtype.kind == "f":
        return [np.nan]
    return [value for value in np.unique(array).tolist() if value != array[place]]


def _compute(op: Op, dims: Dims, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    result = {name: array.copy() for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        op.compute(list(result.values()), dims)
    return result


def draw(op: str, *, shape: str = "") -> Drawing:
    """The arrays of an example, inputs first; coloured: two output elements, and what they need."""
    contract = find(op).op
    dims = parse_shape(contract, shape)
    seen = example(contract, dims)
    names = [_index(seen.output, at, seen.arrays[seen.output]) for at in seen.chosen]
    needs = [
        f"{name} needs {' and '.join(f'{own.sum()} of {array}' for array, own in flags.items())}"
        for name, flags in zip(names, seen.needed, strict=True)
    ]
    drawing = Drawing(f"{op} at {format_dims(dims)}", f"An example. {'; '.join(needs)}.")
    shared = any(3 in line for name in seen.arrays for line in _codes(seen, name).tolist())
    x, y, row = float(MARGIN), drawing.top + 4, 0.0
    shapes = {arg.name: f"({', '.join(arg.shape.split())})" for arg in contract.args}
    for name, array in seen.arrays.items():
        cell = min(CELL, (WIDTH - 2 * MARGIN) / array.shape[1])
        label = f"{name} {shapes[name]}"
        wide = max(cell * array.shape[1], 7 * len(label))
        if x > MARGIN and x + wide > WIDTH - MARGIN:
            x, y, row = float(MARGIN), y + row, 0.0
        drawing.text(x, y + 10, label, 12, mono=True)
        _array(drawing, x, y + 16, cell, array, _codes(seen, name))
        x, row = x + wide + BETWEEN, max(row, 16 + HIGH * array.shape[0] + 14)
    x, y = float(MARGIN), y + row
    entries = [f"{name} and what it needs" for name in names] + ["needed by both"] * shared
    pale = "pale " if all(array.shape[1] <= MOST_COLUMNS for array in seen.arrays.values()) else ""
    for text, colour in zip(entries, COLOURS, strict=False):
        drawing.box(x, y, 12, 12, pale + colour, "line")
        drawing.text(x + 18, y + 10, text, 12, colour="muted")
        x += 30 + 12 * GLYPH * len(text)
    return drawing


def _index(name: str, at: int, array: np.ndarray) -> str:
    row, column = divmod(at, array.shape[1])
    return f"{name}[{column}]" if array.shape[0] == 1 else f"{name}[{row}][{column}]"


def _codes(seen: Example, name: str) -> np.ndarray:
    """For each element of an array: 1 if the first chosen one needs it or is it, 2 if the second
    one does, 3 if both do."""
    codes = np.zeros(seen.arrays[name].shape, int)
    for i, (at, needed) in enumerate(zip(seen.chosen, seen.needed, strict=True)):
        if name == seen.output:
            codes.flat[at] = 2**i
        elif name in needed:
            codes += 2**i * needed[name]
    return codes


def _array(
    drawing: Drawing, x: float, y: float, cell: float, array: np.ndarray, codes: np.ndarray
) -> None:
    """The cells of an array, with their values where there is room for them."""
    shown = array.shape[1] <= MOST_COLUMNS
    fills = ["panel", *(f"pale {colour}" if shown else colour for colour in COLOURS)]
    edge = "line" if shown else ""
    for r, line in enumerate(array.tolist()):
        for c, value in enumerate(line):
            drawing.box(x + c * cell, y + r * HIGH, cell, HIGH, fills[codes[r, c]], edge, 0.5)
            if shown:
                text = (
                    f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")
                    .replace("-0.", "-.")
                    .removeprefix("0")
                )
                middle = x + (c + 0.5) * cell
                drawing.text(middle, y + r * HIGH + 14, text or "0", 11, "middle")
    drawing.box(x, y, cell * array.shape[1], HIGH * array.shape[0], "none", "line")
