"""The HIP device: runs the code objects of ladder/core/amd/hip/compiler.py through CuPy for ROCm.

Written against CuPy's sources (cupy_backends/hip, cupy/cuda/function.pyx, cupy/_core/raw.pyx), and
tested with a runtime that is made up: no AMD GPU has run it. Where HIP has less than CUDA:

- `hipFuncSetAttribute` is not reachable, nor needed: a block may have all of its LDS unasked.
- A grid has fewer than 2^32 threads in each direction: the packet that starts it counts threads.
- Recording a graph may fail; then the launches are repeated one by one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.amd.hip import compiler
from ladder.core.amd.hip.compiler import find_clang
from ladder.core.common.errors import DeviceFault, LadderError
from ladder.core.common.install import Finding, install, pip
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.device.cupy.blas import WORKSPACE_BYTES, Multiplier
from ladder.core.device.cupy.gpu import CupyGpu, CupyKernel, count_gpus, said, why_no_import
from ladder.core.device.cupy.protocol import Gpu

DRIVER = Path("/dev/kfd")  # of the kernel's module amdgpu: what computes goes through it
RELEASE = Path("/opt/rocm/.info/version")
MOST_THREADS = (1 << 32) - 1  # of a grid, in each direction
VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
INSTALL = install("rocm")
NEEDED = ("AMD GPU", "CuPy for ROCm", "ROCm", "AMD compiler", "AMD driver")  # to run a kernel

DATA_TYPES = {"float16": 150, "float32": 151, "bfloat16": 168}  # rocblas_datatype
OPERATIONS = {"N": 111, "T": 112}  # rocblas_operation: a factor as it is, transposed
STANDARD = 0  # rocblas_gemm_algo
INSTALLED, SONAME = Path("/opt/rocm/lib/librocblas.so.5"), "librocblas.so.5"  # of ROCm 7


class RocBlas(Multiplier):
    """rocBLAS: one matrix product, on a device's stream, as a measuring stick.

    Its interface is the same since ROCm 4, while that of hipBLAS, which calls it, has changed.
    https://rocm.docs.amd.com/projects/rocBLAS/en/latest/reference/level-3-gemm.html
    """

    title, types, operations = "rocBLAS", DATA_TYPES, OPERATIONS

    def __init__(self, gpu: Gpu) -> None:
        """Raises LadderError where there is no rocBLAS."""
        self._library = load_rocblas()
        super().__init__(gpu)

    def create(self, handle: ctypes.c_void_p) -> int:
        return int(self._library.rocblas_create_handle(ctypes.byref(handle)))

    def set_up(
        self, handle: ctypes.c_void_p, stream: ctypes.c_void_p, workspace: ctypes.c_void_p
    ) -> Iterator[int]:
        yield self._library.rocblas_set_stream(handle, stream)
        size = ctypes.c_size_t(WORKSPACE_BYTES)
        yield self._library.rocblas_set_workspace(handle, workspace, size)

    def multiply(self, handle: ctypes.c_void_p, *arguments: Any) -> int:
        *_, address, kind, length = arguments  # what is added to, and again: what is written
        accumulator, solution, flags = DATA_TYPES["float32"], 0, 0  # it chooses the solution
        written = address, kind, length, accumulator, STANDARD, solution, flags
        return int(self._library.rocblas_gemm_ex(handle, *arguments, *written))


def load_rocblas() -> Any:
    """The librocblas of this machine."""
    name = str(INSTALLED) if INSTALLED.exists() else SONAME
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise LadderError(
            f"rocBLAS does not load ({error}): install ROCm 7, which has it"
        ) from None


class HipKernel(CupyKernel):
    """A kernel of a code object."""

    def prepare(self, launch: Launch) -> None:
        sizes = zip(launch.grid, launch.block, strict=True)
        if (most := max(blocks * threads for blocks, threads in sizes)) > MOST_THREADS:
            raise LadderError(
                f"{self.label} is launched with {most:,} threads in one direction; "
                f"HIP starts {MOST_THREADS:,} at most"
            )


class Hip(CupyGpu):
    """One AMD GPU."""

    kind = "hip"
    kernel, compiler = HipKernel, compiler
    serialize = "AMD_SERIALIZE_KERNEL=3"

    def __init__(self, index: int = 0) -> None:
        """Raises LadderError where there is no driver, CuPy or GPU of that index."""
        self.cupy = _import_cupy()
        self._use(index, _why_no_device, "rocm-smi")

    def _open(self, index: int) -> None:
        properties = self.cupy.cuda.runtime.getDeviceProperties(index)
        self.name = properties["name"].decode()
        self.arch = properties["gcnArchName"].decode().partition(":")[0]
        self.warp = properties["warpSize"]
        target = Target(self.arch, self.warp, 0, 0, np.dtype(np.float32))
        self.bfloat16 = target.cdna >= 2 or target.rdna >= 3
        self.multiprocessors = properties["multiProcessorCount"]
        self.shared_bytes = properties["sharedMemPerBlock"]
        self.l2_bytes = properties["l2CacheSize"]
        if known := compiler.TYPICAL.get(self.arch):  # HIP does not report the Infinity Cache
            self.l2_bytes = max(self.l2_bytes, known.infinity_cache)
        self._records_graphs = True
        self._attach(index)

    def matrix_product(self, tf32: bool = False) -> RocBlas | None:
        """No TF32 here."""
        return None if tf32 else self._product

    @functools.cached_property
    def _product(self) -> RocBlas:
        return RocBlas(self)

    def compile_ahead(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> Path:
        return compiler.compile_code_object(rung, defines, real, self.arch, self.warp)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A graph; where the runtime cannot record one, `work` itself, which launches anew."""
        if self._records_graphs:
            try:
                return super().capture(work)
            except DeviceFault:
                raise
            except LadderError:
                self._records_graphs = False
        return work

    def annotate(self, name: str) -> AbstractContextManager[Any]:
        """Nothing: CuPy for ROCm need not have the library of such ranges (roctx)."""
        return contextlib.nullcontext()

    def description(self) -> dict[str, str | int]:
        """What belongs to a measurement: the GPU and the versions of what drives it."""
        runtime = self.cupy.cuda.runtime
        properties = runtime.getDeviceProperties(self.device.id)
        return {
            "gpu": self.name,
            "arch": self.arch,
            "multiprocessors": self.multiprocessors,
            "clock_mhz": properties["clockRate"] // 1000,
            "l2_bytes": self.l2_bytes,
            "memory_bytes": properties["totalGlobalMem"],
            "driver": release() or "unknown",
            "hip": dotted(runtime.runtimeGetVersion()),
            "clang": find_clang().version,
            "cupy": self.cupy.__version__,
        }


def has_driver() -> bool:
    """Whether this machine has AMD's driver for computing, and so most likely a GPU."""
    return DRIVER.exists()


def release() -> str | None:
    """The release of ROCm that is installed, such as 7.0.2; None where there is none."""
    try:
        return RELEASE.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def dotted(version: int) -> str:
    """7.0.51831 of HIP's own way to write it, 70051831."""
    return f"{version // 10_000_000}.{version // 100_000 % 100}.{version % 100_000}"


def _why_no_device(error: Exception) -> str:
    return (
        f"HIP finds no GPU ({said(error)}); rocminfo should list one, and your user must be "
        f"allowed to open {DRIVER} (groups render and video)"
    )


def _import_cupy() -> Any:
    if not has_driver():
        raise LadderError(
            f"no AMD driver was found ({DRIVER}); "
            "--device emulated runs the same kernels on the CPU"
        )
    try:
        import cupy
    except ImportError as error:
        why = why_no_import(error)
        raise LadderError(f"CuPy for ROCm {why}: install ROCm 7, and {INSTALL}") from None
    if not cupy.cuda.runtime.is_hip:
        raise LadderError(f"CuPy here is for NVIDIA's GPUs: uninstall it, and {INSTALL}")
    return cupy


def count() -> int:
    """How many GPUs CuPy sees; 0 where it cannot tell."""
    return count_gpus(_import_cupy)


# ---- what this machine has for AMD's GPUs, and what to do about the rest -------------------------


def findings() -> list[Finding]:
    """Everything that is looked at; without a driver, only what needs no GPU."""
    if not has_driver():
        return [clang(), driver()]
    return [clang(), driver(), rocm(), cupy(), card()]


def clang() -> Finding:
    """clang: a kernel is compiled for a GPU with or without one."""
    try:
        zig = find_clang()
    except LadderError as error:
        what, _, remedy = str(error).rpartition(": ")
        return Finding("AMD compiler", what, f"to compile for AMD's GPUs: {remedy}")
    return Finding("AMD compiler", f"clang {zig.version} ({zig.program})")


def driver() -> Finding:
    if not has_driver():
        return Finding("AMD driver", "none", "only --device hip needs one, and an AMD GPU")
    if not os.access(DRIVER, os.R_OK | os.W_OK):
        remedy = "sudo usermod --append --groups render,video $USER, and log in again"
        return Finding("AMD driver", f"{DRIVER} cannot be opened by this user", remedy)
    return Finding("AMD driver", str(DRIVER))


def rocm() -> Finding:
    """ROCm's libraries, which CuPy's wheel uses; its compiler is not needed."""
    installed = release()
    if installed is None:
        remedy = "install ROCm 7: https://rocm.docs.amd.com/projects/install-on-linux"
        return Finding("ROCm", f"none ({RELEASE} is missing)", remedy)
    if not installed.startswith("7."):
        return Finding("ROCm", installed, "CuPy's wheel is made for ROCm 7: install that")
    return Finding("ROCm", installed)


def cupy() -> Finding:
    names = [distribution.name for distribution in importlib.metadata.distributions()]
    wheels = sorted(name for name in names if name and name.startswith("cupy"))
    if not wheels:
        return Finding("CuPy for ROCm", "none", f"--device hip needs it: {INSTALL}")
    if len(wheels) > 1:
        return Finding(
            "CuPy for ROCm", ", ".join(wheels), "only one can work: uninstall the others"
        )
    if not wheels[0].startswith("cupy-rocm"):
        remedy = f"{pip(f'uninstall {wheels[0]}')}, and {INSTALL}"
        return Finding("CuPy for ROCm", f"{wheels[0]} is for NVIDIA's GPUs", remedy)
    return Finding("CuPy for ROCm", f"{wheels[0]} {importlib.metadata.version(wheels[0])}")


def card() -> Finding:
    """The first AMD GPU."""
    try:
        gpu = Hip()
    except LadderError as error:
        what, _, remedy = str(error).partition("; ")
        return Finding("AMD GPU", what, remedy or "see the lines above")
    text = f"{gpu.name} ({gpu.arch}), waves of {gpu.warp}"
    return Finding("AMD GPU", f"{text}: no AMD GPU has been tried; doc/amd.md says what to send")
