"""Times PyTorch on the same work, where it is installed with CUDA.

`eager` is the kernels that PyTorch calls by itself, `compiled` the result of torch.compile on the
same work (torch_baselines.py). Both are timed like a rung: in a captured graph, on several sets of
the same inputs in turn.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ladder.core.common.install import install
from ladder.core.contract.op import DTYPES, Dims, Op
from ladder.core.measure.timing import MOST_SETS, ROTATED_BYTES, Timing, measure
from ladder.core.measure.torch_baselines import BASELINES, Baseline, Values, taken
from ladder.core.verify.inputs import Arrays, scalars


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
        return f"PyTorch is not installed; {install('torch')} adds it"
    return None if torch.cuda.is_available() else "PyTorch is installed without CUDA"


def measure_torch(op: Op, dims: Dims, inputs: Arrays) -> Iterator[tuple[str, Timing | str]]:
    """("PyTorch eager" | "PyTorch compiled", its timing, or why there is none).

    inputs  contents of all arguments that are read, as rungs get them
    """
    import torch

    baseline = BASELINES[op.name]
    with torch.no_grad():
        values = values_for(baseline, op, dims, inputs, "cuda")
        for name, function in baseline.functions.items():
            sets = _sets({key: values[key] for key in taken(function)})
            run = functools.partial(function, torch)
            if name == "compiled":
                torch.compiler.reset()  # it stops compiling where one function had many shapes
                run = torch.compile(run, dynamic=False)
            try:
                timing = measure(TorchClock(torch), [_call(run, one) for one in sets])
                yield f"PyTorch {name}", timing
            except Exception as error:  # of its compiler, which may lack Triton or a C compiler
                yield f"PyTorch {name}", f"failed: {str(error).strip().splitlines()[0]}"


def values_for(baseline: Baseline, op: Op, dims: Dims, inputs: Arrays, device: str) -> Values:
    """All that its functions may take: the op's inputs as tensors, its scalars and dimensions, and
    what `prepare` makes of them."""
    import torch

    def tensor(array: np.ndarray) -> Any:
        if array.dtype == DTYPES["bfloat16"]:  # NumPy's is not PyTorch's
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(array).to(device)

    values = {name: tensor(array) for name, array in inputs.items()} | scalars(op) | dict(dims)
    for prepare in baseline.prepare:
        prepare(torch, values)
    return values


def _sets(values: Values) -> list[Values]:
    """The values, and as many copies in other memory as it takes to fill the L2 cache."""
    tensors = {key: value for key, value in values.items() if hasattr(value, "nbytes")}
    count = min(math.ceil(ROTATED_BYTES / sum(t.nbytes for t in tensors.values())), MOST_SETS)
    copies = [{key: t.clone() for key, t in tensors.items()} for _ in range(count - 1)]
    return [values, *({**values, **copy} for copy in copies)]


def _call(run: Callable[..., Any], values: Values) -> Callable[[], None]:
    kept: list[Any] = [None]  # else every call would write to the same memory, found in the cache

    def call() -> None:
        kept[0] = run(**values)

    return call
