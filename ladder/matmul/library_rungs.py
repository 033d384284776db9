"""cuBLAS and cuBLASLt: NVIDIA's matrix products, which the matmul ladders are measured against.

cuBLAS stores matrices by columns: it reads our matrix (rows, columns) as its transpose (columns,
rows). So each product is requested transposed, with its factors exchanged:

    out.T     (OC, N) = weight @ inp.T          it sees weight.T and inp.T: "T", transpose the first
    dinp.T    (C, N)  = weight.T @ dout.T       it sees weight.T and dout.T: "N", as they are
    dweight.T (C, OC) = inp.T @ dout            it sees inp.T and dout.T: "T", transpose the second

The device's libraries make the calls (ladder/core/device/cuda/cublas.py). cuBLAS cannot add a bias:
broadcast_bias.cu writes it into every row of out, and cuBLAS adds the product to that. cuBLASLt
adds the bias in its epilogue.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract import rung_file
from ladder.core.contract.device import Device, Libraries
from ladder.core.contract.op import Dims
from ladder.core.contract.rung_file import Rung

Arrays = Mapping[str, Any]  # the device's arrays by argument
Scalars = Mapping[str, Any]  # an op's scalars; a product has none

BROADCAST_BIAS = Path(__file__).with_name("broadcast_bias.cu")


def forward(
    device: Device, arrays: Arrays, dims: Dims, scalars: Scalars, tf32: bool = False
) -> None:
    """out = inp @ weight.T + bias. The product is added to rows that already hold the bias."""
    N, C, OC = dims["N"], dims["C"], dims["OC"]
    out, bias = arrays["out"], arrays["bias"]
    multiply = multiplier(device, tf32)
    if bias is not None:
        _broadcast(device, out.dtype, N, OC)(out, bias)
    multiply("TN", (OC, N, C), arrays["weight"], arrays["inp"], out, add=bias is not None)


def forward_one_kernel(
    device: Device, arrays: Arrays, dims: Dims, scalars: Scalars, tf32: bool = False
) -> None:
    """out = inp @ weight.T + bias"""
    linear(device, tf32)(arrays["out"], arrays["inp"], arrays["weight"], arrays["bias"])


def backward_input(
    device: Device, arrays: Arrays, dims: Dims, scalars: Scalars, tf32: bool = False
) -> None:
    """dinp = dout @ weight"""
    N, C, OC = dims["N"], dims["C"], dims["OC"]
    multiply = multiplier(device, tf32)
    multiply("NN", (C, N, OC), arrays["weight"], arrays["dout"], arrays["dinp"])


def backward_weight(
    device: Device, arrays: Arrays, dims: Dims, scalars: Scalars, tf32: bool = False
) -> None:
    """dweight += dout.T @ inp, in float32 whatever the type of dout and inp."""
    N, C, OC = dims["N"], dims["C"], dims["OC"]
    multiply = multiplier(device, tf32)
    multiply("NT", (C, OC, N), arrays["inp"], arrays["dout"], arrays["dweight"], add=True)


def multiplier(device: Libraries, tf32: bool = False) -> Any:
    """The device's matrix products. Raises LadderError where it has none."""
    found = device.matrix_product(tf32)
    if found is None:
        raise LadderError(f"cuBLAS runs on NVIDIA GPUs, not on device {device.name}")
    return found


def linear(device: Libraries, tf32: bool = False) -> Any:
    """The device's linear layers. Raises LadderError where it has none."""
    found = device.linear_layer(tf32)
    if found is None:
        raise LadderError(f"cuBLASLt runs on NVIDIA GPUs, not on device {device.name}")
    return found


def library_rungs(run: Callable[..., None]) -> tuple[Rung, Rung]:
    """The rungs of a function above, in the run's type and in TF32. They need an NVIDIA GPU: AMD's
    have no compute capability."""
    header = {"needs": ("sm >= 70",)}
    if run is forward:
        header["rounds"] = ("the product to 16 bits before it adds it to what out held",)
    rung = Rung("cublas", "cuBLAS", header=header, run=run, prepare=_prepare, library=True)
    return rung, in_tf32(rung)


def one_kernel_rungs() -> tuple[Rung, Rung]:
    """The rungs of `forward_one_kernel`. Rows must begin at multiples of 16 bytes."""
    header = {"needs": ("sm >= 70; C % vector == 0; OC % vector == 0",)}
    idea = "cuBLASLt, bias in the epilogue"
    rung = Rung(
        "cublaslt",
        idea,
        header=header,
        run=forward_one_kernel,
        prepare=_prepare_one,
        library=True,
    )
    return rung, in_tf32(rung)


def in_tf32(rung: Rung) -> Rung:
    """The same library rung in TF32."""
    assert rung.run is not None and rung.prepare is not None
    needs = ("real == float32", *(line.replace("70", "80") for line in rung.header["needs"]))
    return dataclasses.replace(
        rung,
        id=f"{rung.id}-tf32",
        idea=f"{rung.idea}, in TF32",
        header={"needs": needs, "tf32": ("both factors, by the library",)},
        run=functools.partial(rung.run, tf32=True),
        prepare=functools.partial(rung.prepare, tf32=True),
    )


def _prepare_one(device: Device, real: np.dtype, dims: Dims, tf32: bool = False) -> None:
    """Let it choose its kernels now, and not while a graph records."""
    for bias in (False, True):
        linear(device, tf32).ask(real, dims["N"], dims["C"], dims["OC"], bias=bias)


def _prepare(device: Device, real: np.dtype, dims: Dims, tf32: bool = False) -> None:
    """Make the handle and compile the kernel now: neither is possible while a graph records."""
    multiplier(device, tf32)
    _broadcast(device, real, dims["N"], dims["OC"])


@functools.cache
def _broadcast(device: Device, real: np.dtype, N: int, OC: int) -> Callable[[Any, Any], None]:
    """A function (out, bias) that writes the bias (OC) into each of the N rows of out."""
    rung = rung_file.parse(BROADCAST_BIAS, "broadcast_bias")
    dims, target = {"N": N, "OC": OC}, device.target(real)
    plan = rung.plan(dims, target)
    (launch,) = plan.launches
    kernel = device.compile(rung, plan.constants, real)[launch.kernel]
    return lambda out, bias: kernel(launch, (out, bias, np.int32(N), np.int32(OC)))
