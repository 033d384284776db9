"""The vocabulary of the project: an *op* is a contract, a *ladder* the rungs that fulfil it.

    Op      what is computed: arguments, shapes, the NumPy reference, least bytes and FLOPs
    Rung    one way to compute it: a `.cu` file whose header says how it is launched
    Ladder  one op and its rungs, from the obvious to the fast; rung 0 is the NumPy reference

A layer's `ops.py` declares its contracts. The rungs of `layernorm.forward` are the files
`ladder/layernorm/forward/1_….cu`, `2_….cu`, …: to add a rung, add one file. Nothing anywhere names
a rung: tests, bench, docs, picker and trainer iterate over `ladders()`.

A call of an op has Dims, the size of every dimension, and a number type: `real` in a contract or a
kernel stands for one of DTYPES.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, NamedTuple

import ml_dtypes
import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.expressions import evaluate_whole, parse

Dims = Mapping[str, int]  # the size of every dimension of a call: {"N": 256, "C": 768}


def format_dims(dims: Dims) -> str:
    """`N=4 C=768`, as messages and tables show a shape."""
    return " ".join(f"{name}={size}" for name, size in dims.items())


def key_of(op: str, dims: Dims) -> str:
    """`matmul.forward@C:768,OC:2304`: an op's calls that have these dimensions, whatever the others
    are; without dimensions `matmul.forward`, all of them."""
    shape = ",".join(f"{name}:{size}" for name, size in dims.items())
    return f"{op}@{shape}" if shape else op


def split_key(key: str) -> tuple[str, dict[str, int]]:
    """The op and the dimensions of a `key_of`. Raises LadderError where it is none."""
    op, at, shape = key.partition("@")
    if at and not re.fullmatch(r"[A-Za-z]+:[0-9]{1,18}(,[A-Za-z]+:[0-9]{1,18})*", shape):
        raise LadderError(f"{key!r} names no shape; write dimensions, as in {op}@C:768,OC:2304")
    pairs = (pair.split(":") for pair in shape.split(",") if pair)
    return op, {name: int(size) for name, size in pairs}


REAL = "real"  # stands for the run's dtype: a key of DTYPES (float64 in reference checks only)
REALS = ("float32", "float16", "bfloat16")  # those that kernels have
SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # as people write them
DTYPES: dict[str, np.dtype] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def resolve_dtype(declared: str, real: np.dtype) -> np.dtype:
    """The NumPy dtype of an argument declared as `declared` in a run whose real type is `real`.

    "real" becomes `real`. "float32" (statistics, losses, weight gradients) stays float32 when
    `real` is a narrower type; as the 16-bit types, it is float64 when the whole run is.
    """
    real = np.dtype(real)
    if declared == REAL:
        return real
    if declared in REALS and real == np.float64:
        return real
    return np.dtype(declared)


MakeInputs = Callable[[Dims, np.random.Generator], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Arg:
    """One buffer argument. `shape` is a string of dimensions, integer expressions: "B T 3*C".

    `role`: "in" is only read; "out" is overwritten (its old content must not matter); "inout" is
    read and updated, such as a weight gradient that accumulates (+=). An `optional` argument may
    be None, which a kernel sees as a null pointer. `terms` counts, as an expression, the products
    that are summed into one element of an output; the checker derives its tolerance from it.
    `rounded_by` names an optional argument, a random state, with which an output of 16 bits is
    rounded up or down at random; the reference rounds such an output itself. `rtol` and `atol` let
    an output be further off, relative to its size and absolutely. An input with `rtol` decides
    between whole numbers: those that it gives when it is off by so much are right, too.
    """

    name: str
    shape: str
    role: Literal["in", "out", "inout"]
    dtype: str = REAL
    optional: bool = False
    terms: str = "1"
    rounded_by: str | None = None
    rtol: float = 0.0
    atol: float = 0.0

    def resolve_shape(self, dims: Dims) -> tuple[int, ...]:
        """The numbers that the expressions of `shape` come to at these dimensions."""
        return tuple(evaluate_whole(expression, dims) for expression in self.shape.split())

    def nbytes(self, dims: Dims, real: np.dtype) -> int:
        """Its bytes in a run of this real type."""
        return math.prod(self.resolve_shape(dims)) * resolve_dtype(self.dtype, real).itemsize

    @property
    def columns(self) -> tuple[str, ...]:
        """The dimensions along a row; none for a vector."""
        *rows, last = self.shape.split()
        return parse(last).names if rows else ()


def read(name: str, shape: str, dtype: str = REAL, *, optional: bool = False) -> Arg:
    """An argument that the kernel only reads."""
    return Arg(name, shape, "in", dtype, optional)


def write(name: str, shape: str, dtype: str = REAL, *, terms: str = "1") -> Arg:
    """An argument that the kernel overwrites; its old content must not matter."""
    return Arg(name, shape, "out", dtype, terms=terms)


def update(
    name: str,
    shape: str,
    dtype: str = REAL,
    *,
    terms: str = "1",
    optional: bool = False,
    rounded_by: str | None = None,
) -> Arg:
    """An argument that the kernel reads and changes, such as a sum that it adds to."""
    return Arg(name, shape, "inout", dtype, optional, terms, rounded_by)


@dataclass(frozen=True)
class Scalar:
    """A constant of a call, passed by value after the dimensions: "float32", "int32" or "uint32".

    What changes from step to step (learning rate, random state) is never a scalar but a small
    buffer, because a captured graph freezes its scalars.
    """

    name: str
    dtype: str


def shapes(dims: str, *sizes: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    """Shapes by the sizes of their dimensions: shapes("N C", (1, 1), (3, 31))."""
    names = dims.split()
    return tuple(dict(zip(names, each, strict=True)) for each in sizes)


TRAINING = "as in training"  # the case on which rungs are picked, where an op has it


@dataclass(frozen=True)
class Case:
    """Something that callers do and that normal inputs do not show; a rung must be right there too.

    inputs   as `Op.make_inputs`; arguments that it leaves out are as they always are
    scalars  constants of the call that differ from `Op.scalar_values`: numbers, or expressions of
             the dimensions, such as "V - 1"
    starts   the element of a larger array at which an argument begins, an expression, such as
             "N" for the second layer's part of an array of all layers; 0 for the others
    hard     breaks careless arithmetic: a rung that says `Accurate: no` is spared
    finite   False: where the reference's result is no finite number, a rung's must be none either
    """

    inputs: MakeInputs | None = None
    scalars: Mapping[str, float | str] = field(default_factory=dict)
    starts: Mapping[str, str] = field(default_factory=dict)
    hard: bool = False
    finite: bool = True


class OnGpu(NamedTuple):
    """A shape that matters on a GPU with so many SMs, to rungs that name a tile heuristic."""

    sms: int
    dims: Dims
    heuristic: str


@dataclass(frozen=True)
class Op:
    """A contract that every rung of one ladder fulfils.

    A kernel takes what it names of the buffers in `args`, the dimensions as `int`, `first_rank` if
    there are ranks, `scalars`, and the rung's own scratch buffers. It is named after the op:
    `layernorm_forward`.

    reference    NumPy function of the same arrays in the same order, then scalars as keywords;
                 it writes its outputs in place. What it cannot read off the arrays' shapes it has
                 as keywords: a dimension by its name; and where it reads an output again, a
                 function, such as `stored_dinp`, of what it has computed to what is in memory
                 once that is stored. Call it through `compute`.
    flops        floating-point operations that the computation needs
    bytes        bytes that it must move at least (each input read once, each output written
                 once); None: derived from `args`
    make_inputs  (dims, random generator) -> {argument: array} where plain standard normals would
                 be meaningless (token ids, rstd); arguments that it leaves out are normal. An
                 array may have fewer rows than the argument: they are repeated
    cases        settings, values and places in memory by name, beside the normal ones
    cancels      {argument: array} -> {output: size of the intermediate results that cancel in it},
                 where the checker cannot see them by changing the inputs a little. Its arrays are
                 the inputs, and the outputs that are overwritten
    fits         conditions between dimensions, "C % NH == 0" or "T <= P": other shapes have no
                 meaning
    shapes       small and awkward shapes, in order, each with all dimensions; the checker runs
                 them, and others that it derives from a rung (ladder/core/verify/shapes.py)
    also         shapes at which it runs every rung besides, because no rung's header tells that
                 they matter; one that is OnGpu runs those that it is for, on such an
                 emulated GPU
    bench        named shapes for measurements, such as {"B*T=65536": {...}}; the first is shown
    ranks        the dimension that counts ranks, if there are any: it is the first one of every
                 argument, and a row is in the memory of its rank (peers.py). Its `bytes` are those
                 that a rank's link must carry in one direction
    """

    name: str
    summary: str
    args: tuple[Arg, ...]
    reference: Callable[..., None]
    flops: Callable[[Dims], int]
    shapes: tuple[Dims, ...]
    bench: Mapping[str, Dims]
    fits: tuple[str, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    scalar_values: Mapping[str, float] = field(default_factory=dict)  # used by check and bench
    ranks: str = ""
    bytes: Callable[[Dims, np.dtype], int] | None = None
    make_inputs: MakeInputs | None = None
    cancels: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    also: tuple[Dims | OnGpu, ...] = ()
    cases: Mapping[str, Case] = field(default_factory=dict)

    @property
    def dims(self) -> tuple[str, ...]:
        """Its dimensions, in their order."""
        return tuple(self.shapes[0])

    @property
    def own(self) -> bool:
        """Whether its reference is a user's own file, as which it is called (reference_file.py)."""
        return self.name.endswith(".py")

    @property
    def layer(self) -> str:
        """The folder that holds the ladder: "layernorm" of "layernorm.forward"."""
        return self.name.split(".")[0]

    @property
    def kernel(self) -> str:
        """The name of the `extern "C" __global__` function in every rung file of the ladder."""
        return PurePath(self.name).name.removesuffix(".py").replace(".", "_")

    @property
    def reals(self) -> tuple[str, ...]:
        """The real types in which the op differs; only float32 if no argument is real."""
        return REALS if any(arg.dtype == REAL for arg in self.args) else ("float32",)

    def real_in(self, real: np.dtype) -> np.dtype:
        """The real type that its kernels have in a run of type `real`: float32 where they do not
        depend on it, so that one kernel serves runs of all types."""
        narrow = np.dtype(real).itemsize < 4
        return np.dtype(np.float32) if narrow and self.reals == ("float32",) else np.dtype(real)

    @functools.cached_property
    def _parameters(self) -> frozenset[str]:
        """The names of the reference's parameters."""
        return frozenset(inspect.signature(self.reference).parameters)

    @property
    def rereads(self) -> str | None:
        """The output that others depend on as it is stored, rounded to the run's type."""
        outputs = (name.partition("stored_")[2] for name in self._parameters)
        return next(filter(None, outputs), None)

    @property
    def unmeasured(self) -> set[str | None]:
        """Random states of outputs: bench, picker and trace leave them out, as most runs do."""
        return {arg.rounded_by for arg in self.args}

    def misfit(self, dims: Dims) -> str | None:
        """The condition of `fits` that a shape does not meet; None if it has a meaning."""
        return next((text for text in self.fits if not parse(text).evaluate(dims)), None)

    def fitted(self, dims: Dims) -> dict[str, int]:
        """A shape that fits: C counts the channels of one head, and P is T at least."""
        sizes = dict(dims)
        for text in self.fits:
            one, sign, other = text.split()[:3]
            if sign == "%":
                sizes[one] *= sizes[other]
            else:
                sizes[other] = max(sizes[one], sizes[other])
        return sizes

    def compute(
        self,
        arrays: Sequence[np.ndarray | None],
        dims: Dims,
        scalars: Mapping[str, float] | None = None,
        stored: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        """Run the NumPy reference on float32 or float64 arrays in the order of `args`; `stored`:
        what becomes of the output that it `rereads`. What is not finite is no matter for a
        warning."""
        known = {**dims, **({f"stored_{self.rereads}": stored} if stored else {})}
        keywords = {name: known[name] for name in self._parameters if name in known}
        with np.errstate(divide="ignore", invalid="ignore"):
            self.reference(*arrays, **keywords, **(scalars or {}))

    def least_bytes(self, dims: Dims, real: np.dtype) -> int:
        """Bytes that any implementation must move through memory; the floor is this / bandwidth."""
        if self.bytes is not None:
            return self.bytes(dims, np.dtype(real))
        return sum(arg.nbytes(dims, real) * (2 if arg.role == "inout" else 1) for arg in self.args)


DISTINCT = 1 << 20  # about so many numbers are drawn for a large input


def distinct(rows: int, size: int = 1) -> int:
    """How many of so many rows of `size` numbers to draw; `make_inputs` repeats them to the end.

    Drawing takes far longer than copying. Three rows at least, and an odd number of them, so that
    no row is like its neighbour, or like one that is a power of two away.
    """
    return min(rows, max(3, DISTINCT // size | 1))
