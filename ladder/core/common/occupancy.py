"""How many blocks of a kernel an SM or a compute unit holds at once, and what limits them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Occupancy:
    """What follows for a kernel from what it takes and what there is room for.

    limits           how many blocks each resource has room for; the scarcest one decides
    warps_per_block  AMD calls a warp a wave
    most_warps       that there is room for
    place, warp      the words for them: "an SM", "warps"; "a CU", "waves"
    """

    limits: Mapping[str, int]
    warps_per_block: int
    most_warps: int
    place: str = "an SM"
    warp: str = "warps"

    @property
    def blocks(self) -> int:
        return min(self.limits.values())

    @property
    def warps(self) -> int:
        return self.blocks * self.warps_per_block

    @property
    def share(self) -> float:
        """The warps as a part of the most that there is room for."""
        return self.warps / self.most_warps

    @property
    def limited_by(self) -> str:
        """The scarcest resources: "registers", or "warps and registers"."""
        return " and ".join(name for name, most in self.limits.items() if most == self.blocks)

    def __str__(self) -> str:
        if self.blocks == 0:
            limits = self.limited_by
            return f"cannot be launched: one block takes more {limits} than {self.place} has"
        blocks = "1 block" if self.blocks == 1 else f"{self.blocks} blocks"
        warps = f"{self.warps} of {self.most_warps} {self.warp} ({self.share:.0%})"
        return f"{blocks} on {self.place}, {warps}, limited by {self.limited_by}"
