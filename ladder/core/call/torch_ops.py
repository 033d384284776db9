"""A rung as an op of PyTorch, `torch.ops.ladder.*`, with gradients by the rungs of other ops.

    layernorm = op("layernorm.forward", "warp_per_row", {"layernorm.backward": "mine.cu"})
    out, mean, rstd = layernorm(inp, weight, bias)

An op is functional: it takes what the contract reads, and returns what it writes. A gradient that a
rung adds to begins at 0. Dimensions that no input shows (NH of attention; V and P of
embedding.backward) are integers behind the tensors.

Tensors that the contract calls real are computed with in the narrowest type among them: float32
parameters beside bfloat16 activations are cast, and get float32 gradients.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ladder.core.call.arrays import ALIGNED, Loaded, as_rows, dims_of
from ladder.core.common.errors import LadderError
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.op import DTYPES, REAL, resolve_dtype

LIBRARY = torch.library.Library("ladder", "FRAGMENT")
NUMPY = {getattr(torch, name): dtype for name, dtype in DTYPES.items()}
TORCH = {dtype: kind for kind, dtype in NUMPY.items()}
TORCH |= {np.dtype(name): getattr(torch, name) for name in ("int32", "uint32", "uint8")}

Tensors = Sequence[Tensor | None]
_ops: dict[str, Any] = {}  # by name


def op(name: str, rung: str, backward: Mapping[str, str] | None = None) -> Any:
    """The op of a rung: an id, a name, or a `.cu` file, which is checked in a process of its own
    before it first runs in this one.

    backward  the ops that make its gradients, in the order in which they are asked, and their rungs

    Raises LadderError where an op or rung is not there, or cannot be an op of PyTorch.
    """
    forward = _Functional(name, rung)
    steps = [_Functional(*each) for each in (backward or {}).items()]
    named = "__with__".join(each.name for each in (forward, *steps))
    if named not in _ops:
        made = forward.register(named)
        if steps:
            behind = [(step, op(step.op.name, step.which)) for step in steps]
            LIBRARY.impl(named, _differentiable(forward, made, behind), "Autograd")
        _ops[named] = made
    return _ops[named]


class _Functional:
    """The functional form of an op, by one of its rungs."""

    def __init__(self, name: str, which: str) -> None:
        self.loaded, self.which = Loaded(name, which), which
        self.op = op = self.loaded.op
        if op.scalars or any(arg.optional and arg.role != "in" for arg in op.args):
            raise LadderError(f"{name} cannot be an op of PyTorch; kernel_ladder.load calls it")
        sums = "float32" if "backward" in name else ""  # gradients that a rung adds to
        self.inputs = [
            a for a in op.args if a.role == "in" or (a.role == "inout" and a.dtype != sums)
        ]
        self.outputs = [arg for arg in op.args if arg.role != "in"]
        self.names = [arg.name for arg in self.inputs]
        sizes = " ".join(arg.shape for arg in self.inputs if not arg.optional)
        self.free = [dim for dim in op.dims if dim not in re.findall(r"[A-Za-z]+", sizes)]
        order = [arg.name for arg in op.args]
        self._ins = [(order.index(arg.name), arg.dtype == REAL) for arg in self.inputs]
        self._outs = [order.index(arg.name) for arg in self.outputs]
        self._known: dict[Any, Any] = {}

    @property
    def name(self) -> str:
        rung = self.loaded.rung
        which = code_identity(rung, exact=True) if rung.is_own_file else rung.id
        return f"{self.op.kernel}_{which}".replace("-", "_")

    def register(self, named: str) -> Any:
        taken = [f"Tensor{'?' * arg.optional} {arg.name}" for arg in self.inputs]
        taken += [f"SymInt {dim}" for dim in self.free]
        LIBRARY.define(
            f"{named}({', '.join(taken)}) -> ({', '.join(['Tensor'] * len(self._outs))})"
        )
        for key in ("CPU", "CUDA"):
            LIBRARY.impl(named, self.run, key)
        torch.library.register_fake(f"ladder::{named}", self.fake, lib=LIBRARY)
        return getattr(torch.ops.ladder, named).default

    def real(self, tensors: Tensors) -> Any:
        types = [torch.float32]
        for arg, t in zip(self.inputs, tensors, strict=True):
            if t is not None and arg.dtype == REAL:
                if t.dtype not in NUMPY:
                    raise LadderError(f"{self.op.name}: {arg.name} must be in {', '.join(DTYPES)}")
                types.append(t.dtype)
        return min(types[1:] or types, key=lambda kind: kind.itemsize)

    def dims(self, tensors: Tensors, free: Sequence[Any]) -> dict[str, Any]:
        pairs = zip(self.inputs, tensors, strict=True)
        shapes = {arg.name: as_rows(arg, t.shape) for arg, t in pairs if t is not None}
        return dims_of(self.op, shapes, dict(zip(self.free, free, strict=True)))

    def made(self, tensors: Tensors, free: Sequence[Any]) -> list[tuple[Any, Any]]:
        dims, real, rows = self.dims(tensors, free), NUMPY[self.real(tensors)], None
        for arg, t in zip(self.inputs, tensors, strict=True):
            if t is not None and (more := t.dim() - len(arg.shape.split())) > 0:
                rows = t.shape[: more + 1]  # N, as the caller has it
        outputs = []
        for arg in self.outputs:
            # A contract's own expressions; the sizes of torch.compile are no whole numbers yet.
            first, *others = [eval(size, {}, dims) for size in arg.shape.split()]
            lead = rows if rows is not None and arg.shape.startswith("N") else [first]
            outputs.append(((*lead, *others), TORCH[resolve_dtype(arg.dtype, real)]))
        return outputs

    def fake(self, *args: Any) -> Any:
        made = self.made(args[: len(self.names)], args[len(self.names) :])
        return _one_or_all([args[0].new_empty(shape, dtype=kind) for shape, kind in made])

    def run(self, *args: Any) -> Any:
        tensors, free = args[: len(self.names)], args[len(self.names) :]
        key = *free, *[t if t is None else (t.shape, t.dtype) for t in tensors]
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self.real(tensors), self.made(tensors, free)
        real, made = known
        full: list[Tensor | None] = [None] * len(self.op.args)
        for (at, is_real), t in zip(self._ins, tensors):  # noqa: B905
            if t is not None:
                t = (t.to(real) if is_real else t).contiguous()
                full[at] = t.clone() if t.data_ptr() % ALIGNED else t
        for at, (shape, kind) in zip(self._outs, made):  # noqa: B905
            old, make = full[at], torch.empty if self.op.args[at].role == "out" else torch.zeros
            full[at] = (
                make(shape, dtype=kind, device=args[0].device) if old is None else old.clone()
            )
        self.loaded(*full, **dict(zip(self.free, free)))  # noqa: B905
        return _one_or_all([full[at] for at in self._outs])


def _one_or_all(made: list[Any]) -> Any:
    return made[0] if len(made) == 1 else tuple(made)


def _differentiable(
    forward: _Functional, op: Any, behind: Sequence[tuple[_Functional, Any]]
) -> Callable[..., Any]:
    """The op with gradients, matched by name: a backward op's `dout` is the gradient of `out`, and
    its other inputs are the forward op's; what it writes, `dinp`, is the gradient of `inp`."""
    count, outs = len(forward.names), [arg.name for arg in forward.outputs]
    both = [*forward.names, *outs]
    taken = {name for step, _ in behind for name in step.names}
    own = (*forward.inputs, *forward.outputs)
    known = {(d + arg.name, arg.shape) for arg in own for d in ("", "d")}
    for step, _ in behind:  # that of a product with GELU goes through the GELU before the product
        made = {(arg.name, arg.shape) for arg in (*step.inputs, *step.outputs)}
        if step.op.layer != forward.op.layer or not made <= known:
            raise LadderError(f"{step.op.name} makes no gradients of {forward.op.name}")
    calls = [
        (made, step.names, step.free, [both.index(arg.name[1:]) for arg in step.outputs])
        for step, made in behind
    ]
    hidden = {dim for step, _ in behind for dim in step.free} - {*forward.free}

    class Differentiated(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            tensors, free, real = args[:count], args[count:], forward.real(args[:count])
            ctx.types = [None if t is None else t.dtype for t in tensors]
            cast = [
                t.to(real) if t is not None and arg.dtype == REAL else t
                for arg, t in zip(forward.inputs, tensors, strict=True)
            ]
            ctx.dims = dict(zip(forward.free, free, strict=True))
            ctx.dims |= forward.dims(tensors, free) if hidden else {}
            with torch._C._AutoDispatchBelowAutograd():
                result = op(*cast, *free)
            results = result if isinstance(result, tuple) else (result,)
            values = dict(zip(both, (*cast, *results), strict=True))
            ctx.save_for_backward(*[t for name, t in values.items() if name in taken])
            ctx.mark_non_differentiable(*[values[name] for name in outs if "d" + name not in taken])
            ctx.set_materialize_grads(False)
            return result

        @staticmethod
        def backward(ctx: Any, *douts: Any) -> Any:
            gradients: list[Any] = [None] * len(ctx.needs_input_grad)
            values = {"d" + name: dout for name, dout in zip(outs, douts, strict=True)}
            if any(values["d" + name] is None for name in outs if "d" + name in taken):
                return tuple(gradients)
            names = [name for name in both if name in taken]
            values |= dict(zip(names, ctx.saved_tensors, strict=True))
            for made, names, free, gives in calls:
                wanted = any(ctx.needs_input_grad[i] and gradients[i] is None for i in gives)
                if wanted and all(ctx.types[i] is not None for i in gives):
                    result = made(*[values[name] for name in names], *[ctx.dims[d] for d in free])
                    results = result if isinstance(result, tuple) else (result,)
                    for i, gradient in zip(gives, results, strict=True):
                        gradients[i] = gradient.to(ctx.types[i])
            for name, needed, gradient in zip(both, ctx.needs_input_grad, gradients):  # noqa: B905
                if needed and gradient is None:
                    raise LadderError(f"{forward.op.name}: no op was named for d{name}")
            return tuple(gradients)

    def run(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in args[:count]):
            return Differentiated.apply(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args)

    return run
