"""The engine: a program's buffers on a device, and its calls bound to the chosen rungs.

All memory is allocated when the engine is made, one array per kind of buffer and dtype; buffers are
views into it. Every call is bound once, so that a step only walks through lists of functions; from
the second time on, each list is one graph that the device replays.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ladder.core.common.errors import DeviceFault, LadderError
from ladder.core.contract.binding import bind
from ladder.core.contract.device import Communicator, Device, Memory, Streams
from ladder.core.contract.ladder import find
from ladder.core.contract.op import resolve_dtype
from ladder.core.contract.rung_file import Rung
from trainer.engine import memory
from trainer.engine.memory import Layout, padded
from trainer.engine.rung_choice import say_nothing
from trainer.engine.rung_map import rung_of
from trainer.model.calls import Call, Collective, Fork, Item, Join, Ref, in_order, op_calls
from trainer.model.program import Program


class Engine:
    """Runs a program.

    rungs       the rung of every call of the program, by the keys of rung_map.py: {op: rung}, and
                further entries for some shapes
    weights_of  an engine of the same model whose parameters this one uses instead of its own, and
                whose key-value cache, if it has one: for example to sample at another batch size
                from the weights in training
    arrays      the device array of every buffer by name, to read a part of one:
                `device.download(engine.arrays["logits"][0, 5])`; of a buffer in pieces, a tuple
                of their arrays
    bound       the function of every call, to time them one by one
    watch       is called after every call, with the engine and the call, and waits for the call;
                there are no graphs then
    peers       the other ranks, where the program exchanges buffers with them
    on_progress  is called with the name of each call before it is bound, which may compile a kernel
    waits       whether a call is done when it returns: on a device that does not work beside the
                host, or with a `watch`

    `forward` and the other passes only submit work to the device; `read` waits for it. What is
    written into inputs goes to the device with the next pass.

    Raises LadderError where a rung cannot run a call's shape, dtype or device; when it runs,
    DeviceFault, which names the call where the device does not work beside the host.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        real: np.dtype,
        rungs: Mapping[str, Rung],
        weights_of: "Engine | None" = None,
        watch: "Watch | None" = None,
        peers: Communicator | None = None,
        on_progress: Callable[[str], None] = say_nothing,
    ) -> None:
        self.program, self.device, self.real = program, device, np.dtype(real)
        self.rungs = dict(rungs)
        self.waits = not device.asynchronous or watch is not None
        self._lender = weights_of.program if weights_of is not None else None
        layout = memory.lay_out(program, self.real, self._lender)
        arenas = {arena: device.empty((n,), arena[1]) for arena, n in layout.sizes.items()}
        self.arrays = views(program, self.real, layout, arenas)
        if weights_of is not None:
            lent = memory.borrowed(program, weights_of.program)
            self.arrays |= {name: weights_of.arrays[name] for name in lent}
        self._inputs = _Inputs(device, layout, arenas[memory.INPUTS], self.arrays)
        for name in layout.places:
            # A validation before step 1 reads dloss. The padding between parameters is 0.
            if program.buffers[name].kind in ("moment", "input", "parameter", "master", "cache"):
                device.zero(self.arrays[name])
        self._scratch = [
            Scratch(device, memory.scratch_needed(calls, device, self.real, self.rungs))
            for calls in program.streams
        ]
        self.bound: dict[Item, Callable[[], None]] = {}
        self._ends: dict[Fork, Any] = {}  # of each, for what joins it
        self._peers, self._on_progress = peers, on_progress

        def bind_all(items: Sequence[Item]) -> Callable[[], None]:
            for item in items:
                if item not in self.bound:  # parts share calls
                    self.bound[item] = self._bind(item)
            for before, call, name in early_reads(items, self.rungs):
                raise LadderError(
                    f"{self.describe(call)} prefetches {name}, which {before.where}, {before.op}, "
                    "writes just before; choose another rung"
                )
            if watch is not None:
                return functools.partial(self._run_watched, items, watch)
            return _Replayed(device, [self.bound[item] for item in items])

        self._forward = bind_all(program.forward)
        self._evaluate = bind_all(program.evaluate)
        self._predict = bind_all(program.predict)
        self._backward = self._last_backward = bind_all(program.more_backward)
        if program.last_backward is not program.more_backward:
            self._last_backward = bind_all(program.last_backward)
        self._reduce, self._apply = bind_all(program.reduce), bind_all(program.apply)
        self._reduced = False  # is "norm" that of the gradients?

    @property
    def warmed_up(self) -> bool:
        """Whether a training step now runs as every later one will: from graphs, unless each call
        is waited for. The first steps set libraries up and record the graphs."""
        every_step = [self._forward, self._last_backward, self._reduce, self._apply]
        if isinstance(self._backward, _Replayed) and self._backward.ran:
            every_step.append(self._backward)  # only steps of several micro-batches go through it
        graphs = [part.graph for part in every_step if isinstance(part, _Replayed)]
        return self.waits or None not in graphs

    def forward(self) -> None:
        """Tokens to losses, with dropout if the model has any."""
        self._inputs.send()
        self._forward()

    def evaluate(self) -> None:
        """Tokens to losses without dropout."""
        self._inputs.send()
        self._evaluate()

    def predict(self) -> None:
        """Tokens to logits without dropout."""
        self._inputs.send()
        self._predict()

    def zero_gradients(self) -> None:
        """To be called before the first backward pass of a step: gradients accumulate."""
        self.device.zero(self.arrays["gradients"])
        self._reduced = False

    def backward(self, *, more: bool = False) -> None:
        """Add the gradients of the batch that `forward` saw last.

        more  whether another micro-batch of the same step follows. Behind the last one, several
              ranks add up their gradients; a further call would add to these sums.
        """
        self._inputs.send()
        (self._backward if more else self._last_backward)()
        self._reduced = False

    def compute_norm(self) -> None:
        """Compute the global norm of the gradients into "norm", to look at it before `update`."""
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
        self._inputs.send()
        self._apply()

    def write(self, name: str, array: np.ndarray, layer: int | None = None) -> None:
        """Copy an array into a buffer or one layer of it; a parameter also into its master copy.

        Of a moment or master copy that ranks share, this rank takes its pieces of the tensor.
        """
        self.write_stored(name, array, layer)
        if name + ".master" in self.arrays:
            self.write_stored(name + ".master", array, layer)

    def write_stored(self, name: str, array: np.ndarray, layer: int | None = None) -> None:
        """The same of a parameter as it is stored; its master copy is left alone."""
        if name in self._inputs:
            self._inputs.write(name, array)
            return
        pieces = self.program.buffers[name].pieces
        if pieces is None:
            self.device.upload(self._view((name, layer)), array)
            return
        start, flat = (layer or 0) * array.size, array.reshape(-1)  # of `array` in the tensor
        for piece, target in zip(pieces, self.arrays[name], strict=True):
            begin, end = max(start, piece.first), min(start + flat.size, piece.first + piece.size)
            if begin < end:
                part = target.reshape(-1)[begin - piece.first : end - piece.first]
                self.device.upload(part, flat[begin - start : end - start])

    def read(self, name: str, layer: int | None = None) -> np.ndarray:
        """A copy of a buffer or a layer of it; of a parameter, its master copy if there is one,
        and where ranks share that, this rank's pieces of it, flat."""
        exact = name + ".master" if name + ".master" in self.arrays else name
        return self.read_stored(exact, layer)

    def read_stored(self, name: str, layer: int | None = None) -> np.ndarray:
        """The same of a parameter as it is stored, whether or not it has a master copy."""
        buffer = self.program.buffers[name]
        self._inputs.send()
        if buffer.pieces is None or layer is not None:
            return self.device.download(self._view((name, layer)))
        parts = [self.device.download(array).reshape(-1) for array in self.arrays[name]]
        if not parts:
            return np.empty(0, resolve_dtype(buffer.dtype, self.real))
        whole = np.concatenate(parts)
        return whole.reshape(buffer.shape) if whole.size == math.prod(buffer.shape) else whole

    def fetch(self, name: str) -> Callable[[], np.ndarray]:
        """What a buffer holds once the work submitted so far is done; the result waits for it."""
        self._inputs.send()
        return self.device.fetch(self.arrays[name])

    def memory_by_kind(self) -> Counter[str]:
        """Bytes of all that was allocated."""
        return memory.by_kind(self.program, self.real, self.device, self.rungs, self._lender)

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
        """Let go of the recorded graphs and of the calls. Nothing can be run afterwards.

        Calls refer to their engine. Without them, its memory is free once nothing else refers to
        it, and does not wait for the garbage collector.
        """
        self.device.synchronize()
        self._forward = self._evaluate = self._predict = _closed
        self._backward = self._last_backward = self._reduce = self._apply = _closed
        self.bound.clear()

    def describe(self, call: Call) -> str:
        """Its name in messages: "h3.ln_1, layernorm.forward rung 3 (one warp per row)"."""
        return f"{call.where}, {call.op} {rung_of(self.rungs, call).label}"

    def _bind(self, call: Item, stream: int = 0) -> Callable[[], None]:
        if isinstance(call, Fork):
            for inner in call.calls:
                self.bound[inner] = self._bind(inner, 2 if call.urgent else 1)
            calls = [self.bound[inner] for inner in call.calls]
            return functools.partial(self._fork, call, functools.partial(_run_all, calls))
        if isinstance(call, Join):
            return lambda: self.device.join(self._ends[call.fork])
        if isinstance(call, Collective):
            arrays_of = [self.arrays[name] for name in call.buffers]
            return functools.partial(getattr(self._peers, call.kind), *arrays_of)
        self._on_progress(f"the set-up of {self.describe(call)}")
        op = find(call.op).op
        names = (arg.name for arg in op.args)
        arrays = dict(zip(names, self.arguments(call), strict=True))
        scratch = self._scratch[stream]
        scratch.rewind()
        rung, real = rung_of(self.rungs, call), op.real_in(self.real)
        run = bind(op, rung, self.device, real, call.dims, arrays, call.scalars, scratch.take)
        if self.device.asynchronous:  # a fault may be reported by a later call
            return run

        def run_or_name() -> None:
            try:
                run()
            except LadderError as error:
                raise DeviceFault(f"{self.describe(call)}: {error}") from None

        return run_or_name

    def _fork(self, item: Fork, work: Callable[[], None]) -> None:
        behind = None if item.behind is None else self._ends[item.behind]
        self._ends[item] = self.device.fork(work, item.urgent, behind)

    def _run_watched(self, items: Sequence[Item], watch: "Watch") -> None:
        for call in in_order(items):
            self.bound[call]()
            if isinstance(call, Call):
                watch(self, call)


def early_reads(
    items: Sequence[Item], rungs: Mapping[str, Rung]
) -> Iterator[tuple[Call, Call, str]]:
    """Where a kernel would read what a kernel before it still writes: the one before it in its
    stream, or the one of another stream behind which it begins; and the argument."""
    for before, call in _neighbours(items):
        written = {
            ref
            for arg, ref in zip(find(before.op).op.args, before.args, strict=True)
            if arg.role != "in"
        }
        for arg, ref in zip(find(call.op).op.args, call.args, strict=True):
            if arg.name in rung_of(rungs, call).lines.prefetch and ref in written:
                yield before, call, arg.name


def _neighbours(items: Sequence[Item]) -> Iterator[tuple[Call, Call]]:
    """Two calls each, of which the second may be launched as soon as the first is done."""
    before: list[Call] = []  # of what comes next in the list
    forked: dict[bool, list[Call]] = {False: [], True: []}  # the last call, by urgency
    for item in items:
        if isinstance(item, Join):
            before += [*op_calls([item.fork])][-1:]
        elif isinstance(item, Fork):
            calls = [*op_calls([item])]
            waits = [*op_calls([item.behind])][-1:] if item.behind else []
            yield from itertools.product([*before, *forked[item.urgent], *waits], calls[:1])
            yield from itertools.pairwise(calls)
            forked[item.urgent] = calls[-1:] or forked[item.urgent]
        elif isinstance(item, Call):
            yield from ((call, item) for call in before)
            before = [item]


def _run_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _closed() -> None:
    raise RuntimeError("the engine is closed")


class _Replayed:
    """Runs calls one by one the first time, when libraries set themselves up; then as a graph."""

    def __init__(self, device: Streams, calls: Sequence[Callable[[], None]]) -> None:
        self._device, self._run = device, functools.partial(_run_all, calls)
        self.ran = False
        self.graph: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self.ran and self.graph is None:
            self.graph = self._device.capture(self._run)
        (self.graph or self._run)()
        self.ran = True


class _Inputs:
    """The inputs of a program: small buffers that the host writes. It collects what is written, and
    copies neighbours that were written since the last time to the device together: each copy costs
    some microseconds, whatever its size."""

    def __init__(self, device: Memory, layout: Layout, arena: Any, arrays: Mapping[str, Any]):
        self._device, self._arena = device, arena
        self._host = np.zeros(layout.sizes[memory.INPUTS], memory.INPUTS[1])
        self._spans: dict[str, tuple[int, int]] = {}  # in order: first byte, and behind the last
        self._values: dict[str, np.ndarray] = {}  # of the host's bytes, by name
        for name, (place, start) in layout.places.items():
            if place == memory.INPUTS:
                array, end = arrays[name], start + arrays[name].nbytes
                self._spans[name] = start, end
                self._values[name] = self._host[start:end].view(array.dtype).reshape(array.shape)
        self._written: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._spans

    def write(self, name: str, array: np.ndarray) -> None:
        """Keep the content of a whole buffer for the next `send`."""
        values = self._values[name]
        values[...] = array.reshape(values.shape)
        self._written.add(name)

    def send(self) -> None:
        """Copy what was written since the last time."""
        runs = itertools.groupby(self._spans, key=lambda name: name in self._written)
        for written, names in runs:
            if written:
                spans = [self._spans[name] for name in names]
                first, end = spans[0][0], spans[-1][1]
                self._device.upload(self._arena[first:end], self._host[first:end])
        self._written.clear()


def views(
    program: Program, real: np.dtype, layout: Layout, arenas: Mapping[memory.Arena, Any]
) -> dict[str, Any]:
    """The arrays of all buffers of a program whose place in the layout is in these arenas."""
    kinds = {kind for kind, _ in arenas}  # weights of 32 bits have no master copies

    def view(flat: Any, start: int, shape: tuple[int, ...]) -> Any:
        return flat[start : start + math.prod(shape)].reshape(shape)

    arrays = {}
    for name, (arena, start) in layout.places.items():
        if arena not in arenas:
            continue
        buffer = program.buffers[name]
        dtype = resolve_dtype(buffer.dtype, real)
        size = math.prod(buffer.shape) * dtype.itemsize // arena[1].itemsize
        arrays[name] = arenas[arena][start : start + size].view(dtype).reshape(buffer.shape)
    for name, buffer in program.buffers.items():
        if buffer.inside is not None:
            host, start = buffer.inside
            if buffer.kind in kinds:
                arrays[name] = view(arrays[host].reshape(-1), start, buffer.shape)
        elif buffer.pieces is not None and buffer.kind in kinds:
            arrays[name] = tuple(
                view(arrays[piece.host], piece.start, buffer.shape[1:])
                if buffer.stacked
                else view(arrays[piece.host], piece.start, (piece.size,))
                for piece in buffer.pieces
            )
    return arrays


class Scratch:
    """Scratch memory of the rungs."""

    def __init__(self, device: Memory, needed: Mapping[np.dtype, int]) -> None:
        self._arenas = {dtype: device.empty((n,), dtype) for dtype, n in needed.items()}
        self._used: Counter[np.dtype] = Counter()

    def rewind(self) -> None:
        """To be called before binding a call, which may use all of the memory."""
        self._used.clear()

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        start, n = self._used[dtype], math.prod(shape)
        self._used[dtype] += padded(n, dtype)
        return self._arenas[dtype][start : start + n].reshape(shape)


Watch = Callable[[Engine, Call], None]


def watch_of(debug_nan: bool, debug_sync: bool) -> Watch | None:
    """What `--debug-sync` and `--debug-nan` do after every call of a step; None without them."""
    if debug_nan:
        return find_not_finite
    return wait if debug_sync else None


def wait(engine: Engine, call: Call) -> None:
    """Wait until the call is done, so that a fault in it is reported here, with its name."""
    try:
        engine.device.synchronize()
    except LadderError as error:
        raise type(error)(f"{engine.describe(call)}: {error}") from None


def find_not_finite(engine: Engine, call: Call) -> None:
    """Raise LadderError, naming call, output and place, where an output is not finite."""
    wait(engine, call)
    for arg, array in zip(find(call.op).op.args, engine.arguments(call), strict=True):
        if arg.role == "in" or array is None:
            continue
        bad = ~np.isfinite(engine.device.download(array).astype(np.float32, copy=False))
        if bad.any():
            first = tuple(int(i) for i in np.argwhere(bad)[0])
            # A first loss scale is often too large: gradients overflow, those of logits first.
            gradient = call.where == "loss" or call in engine.program.backward
            scaled = gradient and engine.real == np.float16
            hint = "; with fp16 that may be a loss scale that is still too large" if scaled else ""
            raise LadderError(
                f"--debug-nan: {engine.describe(call)} is the first whose output is not finite: "
                f"{arg.name} in {np.count_nonzero(bad):,} of {bad.size:,} places, first at {first}"
                f"{hint}"
            )
