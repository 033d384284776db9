"""Bind a rung to its arguments once; run it many times.

    run = bind(find("layernorm.forward").op, rung, device, np.float32, {"N": 256, "C": 768}, arrays)
    run()

Everything that can be refused is refused here, before the first launch.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract import signature
from ladder.core.contract.device import Device, Kernel
from ladder.core.contract.launch_plan import FLAG, Launch
from ladder.core.contract.op import Dims, Op, resolve_dtype
from ladder.core.contract.peers import FirstRank, Peers
from ladder.core.contract.rung_file import Rung

Run = Callable[[], None]
Allocate = Callable[[tuple[int, ...], np.dtype], Any]

MOST_ELEMENTS = 2**31 - 1  # of a dimension: kernels take them as int


def bind(
    op: Op,
    rung: Rung,
    device: Device,
    real: np.dtype,
    dims: Dims,
    arrays: Mapping[str, Any],
    scalars: Mapping[str, float] | None = None,
    scratch: Allocate | None = None,
) -> Run:
    """A function without arguments that runs `rung` of `op` on `arrays`.

    arrays   one device array for each of `op.args` (None for an optional one)
    scratch  allocates the rung's scratch buffers; by default they belong to the binding. Flags are
             set to 0 here

    Raises LadderError where the rung cannot run this shape, dtype or device.
    """
    return Binder(op, rung, device, real, dims)(arrays, scalars, scratch)


class Binder:
    """What `bind` does before it looks at the arrays, to bind the same kernels to several sets of
    them: a function that takes arrays, scalars and scratch. Raises LadderError as `bind`."""

    def __init__(self, op: Op, rung: Rung, device: Device, real: np.dtype, dims: Dims) -> None:
        self.op, self.rung, self.device, self.dims = op, rung, device, dims
        self.real = np.dtype(real)
        refuse_group(op, device)
        self.plan = rung.plan(dims, device.target(self.real))
        if (why := self.plan.refusal) is not None:
            raise LadderError(
                f"{op.name} {rung.label} cannot run: {why}; choose another rung or shape"
            )
        self.calls: list[tuple[Kernel, Launch, Sequence[signature.Parameter]]] = []
        if rung.path is not None and rung.run is None:
            kernels = self._compile()
            self.calls = [
                (kernels[launch.kernel], launch, signature.arguments(rung, launch.kernel))
                for launch in self.plan.launches
            ]
        if rung.prepare is not None:
            rung.prepare(device, self.real, dims)

    def __call__(
        self,
        arrays: Mapping[str, Any],
        scalars: Mapping[str, float] | None = None,
        scratch: Allocate | None = None,
    ) -> Run:
        op, scalars = self.op, scalars or {}
        _check_arrays(op, self.real, self.dims, arrays)
        constants = {s.name: np.dtype(s.dtype).type(scalars[s.name]) for s in op.scalars}
        if (function := self.rung.run) is not None:
            return lambda: function(self.device, arrays, self.dims, constants)
        if self.rung.path is None:
            return self._reference([arrays[arg.name] for arg in op.args], scalars)
        allocate = scratch or self.device.empty
        values = self._values(arrays, allocate) | constants
        more = (arrays, allocate) if self.rung.host else ()
        bound = [
            (kernel, launch, (*signature.passed(taken, values), *more))
            for kernel, launch, taken in self.calls
        ]
        return functools.partial(_run, bound, values)

    def _values(self, arrays: Mapping[str, Any], allocate: Allocate) -> dict[str, Any]:
        """All that a kernel can name but the scalars: arrays, dimensions, scratch, tensor maps."""
        op, rung, plan = self.op, self.rung, self.plan
        buffers = {}
        for line in plan.scratch:
            buffers[line.name] = allocate(line.shape, resolve_dtype(line.stored, self.real))
            if line.dtype == FLAG:
                self.device.zero(buffers[line.name])
                if op.ranks:
                    self.device.synchronize()  # or the first signal of a peer may be overwritten
        values = {arg.name: arrays[arg.name] for arg in op.args} | buffers
        factors = {arg.name for arg in op.args if arg.role == "in"}
        tiles = {}
        for tile in plan.tiles:
            name = tile.argument
            if values.get(name) is None:
                raise LadderError(f"{rung.path}: Tiles names {name}, which this call does not have")
            rounded = rung.tf32 and (name in factors or name in buffers)  # by TMA
            tiles[f"{name}_tiles"] = self.device.tensor_map(values[name], tile.box, tf32=rounded)
        if op.ranks:
            values = {name: Peers(array, scratch=name in buffers) for name, array in values.items()}
            values |= {"first_rank": FirstRank()}
        return values | tiles | {name: np.int32(self.dims[name]) for name in op.dims}

    def _compile(self) -> Mapping[str, Kernel]:
        """The kernels of the rung's file, by name. Raises LadderError where they cannot be
        launched."""
        op, rung = self.op, self.rung
        for name, size in self.dims.items():
            if size > MOST_ELEMENTS:
                raise LadderError(
                    f"{op.name} {rung.label} cannot run: {name} = {size}, and a kernel counts to "
                    f"{MOST_ELEMENTS}; take a smaller batch or model"
                )
        if (problem := signature.mismatch(op, rung)) is not None:
            raise LadderError(f"{rung.path}: {problem}")
        for name in rung.lines.prefetch:
            if name not in {arg.name for arg in op.args}:
                raise LadderError(
                    f"{rung.path}: Prefetch names {name}, which {op.name} does not have"
                )
        kernels = self.device.compile(rung, self.plan.constants, self.real)
        for launch in self.plan.launches:
            if launch.kernel not in kernels:
                names = ", ".join(kernels) or 'no extern "C" __global__ function'
                raise LadderError(f"{rung.path} launches {launch.kernel}, but defines {names}")
        return kernels

    def _reference(self, arrays: list[Any], scalars: Mapping[str, float]) -> Run:
        """Rung 0. Real types narrower than float32 are computed in float32 and rounded at the end,
        but for what the reference itself rounds."""
        op, dims, real = self.op, self.dims, self.real
        if not self.device.runs_reference:
            raise LadderError(
                f"{op.name} rung 0 is NumPy and runs on the CPU; choose a rung from 1 on"
            )
        if real in (np.float32, np.float64):
            return lambda: op.compute(arrays, dims, scalars)

        def run() -> None:
            wide = [
                array if arg.rounded_by else _widen(array)
                for arg, array in zip(op.args, arrays, strict=True)
            ]
            op.compute(wide, dims, scalars, lambda array: array.astype(real).astype(array.dtype))
            for arg, array, result in zip(op.args, arrays, wide, strict=True):
                if arg.role != "in" and result is not None and result is not array:
                    with np.errstate(over="ignore"):
                        array[...] = result.astype(array.dtype)

        return run


def _run(bound: Sequence[tuple[Kernel, Launch, tuple[Any, ...]]], kept: Mapping[str, Any]) -> None:
    """Launch kernels with their arguments. `kept`: the arrays that tensor maps point to, which no
    argument holds, live as long as the binding."""
    for kernel, launch, args in bound:
        kernel(launch, args)


def refuse_group(op: Op, device: Device) -> None:
    """Raise LadderError where a group of devices is to run an op that has no ranks."""
    if device.group_size > 1 and not op.ranks:
        raise LadderError(f"{op.name} runs on one device, not on {device.name}; --device cuda:0")


def _widen(array: np.ndarray | None) -> np.ndarray | None:
    if array is None or array.dtype.kind in "iu" or array.dtype.itemsize >= 4:
        return array
    return array.astype(np.float32)


def _check_arrays(op: Op, real: np.dtype, dims: Dims, arrays: Mapping[str, Any]) -> None:
    """Refuse arrays that a kernel would read or write past the end of, or misread."""
    if set(dims) != set(op.dims):
        raise LadderError(f"{op.name} takes the dimensions {', '.join(op.dims)}, not {dict(dims)}")
    for arg in op.args:
        array = arrays.get(arg.name)
        if array is None:
            if not arg.optional:
                raise LadderError(f"{op.name} needs the argument {arg.name}")
            continue
        shape, dtype = arg.resolve_shape(dims), resolve_dtype(arg.dtype, real)
        if tuple(array.shape) != shape or array.dtype != dtype:
            raise LadderError(
                f"{op.name}: {arg.name} must be {dtype} {shape}, not {array.dtype} {array.shape}"
            )
        if not array.flags.c_contiguous:
            raise LadderError(f"{op.name}: {arg.name} must be contiguous")
