"""Runs a few lines of CUDA C++ on the emulated device: what the emulator's own tests need."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ladder.core.contract.device import aligned_empty
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import Emulated


def rung(folder: Path, source: str) -> Rung:
    """A kernel file with this text, which need not have a header."""
    path, source = folder / "kernel.cu", whole(source)
    path.write_text(source)
    return Rung("1", "a test", path, source)


def whole(source: str) -> str:
    """The text of a kernel file; of a body alone, that of the kernel around it."""
    if "__global__" in source:
        return source
    return f'extern "C" __global__ void k(float* out, const float* inp) {{\n{source}}}\n'


def run(device, folder, source, grid, block, *args, shared=0, real=np.float32, defines=None):
    """Compile the source, a file or a body, and launch the kernel `k`."""
    kernels = device.compile(rung(folder, source), defines or {}, np.dtype(real))
    shape = [(*((x,) if isinstance(x, int) else x), 1, 1)[:3] for x in (grid, block)]
    kernels["k"](Launch("k", *shape, shared), args)


def array(values, dtype=np.float32) -> np.ndarray:
    """An array that is aligned as on a GPU."""
    values = np.asarray(values, dtype)
    result = aligned_empty(values.shape, values.dtype)
    result[...] = values
    return result


def zeros(*shape, dtype=np.float32) -> np.ndarray:
    return array(np.zeros(shape), dtype)


def line(source: str, mark: str = "BUG") -> int:
    """The number of the line that carries a mark."""
    return next(i for i, text in enumerate(whole(source).splitlines(), 1) if mark in text)


def devices(**options):
    return [Emulated(counting=counting, **options) for counting in (False, True)]


def bugs_in(source: str) -> dict[str, int]:
    """The numbers of `enum Bug` in a file of kernels, by name."""
    names = source[source.index("enum Bug {") + 10 :].split("}")[0]
    return {name.strip(): i for i, name in enumerate(names.split(",")) if name.strip()}


def short(value: object) -> str:
    """A part of a test's name: the same in every process."""
    return getattr(value, "__name__", str(value)[:24])
