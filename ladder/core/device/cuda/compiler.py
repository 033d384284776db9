"""Compiles a rung's `.cu` file to a cubin, the machine code of one NVIDIA architecture.

Needs neither a GPU nor a driver. Results stay in the cache (ladder/core/common/cache.py): each
entry is a folder of `kernel.cubin` and `compile.log`, the compiler's report on registers and
spills.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladder.core.common import cache
from ladder.core.common.errors import CompileError, LadderError
from ladder.core.common.install import install
from ladder.core.contract.device_code import INCLUDE, code_identity
from ladder.core.contract.op import REALS
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.signature import with_c_linkage
from ladder.core.contract.target import Target
from ladder.core.device.cuda.nvrtc import INSTALL, find_nvrtc

WARP_SIZE = 32  # of every NVIDIA GPU


@dataclass(frozen=True)
class Gpu:
    """A GPU: its SMs, and what each has room for.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications
    """

    multiprocessors: int
    warps: int
    blocks: int
    shared: int  # bytes
    reserved: int = 1 << 10  # of `shared`, for the system, in each block
    registers: int = 65_536


# What rungs are compiled for where no device says so: a GPU of each generation.
TYPICAL = {
    "sm_75": Gpu(40, warps=32, blocks=16, shared=64 << 10, reserved=0),  # Turing: T4
    "sm_80": Gpu(108, warps=64, blocks=32, shared=164 << 10),  # Ampere: A100
    "sm_86": Gpu(82, warps=48, blocks=16, shared=100 << 10),  # Ampere: RTX 3090
    "sm_89": Gpu(128, warps=48, blocks=24, shared=100 << 10),  # Ada: RTX 4090
    "sm_90a": Gpu(132, warps=64, blocks=32, shared=228 << 10),  # Hopper: H100, H200
    "sm_100a": Gpu(148, warps=64, blocks=32, shared=228 << 10),  # Blackwell: B200
    "sm_120a": Gpu(170, warps=48, blocks=24, shared=100 << 10),  # Blackwell: RTX 5090
}

_ERROR = re.compile(r"^(.*?)\((\d+)\): (?:catastrophic )?error(?: #\S+)?: ", re.MULTILINE)
_ERRORS_SHOWN = 3


@dataclass(frozen=True)
class Resources:
    """What one thread (registers, stack, spills) or block (shared) of a kernel takes."""

    registers: int
    shared: int  # bytes, without the dynamic shared memory of a launch
    stack: int  # bytes of arrays that do not fit into registers
    spill: int  # bytes stored to and loaded from memory because registers ran out

    def __str__(self) -> str:
        return (
            f"{self.registers} registers, {self.shared} bytes of shared memory, {self.stack} of "
            f"stack, {self.spill} spilled"
        )


def architecture(capability: int) -> str:
    """The target for a device of compute capability 9.0 (`capability` 90): "sm_90a".

    From Hopper on there are instructions (wgmma, tcgen05) that belong to one architecture only;
    the suffix allows them, at no cost since a cubin is for one architecture anyway.
    """
    return f"sm_{capability}a" if capability >= 90 else f"sm_{capability}"


def typical_target(name: str, real: np.dtype) -> Target:
    """A device to compile for without having it; "90", "sm_90" and "sm_90a" name the same."""
    number = re.fullmatch(r"(?:sm_)?(\d+)a?", name)
    arch = architecture(int(number.group(1))) if number else name
    if arch not in TYPICAL:
        raise LadderError(f"no architecture is named {name!r}; there are {', '.join(TYPICAL)}")
    gpu = TYPICAL[arch]
    most_shared = gpu.shared - gpu.reserved
    return Target(arch, WARP_SIZE, gpu.multiprocessors, most_shared, np.dtype(real))


def compile_cubin(
    rung: Rung, defines: Mapping[str, int], real: np.dtype, arch: str, newest: int | None = None
) -> Path:
    """The cubin of a rung file, from the cache or compiled now.

    defines  preprocessor constants, beside REAL_FLOAT32 (or REAL_FLOAT16, REAL_BFLOAT16), the
             type that `real` of ladder/include/portable.cuh is, and WARP_SIZE
    arch     "sm_80", "sm_90a", ...
    newest   the CUDA major version of the driver that is to load it

    Raises CompileError with the lines at fault, LadderError where there is no compiler for it.
    """
    real = np.dtype(real)
    if real.name not in REALS:
        raise LadderError(f"kernels compute in {', '.join(REALS)}, not in {real.name}")
    nvrtc = find_nvrtc(newest)
    if int(re.sub(r"\D", "", arch)) not in nvrtc.architectures():
        known = ", ".join(f"sm_{number}" for number in nvrtc.architectures())
        raise LadderError(
            f"NVRTC {nvrtc.version[0]}.{nvrtc.version[1]} does not compile for {arch}, only for "
            f"{known}; another version may: {install('cuda12')} or [cuda13]"
        )
    path = Path(os.path.abspath(rung.file))
    constants = {f"REAL_{real.name.upper()}": 1, "WARP_SIZE": WARP_SIZE, **defines}
    include = (INCLUDE, path.parent, *nvrtc.include)
    options = [
        f"-arch={arch}",
        "-std=c++17",
        "-lineinfo",  # machine code keeps the lines that it came from; it is not slower
        "--ptxas-options=-v",  # registers and spills in the log
        # NVRTC's own cache would return a cubin with an empty log; ours keeps the log too.
        *(["--no-cache"] if nvrtc.version >= (12, 9) else []),
        *(f"-D{name}={value}" for name, value in constants.items()),
        *(f"-I{folder}" for folder in include),
    ]
    key = cache.digest(code_identity(rung, exact=True), str(path), *options, str(nvrtc.version))

    def build(folder: Path) -> None:
        cubin, log = nvrtc.compile(with_c_linkage(rung), str(path), options)
        if cubin is None:
            raise CompileError(_explain(log, path, arch))
        folder.mkdir()
        (folder / "kernel.cubin").write_bytes(cubin)
        (folder / "compile.log").write_text(log, encoding="utf-8")

    return cache.cached("cubin", key, build) / "kernel.cubin"


def compile_log(cubin: Path) -> str:
    """What NVRTC and its assembler said when they made `cubin`: warnings, and resources."""
    return cubin.with_name("compile.log").read_text(encoding="utf-8")


def resources(cubin: Path) -> dict[str, Resources]:
    """What each kernel of a cubin made by `compile_cubin` takes, by the kernel's name."""
    by_kernel = {}
    # One paragraph for each kernel: "Compiling entry function 'name' for ..." and what follows.
    for paragraph in compile_log(cubin).split("Compiling entry function ")[1:]:

        def number(pattern: str, text: str = paragraph) -> int:
            return sum(int(match) for match in re.findall(pattern, text))

        by_kernel[paragraph.split("'")[1]] = Resources(
            registers=number(r"Used (\d+) registers"),
            shared=number(r"(\d+) bytes smem"),
            stack=number(r"(\d+) bytes stack frame"),
            spill=number(r"(\d+) bytes spill"),
        )
    return by_kernel


def remarks(cubin: Path) -> list[str]:
    """What ptxas remarks: `wgmma` instructions that it serialized."""
    return re.findall(r"^ptxas info\s*: \(C\d+\) (.*)", compile_log(cubin), re.MULTILINE)


def _explain(log: str, path: Path, arch: str) -> str:
    """The errors of a log in the form `file:line: what`, each with its source line and a caret."""
    blocks = re.split(r"\n\s*\n", log)
    errors = [block[match.start() :] for block in blocks if (match := _ERROR.search(block))]
    if not errors:  # the assembler's: it knows no source lines
        lines = [line for line in log.splitlines() if "error" in line.lower() or "fatal" in line]
        return "\n".join([f"{path} does not compile for {arch}:", *(lines or [log.strip()])])
    shown = [_ERROR.sub(r"\1:\2: ", error) for error in errors]
    text = "\n".join(block.rstrip() for block in shown[:_ERRORS_SHOWN])
    if len(shown) > _ERRORS_SHOWN:
        text += f"\n({len(shown) - _ERRORS_SHOWN} more errors)"
    if missing := re.search(r'cannot open source file "((?:cuda|mma|crt)\S*)"', log):
        text += f"\n{missing.group(1)} is one of CUDA's own headers: {INSTALL}"
    return text
