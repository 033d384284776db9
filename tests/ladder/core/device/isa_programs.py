"""Programs for the interpreter of machine code: written in a test, or compiled and then changed."""

import dataclasses

import numpy as np

from ladder.core.amd.hip.compiler import TYPICAL
from ladder.core.amd.isa.kernel import InterpretedKernel
from ladder.core.amd.isa.program import Argument, Code, Line
from ladder.core.contract.launch_plan import Launch

# out, a, b, c: pointers. Each thread has one element of 4 bytes.
PROGRAM = """\
s_load_b256 s[4:11], s[0:1], 0x0
s_lshl_b32 s3, s2, 10
v_lshl_add_u32 v0, v0, 2, s3
s_waitcnt lgkmcnt(0)
global_load_b32 v1, v0, s[6:7]
global_load_b32 v2, v0, s[8:9]
global_load_b32 v3, v0, s[10:11]
s_waitcnt vmcnt(0)
{instructions}
global_store_b32 v0, v4, s[4:5]
s_endpgm"""
CDNA_NAMES = {"s_load_b256": "s_load_dwordx8", "load_b32": "load_dword", "store_b32": "store_dword"}
THREADS = 256
THREE = ("gfx942", "gfx1100", "gfx1201")  # CDNA 3, RDNA 3, RDNA 4; others are much like one of them


def kernel(text, arguments=4, arch="gfx1100", lds=0, scratch=0):
    """A kernel from assembly; its arguments are pointers. s[0:1] has their address, s2 the number
    of the block, v0 that of the thread."""
    code = Code("test")
    for number, line in enumerate(text.strip().splitlines(), 1):
        if line.endswith(":"):
            code.labels[line[:-1]] = len(code.lines)
        else:
            code.lines.append(Line(line.strip(), "test.s", number))
    code.descriptor = {
        "group_segment_fixed_size": lds,
        "private_segment_fixed_size": scratch,
        "next_free_vgpr": 32,
        "user_sgpr_count": 2,
        "user_sgpr_kernarg_segment_ptr": 1,
        "system_vgpr_workitem_id": 0,
        **{f"system_sgpr_workgroup_id_{axis}": 1 for axis in "xyz"},
    }
    code.arguments = [Argument(8 * i, 8, "global_buffer") for i in range(arguments)]
    return of_code(code, ["out", "a", "b", "c"][:arguments], arch)


def of_code(code, names, arch="gfx1100"):
    gpu = TYPICAL[arch]
    return InterpretedKernel(code, names, arch, gpu.warp, gpu.lds, time_limit=20)


def without(code, index):
    """The same with an instruction that does nothing instead of one."""
    lines = list(code.lines)
    lines[index] = dataclasses.replace(lines[index], text="s_nop 0")
    return dataclasses.replace(code, lines=lines)


def compute(instructions, a, b=None, c=None, arch="gfx1100"):
    """What instructions make of v1, v2 and v3, elements of a, b and c, and leave in v4."""
    a = np.asarray(a)
    blocks = -(-len(a) // THREADS)
    arrays = [np.zeros(blocks * THREADS, a.dtype) for _ in range(4)]
    for array, values in zip(arrays[1:], (a, b, c), strict=True):
        if values is not None:
            array[: len(a)] = values
    text = PROGRAM
    for name, other in CDNA_NAMES.items():
        text = text.replace(name, other if arch == "gfx942" else name)
    program = kernel(text.format(instructions=instructions), arch=arch)
    program(Launch("test", (blocks, 1, 1), (THREADS, 1, 1)), tuple(arrays))
    return arrays[0][: len(a)]
