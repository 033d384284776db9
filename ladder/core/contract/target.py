"""What a rung may ask about the device that it is launched on."""

from dataclasses import dataclass

import numpy as np

# AMD's generations, by how the names of their targets begin; the rest of a name is a model.
# https://llvm.org/docs/AMDGPUUsage.html#processors
_CDNA = {"gfx908": 1, "gfx90a": 2, "gfx940": 3, "gfx941": 3, "gfx942": 3, "gfx950": 4}
_RDNA = {"gfx101": 1, "gfx103": 2, "gfx110": 3, "gfx115": 3, "gfx120": 4}


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

    @property
    def cdna(self) -> int:
        """The generation of an AMD GPU for computing: 3 for gfx942 (MI300X); 0 for others."""
        return _CDNA.get(self.arch, 0)

    @property
    def rdna(self) -> int:
        """The generation of an AMD GPU for graphics: 3 for gfx1100 (RX 7900 XTX); 0 for others."""
        return _RDNA.get(self.arch[:6], 0)
