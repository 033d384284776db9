"""SASS, the machine instructions of an NVIDIA GPU, read out of a cubin without a GPU; and what
follows from it and a launch, also without one: how many blocks an SM holds at once.

Needs NVIDIA's `nvdisasm`, which comes as a wheel. Each instruction has the source line that it was
compiled from; one from a header has the line of the rung where it was inlined.
"""

import math
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder.core.common import machine_code
from ladder.core.common.errors import LadderError
from ladder.core.common.install import install
from ladder.core.contract.launch_plan import Launch
from ladder.core.device.cuda.compiler import TYPICAL, WARP_SIZE, Resources
from ladder.core.device.cuda.nvrtc import toolkit_folders, wheel_folders

# What to look for in a kernel: (what it is, the mnemonics, the style they are shown in).
# https://docs.nvidia.com/cuda/cuda-binary-utilities/#instruction-set-reference
GROUPS = (
    ("local memory (spills, arrays indexed at run time)", "LDL STL", "bold red"),
    ("loads from global memory", "LDG LDGSTS LD UBLKCP UTMALDG", "cyan"),
    ("stores and atomics to global memory", "STG ST RED REDG ATOM ATOMG UTMASTG UTMAREDG", "green"),
    ("shared memory", "LDS LDSM STS STSM ATOMS", "yellow"),
    ("exchange within the warp", "SHFL VOTE VOTEU REDUX CREDUX MATCH", "magenta"),
    ("waiting", "BAR WARPSYNC DEPBAR MEMBAR SYNCS WARPGROUP ACQBULK", "red"),
    ("tensor cores", "HMMA IMMA DMMA QMMA OMMA HGMMA IGMMA QGMMA UTCHMMA UTCQMMA", "bold"),
    ("special functions", "MUFU", "blue"),
)
_GROUP = {name: (what, style) for what, names, style in GROUPS for name in names.split()}
_MEMORY = re.compile(r"(LD|ST)[GLS]?(STS)?$")
_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


@dataclass(frozen=True)
class Instruction(machine_code.Instruction):
    """Such as "@P0 LDG.E.128 R4, desc[UR4][R2.64]"."""

    address: int = 0  # in its kernel
    back_to: int | None = None  # of a jump back: where it leads

    @property
    def opcode(self) -> str:
        """LDG.E.128 of "@P0 LDG.E.128 R4, ..."."""
        return re.sub(r"^@\S+\s+", "", self.text).split()[0]

    @property
    def purpose(self) -> tuple[str, str]:
        """That of one of GROUPS, or another."""
        return _GROUP.get(self.opcode.split(".")[0], ("arithmetic and control", ""))

    @property
    def kind(self) -> str:
        """The opcode without what says little: LDG.128 (bits per lane), SHFL.BFLY, HMMA, FFMA."""
        name, *modifiers = self.opcode.split(".")
        if _MEMORY.match(name):
            bits = [_BITS[modifier] for modifier in modifiers if modifier in _BITS]
            return f"{name}.{bits[-1] if bits else 32}"
        if name in ("MUFU", "SHFL", "BAR", "VOTE") and modifiers:
            return f"{name}.{modifiers[0]}"
        return name


def instructions(cubin: Path, source: Path) -> list[Instruction]:
    """The instructions of every kernel of `cubin`, in order, with their lines in `source`.

    The padding after a kernel's end is left out.
    """
    command = [str(find_nvdisasm()), "-c", "-gi", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise LadderError(f"nvdisasm cannot read {cubin}: {done.stderr.strip()}")
    name, line, every = "", None, []
    marker = f'"{os.path.abspath(source)}", line '
    lines: list[int] = []  # of the `//##` remarks before one instruction, innermost first
    labels: dict[str, int] = {}  # the addresses of those that were met so far
    waiting: list[str] = []  # labels of the next instruction
    for text in done.stdout.splitlines():
        if match := re.match(r"\.text\.(\S+):", text):
            name, line, labels = match.group(1), None, {}
        elif match := re.match(r"(\.L_\w+):", text):
            waiting.append(match.group(1))
        elif "//##" in text:
            lines += [int(text.split(marker)[1].split()[0])] if marker in text else []
        elif match := re.match(r"\s*/\*([0-9a-f]+)\*/\s+(.*?)\s*;", text):
            line = lines[-1] if lines else line
            lines = []
            address, code = int(match.group(1), 16), " ".join(match.group(2).split())
            labels.update(dict.fromkeys(waiting, address))
            waiting = []
            jump = re.search(r"\bBRA\b.*`\((\.L_\w+)\)", code)
            back_to = labels.get(jump.group(1)) if jump else None
            every.append(Instruction(name, code, line, address, back_to))
    return [i for i in every if i.opcode != "NOP"]


def longest_loop(kernel: Sequence[Instruction]) -> list[Instruction]:
    """The loop of a kernel that has most instructions, inner loops included; without one, all.

    Jumps back from behind the end of the kernel (EXIT) close no loop: there is the code that the
    compiler moved out of the way.
    """
    ends = [i.address for i in kernel if i.text == "EXIT"]
    spans = [
        (i.back_to, i.address)
        for i in kernel
        if i.back_to is not None and not any(i.back_to <= end < i.address for end in ends)
    ]
    if not spans:
        return list(kernel)
    start, end = max(spans, key=lambda span: span[1] - span[0])
    return [i for i in kernel if start <= i.address <= end]


PARTS = 4  # of an SM; each has a quarter of the registers and of the room for warps
REGISTER_UNIT = 8  # registers of a lane are dealt out in eights


def occupancy(arch: str, takes: Resources, launch: Launch) -> machine_code.Occupancy:
    """How many blocks of a kernel an SM holds at once, and which resource limits them: of one that
    the compiler gave these resources, launched like this. Nsight Compute calls it theoretical.

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
    return machine_code.Occupancy(limits, warps, sm.warps)


def find_nvdisasm() -> Path:
    """NVIDIA's disassembler: from its wheel, else a CUDA toolkit, else the PATH."""
    folders: list[Path] = []
    for wheels in wheel_folders():
        folders += [*sorted(wheels.glob("cu[0-9]*"), reverse=True), wheels / "cuda_nvdisasm"]
    for folder in (*folders, *toolkit_folders()):
        if (folder / "bin/nvdisasm").is_file():
            return folder / "bin/nvdisasm"
    if on_path := shutil.which("nvdisasm"):
        return Path(on_path)
    raise LadderError(f"NVIDIA's disassembler was not found: {install('compile')}")
