"""cuBLASLt is told the right things: by a stand-in that uses NumPy, and by the library itself."""

import ctypes
import types

import numpy as np
import pytest
from test_cublas import TYPES, Gpu, GpuArray, matrix, scalar

from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import bind
from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.host_arrays import aligned_empty
from ladder.core.contract.ladder import find
from ladder.core.device.cuda import cublaslt
from ladder.core.device.open import open_device
from ladder.core.verify.inputs import make_inputs
from ladder.core.verify.tolerance import expect
from ladder.matmul.library_rungs import linear
from reference import gelu

pytestmark = pytest.mark.emulator

RUNGS = [("matmul.forward", "cublaslt"), ("matmul_gelu.forward", "cublaslt")]
SIZES = {3: 4, 4: 4, 7: 4, 8: 8, 11: 8, 12: 8}  # bytes of an operation's attributes
DEFAULTS = {3: 0, 4: 0, 7: 1, 8: None, 11: None, 12: 0}


class FakeCublasLt:
    """The functions of libcublasLt that are called through ctypes."""

    def __init__(self, unsupported=()):
        self.objects, self.unsupported, self.asked = {}, unsupported, []
        self.used = []  # (stream, workspace) of each product

    def _create(self, out, content):
        out._obj.value = 1000 + len(self.objects)
        self.objects[out._obj.value] = content
        return 0

    def cublasLtCreate(self, handle):
        return self._create(handle, "handle")

    def cublasLtMatmulDescCreate(self, operation, compute, scale):
        assert (compute, scale) == (68, 0)  # sums, alpha and beta in float32
        return self._create(operation, dict(DEFAULTS))

    def cublasLtMatmulDescSetAttribute(self, operation, attribute, value, size):
        assert size.value == SIZES[attribute] == ctypes.sizeof(value._obj)
        self.objects[operation.value][attribute] = value._obj.value
        return 0

    def cublasLtMatrixLayoutCreate(self, layout, code, rows, columns, leading):
        assert [type(n) for n in (rows, columns, leading)] == [
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_int64,
        ]
        return self._create(layout, (code, rows.value, columns.value, leading.value))

    def cublasLtMatmulPreferenceCreate(self, preference):
        return self._create(preference, {})

    def cublasLtMatmulPreferenceSetAttribute(self, preference, attribute, value, size):
        assert size.value == {1: 8}.get(attribute, 4) == ctypes.sizeof(value._obj)
        self.objects[preference.value][attribute] = value._obj.value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle, operation, a, b, c, d, preference, most, found, count
    ):
        assert self.objects[handle.value] == "handle"
        aligned = dict.fromkeys((5, 6, 7, 8), 16)
        assert self.objects[preference.value] == {1: 32 << 20, 3: 2, **aligned}
        assert most == 1
        assert c.value == d.value
        description = self.objects[operation.value]
        assert all(description[i] is None or description[i] % 32 == 16 for i in (8, 11))
        self.asked.append((description[7], self.objects[a.value]))
        if (description[7], self.objects[a.value][0]) in self.unsupported:
            return 15
        found._obj.algorithm[7] = operation.value  # to be known again
        count._obj.value = 1
        return 0

    def cublasLtMatmul(
        self, handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
        algorithm, workspace, size, stream,
    ):  # fmt: skip
        assert (scalar(ctypes.addressof(alpha._obj)), beta._obj.value) == (1, 0)
        assert self.objects[handle.value] == "handle"
        assert algorithm._obj[7] == operation.value
        self.used.append((stream.value, workspace.value))
        assert workspace.value
        assert size.value == 32 << 20
        description = self.objects[operation.value]

        def stored(address, layout):
            code, rows, columns, leading = self.objects[layout.value]
            assert rows == leading
            assert address.value % 16 == 0
            return matrix(address.value, code, leading, columns).astype(np.float64)

        transposed = [description[attribute] for attribute in (3, 4)]
        factors = [stored(a, a_layout), stored(b, b_layout)]
        first, second = (f.T if t else f for f, t in zip(factors, transposed, strict=True))
        code, rows, columns, leading = self.objects[d_layout.value]
        assert c.value == d.value
        assert (first.shape[0], second.shape[1]) == (rows, columns)
        result = first @ second
        if description[7] & 4:
            result += matrix(description[8], code, rows, 1).astype(np.float64)
        if description[7] & 128:
            assert description[12] % 8 == 0
            matrix(description[11], code, description[12], columns)[...] = result.astype(
                TYPES[code]
            )
            gelu.forward(flat := np.empty(result.size), result.reshape(-1))
            result = flat.reshape(result.shape)
        matrix(d.value, code, leading, columns)[...] = result.astype(TYPES[code])
        return 0


@pytest.fixture
def library(monkeypatch):
    fake = FakeCublasLt()
    monkeypatch.setattr(cublaslt, "load", lambda name: fake)
    return fake


def run(name, number, real, dims, bias=True):
    """Bind the rung on a new device and run it; what is wrong with its outputs."""
    ladder = find(name)
    values = make_inputs(ladder.op, dims, real, np.random.default_rng(0))
    if not bias:
        del values["bias"]
    arrays = dict.fromkeys(arg.name for arg in ladder.op.args)
    for arg in ladder.op.args:
        if arg.name in values:
            arrays[arg.name] = on_gpu(values[arg.name])
        elif arg.role == "out":
            arrays[arg.name] = on_gpu(np.full(arg.resolve_shape(dims), np.nan, real))
    rung = ladder.rung(number)
    call = bind(ladder.op, rung, Gpu(), real, dims, arrays)
    call()
    call()
    return [
        problem
        for output in expect(ladder.op, dims, real, values)
        if (problem := output.verify(arrays[output.arg.name].host, rung.rounds, tf32=rung.tf32)[0])
    ]


def on_gpu(array):
    """A copy that is aligned as memory of a GPU is."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return GpuArray(copy)


@pytest.mark.parametrize("dtype", list(DTYPES)[1:])
@pytest.mark.parametrize(("name", "number"), RUNGS)
def test_the_result_is_that_of_the_contract(library, name, number, dtype):
    for dims in ({"N": 5, "C": 16, "OC": 24}, {"N": 33, "C": 8, "OC": 8}):
        assert run(name, number, DTYPES[dtype], dims) == []


def test_a_product_without_a_bias_has_no_epilogue(library):
    assert (
        run("matmul.forward", "cublaslt", DTYPES["bfloat16"], {"N": 5, "C": 16, "OC": 24}, False)
        == []
    )


def test_each_stream_has_a_workspace_of_its_own(library):
    gpu = Gpu()
    product = cublaslt.Linear(gpu)
    arrays = [on_gpu(np.ones((8, 8), np.float32)) for _ in range(3)]
    for stream in (3, 4, 3, 4):
        gpu.stream = types.SimpleNamespace(ptr=stream)
        product(*arrays, None)
    assert [stream for stream, _ in library.used] == [3, 4, 3, 4]
    first, second, *again = (workspace for _, workspace in library.used)
    assert first != second
    assert again == [first, second]


def test_an_algorithm_is_asked_for_once_and_before_the_first_call(library):
    dims = {"N": 5, "C": 16, "OC": 24}
    assert run("matmul_gelu.forward", "cublaslt", DTYPES["bfloat16"], dims) == []
    assert library.asked == [(164, (14, 16, 24, 16))]


def test_where_there_is_no_gelu_our_own_kernel_follows(library):
    library.unsupported = {(164, 0)}
    dims = {"N": 5, "C": 16, "OC": 24}
    assert run("matmul_gelu.forward", "cublaslt", DTYPES["float32"], dims) == []
    assert [epilogue for epilogue, _ in library.asked] == [164, 4]


def test_where_there_is_no_kernel_at_all_the_shape_is_named(library):
    library.unsupported = {(4, 14)}
    with pytest.raises(LadderError, match="bfloat16 at N=5 C=16 OC=24"):
        run("matmul.forward", "cublaslt", DTYPES["bfloat16"], {"N": 5, "C": 16, "OC": 24})


def test_a_failing_call_names_the_library_and_the_status(library, monkeypatch):
    monkeypatch.setattr(FakeCublasLt, "cublasLtMatmulPreferenceCreate", lambda *_: 3)
    with pytest.raises(LadderError, match=r"cuBLASLt .*status 3"):
        run("matmul.forward", "cublaslt", DTYPES["bfloat16"], {"N": 5, "C": 16, "OC": 24})
    with pytest.raises(LadderError, match=r"cuBLASLt .* emulated"):
        linear(open_device("emulated"))


@pytest.mark.parametrize(("name", "number"), RUNGS)
def test_what_the_library_cannot_align_is_refused(name, number):
    rung, target = find(name).rung(number), Gpu().target(DTYPES["bfloat16"])
    assert "C % vector == 0" in rung.plan({"N": 1, "C": 12, "OC": 16}, target).refusal
    assert "OC %" in rung.plan({"N": 1, "C": 16, "OC": 12}, target).refusal
