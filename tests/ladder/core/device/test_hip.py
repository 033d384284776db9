"""The HIP device, on a runtime that is made up: the right calls in the right order, and errors with
their remedies. No AMD GPU has run it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from ladder.core.amd.hip import compiler, gpu
from ladder.core.common.errors import DeviceFault, LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.op import DTYPES, REALS
from ladder.core.device.cuda import gpu as cuda
from ladder.core.device.open import default_device, open_device
from ladder.core.emulator.emulated import Emulated
from ladder.core.verify.check import check
from tests.ladder.core.device import fake_cupy
from tests.ladder.core.device.fake_blas import multiply
from tests.ladder.core.device.fake_cupy import FakeCupy


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that makes this a machine with AMD GPUs; it returns its CuPy."""
    modules, names = {}, {}
    emulator = Emulated(warp=64)

    def compile_code_object(rung, defines, real, arch, warp):
        assert (arch, warp) == ("gfx942", 64)
        path = tmp_path / f"{rung.id}-{hash(tuple(defines.items()))}-{real}.hsaco"
        modules[str(path)] = emulator.compile(rung, defines, real)
        names[path] = dict.fromkeys(modules[str(path)])
        return path

    def make(**options):
        cupy = FakeCupy(modules, **options)
        driver = tmp_path / "kfd"
        driver.write_text("")
        monkeypatch.setattr(gpu, "DRIVER", driver)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setattr(compiler, "compile_code_object", compile_code_object)
        monkeypatch.setattr(compiler, "resources", names.__getitem__)
        return cupy

    return make


# ---- what it is ----


def test_its_properties_are_those_of_the_runtime(machine):
    machine()
    device = open_device("hip")
    target = device.target(DTYPES["float16"])
    assert (device.name, device.kind, device.is_gpu) == ("AMD Instinct MI300X", "hip", True)
    assert (target.arch, target.warp, target.multiprocessors) == ("gfx942", 64, 304)
    assert (target.shared_bytes, target.cdna, target.sm) == (64 << 10, 3, 0)
    assert device.l2_bytes == 256 << 20  # the Infinity Cache, which HIP does not report
    assert device.bfloat16
    assert device.memory() == ((100 << 30) + (1 << 20), 192 << 30)


def test_a_rdna_2_card_has_waves_of_32_and_no_bfloat16(machine):
    machine(properties={"gcnArchName": b"gfx1030", "warpSize": 32})
    device = open_device("hip:0")
    assert device.target(DTYPES["float32"]).warp == 32
    assert not device.bfloat16


# ---- what it does ----


@pytest.mark.emulator
def test_a_rung_is_checked_through_load_launch_and_copies(machine):
    """The whole way of `check --device hip`, with the emulator in place of the card."""
    cupy = machine()
    device = open_device("hip")
    ladder = find("layernorm.forward")
    report = check(ladder, ladder.rung("3"), device, ["bfloat16"], [{"N": 5, "C": 96}])
    assert report.passed, str(report)
    kinds = [call.split()[0] for call in cupy.calls]
    assert kinds.count("load") == 1
    assert kinds.index("load") < kinds.index("launch")
    assert device.name in str(report)


def test_a_missing_array_is_a_null_pointer_and_numbers_keep_their_width(machine):
    machine()
    device = open_device("hip")
    seen = []
    kernel = kernel_of(device, lambda launch, args: seen.extend(args))
    array = device.empty((1,), np.dtype(np.float32))
    kernel(Launch("k", (1, 1, 1), (64, 1, 1)), (array, None, np.int32(7)))
    device.synchronize()
    assert (seen[1], seen[2].nbytes) == (None, 4)


def test_it_submits_to_another_librarys_stream_while_it_is_asked_to(machine):
    cupy = machine()
    device = open_device("hip")
    array, own = device.empty((2,), np.dtype(np.float32)), device.stream
    with device.device:
        other = cupy.Stream(non_blocking=True)
    cupy.ExternalStream = {7: other}.__getitem__
    device.upload(array, np.ones(2))
    with device.on(7):
        device.zero(array)
    assert device.stream is own
    assert device.download(array).tolist() == [1, 1]
    other.synchronize()
    assert device.download(array).tolist() == [0, 0]


def test_arrays_go_there_and_back_in_the_order_of_the_stream(machine):
    machine()
    device = open_device("hip")
    a, b = (device.empty((3, 2), np.dtype(np.float32)) for _ in range(2))
    device.upload(a, np.arange(6).reshape(3, 2))
    before = device.fetch(a)
    device.copy(b, a)
    device.zero(a)
    assert device.download(a).tolist() == [[0, 0], [0, 0], [0, 0]]
    assert device.download(b).tolist() == before().tolist() == [[0, 1], [2, 3], [4, 5]]


def test_work_beside_waits_for_what_came_before_and_is_joined(machine):
    machine()
    device = open_device("hip")
    a, b = (device.empty((2,), np.dtype(np.float32)) for _ in range(2))
    device.upload(a, np.ones(2))
    end = device.fork(lambda: device.copy(b, a))
    device.join(end)
    device.zero(a)
    assert device.download(b).tolist() == [1, 1]


@pytest.mark.parametrize("has_graphs", [True, False])
def test_work_is_repeated_as_a_graph_or_else_one_by_one(machine, has_graphs):
    cupy = machine(has_graphs=has_graphs)
    device = open_device("hip")
    array, ones = (device.empty((2,), np.dtype(np.float32)) for _ in range(2))
    device.upload(ones, np.ones(2))
    device.zero(array)
    replay = device.capture(lambda: device.copy(array, ones))
    assert device.download(array).tolist() == [0, 0], "recorded, not run"
    replay()
    assert device.download(array).tolist() == [1, 1]
    assert ("graph" in cupy.calls) == has_graphs
    device.capture(lambda: None)
    assert cupy.calls.count("begin capture") == (2 if has_graphs else 1)  # it is tried once


def test_its_sibling_for_cuda_asks_for_much_shared_memory_and_hip_does_not(machine, monkeypatch):
    cupy = machine()
    launch = Launch("k", (1, 1, 1), (64, 1, 1), 60_000)
    kernel_of(open_device("hip"))(launch, ())
    assert cupy.calls == ["launch k"]
    cupy.is_hip = False
    monkeypatch.setattr(cuda, "_import_cupy", lambda: cupy)
    kernel = kernel_of(open_device("cuda"))
    for _ in range(2):
        kernel(launch, ())
    assert cupy.calls == ["launch k", "allow 60000", "launch k", "launch k"]


TYPES = {150: DTYPES["float16"], 151: DTYPES["float32"], 168: DTYPES["bfloat16"]}


class FakeRocblas:
    """The functions of librocblas that are called through ctypes; 0 is success."""

    def rocblas_create_handle(self, handle):
        return 0

    def rocblas_set_workspace(self, handle, address, size):
        return int(not address.value or size.value != 32 << 20)

    def rocblas_set_stream(self, handle, stream):
        return int(not stream.value)

    def rocblas_gemm_ex(
        self, handle, transa, transb, m, n, k, alpha, a, ta, lda, b, tb, ldb, beta, c, tc, ldc,
        d, td, ldd, compute, algorithm, solution, flags,
    ):  # fmt: skip
        assert (c.value, tc, ldc) == (d.value, td, ldd)
        assert (compute, algorithm, solution, flags) == (151, 0, 0, 0)
        first, second = (transa != 111, a, TYPES[ta], lda), (transb != 111, b, TYPES[tb], ldb)
        multiply(m, n, k, alpha, first, second, beta, (c, TYPES[tc], ldc))
        return 0


@pytest.mark.parametrize("dtype", REALS)
def test_the_library_multiplies_as_it_is_asked_to(machine, monkeypatch, dtype):
    machine()
    monkeypatch.setattr(gpu, "load_rocblas", FakeRocblas)
    device, real = open_device("hip"), DTYPES[dtype]
    values = [np.arange(rows * 3).reshape(rows, 3) % 5 for rows in (4, 5)]  # exact in bfloat16
    inp, weight = (device.empty(value.shape, real) for value in values)
    out = device.empty((4, 5), real)
    for array, value in ((inp, values[0]), (weight, values[1]), (out, np.ones((4, 5)))):
        device.upload(array, value)
    device.synchronize()
    device.matrix_product()("TN", (5, 4, 3), weight, inp, out, add=True)
    expected = values[0] @ values[1].T + 1
    assert device.download(out).astype(np.float32).tolist() == expected.tolist()


# ---- what goes wrong ----


def kernel_of(device, function=lambda launch, args: None):
    raw = fake_cupy.RawKernel(device.cupy, function, "k")
    return device.kernel(device, raw, Path("mine.cu"))


def test_a_grid_of_too_many_threads_is_refused_before_the_launch(machine):
    machine()
    kernel = kernel_of(open_device("hip"))
    with pytest.raises(LadderError, match=r"mine\.cu.*4,294,967,296 threads"):
        kernel(Launch("k", (1 << 22, 1, 1), (1024, 1, 1)), ())


def test_a_launch_that_fails_names_the_kernel_and_its_sizes(machine):
    machine()
    kernel = kernel_of(open_device("hip"))
    with pytest.raises(LadderError, match=r"k \(mine\.cu\).*70000"):
        kernel(Launch("k", (1, 1, 1), (64, 1, 1), 70_000), ())


def test_a_fault_in_a_kernel_says_which_and_how_to_find_it(machine):
    cupy = machine()
    device = open_device("hip")
    for _ in range(2):
        kernel_of(device)(Launch("k", (1, 1, 1), (64, 1, 1)), ())
    cupy.sticky = fake_cupy.RuntimeError_(700, "an illegal memory access was encountered")
    with pytest.raises(DeviceFault, match=r"\bk \(mine\.cu\)"):
        device.synchronize()


def test_too_large_an_array_says_what_is_free(machine):
    machine()
    with pytest.raises(LadderError, match=r"102,401 MiB .* 196,608 MiB"):
        open_device("hip").empty((1 << 34,), np.dtype(np.float32))


def test_without_a_driver_the_emulated_device_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "DRIVER", tmp_path / "none")
    with pytest.raises(LadderError, match=r"AMD .*/none.*--device emulated"):
        open_device("hip")


def test_cupy_for_nvidia_is_no_use(machine):
    machine().is_hip = False
    with pytest.raises(LadderError, match=r"CuPy .*NVIDIA.* uninstall"):
        open_device("hip")


@pytest.mark.parametrize(
    ("gpus", "name", "names"),
    [(0, "hip", "rocminfo.*render.*video"), (2, "hip:2", "hip:2.*hip:0, hip:1")],
)
def test_a_gpu_that_is_not_there(machine, gpus, name, names):
    machine(gpus=gpus)
    with pytest.raises(LadderError, match=names):
        open_device(name)


# ---- what doctor says ----


def test_an_amd_gpu_is_the_default_where_there_is_no_other(machine):
    machine()
    assert default_device() in ("hip", "cuda")
