"""The CUDA device: runs the cubins of ladder/device/cuda/compiler.py through CuPy.

CuPy manages memory, streams, events and graphs; it compiles nothing. This module imports without
CuPy and without a GPU, so that the error for what is missing is one line.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder.common.errors import DeviceFault, LadderError
from ladder.contract.device import refuse_tile
from ladder.contract.host_arrays import aligned_empty
from ladder.contract.launch_plan import Launch
from ladder.contract.rung_file import Rung
from ladder.contract.target import Target
from ladder.device.cuda import compiler, cublas, cublaslt, nccl
from ladder.device.cuda.nvrtc import find_nvrtc

# Above this size the bus limits a copy, and pinned memory is not returned to the system.
MOST_PINNED_BYTES = 16 << 20

# CUDA errors after which no call of this process succeeds any more: the driver has given up its
# context (illegal address, timeout, assertion, misaligned or illegal instruction, ...).
# https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
_FATAL = {700, 702, 709, 710, 714, 715, 716, 717, 718, 719}

# Compute capability times ten; the kernels are compiled for nothing older, and CUDA 13 cannot.
_OLDEST = min(int(arch.removeprefix("sm_").rstrip("a")) for arch in compiler.TYPICAL)

_BFLOAT16 = 80  # Ampere: the first tensor cores that multiply bfloat16

_NULL = np.uintp(0)

# Of a stream. What other ranks wait for goes first: its blocks get the next SMs that are free. CUDA
# takes the nearest priority that there is.
HIGHEST_PRIORITY = -100

# CUtensorMapDataType of the driver's cuda.h
_TENSOR_TYPES = {"uint32": 2, "int32": 3, "float16": 6, "float32": 7, "bfloat16": 9}


class Cuda:
    """One NVIDIA GPU, with a stream on which everything runs in order, and a second one for what
    goes on `beside` it.

    `device`, `stream` and `cupy` are CuPy's, for what calls a library instead of a kernel. `stream`
    is the one that work is submitted to at the moment.
    """

    kind = "cuda"
    is_gpu = True
    runs_reference = False
    runs_kernels = True
    measurable = True
    asynchronous = True
    libraries = frozenset({"cublas", "cublaslt"})

    def __init__(self, index: int = 0) -> None:
        """Raises LadderError where there is no driver, CuPy or GPU of that index, or an old one."""
        self.cupy = _import_cupy()
        runtime = self.cupy.cuda.runtime
        try:
            count = runtime.getDeviceCount()
        except self._cuda_errors as error:
            raise LadderError(_why_no_device(error, runtime.runtimeGetVersion())) from None
        if not 0 <= index < count:
            known = ", ".join(f"cuda:{i}" for i in range(count))
            raise LadderError(f"there is no GPU cuda:{index}; this machine has {known}")
        try:
            self._open(index)
        except self._cuda_errors as error:
            raise LadderError(
                f"cuda:{index} cannot be used: {_what(error)}; nvidia-smi shows what else uses it"
            ) from None

    def _open(self, index: int) -> None:
        runtime = self.cupy.cuda.runtime
        self.device = self.cupy.cuda.Device(index)
        properties = runtime.getDeviceProperties(index)
        self.name = properties["name"].decode()
        capability = int(self.device.compute_capability)
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
        self._driver_major = runtime.driverGetVersion() // 1000
        self._loaded: dict[Path, dict[str, CudaKernel]] = {}  # a model's layers share their kernels
        self._submitted: dict[str, None] = {}  # kernels since the last synchronize, in order
        self._copies: list[tuple[Any, Any]] = []  # (event, pinned memory) of those under way
        self.device.use()
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self._side = self.cupy.cuda.Stream(non_blocking=True, priority=HIGHEST_PRIORITY)

    @functools.cached_property
    def matrix_product(self) -> cublas.Multiplier:
        return cublas.Multiplier(self)

    @functools.cached_property
    def linear_layer(self) -> cublaslt.Linear:
        return cublaslt.Linear(self)

    def new_group(self) -> bytes:
        return nccl.unique_id()

    def join_group(self, name: bytes, rank: int, size: int) -> nccl.Communicator:
        return nccl.Communicator(self, name, rank, size)

    def variants(
        self, brief: bool = False, multiprocessors: int | None = None
    ) -> Sequence[tuple[Cuda, ...]]:
        return [(self, self)]

    def watching(self) -> None:
        return None

    def target(self, real: np.dtype) -> Target:
        return Target(
            self.arch,
            compiler.WARP_SIZE,
            self.multiprocessors,
            self.shared_bytes,
            np.dtype(real),
        )

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Raises LadderError, with what is free, where the GPU's memory does not suffice."""
        try:
            with self.device, self.stream:
                return self.cupy.empty(shape, dtype)
        except self.cupy.cuda.memory.OutOfMemoryError:
            needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
            free, total = self.memory()
            raise LadderError(
                f"{self.name} is out of memory: {_mib(needed)} more are needed, {_mib(free)} of "
                f"{_mib(total)} are free; take a smaller batch, or end what else uses the GPU"
            ) from None
        except self._cuda_errors as error:
            raise self._failure(error) from None

    def upload(self, array: Any, host: np.ndarray) -> None:
        """Small arrays go through pinned memory, and the host does not wait for the copy."""
        source = np.ascontiguousarray(host, dtype=array.dtype).reshape(array.shape)
        try:
            with self.device, self.stream:
                if not 0 < source.nbytes <= MOST_PINNED_BYTES:
                    array.set(source, self.stream)
                    return
                staged, pinned = self._pinned(array)
                staged[...] = source
                array.set(staged, self.stream)
                self._copies.append((self.stream.record(), pinned))
        except self._cuda_errors as error:
            raise self._failure(error) from None

    def zero(self, array: Any) -> None:
        # Not array.fill(0), which goes to CuPy's current stream, and that one is not ours.
        try:
            with self.device:
                array.data.memset_async(0, array.nbytes, self.stream)
        except self._cuda_errors as error:
            raise self._failure(error) from None

    def copy(self, target: Any, source: Any) -> None:
        try:
            with self.device:
                target.data.copy_from_device_async(source.data, source.nbytes, self.stream)
        except self._cuda_errors as error:
            raise self._failure(error) from None

    def download(self, array: Any) -> np.ndarray:
        self.synchronize()
        try:
            with self.device:
                copy: np.ndarray = array.get(stream=self.stream)
                return copy
        except self._cuda_errors as error:
            raise self._failure(error) from None

    def fetch(self, array: Any) -> Callable[[], np.ndarray]:
        try:
            with self.device, self.stream:
                host, pinned = self._pinned(array)
                array.get(stream=self.stream, out=host, blocking=False)
                done = self.stream.record()
                self._copies.append((done, pinned))
        except self._cuda_errors as error:
            raise self._failure(error) from None

        def wait() -> np.ndarray:
            try:
                done.synchronize()
            except self._cuda_errors as error:
                raise self._failure(error) from None
            return host

        return wait

    def _pinned(self, like: Any) -> tuple[np.ndarray, Any]:
        """A host array in pinned memory, and that memory.

        It must not be handed out again while a copy is under way, so it is kept until then.
        """
        self._copies = [copy for copy in self._copies if not copy[0].done]
        pinned = self.cupy.cuda.alloc_pinned_memory(like.nbytes)
        return np.frombuffer(pinned, like.dtype, like.size).reshape(like.shape), pinned

    def tensor_map(self, array: Any, box: tuple[int, int]) -> np.void:
        """What the driver makes of it is opaque: 128 bytes, which a kernel takes by value."""
        refuse_tile(array, box)
        rows, columns = array.size // array.shape[-1], array.shape[-1]
        made = aligned_empty((128,), np.dtype(np.uint8))
        with self.device:
            status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
                ctypes.c_void_p(made.ctypes.data),
                ctypes.c_int(_TENSOR_TYPES[array.dtype.name]),
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
        if status:
            raise LadderError(f"{self.name}: the driver makes no tensor map: CUDA error {status}")
        opaque: np.void = made.view("V128")[0]
        return opaque

    def compile(
        self, rung: Rung, defines: Mapping[str, int], real: np.dtype
    ) -> dict[str, CudaKernel]:
        cubin = self.compile_ahead(rung, defines, real)
        if cubin not in self._loaded:
            try:
                with self.device:
                    module = self.cupy.RawModule(path=str(cubin))
                    self._loaded[cubin] = {
                        name: CudaKernel(self, module.get_function(name), rung.file)
                        for name in compiler.resources(cubin)
                    }
            except self._cuda_errors as error:
                doing = f"loading {rung.path}, compiled, from {cubin.parent}, which can be deleted"
                raise self._failure(error, doing) from None
        return self._loaded[cubin]

    def compile_ahead(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> Path:
        """Compile a rung file into the cache, and do not load it; several threads may do so."""
        return compiler.compile_cubin(rung, defines, real, self.arch, newest=self._driver_major)

    def synchronize(self) -> None:
        try:
            self.stream.synchronize()
        except self._cuda_errors as error:
            raise self._failure(error) from None
        self._submitted.clear()

    def free_unused(self) -> None:
        self.cupy.get_default_memory_pool().free_all_blocks()

    def beside(self, work: Callable[[], None]) -> None:
        """While a graph is recorded, this makes a second branch of it, up to `join`."""
        main = self.stream
        try:
            with self.device:
                self._side.wait_event(self._passed(main))
            self.stream = self._side
            work()
        except self._cuda_errors as error:
            raise self._failure(error) from None
        finally:
            self.stream = main

    def join(self) -> None:
        try:
            with self.device:
                self.stream.wait_event(self._passed(self._side))
        except self._cuda_errors as error:
            raise self._failure(error) from None

    def _passed(self, stream: Any) -> Any:
        """An event that happens when the stream has done what it was given so far."""
        return stream.record(self.cupy.cuda.Event(disable_timing=True))

    def mark(self) -> Any:
        try:
            with self.device:
                event = self.cupy.cuda.Event()
                event.record(self.stream)
                return event
        except self._cuda_errors as error:
            raise self._failure(error) from None

    def seconds(self, start: Any, end: Any) -> float:
        try:
            with self.device:
                end.synchronize()
                milliseconds: float = self.cupy.cuda.get_elapsed_time(start, end)
                return milliseconds / 1e3
        except self._cuda_errors as error:
            raise self._failure(error) from None

    def time(self, work: Callable[[], None]) -> float:
        try:
            with self.device:
                start = self.mark()
                work()
                return self.seconds(start, self.mark())
        except self._cuda_errors as error:
            raise self._failure(error) from None

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Replaying a graph takes about a quarter of the host's time that its launches take."""
        self.synchronize()
        try:
            with self.device, self.stream:
                self.stream.begin_capture()
                try:
                    work()
                except BaseException:
                    with contextlib.suppress(*self._cuda_errors):
                        self.stream.end_capture()
                    raise
                graph = self.stream.end_capture()
        except self._cuda_errors as error:
            raise self._failure(error, "recording a graph") from None
        kernels = dict(self._submitted)
        self._submitted.clear()  # recorded, not run

        def replay() -> None:
            self._submitted.update(kernels)
            try:
                graph.launch(self.stream)
            except self._cuda_errors as error:
                raise self._failure(error) from None

        return replay

    @contextlib.contextmanager
    def annotate(self, name: str) -> Iterator[None]:
        """An NVTX range, which Nsight shows."""
        from cupy.cuda import nvtx

        nvtx.RangePush(name)
        try:
            yield
        finally:
            nvtx.RangePop()

    def memory(self) -> tuple[int, int]:
        """Bytes that can still be allocated, and bytes that the GPU has."""
        with self.device:
            free, total = self.cupy.cuda.runtime.memGetInfo()
            return free + self.cupy.get_default_memory_pool().free_bytes(), total

    def condition(self) -> str | None:
        return condition(self.device.pci_bus_id)

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

    @functools.cached_property
    def _cuda_errors(self) -> tuple[type[Exception], ...]:
        cuda = self.cupy.cuda
        return cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError

    def _failure(self, error: Any, doing: str = "") -> LadderError:
        """What CUDA says, and which kernels may be at fault: an error surfaces after its launch.

        error  one of `_cuda_errors`
        """
        what = _what(error)
        if error.status not in _FATAL:
            return LadderError(f"{self.name}: {what}" + (f", {doing}" if doing else ""))
        kernels = list(self._submitted) or ["an earlier kernel"]
        message = f"{self.name}: {what}, in {' or '.join(kernels[-3:])}"
        if len(kernels) > 3:
            message += f" or one of {len(kernels) - 3} kernels before"
        if len(kernels) > 1:
            message += " (CUDA_LAUNCH_BLOCKING=1 in the environment tells which)"
        return DeviceFault(
            f"{message}; this process can no longer use the GPU; restart the program"
        )


class CudaKernel:
    """A kernel of a cubin. `args`: CuPy arrays, None, NumPy scalars; structures as `numpy.void`."""

    def __init__(self, device: Cuda, raw: Any, path: Path) -> None:
        self.raw = raw
        self._device = device
        self._function = raw.kernel  # looked up for the device that is current
        self._label = f"{raw.name} ({path})"
        self._static_shared = raw.shared_size_bytes
        self._dynamic_shared = raw.max_dynamic_shared_size_bytes

    def __call__(self, launch: Launch, args: tuple[Any, ...]) -> None:
        device = self._device
        device._submitted[self._label] = None
        try:
            device.device.use()
            if launch.shared > self._dynamic_shared:
                self._allow(launch.shared)
            # CuPy's own None is not a null pointer but no argument at all.
            values = [_NULL if arg is None else arg for arg in args]
            self._function(launch.grid, launch.block, values, launch.shared, device.stream)
        except device._cuda_errors as error:
            raise device._failure(
                error,
                f"launching {self._label} with grid {launch.grid}, block {launch.block} and "
                f"{launch.shared} bytes of dynamic shared memory",
            ) from None

    def _allow(self, shared: int) -> None:
        """CUDA wants to be asked for more than 48 KB of shared memory, kernel by kernel."""
        most = self._device.shared_bytes - self._static_shared
        if shared > most:
            raise LadderError(
                f"{self._label} is launched with {shared} bytes of dynamic shared memory; "
                f"on {self._device.name} it can have {most}"
            )
        self.raw.max_dynamic_shared_size_bytes = shared
        self._dynamic_shared = shared


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


def condition(bus_id: str) -> str | None:
    """What nvidia-smi says of the GPU at a PCI address; None where it says nothing."""
    names = "clocks.sm,clocks.max.sm,power.draw,power.limit,temperature.gpu,utilization.gpu"
    command = ["nvidia-smi", f"--id={bus_id}", f"--query-gpu={names}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    cells = [cell.strip() for cell in done.stdout.split(",")]
    if done.returncode != 0 or len(cells) != len(names.split(",")):
        return None
    clock, highest, power, limit, temperature, busy = cells
    return f"{clock} of {highest}, {power} of {limit}, {temperature} °C, {busy} busy"


def count() -> int:
    """How many GPUs CuPy sees; 0 where it cannot tell, for which opening one gives the reason."""
    try:
        number: int = _import_cupy().cuda.runtime.getDeviceCount()
    except (LadderError, RuntimeError):  # CuPy's errors of the runtime are RuntimeErrors
        return 0
    return number


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
        extra = "cuda13" if driver >= 13000 else "cuda12"
        why = "is not installed"
        if error.name != "cupy":
            # CuPy wraps what is wrong, such as a library that is missing, in a page of advice.
            first = str(error.__cause__ or error).strip().partition("\n")[0]
            why = f"does not import ({first})"
        raise LadderError(f"CuPy {why}: pip install -e '.[{extra}]'") from None
    return cupy


def _why_no_device(error: Exception, wheel: int) -> str:
    """Why CUDA lists no device, as a remedy: the driver is too old, or there is no GPU.

    wheel  the CUDA version that CuPy is made for
    """
    driver = driver_version() or 0
    older = driver // 1000 < wheel // 1000
    if older or "cudaErrorInsufficientDriver" in str(error):
        remedy = ""
        if older and driver >= 12000:
            remedy = f" or pip uninstall cupy-cuda{wheel // 1000}x and pip install -e '.[cuda12]'"
        return (
            f"the NVIDIA driver supports CUDA {dotted(driver)}, but CuPy here is for CUDA "
            f"{dotted(wheel)}: update the driver{remedy}"
        )
    return f"CUDA finds no GPU ({_what(error)}); nvidia-smi should list one"


def _what(error: Exception) -> str:
    """What CUDA says of an error, without its symbolic name."""
    return str(error).split(": ", 1)[-1]


def dotted(version: int) -> str:
    """13.1 of CUDA's own way to write it, 13010."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
