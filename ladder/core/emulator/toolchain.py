"""The programs that the emulator calls: the C++ compiler, in two ways, and what names lines."""

import functools
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ladder.core.common import cache, confine
from ladder.core.common.errors import CompileError, LadderError
from ladder.core.common.files import NO_SPACE
from ladder.core.common.install import install

HERE = Path(__file__).parent
ZIG_FOLDERS = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
LINE_TOOLS = ("addr2line", "llvm-addr2line")
INCLUDE = HERE / "include"

REMEDY = f"install g++ or clang, or {install('emulator')}"
# A fiber's stack has 256 KiB (runtime/fiber.h).
MOST_FRAME_BYTES = 192 << 10

COMMON = [
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",  # kernels read float buffers as uint4
    "-fwrapv",  # an int that overflows is negative, as on a GPU
]
KERNEL = [
    *COMMON,
    "-gdwarf-4",  # reports name source lines; of version 5, addr2line mistakes some file names
    "-g1",  # lines and inlined functions: where variables are takes a fifth of the time
    "-nostdinc",  # a kernel has no C library, on a GPU as little as here
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-plt",  # whatever is in the library has a source line
    f"-Werror=frame-larger-than={MOST_FRAME_BYTES}",
    "-Werror=vla",  # CUDA has no arrays whose size is known only when the kernel runs
    "-ffp-contract=off",  # the same bits, however much is optimised
]
# gcc gives no line to the copy of a __half or a float4 that an inlined function takes by value: the
# copy would seem to be in the line before. With this, it is where its statement begins.
LINES_GCC = ["-gstatement-frontiers"]
# A call at the end of a function must not become a jump: its return address names the source line.
# -O2 compiles for a fifth longer, and halves the time of some launches. Most kernels are compiled
# for a few launches of milliseconds each.
FAST = ["-O1", "-fno-optimize-sibling-calls"]
# What nvcc warns of, too: unused variables, variables without a value, a missing return. Rungs
# compare sizes of both signs, and leave out parentheses, on purpose.
WARN = ["-Wall", "-Wno-unknown-pragmas", "-Wno-sign-compare", "-Wno-parentheses"]
FAST_GCC = ["-fno-crossjumping", "-fno-tree-tail-merge"]  # two barriers stay two: see nomerge
# The compiler inserts a call for every memory access, and one for an index that is past its array.
# Copies of float4 and similar types must stay whole, one access of 16 bytes as on the GPU: gcc must
# not split structures, and clang must not optimise at all.
COUNT = ["-DEMULATOR_COUNT", "-fsanitize=thread"]
COUNT_GCC = [
    *("-O1", "-fno-tree-sra", "-finline-functions", "-fno-builtin-memcpy", "-fno-builtin-memset"),
    *("--param=tsan-distinguish-volatile=0", "-fsanitize=bounds-strict"),
]
COUNT_CLANG = ["-O0"]
# A variable without a value would often be 0 here, and is whatever was in the register on a GPU. It
# gets a value that no result survives: a float NaN or -1.7e38, an int one below -10^7. Only maxima
# and comparisons may survive it, and these show where the value is 0.
FILL, FILL_0 = ("-ftrivial-auto-var-init=pattern",), ("-ftrivial-auto-var-init=zero",)
FILLING_GCC, ZEROING_CLANG = 12, 16  # the first versions that have both, and the second
# A kernel calls the runtime and mathematical functions. To look through the C++ library, which it
# does not call, takes twice as long as the rest of linking.
LINK_GCC = ["-nostdlib", "-lm", "-lgcc", "-lc", "-Wl,-z,defs"]
LOG = "compile.log"
RUNTIME_UNITS = 4  # that the runtime is compiled in, at the same time


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command that calls it, and the version that it reports."""

    command: tuple[str, ...]
    version: str

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version

    def fill(self, zeros: bool) -> tuple[str, ...]:
        """FILL_0 or FILL; what it knows of them."""
        number = re.search(r"(?:\)|clang version) (\d+)\.", self.version)
        version = int(number[1]) if number else 0
        if not self.is_clang and version < FILLING_GCC:
            return ()
        return FILL_0 if zeros and not (self.is_clang and version < ZEROING_CLANG) else FILL

    def build(self, arguments: list[str], target: Path, text: str | None = None) -> str:
        """Run it, with `text` as standard input; returns what it printed.

        Raises CompileError with that where it fails, and LadderError where the disk was full, of
        which it may print a hundred lines.
        """
        command = [*self.command, *arguments, "-o", str(target)]
        done = run(command, text or "", target.parent)
        if done.returncode:
            if any(os.strerror(number) in done.stderr for number in NO_SPACE):
                raise LadderError(
                    f"the disk is full: the C++ compiler writes to {tempfile.gettempdir()} "
                    f"(set by TMPDIR) and to {cache.directory()} (set by {cache.VARIABLE})"
                )
            raise CompileError(done.stderr)
        return done.stderr


def run(command: list[str], text: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    """Run a program, which may write to some folders where this is the helper of a confined
    process, with `text` as its standard input."""
    before = confine.for_tool(*folders)
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, preexec_fn=before
    )


@functools.cache
def find_compiler() -> Compiler:
    """$CXX, else g++, else clang++, else the one that comes with the Python package ziglang."""
    chosen = os.environ.get("CXX", "").strip()
    for name in [chosen] if chosen else ["g++", "clang++"]:
        try:
            words = shlex.split(name)
        except ValueError as error:
            raise LadderError(f"CXX={name} is no command line: {error}; mend or unset it") from None
        if words and shutil.which(words[0]):
            return _describe(tuple(words))
    if chosen:
        raise LadderError(
            f"the C++ compiler {chosen!r}, from the variable CXX, is not installed; unset CXX, or "
            f"{REMEDY}"
        )
    if importlib.util.find_spec("ziglang"):
        # Unlike other compilers, zig checks for overflow unless it optimises, leaves assertions
        # out if it does, and uses instructions that other processors than this one do not have.
        flags = ("-fno-sanitize=undefined", "-UNDEBUG", "-mcpu=baseline")
        for variable in ZIG_FOLDERS:
            os.environ.setdefault(variable, str(cache.directory() / "zig"))
        return _describe((sys.executable, "-m", "ziglang", "c++", *flags))
    raise LadderError(
        f"emulated kernels are compiled by a C++ compiler, and there is none; {REMEDY}"
    )


def scratch() -> list[str]:
    """The folders that a compiler writes to, beside the one for temporary files."""
    return [os.environ[variable] for variable in ZIG_FOLDERS if variable in os.environ]


def _describe(command: tuple[str, ...]) -> Compiler:
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LadderError(f"{shlex.join(command)} does not run: {done.stderr.strip()}; {REMEDY}")
    return Compiler(command, done.stdout)


@functools.cache
def runtime() -> Path:
    """The library of the runtime, compiled once for each compiler."""
    compiler = find_compiler()
    sources = sorted((HERE / "runtime").glob("*.cpp"))
    headers = [*(HERE / "runtime").glob("*.h"), *(INCLUDE / "emulator").glob("*.h")]
    arguments = [*COMMON, "-O2", "-pthread"]
    # A file by itself takes a second or two, most of it for the headers of the C++ library.
    units = [
        "".join(f'#include "{source}"\n' for source in sources[first::RUNTIME_UNITS])
        for first in range(RUNTIME_UNITS)
    ]
    key = cache.digest(
        compiler.version,
        platform.machine(),
        *arguments,
        *(path.read_bytes() for path in sorted([*sources, *headers])),
    )  # every checkout has the same, wherever it is
    arguments += ["-iquote", str(INCLUDE)]

    def build(folder: Path) -> None:
        folder.mkdir()
        objects = [folder / f"{number}.o" for number in range(len(units))]
        compile_only = [flag for flag in arguments if flag != "-shared"]
        compile_only += ["-c", "-x", "c++", "-"]
        with ThreadPoolExecutor() as pool:  # a compiler has one thread, and this takes many seconds
            done = [
                pool.submit(compiler.build, compile_only, target, unit)
                for unit, target in zip(units, objects, strict=True)
            ]
        for one in done:
            one.result()
        compiler.build([*arguments, *map(str, objects)], folder / "runtime.so")
        for target in objects:
            target.unlink()

    with cache.alone("emulator"):
        entry = cache.cached("emulator", key, build)
    return entry / "runtime.so"


@functools.cache
def _header_bytes() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(INCLUDE.rglob("*")) if path.is_file())


@confine.by_helper
def build_kernel(text: str, macros: list[str], counting: bool, zeros: bool = False) -> Path:
    """The shared library of a kernel whose C++ text is `text`, with 0 in variables without a value
    if `zeros`; beside it, unless it counts, the compiler's warnings in the file LOG."""
    compiler, library = find_compiler(), runtime()
    flags = [*KERNEL, *(f"-D{macro}" for macro in macros), f"-I{INCLUDE}"]
    if counting:
        flags += [*COUNT, *(COUNT_CLANG if compiler.is_clang else COUNT_GCC)]
    else:
        flags += [*WARN, *FAST, *([] if compiler.is_clang else FAST_GCC)]
    flags += [*compiler.fill(zeros), *([] if compiler.is_clang else LINES_GCC)]
    libraries = [str(library), *([] if compiler.is_clang else LINK_GCC)]
    key = cache.digest(text, compiler.version, *libraries, *flags, _header_bytes())
    inputs = ["-include", "cuda_runtime.h", "-x", "c++", "-", "-x", "none"]

    def build(folder: Path) -> None:
        folder.mkdir()
        path = folder / "kernel.so"
        if not counting:
            log = compiler.build([*flags, *inputs, *libraries], path, text)
            (folder / LOG).write_text(log, encoding="utf-8")
            return
        # In two steps: linked with -fsanitize=thread, it would get ThreadSanitizer's own runtime.
        unlinked = folder / "kernel.o"
        compile_only = [flag for flag in flags if flag != "-shared"]
        compiler.build([*compile_only, *inputs[:-2], "-c"], unlinked, text)
        compiler.build(["-shared", str(unlinked), *libraries], path)
        unlinked.unlink()

    return cache.cached("emulated", key, build) / "kernel.so"


@functools.cache
def line_tool() -> str | None:
    """The program that reads the debug information of a library; None if there is none."""
    return next((path for name in LINE_TOOLS if (path := shutil.which(name))), None)


@confine.by_helper
def name_lines(library: str, addresses: str) -> str:
    """What the line tool says of addresses in a library, one in a line: the file and line of each
    frame, innermost first, below the address."""
    return run([str(line_tool()), "-a", "-i", "-e", library], addresses).stdout
