"""The cuBLAS rungs ask for the right products: seen by a stand-in for cuBLAS that uses NumPy."""

import contextlib
import types

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import bind
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.device.cuda import cublas
from ladder.core.device.cuda.gpu import Cuda
from ladder.core.device.open import open_device
from ladder.core.verify.inputs import make_inputs
from ladder.core.verify.tolerance import expect
from tests.ladder.core.device.fake_blas import multiply

pytestmark = pytest.mark.emulator

TYPES = {0: DTYPES["float32"], 2: DTYPES["float16"], 14: DTYPES["bfloat16"]}
PRODUCTS = ["matmul.forward", "matmul.backward_input", "matmul.backward_weight"]


class Address:
    def __init__(self, ptr):
        self.ptr = ptr


class GpuArray:
    """What the rungs use of a CuPy array, over memory of the host."""

    def __init__(self, host):
        self.host, self.shape, self.dtype, self.flags = host, host.shape, host.dtype, host.flags
        self.data = Address(host.ctypes.data)


class FakeCublas:
    """The functions of libcublas that are called through ctypes, all returning status 0.

    `handles` has the stream and the workspace of each handle; `used`, the handles of products."""

    def __init__(self):
        self.handles, self.used = {}, []

    def cublasCreate_v2(self, handle):
        handle._obj.value = 7 + len(self.handles)
        self.handles[handle._obj.value] = None
        return 0

    def cublasSetStream_v2(self, handle, stream):
        self.handles[handle.value] = stream.value, None
        return 0

    def cublasSetWorkspace_v2(self, handle, address, size):
        stream, _ = self.handles[handle.value]
        self.handles[handle.value] = stream, address.value
        return int(not address.value or size.value != 32 << 20)

    def cublasSetMathMode(self, handle, mode):
        return int(mode != 16)

    def cublasGemmEx(
        self, handle, transa, transb, m, n, k, alpha, a, ta, lda, b, tb, ldb, beta, c, tc, ldc,
        compute, algorithm,
    ):  # fmt: skip
        assert (compute, algorithm, ta) == (68, -1, tb)
        self.used.append(handle.value)
        first, second = (transa, a, TYPES[ta], lda), (transb, b, TYPES[tb], ldb)
        multiply(m, n, k, alpha, first, second, beta, (c, TYPES[tc], ldc))
        return 0


class Gpu(Cuda):
    """A CUDA device whose kernels run on the emulator and whose cuBLAS is the one above."""

    name = "a GPU of the tests"
    device, stream = contextlib.nullcontext(), types.SimpleNamespace(ptr=3)
    recording = False

    def __init__(self):
        self.emulated = open_device("emulated")
        self._products, self._layers = {}, {}

    def empty(self, shape, dtype):
        return GpuArray(self.emulated.empty(shape, dtype))

    def target(self, real):
        target = self.emulated.target(real)
        return type(target)("sm_90a", 32, 132, 227 << 10, target.real)

    def compile(self, rung, defines, real):
        def on_host(kernel):
            return lambda launch, args: kernel(
                launch, tuple(a.host if isinstance(a, GpuArray) else a for a in args)
            )

        kernels = self.emulated.compile(rung, defines, real)
        return {name: on_host(kernel) for name, kernel in kernels.items()}


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr("ladder.core.device.cuda.cublas.load", FakeCublas)
    return Gpu()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", list(DTYPES)[1:])
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_product_is_that_of_the_contract(gpu, name, dtype, bias):
    ladder, real = find(name), DTYPES[dtype]
    for dims in ({"N": 5, "C": 7, "OC": 11}, {"N": 5, "C": 16, "OC": 24}):
        values = make_inputs(ladder.op, dims, real, np.random.default_rng(0))
        if not bias:
            values.pop("bias", None)
        arrays = dict.fromkeys(arg.name for arg in ladder.op.args)
        for arg in ladder.op.args:
            if arg.name in values:
                arrays[arg.name] = GpuArray(values[arg.name].copy())
            elif arg.role == "out":
                arrays[arg.name] = GpuArray(np.full(arg.resolve_shape(dims), np.nan, real))
        bind(ladder.op, ladder.rung("cublas"), gpu, real, dims, arrays)()
        for output in expect(ladder.op, dims, real, values):
            problem, _ = output.verify(arrays[output.arg.name].host)
            assert problem is None, dims


def test_each_stream_has_a_handle_and_a_workspace_of_its_own(gpu):
    a, b, out = (GpuArray(np.ones((2, 2), np.float32)) for _ in range(3))
    multiply = cublas.CuBlas(gpu)
    library = multiply._library
    main, side = gpu.stream, types.SimpleNamespace(ptr=4)
    for stream in (main, side, main, side):
        gpu.stream = stream
        multiply("NN", (2, 2, 2), a, b, out)
    streams, workspaces = zip(*(library.handles[handle] for handle in library.used), strict=True)
    assert streams == (3, 4, 3, 4)
    assert len(library.handles) == len(set(workspaces)) == 2


def test_a_first_product_on_a_stream_is_not_recorded(gpu):
    multiply = cublas.CuBlas(gpu)
    gpu.stream, gpu.recording = types.SimpleNamespace(ptr=4), True
    array = GpuArray(np.ones((2, 2), np.float32))
    with pytest.raises(LadderError, match=r"a GPU of the tests: .*record"):
        multiply("NN", (2, 2, 2), array, array, array)
    gpu.recording = False
    multiply("NN", (2, 2, 2), array, array, array)
    gpu.recording = True
    multiply("NN", (2, 2, 2), array, array, array)
    assert multiply._library.used == [8, 8]
