"""The machine instructions of an AMD GPU, with the source lines that they were compiled from.

clang writes them as it compiles, and they stay in the cache beside the code object, so there is
nothing to disassemble. An instruction from a header has the line of the rung where it was inlined.
Occupancy follows from what a kernel takes and its launch alone.
"""

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ladder.core.amd.hip import compiler
from ladder.core.common import machine_code
from ladder.core.contract.launch_plan import Launch

# What to look for in a kernel: (what it is, how its mnemonics begin, the style they are shown in).
# The first that fits counts. https://llvm.org/docs/AMDGPU/AMDGPUAsmGFX942.html and its siblings
GROUPS = (
    (
        "exchange within the wave",
        r"ds_\w*permute|ds_swizzle|v_readlane|v_permlane|\w+_dpp",
        "magenta",
    ),
    ("caches", r"buffer_(gl[01]_)?inv|buffer_wb|global_(inv|wb)", ""),
    ("scratch memory (spills, arrays indexed at run time)", r"scratch_|buffer_", "bold red"),
    ("loads from global memory", r"(global|flat)_load", "cyan"),
    ("stores and atomics to global memory", r"(global|flat)_(store|atomic)", "green"),
    ("scalar loads: arguments, and what is the same for all lanes", r"s_(buffer_)?load", "cyan"),
    ("LDS", r"ds_", "yellow"),
    ("waiting", r"s_wait|s_barrier", "red"),
    ("matrix cores", r"v_(s?mfmac?|s?wmmac?)", "bold"),
    ("transcendental functions", r"v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos)_", "blue"),
    ("scalar arithmetic and control", r"s_", ""),
    ("vector arithmetic", r"v_", ""),
)
_LOCATION = re.compile(r"([^\s@\[\]][^@\[\]]*):(\d+):\d+")


class Instruction(machine_code.Instruction):
    """Such as "global_load_dwordx4 v[2:5], v[0:1], off"."""

    @property
    def opcode(self) -> str:
        return self.text.split()[0]

    @property
    def purpose(self) -> tuple[str, str]:
        for what, form, style in GROUPS:
            if re.match(form, self.opcode):
                return what, style
        return "others", ""

    @property
    def kind(self) -> str:
        """The opcode without its encoding: v_add_f32 of v_add_f32_e32."""
        return re.sub(r"_e(32|64)$", "", self.opcode)


@dataclass(frozen=True)
class Label:
    """A place in a kernel that branches name."""

    kernel: str
    name: str  # ".LBB0_4"


def listing(module: Path, source: Path) -> Iterator[Instruction | Label]:
    """What every kernel of `module` consists of, in order, with the lines in `source`.

    The padding after a kernel's end is left out.
    """
    rung = os.path.abspath(source)
    kernels = compiler.resources(module)
    kernel, line = "", None
    for text in compiler.assembly(module).splitlines():
        code, _, remark = text.partition(";")
        if match := re.match(r"(\w+):", code):
            kernel, line = match[1], None
        elif re.match(r"\s+\.size\s", code):
            kernel = ""
        elif re.match(r"\s+\.loc\s", code):
            # From the inside out: "portable.cuh:61:63 @[ rung.cu:25:35 ]". Line 0 is no line.
            places = _LOCATION.findall(remark)
            lines = [int(number) for path, number in places if path.strip() == rung]
            line = next(iter(lines), 0) or None
        elif kernel in kernels and (match := re.match(r"(\.LBB\w+):", code)):
            yield Label(kernel, match[1])
        elif kernel in kernels and re.match(r"\s+[a-z]\w*(\s|$)", code):
            yield Instruction(kernel, " ".join(code.split()), line)


def instructions(module: Path, source: Path) -> list[Instruction]:
    """The instructions of every kernel of `module`, in order, with their lines in `source`."""
    return [item for item in listing(module, source) if isinstance(item, Instruction)]


def waves_by_registers(arch: str, takes: compiler.Resources) -> int:
    """The waves of a SIMD that its vector registers have room for."""
    unit = compiler.TYPICAL[arch]
    per_wave = max(1, -(-takes.vgprs // unit.granule)) * unit.granule
    return min(unit.waves, unit.registers // per_wave)


def occupancy(arch: str, takes: compiler.Resources, launch: Launch) -> machine_code.Occupancy:
    """How many waves of a kernel a SIMD holds at once, and what limits them: of one that the
    compiler gave these resources, launched like this."""
    unit, place = compiler.TYPICAL[arch], "a CU"
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
    return machine_code.Occupancy(limits, waves, unit.simds * unit.waves, place, "waves")
