"""The CPU device: NumPy arrays, and rung 0 of every ladder."""

from collections.abc import Mapping

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Kernel
from ladder.core.contract.host_arrays import HostArrays
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target


class Cpu(HostArrays):
    """The machine's processor with NumPy: it runs rung 0 of every ladder."""

    name = "cpu"
    kind = "cpu"
    runs_kernels = False
    measurable = True

    def target(self, real: np.dtype) -> Target:
        return Target("cpu", 32, 1, 0, np.dtype(real))

    def tensor_map(self, array: np.ndarray, box: tuple[int, int], tf32: bool = False) -> np.void:
        raise LadderError("device cpu has no tiles to copy; it runs the NumPy reference only")

    def compile(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> dict[str, Kernel]:
        raise LadderError(
            "device cpu runs the NumPy reference only (rung 0); "
            "--device emulated runs kernels on the CPU, --device cuda on a GPU"
        )

    def compile_ahead(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> None:
        """Only what a GPU runs is compiled ahead."""
