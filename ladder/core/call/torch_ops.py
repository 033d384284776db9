"""A rung as an op of PyTorch, `torch.ops.ladder.*`, with gradients by the rungs of other ops.

    layernorm = op("layernorm.forward", "warp_per_row", {"layernorm.backward": "mine.cu"})
    out, mean, rstd = layernorm(inp, weight, bias)

An op is functional: it takes what the contract reads, and returns what it writes. A gradient that a
rung adds to begins at 0. Dimensions that no input shows (NH of attention; V and P of
embedding.backward) are integers behind the tensors. A tensor with more dimensions than the contract
says has its first ones as N: (B, T, C) for "N C".

Tensors that the contract calls real are in the narrowest type among them, or cast to it: float32
parameters beside bfloat16 activations get float32 gradients.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ladder.core.call.arrays import ALIGNED, admit, as_array, device_at, dims_of
from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import Run
from ladder.core.contract.dtypes import DTYPES, REAL, resolve_dtype
from ladder.core.contract.identity import code_identity
from ladder.core.contract.ladder import find, find_rung
from ladder.core.contract.op import Op
from ladder.core.contract.rung_file import Rung

LIBRARY = torch.library.Library("ladder", "FRAGMENT")
NUMPY = {getattr(torch, name): dtype for name, dtype in DTYPES.items()}
TORCH = {dtype: kind for kind, dtype in NUMPY.items()}
TORCH |= {np.dtype(name): getattr(torch, name) for name in ("int32", "uint32", "uint8")}
MOST_KEPT = 512  # calls of a rung at one shape, by the addresses of their tensors

Tensors = Sequence[Tensor | None]
_ops: dict[str, Any] = {}  # by name


def op(name: str, rung: str, backward: Mapping[str, str] | None = None) -> Any:
    """The op of a rung, an id, a name or a `.cu` file. A file is checked in a process of its own
    before it first runs in this one.

    backward  the ops that make its gradients, in the order in which they are asked, with their rungs

    Raises LadderError where an op or rung is not there, or cannot be an op of PyTorch.
    """
    forward = _Functional(name, rung)
    behind = [_Functional(*each) for each in (backward or {}).items()]
    named = "__with__".join(each.name for each in (forward, *behind))
    if named not in _ops:
        made = _ops[named] = forward.register(named)
        if behind:
            steps = [(each, op(each.op.name, each.which)) for each in behind]
            LIBRARY.impl(named, _differentiable(forward, made, steps), "Autograd")
    return _ops[named]


class OnTensors:
    """A rung at one shape and place, called with tensors in the order of the contract."""

    def __init__(self, op: Op, rung: Rung, where: torch.device, real: Any, dims: Any) -> None:
        if capturing(where):
            raise LadderError(f"{op.name} {rung.label}: call it once at this shape before capture")
        self._index = where.index if where.type == "cuda" else None
        self._device = device_at(self._index)
        self._bind = admit(op, rung, self._device, self._index, NUMPY[real], dims)
        self._shapes = {arg.name: arg.resolve_shape(dims) for arg in op.args}
        self._scratch: dict[int, list[Any]] = {}  # by stream: it is used again by every call there
        self._runs: dict[tuple[int, ...], Run] = {}  # by stream and addresses: PyTorch gives a
        # training step the memory of the step before

    def __call__(self, tensors: Tensors) -> None:
        if self._index is None:
            self._bound(tensors, None)()
            return
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        recording = torch.cuda.is_current_stream_capturing()
        key = (stream, *[0 if t is None else t.data_ptr() for t in tensors])
        with self._device.on(stream):
            run = None if recording else self._runs.get(key)
            if run is None:
                # A graph has scratch memory of its own, from its pool.
                kept = [] if recording else self._scratch.setdefault(stream, [])
                run = self._bound(tensors, _again(kept, self._device, tensors))
                if len(self._runs) >= MOST_KEPT:
                    self._runs.clear()
                if not recording:
                    self._runs[key] = run
            run()

    def _bound(self, tensors: Tensors, scratch: Any) -> Run:
        shaped = {
            name: as_array(None if t is None else t.detach().view(shape), self._device, name)
            for (name, shape), t in zip(self._shapes.items(), tensors, strict=True)
        }
        return self._bind(shaped, None, scratch)


def _again(kept: list[Any], device: Any, like: Tensors) -> Callable[..., Any]:
    """Allocates arrays by PyTorch, the n-th one once: then it is in `kept`."""
    count, where = iter(range(len(kept) + 100)), next(t for t in like if t is not None).device

    def allocate(shape: tuple[int, ...], dtype: np.dtype) -> Any:
        if (i := next(count)) == len(kept):
            tensor = torch.empty(shape, dtype=TORCH[dtype], device=where)
            kept.append((as_array(tensor, device, "scratch"), tensor))
        return kept[i][0]

    return allocate


def capturing(where: torch.device) -> bool:
    """Whether the current stream's work is recorded as a CUDA graph."""
    return where.type == "cuda" and torch.cuda.is_current_stream_capturing()


class _Functional:
    """The functional form of an op, by one of its rungs."""

    def __init__(self, name: str, which: str) -> None:
        self.op, self.rung, self.which = find(name).op, find_rung(name, which), which
        op = self.op
        if op.scalars or op.ranks or any(a.optional and a.role != "in" for a in op.args):
            raise LadderError(f"{name} cannot be an op of PyTorch; kernel_ladder.load calls it")
        sums = "float32" if "backward" in name else ""  # gradients that a rung adds to
        self.inputs = [
            a for a in op.args if a.role == "in" or (a.role != "out" and a.dtype != sums)
        ]
        self.outputs = [a for a in op.args if a.role != "in"]
        self.names = [a.name for a in self.inputs]
        shown = {
            n for a in self.inputs if not a.optional for n in re.findall(r"[A-Za-z]+", a.shape)
        }
        self.free = [dim for dim in op.dims if dim not in shown]
        self.sizes = {a.name: [compile(e, e, "eval") for e in a.shape.split()] for a in op.args}
        self._ready: dict[Any, Callable[[Tensors], Any]] = {}

    @property
    def name(self) -> str:
        own = code_identity(self.rung, exact=True) if self.rung.is_own_file else self.rung.id
        return f"{self.op.kernel}_{own}".replace("-", "_")

    def register(self, named: str) -> Any:
        tensors = [f"Tensor{'?' if a.optional else ''} {a.name}" for a in self.inputs]
        taken = ", ".join([*tensors, *(f"SymInt {dim}" for dim in self.free)])
        LIBRARY.define(f"{named}({taken}) -> ({', '.join(['Tensor'] * len(self.outputs))})")
        for key in ("CPU", "CUDA"):
            LIBRARY.impl(named, self.run, key)
        torch.library.register_fake(f"ladder::{named}", self.fake, lib=LIBRARY)
        return getattr(torch.ops.ladder, named).default

    def run(self, *args: Any) -> Any:
        """The op on tensors. What depends on their shapes and types is worked out once."""
        tensors = args[: len(self.inputs)]
        key = (
            tensors[0].get_device(),
            *[t if t is None else (t.shape, t.dtype) for t in tensors],
            *args[len(self.inputs) :],
        )
        ready = self._ready.get(key)
        if ready is None:
            ready = self._ready[key] = self._prepare(tensors, args[len(self.inputs) :])
        return ready(tensors)

    def fake(self, *args: Any) -> Any:
        tensors, free = args[: len(self.inputs)], args[len(self.inputs) :]
        made = self._made(*self.dims(tensors, free), self.cast(tensors)[0])
        return _one_or_all([tensors[0].new_empty(s, dtype=kind) for _, s, kind in made])

    def cast(self, tensors: Tensors) -> tuple[Any, list[Tensor | None]]:
        """The type of the call, and the tensors in it."""
        pairs = [*zip(self.inputs, tensors, strict=True)]
        types = {a.name: t.dtype for a, t in pairs if t is not None and a.dtype == REAL}
        for name, kind in types.items():
            if kind not in NUMPY:
                raise LadderError(f"{self.op.name}: {name} must be of {', '.join(DTYPES)}")
        real = min(types.values(), key=lambda kind: kind.itemsize, default=torch.float32)
        return real, [t.to(real) if t is not None and a.dtype == REAL else t for a, t in pairs]

    def dims(self, tensors: Tensors, free: Sequence[Any]) -> tuple[dict[str, Any], Any]:
        """The dimensions of a call, and those of the tensors that together are its N."""
        shapes, lead = {}, None
        for arg, t in zip(self.inputs, tensors, strict=True):
            if t is not None:
                shapes[arg.name], words = tuple(t.shape), arg.shape.split()
                if words[0] == "N" and (more := t.dim() - len(words)) > 0:
                    lead = t.shape[: more + 1]
                    shapes[arg.name] = math.prod(lead), *t.shape[more + 1 :]
        return dims_of(self.op, shapes, dict(zip(self.free, free, strict=True))), lead

    def _made(self, dims: Any, lead: Any, real: Any) -> list[tuple[Any, Any, Any]]:
        """Of each output: the argument, the shape that is returned, and the type."""
        made = []
        for arg in self.outputs:
            shape = tuple(eval(size, {}, dims) for size in self.sizes[arg.name])
            if lead is not None and arg.shape.split()[0] == "N":
                shape = (*lead, *shape[1:])
            made.append((arg, shape, TORCH[resolve_dtype(arg.dtype, NUMPY[real])]))
        return made

    def _prepare(self, tensors: Tensors, free: Sequence[int]) -> Callable[[Tensors], Any]:
        order = {arg.name: i for i, arg in enumerate(self.op.args)}
        where = next(t for t in tensors if t is not None).device
        for name, t in zip(self.names, tensors, strict=True):
            if t is not None and t.device != where:
                raise LadderError(f"{self.op.name}: {name} is on {t.device}, not on {where}")
        real, cast = self.cast(tensors)
        dims, lead = self.dims(tensors, free)
        for arg, t in zip(self.inputs, cast, strict=True):
            wanted = arg.resolve_shape(dims), TORCH[resolve_dtype(arg.dtype, NUMPY[real])]
            if t is not None and (t.numel() != math.prod(wanted[0]) or t.dtype != wanted[1]):
                raise LadderError(
                    f"{self.op.name}: {arg.name} must be {wanted}, not {t.dtype} {tuple(t.shape)}"
                )
        run = OnTensors(self.op, self.rung, where, real, dims)
        ins = [
            (order[name], None if t is c else real)
            for name, t, c in zip(self.names, tensors, cast, strict=True)
        ]
        outs = [
            (order[arg.name], torch.zeros if arg.role == "inout" else torch.empty, shape, kind)
            for arg, shape, kind in self._made(dims, lead, real)
        ]

        def call(tensors: Tensors) -> Any:
            full: list[Tensor | None] = [None] * len(order)
            for (at, kind), t in zip(ins, tensors):  # noqa: B905
                if t is not None:
                    t = (t if kind is None else t.to(kind)).contiguous()
                    full[at] = t.clone() if t.data_ptr() % ALIGNED else t
            made = []
            for at, make, shape, kind in outs:
                old = full[at]  # what is changed is a copy
                new = make(shape, dtype=kind, device=where) if old is None else old.clone()
                full[at] = new
                made.append(new)
            run(full)
            return _one_or_all(made)

        return call


def _one_or_all(made: list[Tensor]) -> Any:
    return made[0] if len(made) == 1 else tuple(made)


def _differentiable(
    forward: _Functional, op: Any, steps: Sequence[tuple[_Functional, Any]]
) -> Callable[..., Any]:
    """The op with gradients, matched by name: `dout` of a backward op is the gradient of `out`, its
    other arguments are those of the forward op; what it writes, `dinp`, is the gradient of `inp`."""
    outs, count = [arg.name for arg in forward.outputs], len(forward.inputs)
    taken = {name for step, _ in steps for name in step.names}
    known = [*forward.names, *outs]
    for step, _ in steps:
        if step.op.layer != forward.op.layer or not {"d" + n for n in known} >= {
            arg.name for arg in step.outputs
        }:
            raise LadderError(f"{step.op.name} makes no gradients of {forward.op.name}")
    kept = [i for i, name in enumerate(known) if name in taken]
    plain = [i for i, name in enumerate(outs) if "d" + name not in taken]
    dims = {dim for step, _ in steps for dim in step.free}
    calls = [
        (made, step.names, step.free, [known.index(arg.name[1:]) for arg in step.outputs])
        for step, made in steps
    ]

    class Differentiated(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            tensors, free = args[:count], args[count:]
            ctx.types = [None if t is None else t.dtype for t in tensors]
            cast = forward.cast(tensors)[1]
            ctx.dims = dict(zip(forward.free, free, strict=True))
            if dims - ctx.dims.keys():
                ctx.dims = forward.dims(tensors, free)[0]
            with torch._C._AutoDispatchBelowAutograd():
                result = op(*cast, *free)
            results = result if isinstance(result, tuple) else (result,)
            both = [*cast, *results]
            ctx.save_for_backward(*[both[i] for i in kept])
            ctx.mark_non_differentiable(*[results[i] for i in plain])
            ctx.set_materialize_grads(False)
            return result

        @staticmethod
        def backward(ctx: Any, *douts: Any) -> Any:
            found: list[Any] = [None] * len(ctx.needs_input_grad)
            values = {known[i]: t for i, t in zip(kept, ctx.saved_tensors, strict=True)}
            values |= {"d" + name: dout for name, dout in zip(outs, douts, strict=True)}
            if any(values["d" + name] is None for name in outs if "d" + name in taken):
                return tuple(found)
            for made, names, free, gives in calls:
                wanted = [i for i in gives if ctx.needs_input_grad[i] and found[i] is None]
                if wanted and all(ctx.types[i] is not None for i in gives):
                    result = made(*[values[name] for name in names], *[ctx.dims[d] for d in free])
                    both = result if isinstance(result, tuple) else (result,)
                    for i, gradient in zip(gives, both, strict=True):
                        found[i] = gradient.to(ctx.types[i])
            return tuple(found)

    def run(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in args[:count]):
            return Differentiated.apply(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args)

    return run
