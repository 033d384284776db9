"""What Nsight Compute should count of a rung is predicted, and the command that counts it named."""

import re

import pytest

from ladder.__main__ import main
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.launch_plan import Launch
from ladder.core.device.cuda.compiler import Resources
from ladder.core.device.cuda.sass import Instruction, occupancy
from ladder.core.emulator.report import LineCount
from ladder.core.show import machine, ncu

COLUMN = LineCount("a.cu", 7, "copy", "inp", "global", "read", 4, 10, 320, 320, 40, 0, 0)
ROW = LineCount("a.cu", 8, "copy", "out", "global", "write", 16, 10, 320, 160, 160, 0, 0)
SUM = LineCount("a.cu", 9, "copy", "total", "global", "atomic", 4, 10, 10, 10, 10, 0, 0)
TILE = LineCount("a.cu", 9, "copy", "tile", "shared", "read", 4, 10, 320, 0, 0, 80, 10)
OTHER = LineCount("a.cu", 20, "finish", "inp", "global", "read", 4, 99, 99, 99, 99, 0, 0)


def kernel(opcodes="LDG", registers=32, blocks=264, name="copy", spill=0):
    launch, takes = Launch(name, (blocks, 1, 1), (256, 1, 1)), Resources(registers, 0, 0, spill)
    code = [Instruction(name, opcode, None) for opcode in opcodes.split()]
    return machine.Built(launch, takes, occupancy("sm_90a", takes, launch), code, 132)


def predicted(kernel, *counts):
    return {p.metric: p.value for p in ncu.predictions(kernel, counts)}


def advised(kernel, *counts):
    return [f"{item.section}: {item.why}" for item in ncu.advice(kernel, counts)]


def test_accesses_of_a_kernel_are_added_by_space_and_kind():
    counted = predicted(kernel("LDG REDG"), COLUMN, COLUMN, ROW, SUM, TILE, OTHER)
    assert counted["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] == 20
    assert counted["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 640
    assert counted["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"] == 160
    assert counted["l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum"] == 10
    assert counted["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 80
    assert "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum" not in counted


def test_atomics_are_counted_by_the_metric_of_their_instruction():
    red, atom = (f"l1tex__t_sectors_pipe_lsu_mem_global_op_{kind}.sum" for kind in ("red", "atom"))
    assert predicted(kernel("REDG"), SUM)[red] == 10
    assert atom not in predicted(kernel("REDG"), SUM)
    assert predicted(kernel("ATOMG"), SUM)[atom] == 10
    assert not {red, atom} & predicted(kernel("REDG ATOMG"), SUM).keys()


def test_the_launch_is_predicted_from_registers_and_grid():
    counted = predicted(kernel(registers=40))
    assert counted["launch__registers_per_thread"] == 40
    assert predicted(kernel(registers=12))["launch__registers_per_thread"] == 16
    assert counted["sm__maximum_warps_per_active_cycle_pct"] == 75  # 6 blocks of 8 warps, of 64
    assert counted["launch__waves_per_multiprocessor"] == 0.333  # 264 blocks, room for 132 * 6
    assert counted["l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum"] == 0
    assert "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum" not in predicted(kernel("LDG LDL"))


@pytest.mark.parametrize("copy", ["LDGSTS", "UTMALDG"])
def test_no_access_is_predicted_where_copies_have_metrics_of_their_own(copy):
    assert not [name for name in predicted(kernel(copy), COLUMN) if "global" in name]
    (advice,) = [text for text in advised(kernel(copy)) if "cp.async" in text]
    assert re.match("MemoryWorkloadAnalysis_Tables: .*TMA", advice)


def test_a_report_is_opened_where_the_counts_are_bad():
    column, bank = advised(kernel(), COLUMN, ROW, TILE)[2:4]
    assert re.search("line 7, read .* inp: 32 sectors .* 4$", column)
    assert re.search("line 9, read .* tile: 8 wavefronts .* 1$", bank)
    assert not [text for text in advised(kernel(), ROW) if "line " in text]


@pytest.mark.emulator
def test_a_rung_is_counted_on_as_many_sms_as_the_gpu_has(capsys):
    pytest.importorskip("nvidia", reason="needs NVIDIA's compiler: pip install -e '.[compile]'")
    assert main(["ncu", "start.sum", "5", "--shape", "N=10240"]) == 0
    said = capsys.readouterr().out
    warps = 10240 // 32  # one atomic each; 32 blocks, enough for the emulated GPU, have fewer
    assert f"{warps:>12,}  l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum: " in said
    assert said.endswith(f": {find('start.sum').rung(5).header['left'][0]}\n")


def test_what_is_no_kernel_cannot_be_profiled():
    ladder = find("start.add")
    with pytest.raises(LadderError, match=r"start\.add rung 0 .* kernel"):
        machine.kernels(ladder, ladder.rung(0), "float32", {"N": 64}, "sm_90a")
