"""NVRTC, NVIDIA's CUDA C++ compiler as a library, called through ctypes.

It compiles for any NVIDIA architecture on a machine that has neither a GPU nor a driver. It is
looked for, in this order, in NVIDIA's wheels, in $CUDA_PATH, in /usr/local/cuda and wherever the
dynamic linker looks. https://docs.nvidia.com/cuda/nvrtc/
"""

import ctypes
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.install import install

INSTALL = f"{install('compile')} (or [cuda12] or [cuda13], with CuPy)"
# Where CuPy keeps the C++ library of CUDA (CCCL), which cooperative_groups.h includes.
CUPYS_CCCL = "cupy/_core/include/cupy/_cccl/libcudacxx"


@dataclass(frozen=True)
class Nvrtc:
    """One NVRTC and the CUDA headers that belong to it."""

    library: Path
    include: tuple[Path, ...]
    version: tuple[int, int]

    def architectures(self) -> tuple[int, ...]:
        """Compute capabilities times ten that this version compiles for: 75, 80, ..."""
        library, count = _load(self.library), ctypes.c_int()
        _check(library.nvrtcGetNumSupportedArchs(ctypes.byref(count)), library)
        capabilities = (ctypes.c_int * count.value)()
        _check(library.nvrtcGetSupportedArchs(capabilities), library)
        return tuple(capabilities)

    def compile(self, source: str, name: str, options: list[str]) -> tuple[bytes | None, str]:
        """The cubin (None if `source` has errors) and the compiler's log, which calls it `name`."""
        library = _load(self.library)
        program = ctypes.c_void_p()
        _check(
            library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), name.encode(), 0, None, None
            ),
            library,
        )
        try:
            flags = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = library.nvrtcCompileProgram(program, len(options), flags)
            log = _bytes(library, "ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if status == _COMPILATION_ERROR:
                return None, log
            _check(status, library, log)
            return _bytes(library, "CUBIN", program), log
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))


def find_nvrtc(newest: int | None = None) -> Nvrtc:
    """The first NVRTC found; with `newest`, the first whose major version is not above it.

    A driver loads what NVRTC of its own CUDA major version or an older one has made.
    Raises LadderError naming what to install.
    """
    every = installed()
    for nvrtc in every:
        if newest is None or nvrtc.version[0] <= newest:
            return nvrtc
    if every:
        have = ", ".join("{}.{}".format(*nvrtc.version) for nvrtc in every)
        raise LadderError(
            f"the NVIDIA driver supports CUDA {newest}, but NVRTC here is {have}: "
            f"update the driver, or {install(f'cuda{newest}')}"
        )
    raise LadderError(f"no NVRTC (NVIDIA's run-time compiler) was found: {INSTALL}")


@functools.cache
def installed() -> tuple[Nvrtc, ...]:
    """Every NVRTC of this machine that loads, in the order of preference."""
    by_path: dict[Path, Nvrtc] = {}
    for library, include in _candidates():
        library = library.resolve()
        if library in by_path:
            continue
        try:
            loaded = _load(library)
        except OSError:  # of another processor, or incomplete
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        _check(loaded.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), loaded)
        every = [*include, *(folder / "cccl" for folder in include)]
        every += [Path(entry or ".") / CUPYS_CCCL for entry in sys.path]
        existing = tuple(folder for folder in every if folder.is_dir())
        by_path[library] = Nvrtc(library, existing, (major.value, minor.value))
    return tuple(by_path.values())


def wheel_folders() -> list[Path]:
    """Where NVIDIA's wheels unpack to: the `nvidia` folder of each entry of sys.path."""
    folders = [Path(entry or ".") / "nvidia" for entry in sys.path]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def toolkit_folders() -> list[Path]:
    """Installed CUDA toolkits."""
    named = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    return [Path(folder) for folder in dict.fromkeys(named) if folder and Path(folder).is_dir()]


def _candidates() -> Iterator[tuple[Path, tuple[Path, ...]]]:
    """(library, include folders) that might exist, best first."""
    for wheels in wheel_folders():
        for root in sorted(wheels.glob("cu[0-9]*"), reverse=True):  # CUDA 13 on: one tree
            # The wheels leave mma.h's other half, crt/mma.h, to one that may be missing.
            toolkits = [folder / "include" for folder in toolkit_folders()]
            for library in _libraries(root / "lib"):
                yield library, (root / "include", *toolkits)
        # CUDA 12: one folder per wheel.
        include = [wheels / f"cuda_{part}" / "include" for part in ("runtime", "nvcc", "cccl")]
        for library in _libraries(wheels / "cuda_nvrtc" / "lib"):
            yield library, tuple(include)
    for root in toolkit_folders():
        for library in (*_libraries(root / "lib64"), *_libraries(root / "lib")):
            yield library, (root / "include",)
    for library in _linker_libraries():  # /opt/cuda/lib64, or a distribution's package in /usr/lib
        roots = (library.parent.parent, Path("/usr"))
        yield library, tuple(r / "include" for r in roots if (r / "include/cuda_fp16.h").is_file())


def _libraries(folder: Path) -> list[Path]:
    """libnvrtc.so.13 before .12, and neither `builtins` nor `alt`, which go with it."""
    libraries = [p for p in folder.glob("*") if re.fullmatch(r"libnvrtc\.so\.\d+", p.name)]
    return sorted(libraries, key=lambda p: int(p.suffix[1:]), reverse=True)


def _linker_libraries() -> list[Path]:
    try:
        listing = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    except OSError:
        return []
    return [Path(path) for path in re.findall(r"libnvrtc\.so\.\d+ .*=> (\S+)", listing)]


_COMPILATION_ERROR = 6


@functools.cache
def _load(path: Path) -> ctypes.CDLL:
    # NVRTC opens its builtins by name, which only finds them where the linker looks.
    for builtins in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(path))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _check(status: int, library: ctypes.CDLL, log: str = "") -> None:
    if status:
        what = library.nvrtcGetErrorString(status).decode()
        raise LadderError(f"NVRTC failed: {what} {' '.join(log.split())}".rstrip())


def _bytes(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    """The result of nvrtcGet<what>, whose length nvrtcGet<what>Size tells."""
    size = ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), library)
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, buffer), library)
    return buffer.raw
