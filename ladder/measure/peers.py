"""Times PyTorch on the same work, where it is installed with CUDA.

A peer computes what the op's contract says: `eager` is the kernel that PyTorch calls by itself,
`compiled` the result of torch.compile on the same function. Both are timed like a rung: in a
captured graph, on several sets of inputs and outputs in turn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ladder.contract.dims import Dims
from ladder.measure.timing import MOST_SETS, ROTATED_BYTES, Timing, measure

Draw = Callable[..., Any]  # a tensor of a shape, of normal random numbers


@dataclass(frozen=True)
class Peer:
    """A PyTorch function, and its inputs made from (torch, dims, a function that draws normals)."""

    function: Callable[..., Any]
    inputs: Callable[[Any, Dims, Draw], tuple[Any, ...]]


def _layernorm_forward(torch: Any, inp: Any, weight: Any, bias: Any) -> Any:
    """The function below F.layer_norm: it returns mean and rstd as well, in float32."""
    return torch.native_layer_norm(inp, inp.shape[-1:], weight, bias, 1e-5)


def _layernorm_backward(
    torch: Any, dout: Any, inp: Any, mean: Any, rstd: Any, weight: Any, bias: Any
) -> Any:
    """What autograd calls: dinp, dweight and dbias, not accumulated."""
    return torch.ops.aten.native_layer_norm_backward(
        dout, inp, inp.shape[-1:], mean, rstd, weight, bias, [True, True, True]
    )


def _layernorm_backward_inputs(torch: Any, dims: Dims, normal: Draw) -> tuple[Any, ...]:
    inp, weight, bias = normal(dims["N"], dims["C"]), normal(dims["C"]), normal(dims["C"])
    _, mean, rstd = _layernorm_forward(torch, inp, weight, bias)
    return normal(dims["N"], dims["C"]), inp, mean, rstd, weight, bias


def _residual_layernorm_forward(
    torch: Any, inp1: Any, inp2: Any, weight: Any, bias: Any
) -> tuple[Any, ...]:
    residual = inp1 + inp2
    return residual, *_layernorm_forward(torch, residual, weight, bias)


def _residual_layernorm_backward(torch: Any, dinp: Any, *others: Any) -> tuple[Any, ...]:
    """The sum goes to memory of its own instead of dinp; the bytes are the same."""
    through, dweight, dbias = _layernorm_backward(torch, *others)
    return dinp + through, dweight, dbias


def _rows_and_columns(torch: Any, d: Dims, normal: Draw, rows: int) -> tuple[Any, ...]:
    """`rows` inputs (N, C), then two (C)."""
    shapes = [(d["N"], d["C"])] * rows + [(d["C"],)] * 2
    return tuple(normal(*shape) for shape in shapes)


PEERS = {
    "layernorm.forward": Peer(_layernorm_forward, functools.partial(_rows_and_columns, rows=1)),
    "layernorm.backward": Peer(_layernorm_backward, _layernorm_backward_inputs),
    "residual_layernorm.forward": Peer(
        _residual_layernorm_forward, functools.partial(_rows_and_columns, rows=2)
    ),
    "residual_layernorm.backward": Peer(
        _residual_layernorm_backward,
        lambda torch, d, normal: (
            normal(d["N"], d["C"]),
            *_layernorm_backward_inputs(torch, d, normal),
        ),
    ),
    "start.add": Peer(
        lambda torch, a, b: a + b, lambda torch, d, normal: (normal(d["N"]), normal(d["N"]))
    ),
    "start.sum": Peer(lambda torch, inp: inp.sum(), lambda torch, d, normal: (normal(d["N"]),)),
}


class TorchClock:
    """Events and graphs of PyTorch, for `measure`."""

    def __init__(self, torch: Any):
        self.torch = torch

    def time(self, work: Callable[[], None]) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            work()
        replay: Callable[[], None] = graph.replay
        return replay


def available() -> str | None:
    """Why PyTorch cannot be measured here, or None if it can."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return None if torch.cuda.is_available() else "PyTorch is installed without CUDA"


def measure_peers(op: str, dims: Dims, dtype: str) -> Iterator[tuple[str, Timing | str]]:
    """("PyTorch eager" | "PyTorch compiled", its timing, or why there is none)."""
    import torch

    peer = PEERS[op]

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=getattr(torch, dtype))

    with torch.no_grad():
        sets = [peer.inputs(torch, dims, normal)]
        one = sum(tensor.nbytes for tensor in sets[0])
        count = min(-(-ROTATED_BYTES // one), MOST_SETS)
        sets += [peer.inputs(torch, dims, normal) for _ in range(count - 1)]

        def eager(*tensors: Any) -> Any:
            return peer.function(torch, *tensors)

        for name in ("eager", "compiled"):
            function = eager if name == "eager" else torch.compile(eager, dynamic=False)
            calls = [_call(function, tensors) for tensors in sets]
            try:
                yield f"PyTorch {name}", measure(TorchClock(torch), calls)
            except Exception as error:  # of its compiler, which may lack Triton or a C compiler
                yield f"PyTorch {name}", f"failed: {str(error).strip().splitlines()[0]}"


def _call(function: Callable[..., Any], tensors: tuple[Any, ...]) -> Callable[[], None]:
    kept: list[Any] = [None]  # else every call would write to the same memory, found in the cache

    def call() -> None:
        kept[0] = function(*tensors)

    return call
