"""cuBLASLt: product, bias and gelu in one of NVIDIA's kernels, to measure this ladder against.

Its gelu is the tanh form. NVIDIA does not document whether it takes the accumulator or the stored
value. Where cuBLASLt has no such kernel for a type and a GPU, it computes the product with the
bias, and the last rung of the gelu ladder follows.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ladder.core.contract.device import Device
from ladder.core.contract.ladder import find
from ladder.core.contract.op import Dims
from ladder.core.contract.rung_file import Rung
from ladder.matmul.library_rungs import in_tf32, linear

AUX_MULTIPLE = 8  # what cuBLASLt wants the width of `pre` to be a multiple of


def forward(
    device: Device,
    arrays: Mapping[str, Any],
    dims: Dims,
    scalars: Mapping[str, Any],
    tf32: bool = False,
) -> None:
    """pre = inp @ weight.T + bias, out = gelu(pre)"""
    out, pre = arrays["out"], arrays["pre"]
    factors = arrays["inp"], arrays["weight"], arrays["bias"]
    product = linear(device, tf32)
    if product.ask(out.dtype, dims["N"], dims["C"], dims["OC"], bias=True, gelu=True):
        product(out, *factors, pre)
    else:
        product(pre, *factors)
        _gelu(device, out.dtype, dims["N"] * dims["OC"])(out, pre)


def library_rungs() -> tuple[Rung, Rung]:
    """The rungs of the function above, in the run's type and in TF32. Rows must begin at multiples
    of 16 bytes."""
    header = {
        "needs": (f"sm >= 70; C % vector == 0; OC % {AUX_MULTIPLE} == 0",),
        "rounds": ("pre, where the gelu is a kernel of its own",),
    }
    idea = "cuBLASLt, bias and gelu in the epilogue"
    rung = Rung("cublaslt", idea, header=header, run=forward, prepare=_prepare, library=True)
    return rung, in_tf32(rung)


def _prepare(device: Device, real: np.dtype, dims: Dims, tf32: bool = False) -> None:
    """Let it choose its kernel, or compile ours: neither is possible while a graph records."""
    N, C, OC = dims["N"], dims["C"], dims["OC"]
    product = linear(device, tf32)
    if not product.ask(real, N, C, OC, bias=True, gelu=True):
        product.ask(real, N, C, OC, bias=True)
        _gelu(device, real, N * OC)


@functools.cache
def _gelu(device: Device, real: np.dtype, N: int) -> Callable[[Any, Any], None]:
    """A function (out, inp) that takes the gelu of N elements."""
    target, dims = device.target(real), {"N": N}
    able = (rung for rung in find("gelu.forward").on(device) if rung.pays)
    *_, rung = (rung for rung in able if rung.plan(dims, target).refusal is None)
    plan = rung.plan(dims, target)
    (launch,) = plan.launches
    kernel = device.compile(rung, plan.constants, real)[launch.kernel]
    return lambda out, inp: kernel(launch, (out, inp, np.int32(N)))
