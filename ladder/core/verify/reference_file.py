"""An op whose reference is a user's own function: any kernel is checked against any reference.

    # ref.py
    import numpy as np

    def rmsnorm(x: "N C", weight: "C", eps: float = 1e-5) -> {"out": "N C"}:
        return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * weight

    load(Path("ref.py")).op     arguments x, weight and out, dimensions N and C, scalar eps

A parameter is an argument of the kernel, by its name, and its annotation says what it is:

    x: "N C"           an array of these dimensions, names or expressions ("N 2*C"), of float32
    ids: "int32 N"     of another type, one of TYPES; `real` stands for each of the run's real types
    eps: float = 1e-5  a number that the kernel takes by value; an int is one, too
    N: int             the size of a dimension, where the reference cannot read it off an array

`->` has the outputs, in the order in which they are returned. One that is a parameter, too, is
updated by the kernel. Where the file imports PyTorch, arrays are tensors on the CPU, else NumPy's.
They are of float64. The function must not change them.

The file may also have:

    inputs(rng, N, C)         -> {argument: array}, where standard normal numbers are meaningless
    fits = ["C % NH == 0"]    conditions between dimensions, as `Op.fits`
    rtol, atol = 1e-3, 1e-5   how much further a result may be off, relative and absolute

The tolerance is that of all ops (tolerance.py). The terms of its sums are the sizes of the axes of
which an element of the output depends on more than one slice, found by changing slices of small
inputs. It is a program of the user's own: it runs with their rights.
"""

import __future__

import dataclasses
import inspect
import itertools
import math
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.expressions import ExpressionError, evaluate_whole, parse
from ladder.core.contract.ladder import Ladder, find
from ladder.core.contract.op import (
    REAL,
    REALS,
    Arg,
    Case,
    Dims,
    Op,
    Scalar,
    format_dims,
    shapes,
)
from ladder.core.contract.rung_file import MOST_BYTES
from ladder.core.verify.inputs import make_inputs, scalars
from ladder.core.verify.tolerance import run_reference

TYPES = (REAL, *REALS, "int8", "uint8", "int32", "uint32", "int64")
_OTHER_TYPE = re.compile(r"(u?int|float|bool|half|double|long)\d*")
_SCALARS: Mapping[type, str] = {float: "float32", int: "int32"}
_FITS = re.compile(r"\w+ (% \w+ == 0|<= \w+)")
BENCH_BYTES = 64 << 20  # of the shape that is measured where none is named
MOST_SLICES = 64  # of an axis that are changed
FEW = 256  # elements that each of an axis is counted with


def load(path: Path) -> Ladder:
    """The op of a reference file, as a ladder without rungs; it is called as its file.

    Raises LadderError, in one line that names the file and what to write.
    """
    reference = _Reference(path)
    args, dims = reference.args, reference.dims
    even = {1: 4096, 2: 512, 3: 128}.get(len(dims), 32)  # for kernels that need multiples
    sizes = ((1,), (3, 33, 5, 2), (33, 70, 17, 3), (even,))
    op = Op(
        name=str(path),
        summary=inspect.getdoc(reference.function) or "",
        args=tuple(args.values()),
        reference=reference,
        flops=lambda dims: 0,
        shapes=shapes(" ".join(dims), *((each * len(dims))[: len(dims)] for each in sizes)),
        bench={},
        fits=reference.fits,
        scalars=tuple(Scalar(name, dtype) for name, (dtype, _) in reference.scalars.items()),
        scalar_values={name: value for name, (_, value) in reference.scalars.items()},
        make_inputs=reference.inputs,
    )
    small = op.fitted({name: size for size, name in enumerate(dims, 9)})
    drawn = reference.inputs(small, np.random.default_rng(0))
    reference.refuse_undrawn(drawn)
    op = dataclasses.replace(
        op,
        shapes=tuple(op.fitted(each) for each in op.shapes),
        bench={f"{BENCH_BYTES >> 20} MiB": _bench_shape(op)},
        cases=_cases([arg for arg in op.args if arg.role != "out" and arg.name not in drawn]),
    )
    return Ladder(_with_sums(op, small))


def open_ladder(op: str | Path) -> Ladder:
    """The ladder of an op by its name, or of the reference file at a path.

    A name alone never makes a file run: names stand in files, too.
    """
    return load(op) if isinstance(op, Path) else find(op)


class _Reference:
    """The function of a reference file, called as the reference of an `Op` is."""

    def __init__(self, path: Path):
        self.path = path
        self.module = _executed(path)
        self.function, signature = self._find()
        outputs: Mapping[str, str] = signature.return_annotation
        self.args: dict[str, Arg] = {}
        self.scalars: dict[str, tuple[str, float]] = {}
        sizes = []  # parameters that are to be sizes of dimensions
        for name, parameter in signature.parameters.items():
            given, default = parameter.annotation, parameter.default
            if isinstance(given, str):
                self.args[name] = self._array(name, given, "inout" if name in outputs else "in")
            elif given in _SCALARS and isinstance(default, int | float):
                self.scalars[name] = _SCALARS[given], default
            elif given is int and default is parameter.empty:
                sizes.append(name)
            else:
                raise self._wrong(
                    f'say what {name} is: {name}: "N C" for an array, {name}: float = 1.0 or '
                    f"{name}: int = 1 for a number, {name}: int for the size of a dimension"
                )
        for name, text in outputs.items():
            if name not in self.args:
                self.args[name] = self._array(name, text, "out")
            elif self.args[name] != self._array(name, text, "inout"):
                raise self._wrong(f"{name} is updated: write the same shape and type twice")
        texts = [text for arg in self.args.values() for text in arg.shape.split()]
        self.dims = tuple(dict.fromkeys(name for text in texts for name in parse(text).names))
        for name in sizes:
            if name not in self.dims:
                known = ", ".join(self.dims)
                raise self._wrong(
                    f"{name} is a dimension of no array, they have {known}; name it in a shape, or "
                    f"give it a value: {name}: int = 4"
                )
        if not self.dims:
            raise self._wrong('no array has a dimension with a name; write e.g. x: "N C"')
        self.outputs, self.parameters = tuple(outputs), tuple(signature.parameters)
        self.fits = tuple(getattr(self.module, "fits", ()))
        for text in self.fits:
            if not _FITS.fullmatch(text) or not {*parse(text).names} <= {*self.dims}:
                known = ", ".join(self.dims)
                raise self._wrong(f"fits has {text!r}; write 'C % NH == 0' or 'T <= P', of {known}")
        of_dims = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in self.dims]
        self.__signature__ = inspect.Signature(of_dims)  # what `Op.compute` passes by name

    def _find(self) -> tuple[Callable[..., Any], inspect.Signature]:
        """The function whose annotation names outputs."""
        postponed = getattr(self.module, "annotations", None) is __future__.annotations
        functions = []
        for one in vars(self.module).values():
            if inspect.isfunction(one) and one.__module__ == self.module.__name__:
                try:
                    signature = inspect.signature(one, eval_str=postponed)
                except Exception as error:
                    raise _located(self.path, error) from None
                if isinstance(signature.return_annotation, dict):
                    functions.append((one, signature))
        if len(functions) == 1:
            return functions[0]
        several = " and ".join(one.__name__ for one, _ in functions)
        raise LadderError(
            f"{self.path}: {several or 'no function'} says what is computed, by '-> "
            f'{{"out": "N C"}}\' behind its parameters; one function must'
        )

    def _array(self, name: str, text: object, role: Any) -> Arg:
        words = text.split() if isinstance(text, str) else []
        dtype = words.pop(0) if words and words[0] in TYPES else "float32"
        try:
            refused = [word for word in words if _OTHER_TYPE.fullmatch(word) or not parse(word)]
        except ExpressionError as error:
            raise self._wrong(f"{name}: {error}") from None
        if refused:
            raise self._wrong(f"{name}: {refused[0]} is no type here; there are {', '.join(TYPES)}")
        if not words:
            raise self._wrong(f'{name} has no dimension; write "N C", or "1" for one element')
        rtol, atol = (float(getattr(self.module, name, 0.0)) for name in ("rtol", "atol"))
        rtol *= role != "in"
        return Arg(name, " ".join(words), role, dtype, rtol=rtol, atol=atol)

    def inputs(self, dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """What the file's own `inputs` draws; nothing without one."""
        draw = getattr(self.module, "inputs", None)
        if draw is None:
            return {}
        taken = [name for name in inspect.signature(draw).parameters if name in dims]
        try:
            drawn = draw(rng, **{name: dims[name] for name in taken})
        except Exception as error:
            raise _located(self.path, error, "inputs", dims) from None
        for name, array in drawn.items():
            if name not in self.args or self.args[name].role == "out":
                raise LadderError(f"{self.path}: inputs draws {name}, which is no parameter")
            self._refuse_shape("inputs", name, np.shape(array), dims)
        return dict(drawn)

    def refuse_undrawn(self, drawn: Mapping[str, np.ndarray]) -> None:
        """Raise LadderError where whole numbers are left to chance: they mostly are indices."""
        for name, arg in self.args.items():
            if arg.role != "out" and "int" in arg.dtype and name not in drawn:
                draw = f"rng.integers(0, 10, ({', '.join(arg.shape.split())},))"
                raise self._wrong(
                    f"say which whole numbers {name} holds: def inputs(rng, "
                    f"{', '.join(self.dims)}): return {{'{name}': {draw}}}"
                )

    def __call__(self, *arrays: np.ndarray, **known: float) -> None:
        """Compute the outputs in place, of arrays in the order of `args`."""
        given = dict(zip(self.args, arrays, strict=True))
        dims = {name: int(known[name]) for name in self.dims}
        copies = {name: given[name].copy() for name in self.parameters if name in given}
        modules = [one for one in vars(self.module).values() if isinstance(one, ModuleType)]
        has_torch = any(module.__name__.partition(".")[0] == "torch" for module in modules)
        torch = sys.modules["torch"] if has_torch else None
        wrapped = {n: torch.from_numpy(copy) for n, copy in copies.items()} if torch else copies
        try:
            result = self.function(*({**known, **wrapped}[name] for name in self.parameters))
        except Exception as error:
            raise _located(self.path, error, self.function.__name__, dims) from None
        for name, copy in copies.items():
            if copy.tobytes() != given[name].tobytes():
                raise self._wrong(f"it changes {name}; begin with a copy, or return a new array")
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(self.outputs) or result is None:
            count = 0 if result is None else len(results)
            raise self._wrong(f"it returns {count} arrays, not {', '.join(self.outputs)}")
        for name, one in zip(self.outputs, results, strict=True):
            value, target = np.asarray(one.detach() if torch else one), given[name]
            if value.size != 1 or target.size != 1:
                self._refuse_shape(self.function.__name__, name, value.shape, dims)
            if not np.can_cast(value.dtype, target.dtype, "same_kind"):
                raise self._wrong(f"it returns {name} as {value.dtype}, not {target.dtype}")
            target[...] = value.reshape(target.shape)

    def _refuse_shape(self, who: str, name: str, shape: tuple[int, ...], dims: Dims) -> None:
        if shape != (must := self.args[name].resolve_shape(dims)):
            raise LadderError(
                f"{self.path}: {who} returns {name} of shape {shape}, and "
                f'"{self.args[name].shape}" is {must} at {format_dims(dims)}'
            )

    def _wrong(self, what: str) -> LadderError:
        return LadderError(f"{self.path}: {self.function.__name__}: {what}")


def _executed(path: Path) -> ModuleType:
    """The module that a file is, executed."""
    module = ModuleType("the_users_reference")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look there
    try:
        exec(compile(read_text(path, MOST_BYTES), str(path), "exec"), vars(module))
    except LadderError:
        raise
    except (Exception, SystemExit) as error:
        raise _located(path, error) from None
    return module


def _located(
    path: Path, error: BaseException, who: str = "", dims: Dims | None = None
) -> LadderError:
    """An error of the user's own program, with its line."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    where = f"{path}:{lines[-1]}" if lines else str(path)
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    doing = f"{who} at {format_dims(dims)}: " if dims else ""
    return LadderError(f"{where}: {doing}{type(error).__name__}: {text}")


def _bench_shape(op: Op) -> Dims:
    """A shape of about BENCH_BYTES, all of whose dimensions are alike."""
    sizes, turns = dict.fromkeys(op.dims, 16), itertools.cycle(op.dims)
    while op.least_bytes(op.fitted(sizes), np.dtype(np.float32)) < BENCH_BYTES:
        sizes[next(turns)] *= 2
    return op.fitted(sizes)


def _cases(args: Sequence[Arg]) -> dict[str, Case]:
    """Values that break careless arithmetic, in the arrays with most dimensions of these."""
    floats = [arg for arg in args if "int" not in arg.dtype]
    most = max((len(arg.shape.split()) for arg in floats), default=0)
    changed = [arg for arg in floats if len(arg.shape.split()) == most]

    def case(values: Callable[[np.ndarray], np.ndarray]) -> Case:
        def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
            drawn = {arg.name: rng.standard_normal(arg.resolve_shape(dims)) for arg in changed}
            return {name: values(array) for name, array in drawn.items()}

        return Case(make, hard=True, finite=False)

    def far(array: np.ndarray) -> np.ndarray:
        array[0::2] += 1e3
        array[1::2] -= 1e3
        return array

    return {
        "zeros": case(lambda array: 0 * array),
        "small numbers": case(lambda array: 1e-3 * array),
        "rows far from 0": case(far),
    }


def _mixed(op: Op, dims: Dims) -> dict[str, dict[str, str]]:
    """{output: {axis of an input: how many of its slices an element depends on}}, where it is more
    than one: a number, or the size of the axis where it is most of it at a small shape."""
    real, constants, rng = np.dtype(np.float64), scalars(op), np.random.default_rng(1)
    values = make_inputs(op, dims, real, rng)
    before = run_reference(op, dims, values, constants)
    outputs = {a.name: a.resolve_shape(dims) for a in op.args if a.role != "in"}
    mixed: dict[str, dict[str, str]] = {name: {} for name in outputs}
    for arg in op.args:
        if arg.name not in values or values[arg.name].dtype.kind != "f":
            continue
        for axis, text in enumerate(arg.shape.split()):
            counts = {name: np.zeros(shape, int) for name, shape in outputs.items()}
            slices = min(values[arg.name].shape[axis], MOST_SLICES)
            for index in range(slices):
                array = values[arg.name].copy()
                part = (slice(None),) * axis + (index,)
                array[part] = rng.choice(array.ravel(), array[part].shape)
                after = run_reference(op, dims, {**values, arg.name: array}, constants)
                for name, count in counts.items():
                    count += after[name] != before[name]
            for name, count in counts.items():
                if (most := int(count.max())) > 1:
                    mixed[name][text] = text if 2 * most > slices else str(most)
    return mixed


def _with_sums(op: Op, dims: Dims) -> Op:
    """The op with the terms of its sums, and its operations: those that a plain kernel takes, to
    foresee the time of a check. Where each element of an axis depends on all of it, they may be
    computed once (a norm) or for each (attention): it counts up to FEW."""
    mixed = _mixed(op, dims)
    work: dict[str, str] = {}
    for arg in op.args:
        of_output = {name for text in arg.shape.split() for name in parse(text).names}
        factors = [
            f"min({count}, {FEW})" if {*parse(text).names} <= of_output else f"({count})"
            for text, count in mixed.get(arg.name, {}).items()
        ]
        work[arg.name] = " * ".join(factors) or "1"

    def flops(dims: Dims) -> int:
        sizes = ((math.prod(arg.resolve_shape(dims)), work[arg.name]) for arg in op.args)
        return sum(size * evaluate_whole(factor, dims) for size, factor in sizes)

    terms = {name: " * ".join(f"({text})" for text in axes) for name, axes in mixed.items()}
    args = (dataclasses.replace(arg, terms=terms.get(arg.name) or "1") for arg in op.args)
    return dataclasses.replace(op, args=tuple(args), flops=flops)
