"""clang and lld for AMD's GPUs, from the Python package `ziglang`.

They compile for any AMD architecture on a machine that has neither a GPU nor ROCm. A machine with
ROCm uses the same compiler, so that what the tests compile is what runs.
"""

import functools
import importlib.util
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder.core.common.errors import CompileError, LadderError
from ladder.core.common.install import install, pip

OLDEST = 20  # of clang: the first that knows gfx950
INSTALL = f"{install('amd')} (or '.[rocm]' together with CuPy)"


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
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        raise LadderError(f"no compiler for AMD's GPUs (the package ziglang) was found: {INSTALL}")
    program = Path(found.origin).with_name("zig")
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
