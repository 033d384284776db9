"""Occupancy on AMD's GPUs: how many waves of a kernel a SIMD holds at once, and what limits them.

    takes = compiler.resources(module)[launch.kernel]
    occupancy("gfx942", takes, launch).limited_by

It follows from the machine code and the launch alone, so it needs no GPU.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ladder.core.amd.hip.compiler import TYPICAL, Resources
from ladder.core.common.machine_code import Occupancy
from ladder.core.contract.launch_plan import Launch

KIB = 1024


@dataclass(frozen=True)
class Unit:
    """A compute unit (CU), on which a block is placed. It has several SIMDs, with registers of
    their own, and waves stay on theirs.

    The numbers are those that LLVM allocates by: getTotalNumVGPRs, getVGPRAllocGranule,
    getMaxWavesPerEU, getMaxWorkGroupsPerCU and getLdsDwGranularity in
    https://github.com/llvm/llvm-project/blob/main/llvm/lib/Target/AMDGPU/Utils/AMDGPUBaseInfo.cpp
    """

    simds: int
    waves: int  # of a SIMD
    registers: int  # vector registers of a lane that a SIMD has for all its waves
    granule: int  # registers of a lane are dealt out in such numbers
    lds: int  # bytes
    lds_granule: int  # bytes
    blocks: int  # of more than one wave: they need a barrier each


UNITS: Mapping[str, Unit] = {
    "gfx90a": Unit(4, 8, 512, 8, 64 * KIB, 512, 16),
    "gfx942": Unit(4, 8, 512, 8, 64 * KIB, 512, 16),
    "gfx950": Unit(4, 8, 512, 8, 160 * KIB, 1280, 16),
    "gfx1030": Unit(2, 16, 1024, 16, 64 * KIB, 512, 16),
    "gfx1100": Unit(2, 16, 1536, 24, 64 * KIB, 512, 16),
    "gfx1201": Unit(2, 16, 1536, 24, 64 * KIB, 512, 16),
}


def waves_by_registers(arch: str, takes: Resources) -> int:
    """The waves of a SIMD that its vector registers have room for."""
    unit = UNITS[arch]
    per_wave = max(1, -(-takes.vgprs // unit.granule)) * unit.granule
    return min(unit.waves, unit.registers // per_wave)


def occupancy(arch: str, takes: Resources, launch: Launch) -> Occupancy:
    """Of a kernel that the compiler gave these resources, launched like this."""
    unit, place = UNITS[arch], "a CU"
    if takes.two_units:  # a workgroup processor is two compute units of RDNA
        place = "a WGP"
        unit = replace(unit, simds=2 * unit.simds, lds=2 * unit.lds, blocks=2 * unit.blocks)
    waves = -(-math.prod(launch.block) // TYPICAL[arch][0])
    lds = -(-(takes.lds + launch.shared) // unit.lds_granule) * unit.lds_granule
    limits = {
        "waves": unit.simds * unit.waves // waves,
        "registers": unit.simds * waves_by_registers(arch, takes) // waves,
        **({"LDS": unit.lds // lds} if lds else {}),
        **({"blocks": unit.blocks} if waves > 1 else {}),
    }
    return Occupancy(limits, waves, unit.simds * unit.waves, place, "waves")
