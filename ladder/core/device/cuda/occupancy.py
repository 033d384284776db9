"""Occupancy: how many blocks of a kernel an SM holds at once, and which resource limits them.

    takes = compiler.resources(cubin)[launch.kernel]
    occupancy("sm_90a", takes, launch).limited_by

It follows from the machine code and the launch alone, so it needs no GPU. Nsight Compute calls it
theoretical occupancy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ladder.core.common.machine_code import Occupancy
from ladder.core.contract.launch_plan import Launch
from ladder.core.device.cuda.compiler import Resources

PARTS = 4  # of an SM; each has a quarter of the registers and of the room for warps
WARP = 32
REGISTER_UNIT = 8  # registers of a lane are dealt out in eights
KIB = 1024


@dataclass(frozen=True)
class Sm:
    """What an SM has room for.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications
    """

    warps: int
    blocks: int
    shared: int  # bytes
    reserved: int = KIB  # of `shared`, for the system, in each block
    registers: int = 65_536


SMS: Mapping[str, Sm] = {
    "sm_75": Sm(warps=32, blocks=16, shared=64 * KIB, reserved=0),
    "sm_80": Sm(warps=64, blocks=32, shared=164 * KIB),
    "sm_86": Sm(warps=48, blocks=16, shared=100 * KIB),
    "sm_89": Sm(warps=48, blocks=24, shared=100 * KIB),
    "sm_90a": Sm(warps=64, blocks=32, shared=228 * KIB),
    "sm_100a": Sm(warps=64, blocks=32, shared=228 * KIB),
    "sm_120a": Sm(warps=48, blocks=24, shared=100 * KIB),
}


def occupancy(arch: str, takes: Resources, launch: Launch) -> Occupancy:
    """Of a kernel that the compiler gave these resources, launched like this.

    Blocks of a cluster must share a part of the GPU, which may leave less room; that is not
    counted.
    """
    sm = SMS[arch]
    warps = -(-math.prod(launch.block) // WARP)
    per_warp = -(-takes.registers // REGISTER_UNIT) * REGISTER_UNIT * WARP
    shared = takes.shared + launch.shared + sm.reserved
    limits = {
        "warps": sm.warps // warps,
        "registers": PARTS * (sm.registers // PARTS // per_warp) // warps,
        **({"shared memory": sm.shared // shared} if shared else {}),
        "blocks": sm.blocks,
    }
    return Occupancy(limits, warps, sm.warps)
