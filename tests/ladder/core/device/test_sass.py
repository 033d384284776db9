"""Disassembly: instructions with their source lines, counted by what they do."""

import pytest

from ladder.core.common import cache
from ladder.core.common.errors import LadderError
from ladder.core.contract import rung_file
from ladder.core.contract.op import DTYPES
from ladder.core.device.cuda import compiler, nvrtc, sass
from ladder.core.device.cuda.sass import Instruction

SOURCE = """\
// copy forward, rung 1: sixteen bytes per thread, and their root
// Launch: copy_forward<<<1, 32>>>
#include "portable.cuh"

extern "C" __global__ void copy_forward(real* out, const real* inp) {
    Vec v = load_vec(inp + threadIdx.x * VECTOR);
    v[0] = to_real(rsqrtf(warp_sum(to_float(v[0]))));
    __syncthreads();
    store_vec(out + threadIdx.x * VECTOR, v);
}
"""


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """The rung above and its cubin."""
    if not nvrtc.installed():
        pytest.skip("NVRTC is not installed: pip install -e '.[compile]'")
    try:
        sass.find_nvdisasm()
    except LadderError as error:
        pytest.skip(str(error))
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    path = tmp_path / "1_copy.cu"
    path.write_text(SOURCE)
    rung = rung_file.parse(path, "copy_forward")
    return rung, compiler.compile_cubin(rung, {}, DTYPES["float32"], "sm_90a")


@pytest.mark.slow
def test_instructions_know_their_line_even_from_a_header(compiled):
    rung, cubin = compiled
    code = sass.instructions(cubin, rung.path)
    assert {instruction.kernel for instruction in code} == {"copy_forward"}
    by_kind = {instruction.kind: instruction.line for instruction in code}
    assert by_kind["LDG.128"] == 6
    assert by_kind["SHFL.BFLY"] == by_kind["MUFU.RSQ"] == 7
    assert by_kind["BAR.SYNC"] == 8
    assert by_kind["STG.128"] == 9


@pytest.mark.parametrize(
    ("text", "kind", "group"),
    [
        ("LDG.E R0, [R4.64]", "LDG.32", "loads from global memory"),
        ("@!P0 LDG.E.U16.CONSTANT R0, [R4.64]", "LDG.16", "loads from global memory"),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R5], [R2.64]", "LDGSTS.128", "loads from global memory"),
        ("HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4]", "HGMMA", "tensor cores"),
        ("MUFU.EX2 R0, R1", "MUFU.EX2", "special functions"),
        (
            "RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2.64], R5",
            "RED",
            "stores and atomics to global memory",
        ),
        ("EXIT", "EXIT", "arithmetic and control"),
    ],
)
def test_kind_and_group_of_an_instruction(text, kind, group):
    instruction = Instruction("k", text, None)
    assert (instruction.kind, instruction.group) == (kind, group)


def test_the_longest_loop_ends_where_a_jump_leads_back_the_farthest():
    def code(*jumps: int | None) -> list[sass.Instruction]:
        return [sass.Instruction("k", "BRA", None, 16 * n, to) for n, to in enumerate(jumps)]

    inner_and_outer = code(None, None, 16, None, 16, 80)
    assert [i.address for i in sass.longest_loop(inner_and_outer)] == [16, 32, 48, 64]
    assert sass.longest_loop(code(None, None)) == code(None, None)
    moved_away = [
        *code(None, 0),
        sass.Instruction("k", "EXIT", None, 32),
        *code(*[None] * 3, 0)[3:],
    ]
    assert [i.address for i in sass.longest_loop(moved_away)] == [0, 16]
