"""A rung as a function of arrays, which it works on where they are: no copy.

    layernorm = Loaded("layernorm.forward", "warp_per_row")  # kernel_ladder.load
    layernorm(out, mean, rstd, inp, weight, bias)

CuPy's arrays, and PyTorch's on a GPU, are worked on in the current stream of CuPy or PyTorch.
NumPy's, and PyTorch's on the CPU, are worked on by the emulator; with rung 0 by the reference.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import Binder, Run
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import find, find_rung
from ladder.core.contract.op import DTYPES, REAL, Arg, Op
from ladder.core.contract.peers import address
from ladder.core.device.open import default_device, open_device
from ladder.core.verify import sandbox

ALIGNED = 16  # bytes: the widest load of a kernel
MOST_KEPT = 1024  # calls of a rung whose addresses are known


class Place(NamedTuple):
    """Whose array it is, on which GPU, if any, and that library's current stream there; whether it
    is recorded as a graph."""

    library: str
    gpu: int | None = None
    stream: int | None = None
    recorded: bool = False


class Loaded:
    """A rung of an op, to be called: that of an id or a name, or the one in a `.cu` file, which is
    checked in a process of its own before it first runs. Raises LadderError where there is none."""

    def __init__(self, op: str, rung: str | int | Path) -> None:
        self.op, self.rung = find(op).op, find_rung(op, rung)
        if self.op.ranks:
            raise LadderError(f"{op} exchanges data between GPUs: --device cuda:0,1 runs it")
        self._binders: dict[Any, Binder] = {}
        self._runs: dict[Any, Run] = {}  # PyTorch gives each step of a training the same memory
        self._scratch: dict[Any, list[Any]] = {}

    def __call__(self, *arrays: Any, **more: float) -> None:
        """arrays  those of the contract in its order, outputs first; None for an optional one. One
                with more dimensions than the contract has, such as (B, T, C), has the first as N
        more    scalars of the contract, and dimensions that no shape tells

        Raises LadderError for what the contract or the rung does not take, by its name.
        """
        names = [arg.name for arg in self.op.args]
        if len(arrays) != len(names):
            raise LadderError(f"{self.op.name} takes {', '.join(names)}, not {len(arrays)} arrays")
        place, key = place_of(arrays[0]), None
        if place.stream is None:
            return self._bound(place, arrays, more)()
        with device_at(place.gpu).on(place.stream):
            if place.library == "torch" and not place.recorded:
                each = (
                    a if a is None else (a.data_ptr(), a.shape, a.dtype, a.is_contiguous())
                    for a in arrays
                )
                key = place.stream, *more.items(), *each
            if (run := self._runs.get(key)) is None:
                run = self._bound(place, arrays, more)
                if len(self._runs) >= MOST_KEPT:
                    self._runs.clear()
                if key is not None:
                    self._runs[key] = run
            run()

    def _bound(self, place: Place, arrays: Sequence[Any], more: dict[str, float]) -> Run:
        op, device = self.op, device_at(place.gpu)
        given: dict[str, Any] = {}
        shapes: dict[str, Any] = {}
        for arg, array in zip(op.args, arrays, strict=True):
            name, given[arg.name] = f"{op.name}: {arg.name}", None
            if array is not None:
                if place_of(array) != place:
                    raise LadderError(f"{name} is not where {op.args[0].name} is")
                given[arg.name] = as_array(array, device, name)
                shapes[arg.name] = as_rows(arg, array.shape)
                given[arg.name] = given[arg.name].reshape(shapes[arg.name])
        scalars = {s.name: more[s.name] for s in op.scalars if s.name in more}
        if missing := [s.name for s in op.scalars if s.name not in scalars]:
            raise LadderError(f"{op.name} needs {missing[0]}=...")
        free = {name: int(size) for name, size in more.items() if name not in scalars}
        dims = dims_of(op, shapes, free)
        if (why := op.misfit(dims)) is not None:
            raise LadderError(f"{op.name} needs {why}, and here {dims}")
        reals = [given[a.name].dtype for a in op.args if a.dtype == REAL and a.name in shapes]
        real = reals[0] if reals else np.dtype(np.float32)
        if real.name not in DTYPES:
            raise LadderError(f"{op.name} computes in {', '.join(DTYPES)}, not in {real}")
        key = place.gpu, real, *dims.values()
        if key not in self._binders:
            if place.recorded:
                raise LadderError(f"{op.name}: call it once at this shape before it is recorded")
            self._admit(place)
            self._binders[key] = Binder(op, self.rung, device, real, dims)
        scratch = None
        if place.library == "torch" and place.stream is not None:
            # Of a graph's own, from its pool, or of all calls on a stream.
            kept = [] if place.recorded else self._scratch.setdefault((place.stream, key), [])
            scratch = _again(kept, device, arrays[0])
        return self._binders[key](given, scalars, scratch)

    def _admit(self, place: Place) -> None:
        device = device_at(place.gpu)
        if self.rung.library and self.rung.id not in device.library_rungs:
            raise LadderError(f"{self.op.name} {self.rung.label} is not on {device.name}")
        if self.rung.is_own_file:
            code = code_identity(self.rung, exact=True)
            _require(self.op.name, self.rung.id, code, device_name(place.gpu))


@functools.cache
def _require(op: str, path: str, code: str, device: str) -> None:
    """Once for what is in the file now."""
    sandbox.require(op, find_rung(op, path), device)


def device_name(gpu: int | None) -> str:
    """What `--device` calls the GPU of an index; without one, the emulator."""
    return "emulated" if gpu is None else f"{default_device()}:{gpu}"


@functools.cache
def device_at(gpu: int | None) -> Any:
    return open_device(device_name(gpu))


def place_of(array: Any) -> Place:
    """Where an array is. Raises LadderError for what is none."""
    if hasattr(array, "data_ptr"):
        if (gpu := array.get_device()) < 0:
            return Place("torch")
        import torch

        recorded = torch.cuda.is_current_stream_capturing()
        return Place("torch", gpu, torch._C._cuda_getCurrentRawStream(gpu), recorded)
    if isinstance(array, np.ndarray):
        return Place("numpy")
    if not hasattr(array, "__cuda_array_interface__"):
        raise LadderError(f"an array must be NumPy's, CuPy's or PyTorch's, not {type(array)}")
    import cupy

    return Place("cupy", array.device.id, cupy.cuda.get_current_stream().ptr)


def as_array(given: Any, device: Any, name: str) -> Any:
    """What a device takes as its array: a tensor in the same memory, which on a GPU does not keep
    that memory. Raises LadderError with the name of one that kernels cannot take."""
    array = given
    if hasattr(given, "data_ptr"):
        import torch

        dtype, tensor = str(given.dtype).removeprefix("torch."), given.detach()
        if dtype not in (*DTYPES, "int32", "uint32", "uint8") or not tensor.is_contiguous():
            raise LadderError(f"{name} must be contiguous, of a kernel's type, and is {dtype}")
        numpy_dtype = DTYPES.get(dtype) or np.dtype(dtype)
        if device.is_gpu:
            array = device.borrow(tensor.data_ptr(), tuple(tensor.shape), numpy_dtype)
        else:
            tensor = tensor.view(torch.int16) if dtype == "bfloat16" else tensor  # NumPy has none
            array = tensor.numpy().view(numpy_dtype)
    if address(array) % ALIGNED or not array.flags.c_contiguous:
        raise LadderError(f"{name} must be contiguous, from a multiple of {ALIGNED} bytes on")
    return array


def as_rows(arg: Arg, shape: Sequence[Any]) -> tuple[Any, ...]:
    """A shape whose first dimensions are one, N, where it has more than the contract."""
    more = len(shape) - len(arg.shape.split()) if arg.shape.startswith("N") else 0
    return (math.prod(shape[: more + 1]), *shape[more + 1 :]) if more > 0 else (*shape,)


def dims_of(
    op: Op, shapes: Mapping[str, Sequence[Any]], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The dimensions of a call by the shapes of its arguments, inputs first, and what is given.

    Raises LadderError where one is missing, or an argument has too many or too few dimensions.
    """
    if unknown := given.keys() - {*op.dims}:
        raise LadderError(f"{op.name} takes no {min(unknown)}")
    dims = {**given}
    for arg in sorted(op.args, key=lambda arg: arg.role != "in"):
        words, sizes = arg.shape.split(), shapes.get(arg.name)
        if sizes is None:
            continue
        if len(words) != len(sizes):
            raise LadderError(f"{op.name}: {arg.name} must be ({arg.shape}), not {(*sizes,)}")
        for word, size in zip(words, sizes, strict=True):
            if (match := re.fullmatch(r"(?:(\d+)\*)?([A-Za-z]\w*)", word)) is not None:
                dims.setdefault(match[2], size // int(match[1] or 1))
    if missing := [name for name in op.dims if name not in dims]:
        raise LadderError(f"{op.name}: no shape tells {missing[0]}; add {missing[0]}=...")
    return {name: dims[name] for name in op.dims}


def _again(kept: list[Any], device: Any, like: Any) -> Callable[[tuple[int, ...], np.dtype], Any]:
    """Allocates arrays in PyTorch's memory, or takes those of the calls before."""
    import torch

    left = iter([*kept])

    def allocate(shape: tuple[int, ...], dtype: np.dtype) -> Any:
        if (pair := next(left, None)) is None:
            size = math.prod(shape) * dtype.itemsize
            memory = torch.empty(size, dtype=torch.uint8, device=like.device)
            pair = as_array(memory, device, "scratch").view(dtype), memory
            kept.append(pair)
        return pair[0].reshape(shape)

    return allocate
