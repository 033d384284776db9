"""What an exported program computes from, and samples of what it must compute.

    inputs = make_inputs(op, dims, real)
    samples = take_samples(op, rung, dims, target, inputs)

The program makes its inputs itself, bit for bit as here: by a hash of each element's index (`fill`
of exported/arrays.h), unless the op asks for other values. Those are drawn as a check draws them,
but repeat after PERIOD numbers, so that the program holds few of them. Rows of probabilities do not
repeat: they are made from the hash. Nor does what attention's forward pass saves (`_saved`).
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder.core.contract.ladder import find
from ladder.core.contract.op import Dims, Op, resolve_dtype
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.verify.inputs import scalars
from ladder.core.verify.tolerance import expect

PERIOD = 1001  # odd, and no multiple of 3: hardly a row or a tile of a kernel has such a size
LEAST = 4096  # samples of an output; all of a smaller one
EDGE = 128  # of them in the first and last row and column, each
TILES = (8, 16, 32, 64, 128, 256, 512, 1024)  # sizes whose borders are looked at, in any kernel


@dataclass(frozen=True)
class Input:
    """An argument before the launch, and how the program makes it.

    how     "hash", "probabilities", "values" that repeat, or "factors" of runs of another input
    number  tells the hashes of inputs apart
    """

    array: np.ndarray
    how: str
    number: int
    values: np.ndarray | None = None


class _Repeating(np.random.Generator):
    """Draws PERIOD numbers, rounded to a type, and repeats them."""

    def __init__(self, real: np.dtype) -> None:
        super().__init__(np.random.PCG64(0))
        self._real = real

    def standard_normal(self, size: Any) -> Any:  # type: ignore[override]
        drawn = super().standard_normal(PERIOD).astype(self._real)
        return np.resize(drawn.astype(np.float64), size)

    def random(self, size: Any) -> Any:  # type: ignore[override]
        return np.resize(super().random(PERIOD), size)

    def integers(self, low: Any, high: Any, size: Any, **options: Any) -> Any:  # type: ignore[override]
        return np.resize(super().integers(low, high, PERIOD, **options), size)


def make_inputs(op: Op, dims: Dims, real: np.dtype) -> dict[str, Input]:
    """All arguments that are read, in the types of the call."""
    made = op.make_inputs(dims, _Repeating(real)) if op.make_inputs else {}
    read = {arg.name: arg for arg in op.args if arg.role != "out"}
    inputs = {}
    for number, (name, arg) in enumerate(read.items(), 1):
        shape, dtype = arg.resolve_shape(dims), resolve_dtype(arg.dtype, real)
        if name == "probs":
            words = (hashes(number, shape) >> np.uint32(8)) + 1.0
            array = words / words.sum(axis=-1, keepdims=True)
            inputs[name] = Input(_stored(array, dtype), "probabilities", number)
        elif name in made:
            flat = _stored(np.asarray(made[name]), dtype).ravel()
            once = flat[:PERIOD]  # of what is repeated
            values = once if np.array_equal(np.resize(once, flat.size), flat) else flat
            inputs[name] = Input(np.resize(values, shape), "values", number, values)
        else:
            array = hashes(number, shape).view(np.int32) * 2.0**-30
            inputs[name] = Input(_stored(array, dtype), "hash", number)
    return inputs | (_saved(op, dims, inputs) if "lse" in read else {})


def _saved(op: Op, dims: Dims, inputs: Mapping[str, Input]) -> dict[str, Input]:
    """out and lse of attention's forward pass.

    The gradient depends on `out` only by its products with `dout`, head by head. So `out` is
    projected on `dout`: one factor for each head and query instead of a whole array of numbers.
    """
    forward = find(f"{op.layer}.forward").op
    wide = {name: given.array.astype(np.float64) for name, given in inputs.items()}
    forward.compute([wide[arg.name] for arg in forward.args], dims, scalars(forward))
    shape = dims["B"], dims["T"], dims["NH"], -1
    out, dout = (wide[name].reshape(shape) for name in ("out", "dout"))
    factors = ((out * dout).sum(axis=-1) / (dout * dout).sum(axis=-1)).astype(np.float32)
    projected = _stored(factors[..., None] * dout, inputs["out"].array.dtype)
    lse = wide["lse"].astype(np.float32)
    return {
        "out": Input(projected.reshape(wide["out"].shape), "factors", 0, factors.ravel()),
        "lse": Input(lse, "values", 0, lse.ravel()),
    }


def hashes(number: int, shape: tuple[int, ...]) -> np.ndarray:
    """The random bits of each element of an input: uint32, by `hash_of` of exported/arrays.h."""
    x = np.arange(math.prod(shape), dtype=np.uint32)
    x += np.uint32(number * 0x9E3779B9 & 0xFFFFFFFF)
    x = (x ^ x >> 16) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> 13) * np.uint32(0xC2B2AE35)
    bits: np.ndarray = (x ^ x >> 16).reshape(shape)
    return bits


def _stored(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`array` in a type, by way of float32 if that has 16 bits, as the program rounds it."""
    return array.astype(np.float32).astype(dtype) if dtype.itemsize == 2 else array.astype(dtype)


# ---- samples of the outputs ----------------------------------------------------------------------


@dataclass(frozen=True)
class Samples:
    """Elements of one output: their indices in the flat array, and what they must be."""

    index: np.ndarray
    value: np.ndarray
    tolerance: np.ndarray


def take_samples(
    op: Op, rung: Rung, dims: Dims, target: Target, inputs: Mapping[str, Input]
) -> dict[str, Samples]:
    """Samples of every output, with the tolerances of a check."""
    plan = rung.plan(dims, target)
    tiles = {*TILES, *(size for size in plan.constants.values() if TILES[0] <= size <= TILES[-1])}
    samples = {}
    for e in expect(op, dims, target.real, {name: one.array for name, one in inputs.items()}):
        value, index = e.value.ravel(), sample_indices(e.value.shape, tiles)
        for other in e.others:  # only where no other number is as right
            index = index[other.ravel()[index] == value[index]]
        tolerance = np.broadcast_to(e.allowed(rung.rounds, rung.tf32), e.value.shape)
        samples[e.arg.name] = Samples(index, value[index], tolerance.ravel()[index])
    return samples


def sample_indices(shape: tuple[int, ...], tiles: Collection[int]) -> np.ndarray:
    """Which elements are compared, in order: where borders of tiles meet, along the first and last
    row and column, and one of each of many equal parts of the array. All of a small array."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    size = rows * columns
    if size <= LEAST:
        return np.arange(size)
    places = [_borders(rows, tiles)[:, None] * columns + _borders(columns, tiles)]
    along, down = (
        np.unique(np.linspace(0, wide - 1, EDGE).astype(np.int64)) for wide in (columns, rows)
    )
    places += [row * columns + along for row in (0, rows - 1)]
    places += [down * columns + column for column in (0, columns - 1)]
    near = np.unique(np.concatenate([part.ravel() for part in places]))
    others = np.delete(np.arange(size), near)
    parts = max(LEAST - len(near), LEAST // 2)
    starts = np.arange(parts) * len(others) // parts
    return np.union1d(near, others[starts + hashes(0, (parts,)) % (len(others) // parts)])


def _borders(size: int, tiles: Collection[int]) -> np.ndarray:
    """The first and last index, and those beside the first and last border of tiles."""
    indices = {0, size - 1}
    for tile in tiles:
        last = (size - 1) // tile * tile
        indices |= {tile - 1, tile, last - 1, last}
    return np.array(sorted(i for i in indices if 0 <= i < size))
