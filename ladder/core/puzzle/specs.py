"""The puzzles of notebooks/12_puzzles.ipynb: for each, what to compute, in NumPy.

A puzzle is an op like any other, so the checker, the emulator and the limits take it. But it is no
layer, and it has no rungs: `find("puzzle.map")` finds it, and no table lists it. Each function
below is the reference of the puzzle of its name; the decorator above it is the rest of the
contract. Outputs come first and are written in place, and everything is float32 but for the values
and the counts of the histogram. doc/img/puzzle-NAME.svg shows an example.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Arg, Case, Dims, MakeInputs, Op, read, shapes, update, write

LADDERS: list[Ladder] = []  # `puzzle` adds to them
Array = np.ndarray
Spec = Callable[..., None]


def puzzle(
    dims: str,
    *args: Arg,
    sizes: tuple[tuple[int, ...], ...],
    inputs: MakeInputs | None = None,
    cases: Mapping[str, Case] | None = None,
) -> Callable[[Spec], Spec]:
    """Add the function below as a puzzle.

    dims   its dimensions, "N C"
    sizes  shapes for the checker, in the order of `dims`; the last is the one that is counted
    """

    def flops(shape: Dims) -> int:  # one for each element, which is enough to plan a check
        return sum(math.prod(arg.resolve_shape(shape)) for arg in args)

    def add(spec: Spec) -> Spec:
        op = Op(
            name=f"puzzle.{spec.__name__}",
            summary=spec.__doc__ or "",
            args=args,
            reference=spec,
            flops=flops,
            shapes=shapes(dims, *sizes),
            bench={"the counted shape": shapes(dims, sizes[-1])[0]},
            make_inputs=inputs,
            cases=cases or {},
        )
        LADDERS.append(Ladder(op))
        return spec

    return add


def out(shape: str, terms: str = "1") -> Arg:
    return write("out", shape, "float32", terms=terms)


def floats(name: str, shape: str) -> Arg:
    return read(name, shape, "float32")


A_LINE = ((1,), (33,), (5003,), (1000,))  # sizes of a vector
A_TABLE = ((1, 1), (3, 33), (33, 70), (99, 130), (64, 64))  # and of a matrix


@puzzle("N", out("N"), floats("a", "N"), sizes=A_LINE)
def copy(out: Array, a: Array) -> None:
    """The same again: the example before the first puzzle."""
    out[:] = a


@puzzle("N", out("N"), floats("a", "N"), sizes=((1,), (33,), (1000,), (256,)))
def plus_ten(out: Array, a: Array) -> None:
    """Add 10 to each element."""
    out[:] = a + 10


@puzzle("N", out("N"), floats("a", "N"), floats("b", "N"), sizes=((256,), (5120,), (1024,)))
def multiply(out: Array, a: Array, b: Array) -> None:
    """Multiply two vectors, element by element."""
    out[:] = a * b


@puzzle("N", out("N"), floats("a", "N"), sizes=A_LINE)
def absolute(out: Array, a: Array) -> None:
    """The absolute value of each element."""
    out[:] = abs(a)


@puzzle("N C", out("N C"), floats("a", "N C"), sizes=A_TABLE)
def square(out: Array, a: Array) -> None:
    """The square of each element of a matrix."""
    out[:] = a * a


@puzzle("N C", out("N C"), floats("a", "N"), floats("b", "C"), sizes=A_TABLE)
def outer_sum(out: Array, a: Array, b: Array) -> None:
    """The sum of each element of a and each of b."""
    out[:] = a[:, None] + b[None, :]


@puzzle("N", out("N"), floats("a", "N"), floats("x", "1"), sizes=((1,), (33,), (30011,), (10000,)))
def scale(out: Array, a: Array, x: Array) -> None:
    """Multiply each element by x."""
    out[:] = x[0] * a


@puzzle("N C", out("C N"), floats("a", "N C"), sizes=A_TABLE)
def transpose(out: Array, a: Array) -> None:
    """Turn the rows of a into the columns of out."""
    out[:] = a.T


@puzzle("N", out("64*N"), floats("a", "64*N"), sizes=((1,), (3,), (19,), (4,)))
def reverse(out: Array, a: Array) -> None:
    """Turn each group of 64 elements round."""
    out[:] = a.reshape(-1, 64)[:, ::-1].ravel()


@puzzle("N", out("N"), floats("a", "N"), sizes=((1,), (33,), (257,), (5003,), (1024,)))
def stencil(out: Array, a: Array) -> None:
    """The mean of each element and its two neighbours; 0 past the ends."""
    padded = np.concatenate([[0], a, [0]])
    out[:] = (padded[:-2] + padded[1:-1] + padded[2:]) / 3


@puzzle("N", out("N"), floats("a", "2*N"), sizes=A_LINE)
def pool(out: Array, a: Array) -> None:
    """The larger one of each pair."""
    out[:] = a.reshape(-1, 2).max(axis=1)


@puzzle(
    "N",
    out("1", terms="N"),
    floats("a", "N"),
    floats("b", "N"),
    sizes=((1,), (33,), (300,), (5003,), (1024,)),
)
def dot(out: Array, a: Array, b: Array) -> None:
    """The dot product of two vectors."""
    out[0] = np.sum(a * b)


@puzzle("N", out("N", terms="32"), floats("a", "32*N"), sizes=((1,), (9,), (131,), (64,)))
def warp_sum(out: Array, a: Array) -> None:
    """The sum of each group of 32 elements."""
    out[:] = a.reshape(-1, 32).sum(axis=1)


def _values(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"a": rng.integers(0, dims["V"], dims["N"])}


@puzzle(
    "N V",
    update("counts", "V", "int32"),
    read("a", "N", "int32"),
    sizes=((1, 1), (300, 7), (6000, 256), (4096, 16)),
    inputs=lambda dims, rng: {"counts": np.zeros(dims["V"], int), **_values(dims, rng)},
)
def histogram(counts: Array, a: Array) -> None:
    """Add to each count how often its value occurs in a."""
    counts += np.bincount(a, minlength=len(counts))


@puzzle("N", out("N 64", terms="64"), floats("a", "N 64"), sizes=((1,), (3,), (19,), (4,)))
def scan(out: Array, a: Array) -> None:
    """Running sums along each row of 64: of all elements up to this one."""
    out[:] = np.cumsum(a, axis=1)


@puzzle(
    "N C", out("N", terms="C"), floats("a", "N C"), sizes=((1, 1), (3, 33), (70, 600), (32, 256))
)
def row_sum(out: Array, a: Array) -> None:
    """The sum of each row."""
    out[:] = a.sum(axis=1)


@puzzle(
    "N K",
    out("N", terms="K"),
    floats("a", "N+K-1"),
    floats("w", "K"),
    sizes=((1, 1), (33, 5), (1500, 257), (1024, 9)),
)
def convolve(out: Array, a: Array, w: Array) -> None:
    """Sums of K neighbours, weighted by w."""
    out[:] = sum(w[k] * a[k : k + len(out)] for k in range(len(w)))


@puzzle(
    "M N K",
    out("M N", terms="K"),
    floats("a", "M K"),
    floats("b", "K N"),
    sizes=((1, 1, 1), (5, 33, 19), (37, 70, 50), (64, 64, 64)),
)
def matmul(out: Array, a: Array, b: Array) -> None:
    """The product of two matrices."""
    out[:] = a @ b


def _far_from_zero(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows whose exponentials overflow, and rows whose exponentials are all 0."""
    a = rng.standard_normal((dims["N"], dims["C"]))
    a[0::2] += 1000
    a[1::2] -= 1000
    return {"a": a}


@puzzle(
    "N C",
    out("N C", terms="C"),
    floats("a", "N C"),
    sizes=((1, 1), (3, 33), (70, 600), (16, 256)),
    cases={"rows far from 0": Case(_far_from_zero, hard=True)},
)
def softmax(out: Array, a: Array) -> None:
    """Exponentials over their sum, row by row."""
    e = np.exp(a - a.max(axis=1, keepdims=True))
    out[:] = e / e.sum(axis=1, keepdims=True)
