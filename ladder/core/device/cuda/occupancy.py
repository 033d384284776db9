"""Occupancy: how many blocks of a kernel an SM holds at once, and which resource limits them.

    takes = compiler.resources(cubin)[launch.kernel]
    occupancy("sm_90a", takes, launch).limited_by

It follows from the machine code and the launch alone, so it needs no GPU. Nsight Compute calls it
theoretical occupancy.
"""

import math

from ladder.core.common.machine_code import Occupancy
from ladder.core.contract.launch_plan import Launch
from ladder.core.device.cuda.compiler import TYPICAL, WARP_SIZE, Resources

PARTS = 4  # of an SM; each has a quarter of the registers and of the room for warps
REGISTER_UNIT = 8  # registers of a lane are dealt out in eights


def occupancy(arch: str, takes: Resources, launch: Launch) -> Occupancy:
    """Of a kernel that the compiler gave these resources, launched like this.

    Blocks of a cluster must share a part of the GPU, which may leave less room; that is not
    counted.
    """
    sm = TYPICAL[arch]
    warps = -(-math.prod(launch.block) // WARP_SIZE)
    per_warp = -(-takes.registers // REGISTER_UNIT) * REGISTER_UNIT * WARP_SIZE
    shared = takes.shared + launch.shared + sm.reserved
    limits = {
        "warps": sm.warps // warps,
        "registers": PARTS * (sm.registers // PARTS // per_warp) // warps,
        **({"shared memory": sm.shared // shared} if shared else {}),
        "blocks": sm.blocks,
    }
    return Occupancy(limits, warps, sm.warps)
