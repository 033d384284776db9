"""Compiles a rung's `.cu` file to a code object, the machine code of one AMD architecture.

Needs neither a GPU nor ROCm: clang and lld from the Python package `ziglang`, which compile for
any AMD architecture, and headers of our own in include/hip. A machine with ROCm uses the same
compiler, so that what the tests compile is what runs.

Results stay in the cache (ladder/core/common/cache.py): each entry is a folder of `kernel.hsaco`,
which the HIP runtime loads, `kernel.s`, the same as assembly with source lines and what each kernel
takes, and `compile.log`, the compiler's warnings.
"""

import functools
import importlib.util
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladder.core.common import cache
from ladder.core.common.errors import CompileError, LadderError
from ladder.core.common.install import install, pip
from ladder.core.contract.device_code import INCLUDE, code_identity
from ladder.core.contract.op import REALS
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.signature import with_c_linkage
from ladder.core.contract.target import Target

OLDEST = 20  # of clang: the first that knows gfx950
INSTALL = f"{install('amd')} (or [rocm] instead of [amd], with CuPy)"


@dataclass(frozen=True)
class Clang:
    """The program `zig`, which is clang and lld, too, by the name that it is called with."""

    program: Path
    version: str  # of clang: "22.1.8"

    def run(self, tool: str, arguments: Sequence[str], text: str | None = None) -> str:
        """Run `tool` ("clang", "ld.lld") with `text` as its input; returns what it remarked.

        Raises CompileError with what it printed.
        """
        command = [str(self.program), tool, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(done.stderr)
        return done.stderr


@functools.cache
def find_clang() -> Clang:
    """The compiler of this Python. Raises LadderError naming what to install."""
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        raise LadderError(f"no compiler for AMD's GPUs (the package ziglang) was found: {INSTALL}")
    program = Path(package.origin).with_name("zig")
    try:
        command = [str(program), "clang", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        what = done.stdout + done.stderr
    except OSError as error:
        what = str(error)
    version = re.search(r"clang version (\d+)\.[\d.]+", what)
    if version is None:
        raise LadderError(f"{program} clang does not run ({what.strip()}): {INSTALL}")
    if int(version[1]) < OLDEST:
        raise LadderError(
            f"clang {OLDEST} or newer is needed for AMD's GPUs, and ziglang has {version[0]}: "
            + pip("install --upgrade ziglang")
        )
    return Clang(program, version[0].removeprefix("clang version "))


HEADERS = Path(__file__).parent / "include"


@dataclass(frozen=True)
class Gpu:
    """A GPU: its compute units (CUs), and what each has room for. A block is placed on a CU, which
    has several SIMDs, with registers of their own, and waves stay on theirs.

    https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html and, from `simds` on, what LLVM
    allocates by: getTotalNumVGPRs, getVGPRAllocGranule, getMaxWavesPerEU, getMaxWorkGroupsPerCU
    and getLdsDwGranularity in
    https://github.com/llvm/llvm-project/blob/main/llvm/lib/Target/AMDGPU/Utils/AMDGPUBaseInfo.cpp
    """

    warp: int  # lanes of a wave
    units: int
    lds: int  # bytes, also the most of one block
    infinity_cache: int  # bytes of what all compute units share, behind L2
    simds: int
    waves: int  # of a SIMD
    registers: int  # vector registers of a lane that a SIMD has for all its waves
    granule: int  # registers of a lane are dealt out in such numbers
    lds_granule: int = 512  # bytes
    blocks: int = 16  # of more than one wave: they need a barrier each


# What rungs are compiled for where no device says so: a GPU of each generation.
TYPICAL = {
    # CDNA 2: MI210, and each half of an MI250X has 110 units
    "gfx90a": Gpu(64, 104, 64 << 10, 0, 4, 8, 512, 8),
    "gfx942": Gpu(64, 304, 64 << 10, 256 << 20, 4, 8, 512, 8),  # CDNA 3: MI300X
    "gfx950": Gpu(64, 256, 160 << 10, 256 << 20, 4, 8, 512, 8, lds_granule=1280),  # CDNA 4: MI355X
    "gfx1030": Gpu(32, 80, 64 << 10, 128 << 20, 2, 16, 1024, 16),  # RDNA 2: RX 6900 XT
    "gfx1100": Gpu(32, 96, 64 << 10, 96 << 20, 2, 16, 1536, 24),  # RDNA 3: RX 7900 XTX
    "gfx1201": Gpu(32, 64, 64 << 10, 64 << 20, 2, 16, 1536, 24),  # RDNA 4: RX 9070 XT
}

_ERROR = re.compile(r"^(.*?):(\d+):\d+: (?:fatal )?error: ", re.MULTILINE)
_ERRORS_SHOWN = 3
_OPTIONS = (
    "-xhip",
    "--offload-device-only",
    *("-nogpuinc", "-nogpulib", "-nostdinc"),  # nothing of ROCm or of this system
    "-fdeclspec",  # include/hip/hip_runtime.h: threadIdx.x is a property
    *("-include", "hip/hip_runtime.h"),
    "-O3",
    "-std=c++17",
    # a * b + c is one instruction, as in CUDA. With "fast", it would be so even in LLVM's own expf,
    # which then adds a correction twice and is off by some 40 units in the last place.
    "-ffp-contract=fast-honor-pragmas",
    "-fno-strict-aliasing",  # kernels read float buffers as uint4
    # Atomic additions of floats are one instruction where there is one. "Unsafe" is that only for
    # memory that the host shares, and what hipMalloc returns is the GPU's own.
    "-munsafe-fp-atomics",
    "-mcode-object-version=5",
    "-gline-tables-only",  # machine code keeps the lines that it came from; it is not slower
    *("-fdebug-compilation-dir=/", "-fuse-cuid=none"),  # the same input gives the same bytes
    "-Wall",
    *("-fno-color-diagnostics", "-fno-diagnostics-show-line-numbers"),
)

# RDNA's blocks spread over the two compute units of a workgroup processor. With this option they
# stay on one: barriers need not invalidate L0 caches then, and some kernels do not spill.
_ONE_UNIT = "-mcumode"


@dataclass(frozen=True)
class Resources:
    """What one lane (registers, scratch, spills), wave or block (LDS) of a kernel takes."""

    vgprs: int  # vector registers: one value for each lane; those of matrix cores included
    agprs: int  # of these, the accumulation registers of CDNA's matrix cores
    sgprs: int  # scalar registers: one value for the wave
    lds: int  # bytes, without the dynamic shared memory of a launch
    scratch: int  # bytes of arrays and spills that do not fit into registers
    spill: int  # registers that are spilled
    two_units: bool = False  # a block spreads over the two compute units of a workgroup processor

    def __str__(self) -> str:
        return (
            f"{self.vgprs} vector registers ({self.agprs} of them for accumulation), {self.sgprs} "
            f"scalar registers, {self.lds} bytes of LDS, {self.scratch} of scratch, {self.spill} "
            "spilled"
        )


def typical_target(name: str, real: np.dtype) -> Target:
    """A device to compile for without having it."""
    if name not in TYPICAL:
        raise LadderError(f"no architecture is named {name!r}; there are {', '.join(TYPICAL)}")
    gpu = TYPICAL[name]
    return Target(name, gpu.warp, gpu.units, gpu.lds, np.dtype(real))


def compile_code_object(
    rung: Rung, defines: Mapping[str, int], real: np.dtype, arch: str, warp: int
) -> Path:
    """The code object of a rung file, from the cache or compiled now.

    defines  preprocessor constants, beside REAL_FLOAT32 (or REAL_FLOAT16, REAL_BFLOAT16), the
             type that `real` of ladder/include/portable.cuh is, and WARP_SIZE
    arch     "gfx942", "gfx1100", ..., also with features as the HIP runtime writes them
             ("gfx942:sramecc+:xnack-")
    warp     lanes of a wave there

    Raises CompileError with the lines at fault, LadderError where there is no compiler.
    """
    real = np.dtype(real)
    if real.name not in REALS:
        raise LadderError(f"kernels compute in {', '.join(REALS)}, not in {real.name}")
    clang = find_clang()
    path = Path(os.path.abspath(rung.file))
    constants = {f"REAL_{real.name.upper()}": 1, "WARP_SIZE": warp, **defines}
    # Without the features: such code runs with xnack and sramecc on or off.
    arch = arch.partition(":")[0]
    options = [
        *_OPTIONS,
        f"--offload-arch={arch}",
        *(f"-D{name}={value}" for name, value in constants.items()),
        f"-iquote{path.parent}",
        f"-I{INCLUDE}",
        f"-isystem{HEADERS}",
    ]
    key = cache.digest(
        code_identity(rung, exact=True), str(path), *options, clang.version, _header_bytes()
    )

    def build(folder: Path) -> None:
        folder.mkdir()
        text, assembly, module = (folder / f"kernel.{kind}" for kind in ("s", "o", "hsaco"))
        escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
        source = f'#line 1 "{escaped}"\n{with_c_linkage(rung)}'

        def translate(*more: str) -> str:
            try:
                return clang.run("clang", [*options, *more, "-S", "-", "-o", str(text)], source)
            except CompileError as error:
                raise CompileError(_explain(str(error), path, arch)) from None

        log = translate()
        if arch.startswith("gfx1") and any(of.spill for of in resources(module).values()):
            log = translate(_ONE_UNIT)
            if any(of.spill for of in resources(module).values()):
                log = translate()
        # In steps: to link, clang would look for a program named lld.
        target = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}"]
        clang.run("clang", [*target, "-c", str(text), "-o", str(assembly)])
        clang.run("ld.lld", ["-shared", "--no-undefined", str(assembly), "-o", str(module)])
        assembly.unlink()
        (folder / "compile.log").write_text(log, encoding="utf-8")

    return cache.cached("hsaco", key, build) / "kernel.hsaco"


def compile_log(module: Path) -> str:
    """What clang remarked when it made this code object."""
    return module.with_name("compile.log").read_text(encoding="utf-8")


def assembly(module: Path) -> str:
    """The instructions of a code object made by `compile_code_object`, with source lines."""
    return module.with_name("kernel.s").read_text(encoding="utf-8")


def metadata(module: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """For each kernel of a code object made by `compile_code_object`, what is said of it, and the
    values by key. The keys stand in alphabetical order: "  - .agpr_count:     0"."""
    text = assembly(module).partition(".amdgpu_metadata")[2].partition("amdhsa.kernels:")[2]
    for entry in re.split(r"^  - ", text, flags=re.MULTILINE):
        values = dict(re.findall(r"^(?:    )?\.(\w+):\s+(\S+)$", entry, re.MULTILINE))
        if "name" in values:
            yield entry, values


def resources(module: Path) -> dict[str, Resources]:
    """What each kernel of a code object made by `compile_code_object` takes, by its name."""
    takes = {}
    two_units = ".amdhsa_workgroup_processor_mode 1" in assembly(module)
    for _, values in metadata(module):
        number = Counter({key: int(value) for key, value in values.items() if value.isdecimal()})
        takes[values["name"]] = Resources(
            vgprs=number["vgpr_count"],
            agprs=number["agpr_count"],  # gfx10 to gfx12 have none
            sgprs=number["sgpr_count"],
            lds=number["group_segment_fixed_size"],
            scratch=number["private_segment_fixed_size"],
            spill=number["vgpr_spill_count"] + number["sgpr_spill_count"],
            two_units=two_units,
        )
    return takes


@functools.cache
def _header_bytes() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(HEADERS.rglob("*.h")))


def _explain(log: str, path: Path, arch: str) -> str:
    """The errors of a log in the form `file:line: what`, each with its source line and a caret."""
    blocks = re.split(r"^(?=.+?:\d+:\d+: (?:warning|note|error|fatal error): )", log, flags=re.M)
    errors = [block for block in blocks if _ERROR.match(block)]
    if not errors:  # of the code generator: it knows no source lines
        return f"{path} does not compile for {arch}:\n{log.strip()}"
    shown = ["\n".join(block.splitlines()[:3]) for block in errors[:_ERRORS_SHOWN]]
    text = "\n".join(_ERROR.sub(r"\1:\2: ", block) for block in shown)
    if len(errors) > _ERRORS_SHOWN:
        text += f"\n({len(errors) - _ERRORS_SHOWN} more errors)"
    if "use of undeclared identifier" in text or "file not found" in text:
        text += f"\n(what HIP declares here is in {HEADERS / 'hip'})"
    return text
