"""Occupancy on AMD's GPUs: how many waves of a kernel a SIMD holds at once, and what limits them.

    takes = compiler.resources(module)[launch.kernel]
    occupancy("gfx942", takes, launch).limited_by

It follows from the machine code and the launch alone, so it needs no GPU.
"""

import math
from dataclasses import replace

from ladder.core.amd.hip.compiler import TYPICAL, Resources
from ladder.core.common.machine_code import Occupancy
from ladder.core.contract.launch_plan import Launch


def waves_by_registers(arch: str, takes: Resources) -> int:
    """The waves of a SIMD that its vector registers have room for."""
    unit = TYPICAL[arch]
    per_wave = max(1, -(-takes.vgprs // unit.granule)) * unit.granule
    return min(unit.waves, unit.registers // per_wave)


def occupancy(arch: str, takes: Resources, launch: Launch) -> Occupancy:
    """Of a kernel that the compiler gave these resources, launched like this."""
    unit, place = TYPICAL[arch], "a CU"
    if takes.two_units:  # a workgroup processor is two compute units of RDNA
        place = "a WGP"
        unit = replace(unit, simds=2 * unit.simds, lds=2 * unit.lds, blocks=2 * unit.blocks)
    waves = -(-math.prod(launch.block) // unit.warp)
    lds = -(-(takes.lds + launch.shared) // unit.lds_granule) * unit.lds_granule
    limits = {
        "waves": unit.simds * unit.waves // waves,
        "registers": unit.simds * waves_by_registers(arch, takes) // waves,
        **({"LDS": unit.lds // lds} if lds else {}),
        **({"blocks": unit.blocks} if waves > 1 else {}),
    }
    return Occupancy(limits, waves, unit.simds * unit.waves, place, "waves")
