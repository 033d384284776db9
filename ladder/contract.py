"""The vocabulary of the project: an *op* is a contract, a *ladder* the rungs that fulfil it.

    Op      what is computed: arguments, shapes, the NumPy reference, least bytes and FLOPs
    Rung    one way to compute it: a `.cu` file whose header says how it is launched
    Ladder  one op and its rungs, from the obvious to the fast; rung 0 is the NumPy reference

A layer's `ops.py` declares its contracts. The rungs of `layernorm.forward` are the files
`ladder/layernorm/forward/1_….cu`, `2_….cu`, …: to add a rung, add one file. Nothing anywhere names
a rung: tests, bench, docs, picker and trainer iterate over `ladders()`.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from ladder import rungfile
from ladder.errors import LadderError
from ladder.rungfile import REALS, Rung

PACKAGE = Path(__file__).parent

Dims = Mapping[str, int]  # the value of every symbolic dimension of a call: {"N": 256, "C": 768}

REAL = (
    "real"  # stands for the run's dtype: float32, float16, bfloat16 (float64 in reference checks)
)
DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def resolve_dtype(declared: str, real: np.dtype) -> np.dtype:
    """The NumPy dtype of an argument declared as `declared` in a run whose real type is `real`.

    "real" becomes `real`. "float32" (statistics, losses, weight gradients) stays float32 when
    `real` is a narrower type, and widens to float64 when the whole run is in float64.
    """
    real = np.dtype(real)
    if declared == REAL:
        return real
    if declared == "float32" and real == np.float64:
        return real
    return np.dtype(declared)


@dataclass(frozen=True)
class Arg:
    """One buffer argument. `shape` is a string of dimensions, integer expressions: "B T 3*C".

    `role`: "in" is only read; "out" is overwritten (its old content must not matter); "inout" is
    read and updated, such as a weight gradient that accumulates (+=). An `optional` argument may
    be None, which a kernel sees as a null pointer. `terms` counts, as an expression, the products
    that are summed into one element of an output; the checker derives its tolerance from it.
    `rounded_by` names an optional argument, a random state, with which an output of 16 bits is
    rounded up or down at random; the reference rounds such an output itself.
    """

    name: str
    shape: str
    role: Literal["in", "out", "inout"]
    dtype: str = REAL
    optional: bool = False
    terms: str = "1"
    rounded_by: str | None = None

    def resolve_shape(self, dims: Dims) -> tuple[int, ...]:
        return tuple(evaluate(expression, dims) for expression in self.shape.split())


def read(name: str, shape: str, dtype: str = REAL, *, optional: bool = False) -> Arg:
    return Arg(name, shape, "in", dtype, optional)


def write(name: str, shape: str, dtype: str = REAL, *, terms: str = "1") -> Arg:
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
    return Arg(name, shape, "inout", dtype, optional, terms, rounded_by)


def evaluate(expression: str, dims: Dims) -> int:
    """Evaluate an expression such as "3*C", written in this repository, never by a user."""
    return int(eval(expression, {"__builtins__": {}}, dict(dims)))


def format_dims(dims: Dims) -> str:
    """`N=4 C=768`, as messages and tables show a shape."""
    return " ".join(f"{name}={size}" for name, size in dims.items())


@dataclass(frozen=True)
class Scalar:
    """A constant of a call, passed by value after the dimensions: "float32", "int32" or "uint32".

    What changes from step to step (learning rate, random state) is never a scalar but a small
    buffer, because a captured graph freezes its scalars.
    """

    name: str
    dtype: str


@dataclass(frozen=True)
class Op:
    """A contract that every rung of one ladder fulfils.

    A kernel takes the buffers in the order of `args`, then `dims` as `int`, then `scalars`, then
    the rung's own scratch buffers. It is named after the op: `layernorm_forward`.

    reference    NumPy function of the same arrays in the same order, then scalars as keywords;
                 it writes its outputs in place. Dimensions it reads off the arrays' shapes, but
                 for `reference_dims`, keywords too. One that `rereads` an output takes the type
                 that it is stored in as `real`, and rounds it first. Call it through `compute`.
    flops        floating-point operations that the computation needs
    bytes        bytes that it must move at least (each input read once, each output written
                 once); None: derived from `args`
    make_inputs  (dims, random generator) -> {argument: array} where plain standard normals would
                 be meaningless (token ids, rstd); arguments that it leaves out are normal. An
                 array may have fewer rows than the argument: they are repeated
    hard_inputs  the same by name, for inputs that break careless arithmetic: "large mean"
    cancels      {argument: array} -> {output: size of the intermediate results that cancel in it},
                 where the checker cannot see them by changing the inputs a little
    shapes       what the checker runs: small and awkward shapes, in order
    bench        named shapes for measurements, such as {"B*T=65536": {...}}; the first is shown
    unmeasured   optional arguments that bench, picker and trace leave out, since most runs do
    """

    name: str
    summary: str
    args: tuple[Arg, ...]
    dims: tuple[str, ...]
    reference: Callable[..., None]
    flops: Callable[[Dims], int]
    shapes: tuple[Dims, ...]
    bench: Mapping[str, Dims]
    scalars: tuple[Scalar, ...] = ()
    scalar_values: Mapping[str, float] = field(default_factory=dict)  # used by check and bench
    reference_dims: tuple[str, ...] = ()
    rereads: bool = False
    unmeasured: tuple[str, ...] = ()
    bytes: Callable[[Dims, np.dtype], int] | None = None
    make_inputs: Callable[[Dims, np.random.Generator], dict[str, np.ndarray]] | None = None
    cancels: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    hard_inputs: Mapping[str, Callable[[Dims, np.random.Generator], dict[str, np.ndarray]]] = field(
        default_factory=dict
    )

    @property
    def layer(self) -> str:
        """The folder that holds the ladder: "layernorm" of "layernorm.forward"."""
        return self.name.split(".")[0]

    @property
    def kernel(self) -> str:
        """The name of the `extern "C" __global__` function in every rung file of the ladder."""
        return self.name.replace(".", "_")

    @property
    def reals(self) -> tuple[str, ...]:
        """The real types in which the op differs; only float32 if no argument is real."""
        return REALS if any(arg.dtype == REAL for arg in self.args) else ("float32",)

    def real_in(self, real: np.dtype) -> np.dtype:
        """The real type that its kernels have in a run of type `real`: float32 where they do not
        depend on it, so that one kernel serves runs of all types."""
        narrow = np.dtype(real).itemsize < 4
        return np.dtype(np.float32) if narrow and self.reals == ("float32",) else np.dtype(real)

    def compute(
        self,
        arrays: Sequence[np.ndarray | None],
        dims: Dims,
        scalars: Mapping[str, float] | None = None,
        real: np.dtype | None = None,
    ) -> None:
        """Run the NumPy reference on float32 or float64 arrays in the order of `args`; `real`: the
        narrower type that they stand for."""
        keywords: dict[str, Any] = {name: dims[name] for name in self.reference_dims}
        if self.rereads:
            keywords["real"] = real
        self.reference(*arrays, **keywords, **(scalars or {}))

    def least_bytes(self, dims: Dims, real: np.dtype) -> int:
        """Bytes that any implementation must move through memory; the floor is this / bandwidth."""
        if self.bytes is not None:
            return self.bytes(dims, np.dtype(real))
        return sum(
            math.prod(arg.resolve_shape(dims))
            * resolve_dtype(arg.dtype, real).itemsize
            * (2 if arg.role == "inout" else 1)
            for arg in self.args
        )


@dataclass(frozen=True)
class Target:
    """What a rung may ask about the device that it runs on, to choose its launch geometry."""

    arch: str  # "sm_90a", "gfx942", or "emulated"
    warp: int  # threads in a warp: 32, or 64 on some AMD cards
    multiprocessors: int
    shared_bytes: int  # most shared memory that one block can have
    real: np.dtype  # the run's real type

    @property
    def vector(self) -> int:
        """How many reals fit into one 16-byte load."""
        return 16 // self.real.itemsize

    @property
    def sm(self) -> int:
        """NVIDIA compute capability times ten. The emulator has every generation's features."""
        digits = self.arch.removeprefix("sm_").rstrip("af")
        return int(digits) if digits.isdigit() else 0


@dataclass(frozen=True)
class Ladder:
    """An op and its rungs in climbing order. Rung 0, the op's NumPy reference, is added here.

    `extra` holds the rungs that are Python functions: vendor libraries and unfused sequences.
    """

    op: Op
    extra: tuple[Rung, ...] = ()

    @functools.cached_property
    def rungs(self) -> tuple[Rung, ...]:
        folder = PACKAGE / self.op.layer / self.op.name.split(".")[1]
        files = (rungfile.parse(path, self.op.kernel) for path in folder.glob("[0-9]*.cu"))
        rounds = {"rounds": ("what it reads again",)} if self.op.rereads else {}
        return tuple(
            sorted(
                [Rung(0, "the NumPy reference", header=rounds), *files, *self.extra],
                key=lambda rung: rung.number,
            )
        )

    def on(self, kind: str) -> tuple[Rung, ...]:
        """The rungs that make sense on a device of that kind ("cpu", "emulated", "cuda")."""
        on_cpu = kind in ("cpu", "emulated")
        return tuple(
            rung
            for rung in self.rungs
            if (on_cpu if rung.number == 0 else not on_cpu if rung.library else kind != "cpu")
        )

    def rung(self, number: int) -> Rung:
        for rung in self.rungs:
            if rung.number == number:
                return rung
        numbers = ", ".join(str(rung.number) for rung in self.rungs)
        raise LadderError(f"{self.op.name} has no rung {number}; it has {numbers}")


@functools.cache
def ladders() -> Mapping[str, Ladder]:
    """Every ladder of the repository by op name, found in the `ops.py` of the layer folders."""
    found = {}
    for path in sorted(PACKAGE.glob("*/ops.py")):
        for ladder in importlib.import_module(f"ladder.{path.parent.name}.ops").LADDERS:
            found[ladder.op.name] = ladder
    return found


def find(op: str) -> Ladder:
    """The ladder of an op; an unknown name is refused with the nearest known ones."""
    known = ladders()
    if op in known:
        return known[op]
    near = difflib.get_close_matches(op, known, n=3, cutoff=0.4)
    remedy = f"did you mean {' or '.join(near)}?" if near else "'python -m ladder list' shows them"
    raise LadderError(f"no op is named {op!r}; {remedy}")
