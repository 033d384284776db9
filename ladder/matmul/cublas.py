"""cuBLAS: NVIDIA's own matrix products, the measuring stick beside the matmul ladders.

cuBLAS stores matrices by columns: what we store as a matrix (rows, columns), it takes for the
transpose (columns, rows). So each product is asked for transposed, with its factors in turn:

    out.T     (OC, N) = weight @ inp.T          it sees weight.T and inp.T: "T", transpose the first
    dinp.T    (C, N)  = weight.T @ dout.T       it sees weight.T and dout.T: "N", as they are
    dweight.T (C, OC) = inp.T @ dout            it sees inp.T and dout.T: "T", transpose the second

Products are summed in float32, whatever the type of the matrices; float32 ones are not rounded to
TF32. Nothing waits for the GPU, so that a graph can record the calls; the workspace is the one that
cuBLAS keeps itself. https://docs.nvidia.com/cuda/cublas/#cublasgemmex
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ladder import rungfile
from ladder.device import Device
from ladder.errors import LadderError
from ladder.roof import CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT, CUDA_DATA_TYPES
from ladder.rungfile import Rung

BROADCAST_BIAS = Path(__file__).with_name("broadcast_bias.cu")

# Where a long sum is split, its parts are added in float32, not in the type of the result.
CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
CUBLAS_OPERATIONS = {"N": 0, "T": 1}  # as it is, transposed

# Read when a call is made, not when the GPU gets to it; gemmEx wants their addresses.
_ZERO, _ONE = np.zeros(1, np.float32), np.ones(1, np.float32)


def forward(device: Device, arrays: Mapping[str, Any], dims: Mapping[str, int], scalars) -> None:
    """out = inp @ weight.T + bias. The product is added to rows that already hold the bias.

    A bias that came after the product would be added to sums already rounded to 16 bits.
    """
    N, C, OC = dims["N"], dims["C"], dims["OC"]
    out, bias = arrays["out"], arrays["bias"]
    multiply = _multiply(device)
    if bias is not None:
        _broadcast(device, out.dtype, N, OC)(out, bias)
    multiply("TN", (OC, N, C), arrays["weight"], arrays["inp"], out, add=bias is not None)


def backward_input(device, arrays, dims, scalars) -> None:
    """dinp = dout @ weight"""
    N, C, OC = dims["N"], dims["C"], dims["OC"]
    _multiply(device)("NN", (C, N, OC), arrays["weight"], arrays["dout"], arrays["dinp"], add=False)


def backward_weight(device, arrays, dims, scalars) -> None:
    """dweight += dout.T @ inp, in float32 whatever the type of dout and inp."""
    N, C, OC = dims["N"], dims["C"], dims["OC"]
    _multiply(device)("NT", (C, OC, N), arrays["inp"], arrays["dout"], arrays["dweight"], add=True)


def library_rung(run: Callable[..., None]) -> Rung:
    """The rung of a function above. Needs an NVIDIA GPU: AMD's have no compute capability."""
    return Rung(100, "cuBLAS", header={"needs": ("sm >= 70",)}, run=run, library=True)


@functools.cache
def _multiply(device: Device) -> Callable[..., None]:
    """A function that calls cuBLAS on the device's stream.

    It takes what is done to the factors as cuBLAS sees them, the product's sizes (rows, columns,
    terms), the factors, the result, and whether to add to the result's old content.
    """
    if device.kind != "cuda":
        raise LadderError(f"cuBLAS runs on NVIDIA GPUs, not on device {device.name}")
    try:
        from cupy_backends.cuda.libs import cublas
    except ImportError as error:
        raise LadderError(
            f"cuBLAS does not load ({error}): pip install -e '.[cuda13]' brings it, or "
            "'.[cuda12]' for an older driver"
        ) from None
    try:
        with device.device:
            handle = device.cupy.cuda.device.get_cublas_handle()
        cublas.setMathMode(handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)
    except cublas.CUBLASError as error:
        raise LadderError(f"{device.name}: {error} at the start of cuBLAS") from None

    def multiply(
        operations: str, sizes: tuple[int, int, int], a: Any, b: Any, result: Any, *, add: bool
    ) -> None:
        # A row of ours, a column of theirs, is as long as the array is wide.
        a, b, result = (
            (array.data.ptr, CUDA_DATA_TYPES[array.dtype.name], array.shape[1])
            for array in (a, b, result)
        )
        try:
            with device.device, device.stream:  # cuBLAS calls go to the current stream
                cublas.gemmEx(
                    handle,
                    *(CUBLAS_OPERATIONS[letter] for letter in operations),
                    *sizes,
                    _ONE.ctypes.data,
                    *a,
                    *b,
                    (_ONE if add else _ZERO).ctypes.data,
                    *result,
                    CUBLAS_COMPUTE_32F,
                    CUBLAS_GEMM_DEFAULT,
                )
        except cublas.CUBLASError as error:
            raise LadderError(f"{device.name}: {error}, in a product of sizes {sizes}") from None

    return multiply


@functools.cache
def _broadcast(device: Device, real: np.dtype, N: int, OC: int) -> Callable[[Any, Any], None]:
    """A function (out, bias) that writes the bias (OC) into each of the N rows of out."""
    rung = rungfile.parse(BROADCAST_BIAS, "broadcast_bias")
    dims, target = {"N": N, "OC": OC}, device.target(real)
    (launch,) = rung.launches(dims, target)
    kernel = device.compile(rung, rung.defines(dims, target), real)[launch.kernel]
    return lambda out, bias: kernel(launch, (out, bias, np.int32(N), np.int32(OC)))
