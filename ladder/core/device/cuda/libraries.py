"""NVIDIA's libraries on one GPU: cuBLAS and cuBLASLt."""

from __future__ import annotations

import functools

from ladder.core.contract.libraries import Libraries
from ladder.core.device.cuda.cublas import COMPUTE_32F, COMPUTE_32F_FAST_TF32, CuBlas
from ladder.core.device.cuda.cublaslt import Linear
from ladder.core.device.cupy.protocol import Gpu


class CudaLibraries(Libraries):
    """cuBLAS and cuBLASLt, in float32 and in TF32, each opened once."""

    ids = frozenset({"cublas", "cublaslt", "cublas-tf32", "cublaslt-tf32"})

    def __init__(self, gpu: Gpu) -> None:
        self._products = functools.cache(functools.partial(CuBlas, gpu))
        self._layers = functools.cache(functools.partial(Linear, gpu))

    def matrix_product(self, tf32: bool = False) -> CuBlas:
        return self._products(COMPUTE_32F_FAST_TF32 if tf32 else COMPUTE_32F)

    def linear_layer(self, tf32: bool = False) -> Linear:
        return self._layers(COMPUTE_32F_FAST_TF32 if tf32 else COMPUTE_32F)
