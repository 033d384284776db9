"""A rung as a function of arrays, which it works on where they are: no copy.

    layernorm = load("layernorm.forward", "warp_per_row")
    layernorm(out, mean, rstd, inp, weight, bias)

CuPy's arrays, and PyTorch's on a GPU, are worked on in the current stream of CuPy or PyTorch; NumPy's
arrays, and PyTorch's on the CPU, on the emulator, or for rung 0 by the reference.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import Binder, binder
from ladder.core.contract.device import Device
from ladder.core.contract.dtypes import DTYPES, REAL
from ladder.core.contract.identity import code_identity
from ladder.core.contract.ladder import find, find_rung
from ladder.core.contract.op import Op
from ladder.core.contract.peers import address
from ladder.core.contract.rung_file import Rung
from ladder.core.device.open import default_device, open_device
from ladder.core.emulator.emulated import Emulated
from ladder.core.verify import sandbox

ALIGNED = 16  # bytes: the widest load of a kernel


class Loaded:
    """A rung of an op, to be called."""

    def __init__(self, op: str, rung: str | int | Path) -> None:
        self.op, self.rung = find(op).op, find_rung(op, rung)
        if self.op.ranks:
            raise LadderError(f"{op} runs on several GPUs, which --device cuda:0,1 of bench opens")
        self._binders: dict[Any, Binder] = {}

    def __call__(self, *arrays: Any, **more: float) -> None:
        """arrays  those of the contract in its order, outputs first; None for an optional one
        more    scalars of the contract, and dimensions that no shape tells, such as NH

        Raises LadderError for a shape, type or place that the contract or the rung does not have.
        """
        op = self.op
        names = [arg.name for arg in op.args]
        if len(arrays) != len(names):
            raise LadderError(f"{op.name} takes {', '.join(names)}, not {len(arrays)} arrays")
        index, stream = _place(op, arrays)
        device = device_at(index)
        pairs = zip(names, arrays, strict=True)
        given = {name: as_array(each, device, f"{op.name}: {name}") for name, each in pairs}
        scalars = {s.name: more.pop(s.name) for s in op.scalars if s.name in more}
        if missing := [s.name for s in op.scalars if s.name not in scalars]:
            raise LadderError(f"{op.name} needs {', '.join(f'{name}=...' for name in missing)}")
        shapes = {name: array.shape for name, array in given.items() if array is not None}
        dims = dims_of(op, shapes, {name: int(size) for name, size in more.items()})
        reals = [
            given[arg.name].dtype for arg in op.args if arg.dtype == REAL if arg.name in shapes
        ]
        real = reals[0] if reals else np.dtype(np.float32)
        if real.name not in DTYPES:
            raise LadderError(f"{op.name} is for arrays of {', '.join(DTYPES)}, not of {real}")
        key = index, real, *dims.values()
        with contextlib.nullcontext() if stream is None else device.on(stream):
            if key not in self._binders:
                self._binders[key] = admit(op, self.rung, device, index, real, dims)
            self._binders[key](given, scalars, None)()


def load(op: str, rung: str | int | Path) -> Loaded:
    """A rung of an op by its id or name, or the one in a `.cu` file, which is checked in a process
    of its own before it first runs in this one. Raises LadderError where there is none."""
    return Loaded(op, rung)


def admit(
    op: Op, rung: Rung, device: Device, index: int | None, real: np.dtype, dims: Mapping[str, int]
) -> Binder:
    """`binder`, for a rung of a caller's choice. Raises LadderError where it must not run here."""
    if (why := op.misfit(dims)) is not None:
        raise LadderError(f"{op.name} needs {why}, and here {dict(dims)}")
    if rung.library and rung.id not in device.libraries.ids:
        raise LadderError(f"{op.name} {rung.label} is not on {device.name}: choose another rung")
    if rung.is_own_file:
        _require(op.name, rung.id, code_identity(rung, exact=True), device_name(index))
    return binder(op, rung, device, real, dims)


@functools.cache
def _require(op: str, path: str, code: str, device: str) -> None:
    """Once for what is in the file now."""
    sandbox.require(op, find_rung(op, path), device)


def device_name(index: int | None) -> str:
    """What `--device` calls the GPU of an index; without one, the emulator."""
    return Emulated.kind if index is None else f"{default_device()}:{index}"


@functools.cache
def device_at(index: int | None) -> Any:
    """The GPU of an index; without one, the emulator."""
    return open_device(device_name(index))


def dims_of(
    op: Op, shapes: Mapping[str, Sequence[Any]], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The dimensions of a call by the shapes of its arguments, and those that none of these shows.

    Raises LadderError where one is missing, or an argument has too many or too few dimensions.
    """
    if unknown := given.keys() - set(op.dims):
        raise LadderError(f"{op.name} takes no {', '.join(unknown)}")
    dims = dict(given)
    for arg in sorted(op.args, key=lambda arg: arg.role != "in"):
        words, sizes = arg.shape.split(), shapes.get(arg.name)
        if sizes is None:
            continue
        if len(words) != len(sizes):
            raise LadderError(f"{op.name}: {arg.name} must be ({arg.shape}), not {(*sizes,)}")
        for word, size in zip(words, sizes, strict=True):
            if (found := re.fullmatch(r"(?:(\d+)\*)?([A-Za-z]\w*)", word)) is not None:
                dims.setdefault(found[2], size // int(found[1] or 1))
    if missing := [name for name in op.dims if name not in dims]:
        raise LadderError(f"{op.name}: no shape tells {', '.join(missing)}; add {missing[0]}=...")
    return {name: dims[name] for name in op.dims}


def as_array(given: Any, device: Any, name: str) -> Any:
    """What a device takes as its array: a tensor of PyTorch's in the same memory, which a GPU's array
    does not keep; others as they are. Raises LadderError with the name of one that is none."""
    array = given
    if hasattr(given, "data_ptr"):
        import torch

        dtype, tensor = str(given.dtype).removeprefix("torch."), given.detach()
        if dtype not in (*DTYPES, "int32", "uint32", "uint8") or not given.is_contiguous():
            raise LadderError(
                f"{name} must be a contiguous tensor of a type that kernels have, not {dtype} with strides {given.stride()}"
            )
        numpy_dtype = DTYPES.get(dtype) or np.dtype(dtype)
        if device.is_gpu:
            array = device.borrow(tensor.data_ptr(), tuple(tensor.shape), numpy_dtype)
        else:
            tensor = tensor.view(torch.int16) if dtype == "bfloat16" else tensor  # NumPy has none
            array = tensor.numpy().view(numpy_dtype)
    if array is not None and address(array) % ALIGNED:
        raise LadderError(f"{name} must begin at a multiple of {ALIGNED} bytes: take a copy of it")
    return array


def _place(op: Op, arrays: Sequence[Any]) -> tuple[int | None, int | None]:
    """The index of the GPU that holds the arrays and the handle of the current stream there; None
    for both on the CPU. Raises LadderError where they are not all in one place."""
    places = {_library_and_index(op, array) for array in arrays if array is not None}
    if len({index for _, index in places}) != 1:
        raise LadderError(f"{op.name}: the arrays are in several places")
    library, index = max(places)
    if index < 0:
        return None, None
    if library == "torch":
        import torch

        return index, torch.cuda.current_stream(index).cuda_stream
    import cupy

    return index, cupy.cuda.get_current_stream().ptr


def _library_and_index(op: Op, array: Any) -> tuple[str, int]:
    if isinstance(array, np.ndarray):
        return "", -1
    if hasattr(array, "data_ptr"):
        return "torch", array.get_device()
    if hasattr(array, "__cuda_array_interface__"):
        return "cupy", array.device.id
    raise LadderError(f"{op.name} takes arrays of NumPy, CuPy or PyTorch, not {type(array)}")
