"""The CUDA device: runs the cubins of ladder/core/device/cuda/compiler.py through CuPy."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.install import install, pip
from ladder.core.contract.device import aligned_empty, refuse_tile
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.rung_file import Rung
from ladder.core.device.cuda import compiler
from ladder.core.device.cuda.cublas import COMPUTE_32F, COMPUTE_32F_FAST_TF32, CuBlas, Linear
from ladder.core.device.cuda.nvrtc import find_nvrtc
from ladder.core.device.cuda.sensors import Nvml, condition
from ladder.core.device.cupy.gpu import CupyGpu, CupyKernel, count_gpus, said, why_no_import

# Compute capability times ten; the kernels are compiled for nothing older, and CUDA 13 cannot.
VISIBLE = ("CUDA_VISIBLE_DEVICES",)
_OLDEST = min(int(arch.removeprefix("sm_").rstrip("a")) for arch in compiler.TYPICAL)

OLDEST_DRIVER = 12000  # of the CuPy wheels in pyproject.toml

_BFLOAT16 = 80  # Ampere: the first tensor cores that multiply bfloat16

_RECORD_EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL

# CUtensorMapDataType of the driver's cuda.h
_TENSOR_TYPES = {"uint32": 2, "int32": 3, "float16": 6, "float32": 7, "bfloat16": 9, "tf32": 11}


class CudaKernel(CupyKernel):
    """A kernel of a cubin.

    In a graph, one that prefetches starts while the kernel before it runs. Outside of graphs it
    does not: there a copy from the host may come before it, and the host takes longer for a launch
    than such a kernel does.
    """

    def __init__(self, device: CupyGpu, raw: Any, path: Path) -> None:
        super().__init__(device, raw, path)
        self._static_shared = raw.shared_size_bytes
        self._dynamic_shared = raw.max_dynamic_shared_size_bytes

    def launch(self, launch: Launch, values: list[Any]) -> None:
        if launch.prefetch and self.device.recording:
            status = launch_dependent(self.raw.kernel.ptr, launch, values, self.device.stream.ptr)
            if status:
                raise self.device.cupy.cuda.driver.CUDADriverError(status)
        else:
            super().launch(launch, values)

    def prepare(self, launch: Launch) -> None:
        """CUDA wants to be asked for more than 48 KB of shared memory, kernel by kernel."""
        if launch.shared <= self._dynamic_shared:
            return
        most = self.device.shared_bytes - self._static_shared
        if launch.shared > most:
            raise LadderError(
                f"{self.label} is launched with {launch.shared} bytes of dynamic shared memory; "
                f"on {self.device.name} it can have {most}"
            )
        self.raw.max_dynamic_shared_size_bytes = launch.shared
        self._dynamic_shared = launch.shared


class Cuda(CupyGpu):
    """One NVIDIA GPU."""

    kind = "cuda"
    kernel, compiler = CudaKernel, compiler
    marks_in_graphs = True
    warp = compiler.WARP_SIZE
    serialize = "CUDA_LAUNCH_BLOCKING=1"
    library_rungs = frozenset({"cublas", "cublaslt", "cublas-tf32", "cublaslt-tf32"})

    def __init__(self, index: int = 0) -> None:
        """Raises LadderError where there is no driver, CuPy or GPU of that index, or an old one."""
        self.cupy = _import_cupy()
        wheel = self.cupy.cuda.runtime.runtimeGetVersion
        self._use(index, lambda error: _why_no_device(error, wheel()), "nvidia-smi")

    def _open(self, index: int) -> None:
        runtime = self.cupy.cuda.runtime
        properties = runtime.getDeviceProperties(index)
        self.name = properties["name"].decode()
        capability = int(self.cupy.cuda.Device(index).compute_capability)
        if capability < _OLDEST:
            raise LadderError(
                f"{self.name} has compute capability {capability / 10}, and the kernels need "
                f"{_OLDEST / 10} or more; --device emulated runs them on the CPU"
            )
        self.arch = compiler.architecture(capability)
        self.bfloat16 = capability >= _BFLOAT16
        self.multiprocessors = properties["multiProcessorCount"]
        self.shared_bytes = properties["sharedMemPerBlockOptin"]
        self.l2_bytes = properties["l2CacheSize"]
        self._products: dict[bool, CuBlas] = {}  # by whether float32 is multiplied as TF32
        self._layers: dict[bool, Linear] = {}
        self._driver_major = runtime.driverGetVersion() // 1000
        self._attach(index)

    def matrix_product(self, tf32: bool = False) -> CuBlas:
        if tf32 not in self._products:
            self._products[tf32] = CuBlas(self, COMPUTE_32F_FAST_TF32 if tf32 else COMPUTE_32F)
        return self._products[tf32]

    def linear_layer(self, tf32: bool = False) -> Linear:
        if tf32 not in self._layers:
            self._layers[tf32] = Linear(self, COMPUTE_32F_FAST_TF32 if tf32 else COMPUTE_32F)
        return self._layers[tf32]

    def tensor_map(self, array: Any, box: tuple[int, int], tf32: bool = False) -> np.void:
        """What the driver makes of it is opaque: 128 bytes, which a kernel takes by value."""
        refuse_tile(array, box)
        rows, columns = array.size // array.shape[-1], array.shape[-1]
        made = aligned_empty((128,), np.dtype(np.uint8))
        self._ask_driver(
            "the driver makes no tensor map",
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(made.ctypes.data),
            ctypes.c_int(_TENSOR_TYPES["tf32" if tf32 else array.dtype.name]),
            ctypes.c_uint32(2),
            ctypes.c_void_p(array.data.ptr),
            (ctypes.c_uint64 * 2)(columns, rows),
            (ctypes.c_uint64 * 1)(columns * array.dtype.itemsize),  # from row to row
            (ctypes.c_uint32 * 2)(box[1], box[0]),
            (ctypes.c_uint32 * 2)(1, 1),  # every element of a box
            ctypes.c_int(0),  # not interleaved
            ctypes.c_int(3),  # CU_TENSOR_MAP_SWIZZLE_128B
            ctypes.c_int(3),  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B
            ctypes.c_int(0),  # zeros past the end
        )
        opaque: np.void = made.view("V128")[0]
        return opaque

    def mark(self) -> Any:
        """In a graph, an event becomes a node, which each replay passes. Such a mark must be kept
        as long as the graph."""
        if not self.recording:
            return super().mark()
        event = self.cupy.cuda.Event()
        record = ctypes.c_void_p(event.ptr), ctypes.c_void_p(self.stream.ptr), _RECORD_EXTERNAL
        self._ask_driver("an event does not go into a graph", "cuEventRecordWithFlags", *record)
        return event

    def allocation(self, array: Any) -> int:
        """Where the allocation begins of which an array is a part."""
        begin, size, at = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64(array.data.ptr)
        arguments = ctypes.byref(begin), ctypes.byref(size), at
        self._ask_driver("the driver finds no allocation", "cuMemGetAddressRange_v2", *arguments)
        return begin.value

    def _ask_driver(self, problem: str, function: str, *arguments: Any) -> None:
        """Call the driver. Raises LadderError, which names the problem, where it refuses."""
        with self.device:
            status = getattr(ctypes.CDLL("libcuda.so.1"), function)(*arguments)
        if status:
            raise LadderError(f"{self.name}: {problem}: CUDA error {status}")

    def compile_ahead(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> Path:
        return compiler.compile_cubin(rung, defines, real, self.arch, newest=self._driver_major)

    @contextlib.contextmanager
    def annotate(self, name: str) -> Iterator[None]:
        """An NVTX range, which Nsight shows."""
        from cupy.cuda import nvtx

        nvtx.RangePush(name)
        try:
            yield
        finally:
            nvtx.RangePop()

    def condition(self) -> str | None:
        return condition(self.device.pci_bus_id)

    def sensors(self) -> Nvml:
        return Nvml(self.device.pci_bus_id)

    def description(self) -> dict[str, str | int]:
        """What belongs to a measurement: the GPU and the versions of what drives it."""
        properties = self.cupy.cuda.runtime.getDeviceProperties(self.device.id)
        version = find_nvrtc(self._driver_major).version
        return {
            "gpu": self.name,
            "arch": self.arch,
            "multiprocessors": self.multiprocessors,
            "clock_mhz": self.device.attributes.get("ClockRate", 0) // 1000,
            "l2_bytes": self.l2_bytes,
            "memory_bytes": properties["totalGlobalMem"],
            "driver": driver_release() or "unknown",
            "cuda_driver": dotted(self.cupy.cuda.runtime.driverGetVersion()),
            "nvrtc": f"{version[0]}.{version[1]}",
            "cupy": self.cupy.__version__,
        }


def driver_version() -> int | None:
    """The CUDA version that the NVIDIA driver supports, 13000 for 13.0; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return None if library.cuDriverGetVersion(ctypes.byref(version)) else version.value


def has_driver() -> bool:
    """Whether this machine has an NVIDIA driver, and so most likely a GPU."""
    return bool(driver_version())


def driver_release() -> str | None:
    """The driver's own number, such as 580.95.05; None where the system does not tell."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    words = [word for word in text.splitlines()[0].split() if word[0].isdigit() and "." in word]
    return words[0] if words else None


def _import_cupy() -> Any:
    driver = driver_version()
    if driver is None:
        raise LadderError(
            "no NVIDIA driver was found (libcuda.so.1); "
            "--device emulated runs the same kernels on the CPU"
        )
    try:
        import cupy
    except ImportError as error:
        if driver < OLDEST_DRIVER:
            raise LadderError(
                f"the NVIDIA driver supports CUDA {dotted(driver)}, and CuPy needs one for CUDA "
                f"{dotted(OLDEST_DRIVER)} or newer: update the driver"
            ) from None
        extra = "cuda13" if driver >= 13000 else "cuda12"
        raise LadderError(f"CuPy {why_no_import(error)}: {install(extra)}") from None
    return cupy


def count() -> int:
    """How many GPUs CuPy sees; 0 where it cannot tell."""
    return count_gpus(_import_cupy)


def _why_no_device(error: Exception, wheel: int) -> str:
    """Why CUDA lists no device, as a remedy: the driver is too old, or there is no GPU.

    wheel  the CUDA version that CuPy is made for
    """
    driver = driver_version() or 0
    older = driver // 1000 < wheel // 1000
    if older or "cudaErrorInsufficientDriver" in str(error):
        remedy = ""
        if older and driver >= 12000:
            remedy = f" or {pip(f'uninstall cupy-cuda{wheel // 1000}x')} and {install('cuda12')}"
        return (
            f"the NVIDIA driver supports CUDA {dotted(driver)}, but CuPy here is for CUDA "
            f"{dotted(wheel)}: update the driver{remedy}"
        )
    return f"CUDA finds no GPU ({said(error)}); nvidia-smi should list one"


def dotted(version: int) -> str:
    """13.1 of CUDA's own way to write it, 13010."""
    return f"{version // 1000}.{version % 1000 // 10}"


# ---- launches of kernels that start while the one before runs, by CUDA's driver: CuPy's launch has
# ---- no attributes, and programmatic dependent launch is one
# https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html

_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_...


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes, of which this one uses an int."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int * 16),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def launch_dependent(function: int, launch: Launch, values: Sequence[Any], stream: int) -> int:
    """Submit a kernel that may start before the one before it on the stream has ended.

    function, stream  handles of the driver
    values            the arguments: NumPy scalars, and CuPy arrays, of which it passes the address

    Returns the driver's status, 0 for success.
    """
    held = [np.asarray(_value(value)) for value in values]
    pointers = (ctypes.c_void_p * len(held))(*(array.ctypes.data for array in held))
    attribute = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, (ctypes.c_int * 16)(1))
    config = _Config(launch.grid, launch.block, launch.shared, stream, ctypes.pointer(attribute), 1)
    status: int = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx(
        ctypes.byref(config), ctypes.c_void_p(function), pointers, None
    )
    return status


def _value(argument: Any) -> Any:
    """What the kernel takes by value: of an array, its address."""
    data: Any = getattr(argument, "data", None)
    return np.uint64(data.ptr) if hasattr(data, "ptr") else argument
