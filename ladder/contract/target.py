"""What a rung may ask about the device that it is launched on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Target:
    """What a rung may ask about the device that it runs on, to choose its launch geometry."""

    arch: str  # "sm_90a", "gfx942", or "emulated"
    warp: int  # threads in a warp: 32, or 64 on some AMD cards
    multiprocessors: int
    shared_bytes: int  # most shared memory that one block can have
    real: np.dtype  # the run's real type

    @property
    def vector(self) -> int:
        """How many reals fit into one 16-byte load."""
        return 16 // self.real.itemsize

    @property
    def sm(self) -> int:
        """NVIDIA compute capability times ten. The emulator has every generation's features."""
        digits = self.arch.removeprefix("sm_").rstrip("af")
        return int(digits) if digits.isdigit() else 0
