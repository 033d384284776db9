"""NVIDIA's libraries on one GPU: cuBLAS and cuBLASLt."""

from ladder.core.contract.libraries import Libraries
from ladder.core.device.cuda.cublas import COMPUTE_32F, COMPUTE_32F_FAST_TF32, CuBlas
from ladder.core.device.cuda.cublaslt import Linear
from ladder.core.device.cupy.protocol import Gpu


class CudaLibraries(Libraries):
    """cuBLAS and cuBLASLt, in float32 and in TF32, each opened once."""

    ids = frozenset({"cublas", "cublaslt", "cublas-tf32", "cublaslt-tf32"})

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._products: dict[bool, CuBlas] = {}
        self._layers: dict[bool, Linear] = {}

    def matrix_product(self, tf32: bool = False) -> CuBlas:
        if tf32 not in self._products:
            self._products[tf32] = CuBlas(self._gpu, _compute(tf32))
        return self._products[tf32]

    def linear_layer(self, tf32: bool = False) -> Linear:
        if tf32 not in self._layers:
            self._layers[tf32] = Linear(self._gpu, _compute(tf32))
        return self._layers[tf32]


def _compute(tf32: bool) -> int:
    return COMPUTE_32F_FAST_TF32 if tf32 else COMPUTE_32F
