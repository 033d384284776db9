"""The engine: a program's buffers on a device, and its calls bound to the chosen rungs.

All memory is allocated when the engine is made, one array per kind of buffer and dtype; buffers are
views into it. Every call is bound once, so that a step only walks through lists of functions; from
the second time on, each list is one graph that the device replays.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ladder.common.errors import DeviceFault, LadderError
from ladder.contract.binding import bind
from ladder.contract.device import Communicator, Device
from ladder.contract.ladder import find
from ladder.contract.rung_file import Rung
from trainer.engine import memory
from trainer.engine.memory import Layout, padded
from trainer.model.calls import Call, Exchange, Ref
from trainer.model.program import Program


class Engine:
    """Runs a program.

    rungs       the rung of every op that the program calls, by the op's name
    weights_of  an engine of the same model whose parameters this one uses instead of its own:
                for example to sample at another batch size from the weights in training
    arrays      the device array of every buffer by name, to read a part of one:
                `device.download(engine.arrays["logits"][0, 5])`
    bound       the function of every call, to time them one by one
    watch       is called after every call, with the engine and the call, and waits for the call;
                there are no graphs then
    peers       the other ranks, where the program exchanges buffers with them
    waits       whether a call is done when it returns: on a device that does not work beside the
                host, or with a `watch`

    `forward` and the other passes only submit work to the device; `read` waits for it.

    Raises LadderError where a rung cannot run a call's shape, dtype or device; when it runs,
    DeviceFault, which names the call where the device does not work beside the host.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        real: np.dtype,
        rungs: Mapping[str, Rung],
        weights_of: Engine | None = None,
        watch: Callable[[Engine, Call], None] | None = None,
        peers: Communicator | None = None,
    ) -> None:
        self.program, self.device, self.real = program, device, np.dtype(real)
        self.rungs = dict(rungs)
        self.waits = not device.asynchronous or watch is not None
        self._borrows = weights_of is not None
        self.arrays = _allocate(program, device, memory.lay_out(program, self.real, self._borrows))
        if weights_of is not None:
            self.arrays |= {name: weights_of.arrays[name] for name in program.parameters}
        for name in self.arrays:
            if program.buffers[name].kind in ("moment", "input"):
                device.zero(self.arrays[name])  # a validation before step 1 reads dloss
        self._scratch = _Scratch(
            device, memory.scratch_needed(program.calls, device, self.real, self.rungs)
        )
        self.bound: dict[Call | Exchange, Callable[[], None]] = {}
        self._peers = peers

        def bind_all(calls: Sequence[Call | Exchange]) -> Callable[[], None]:
            for call in calls:
                if call not in self.bound:  # parts share calls
                    self.bound[call] = self._bind(call)
            if watch is not None:
                return functools.partial(self._run_watched, calls, watch)
            return _Replayed(device, [self.bound[call] for call in calls])

        self._forward = bind_all(program.forward)
        self._evaluate = bind_all(program.evaluate)
        self._predict = bind_all(program.predict)
        self._backward = bind_all(program.backward)
        self._reduce, self._apply = bind_all(program.reduce), bind_all(program.apply)
        self._reduced = False  # are the gradients those of all ranks, and is "norm" their norm?

    @property
    def settled(self) -> bool:
        """Whether a training step now runs as every later one will: from graphs, unless each call
        is waited for. The first steps set libraries up and record the graphs."""
        parts = (self._forward, self._backward, self._reduce, self._apply)
        return self.waits or all(part.recorded for part in parts if isinstance(part, _Replayed))

    def forward(self) -> None:
        """Tokens to losses, with dropout if the model has any."""
        self._forward()

    def evaluate(self) -> None:
        """Tokens to losses without dropout."""
        self._evaluate()

    def predict(self) -> None:
        """Tokens to logits without dropout."""
        self._predict()

    def zero_gradients(self) -> None:
        """To be called before the first backward pass of a step: gradients accumulate."""
        self.device.zero(self.arrays["gradients"])
        self._reduced = False

    def backward(self) -> None:
        """Add the gradients of the batch that `forward` saw last."""
        self._backward()
        self._reduced = False

    def compute_norm(self) -> None:
        """Add up the gradients of all ranks, if there are several, and compute their global norm
        into "norm", to look at it before `update`. Once: a second time would add up sums."""
        if not self._reduced:
            self._reduce()
            self._reduced = True

    def gradient_norm(self) -> float:
        """The global norm of the gradients, waited for."""
        self.compute_norm()
        return float(self.read("norm")[0])

    def update(self) -> None:
        """One step of AdamW with the gradients and `hyper`."""
        self.compute_norm()
        self._apply()

    def write(self, name: str, array: np.ndarray, layer: int | None = None) -> None:
        """Copy an array into a buffer or one layer of it; a parameter also into its master copy.

        Of a moment or master copy that ranks share, this rank takes its piece of the tensor.
        """
        self._write_one(name, array, layer)
        if name + ".master" in self.arrays:
            self._write_one(name + ".master", array, layer)

    def _write_one(self, name: str, array: np.ndarray, layer: int | None) -> None:
        first = self.program.buffers[name].first
        if first is None:
            self.device.upload(self._view((name, layer)), array)
            return
        piece = self.arrays[name]
        start = (layer or 0) * array.size - first  # of `array`, as an index of the piece
        begin, end = max(start, 0), min(start + array.size, piece.size)
        if begin < end:
            self.device.upload(piece[begin:end], array.reshape(-1)[begin - start : end - start])

    def read(self, name: str, layer: int | None = None) -> np.ndarray:
        """A copy of a buffer or a layer of it; of a parameter, its master copy if there is one,
        and where ranks share that, this rank's piece of it."""
        exact = name + ".master" if name + ".master" in self.arrays else name
        return self.device.download(self._view((exact, layer)))

    def fetch(self, name: str) -> Callable[[], np.ndarray]:
        """What a buffer holds once the work submitted so far is done; the result waits for it."""
        return self.device.fetch(self.arrays[name])

    def memory_table(self) -> list[tuple[str, int]]:
        """(kind, bytes) of all that was allocated, for printing."""
        found = memory.by_kind(self.program, self.real, self.device, self.rungs, self._borrows)
        return [*found.items()]

    def _view(self, ref: Ref) -> Any:
        name, layer = ref
        return self.arrays[name] if layer is None else self.arrays[name][layer]

    def arguments(self, call: Call) -> list[Any]:
        """The arrays that a call works on, in the shapes of the op's contract."""
        arrays: list[Any] = []
        for arg, ref in zip(find(call.op).op.args, call.args, strict=True):
            if ref is None or ref[0] not in self.arrays:  # there may be no master copy
                arrays.append(None)
            else:
                arrays.append(self._view(ref).reshape(arg.resolve_shape(call.dims)))
        return arrays

    def close(self) -> None:
        """Let go of the recorded graphs. Nothing can be run afterwards."""
        self.device.synchronize()
        self._forward = self._evaluate = self._predict = self._backward = _closed
        self._reduce = self._apply = _closed
        self.bound.clear()

    def describe(self, call: Call) -> str:
        """Its name in messages: "h3.ln_1, layernorm.forward rung 3 (one warp per row)"."""
        return f"{call.where}, {call.op} {self.rungs[call.op].label}"

    def _bind(self, call: Call | Exchange) -> Callable[[], None]:
        if isinstance(call, Exchange):
            return functools.partial(getattr(self._peers, call.kind), self.arrays[call.buffer])
        op = find(call.op).op
        names = (arg.name for arg in op.args)
        arrays = dict(zip(names, self.arguments(call), strict=True))
        self._scratch.rewind()
        rung, scratch = self.rungs[call.op], self._scratch.take
        real = op.real_in(self.real)
        run = bind(op, rung, self.device, real, call.dims, arrays, call.scalars, scratch)
        if self.device.asynchronous:  # a fault may be reported by a later call
            return run

        def run_or_name() -> None:
            try:
                run()
            except LadderError as error:
                raise DeviceFault(f"{self.describe(call)}: {error}") from None

        return run_or_name

    def _run_watched(
        self, calls: Sequence[Call | Exchange], watch: Callable[[Engine, Call], None]
    ) -> None:
        for call in calls:
            self.bound[call]()
            if isinstance(call, Call):
                watch(self, call)


def _closed() -> None:
    raise RuntimeError("the engine is closed")


class _Replayed:
    """Runs calls one by one the first time, when libraries set themselves up; then as a graph."""

    def __init__(self, device: Device, calls: Sequence[Callable[[], None]]) -> None:
        self._device, self._calls = device, calls
        self._ran = False
        self._replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self._ran and self._replay is None:
            self._replay = self._device.capture(self._run)
        (self._replay or self._run)()

    @property
    def recorded(self) -> bool:
        return self._replay is not None

    def _run(self) -> None:
        self._ran = True
        for call in self._calls:
            call()


def _allocate(program: Program, device: Device, layout: Layout) -> dict[str, Any]:
    """The arrays of all buffers of a program that have a place in the layout."""
    arenas = {arena: device.empty((n,), arena[1]) for arena, n in layout.sizes.items()}

    def view(flat: Any, start: int, shape: tuple[int, ...]) -> Any:
        return flat[start : start + math.prod(shape)].reshape(shape)

    arrays = {}
    for name, (arena, start) in layout.places.items():
        arrays[name] = view(arenas[arena], start, program.buffers[name].shape)
    for name, buffer in program.buffers.items():
        if buffer.inside is not None:
            host, start = buffer.inside
            arrays[name] = view(arrays[host].reshape(-1), start, buffer.shape)
    return arrays


class _Scratch:
    """Scratch memory of the rungs."""

    def __init__(self, device: Device, needed: Mapping[np.dtype, int]) -> None:
        self._arenas = {dtype: device.empty((n,), dtype) for dtype, n in needed.items()}
        self._used: Counter[np.dtype] = Counter()

    def rewind(self) -> None:
        """To be called before binding a call, which may use all of the memory."""
        self._used.clear()

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        start, n = self._used[dtype], math.prod(shape)
        self._used[dtype] += padded(n, dtype)
        return self._arenas[dtype][start : start + n].reshape(shape)
