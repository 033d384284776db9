"""The emulator's runtime compiles for macOS, where it has never run (doc/where_it_runs.md)."""

import subprocess
import sys

import pytest

from ladder.core.emulator.toolchain import COMMON, HERE, INCLUDE


@pytest.mark.sweep
@pytest.mark.parametrize("source", sorted((HERE / "runtime").glob("*.cpp")), ids=lambda s: s.stem)
def test_a_file_of_the_runtime_compiles_for_macos(source, tmp_path):
    pytest.importorskip("ziglang", reason="needs clang for other systems: make amd")
    words = ["-m", "ziglang", "c++", "-target", "aarch64-macos", "-c"]
    flags = [flag for flag in COMMON if flag != "-shared"]
    command = [sys.executable, *words, *flags, "-iquote", INCLUDE, source, "-o", tmp_path / "it.o"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
