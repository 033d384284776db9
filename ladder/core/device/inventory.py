"""What this machine has for compiling and running kernels, and what to do about the rest."""

import shlex
import tempfile

from ladder.core.common import cache
from ladder.core.common.errors import LadderError
from ladder.core.common.finding import Finding
from ladder.core.device.open import GPUS
from ladder.core.emulator.toolchain import find_compiler


def findings() -> list[Finding]:
    """Everything that is looked at, in the order of a report."""
    of_gpus = [finding for kind in GPUS.values() for finding in kind.findings()]
    return [cache_directory(), cpp_compiler(), *of_gpus]


def cache_directory() -> Finding:
    """Where compiled kernels are kept; a file is written to see that it can be."""
    folder = cache.directory()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Finding("kernel cache", str(folder))
    except OSError as error:
        remedy = f"set {cache.VARIABLE} to a folder that can be written"
        return Finding("kernel cache", f"{folder}: {error.strerror}", remedy)


def cpp_compiler() -> Finding:
    """What the emulator builds kernels with."""
    try:
        compiler = find_compiler()
    except LadderError as error:
        what, _, remedy = str(error).rpartition("; ")
        return Finding("C++ compiler", what, f"--device emulated needs one: {remedy}")
    command = "ziglang" if "ziglang" in compiler.command else shlex.join(compiler.command)
    return Finding("C++ compiler", f"{command}: {compiler.version.splitlines()[0]}")
