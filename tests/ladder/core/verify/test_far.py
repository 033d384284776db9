"""Offsets beyond 2^31: the last block of a grid reaches them, and an int does not."""

import pytest

from ladder.core.contract import rung_file
from ladder.core.contract.ladder import find
from ladder.core.emulator.emulated import Emulated
from ladder.core.verify.check import LAST_BLOCK, check
from ladder.core.verify.variants import out_of_reach

LADDER = find("crossentropy.fused")
ROW = "logits + (size_t)row * Vp"


def with_offsets_of_int(tmp_path):
    source = LADDER.rung("2").source
    assert ROW in source
    path = tmp_path / "mine.cu"
    path.write_text(source.replace(ROW, ROW.replace("(size_t)", "")), encoding="utf-8")
    return rung_file.parse(path, LADDER.op.kernel)


@pytest.mark.emulator
def test_an_int_that_cannot_hold_an_offset_is_named_by_its_line(tmp_path):
    report = check(LADDER, with_offsets_of_int(tmp_path), Emulated(), dtypes=["bfloat16"])
    (failure,) = report.failures
    assert failure.dims["N"] * failure.dims["Vp"] > 2**31
    assert {kind for kind, *_ in failure.problems} == {"out of bounds"}
    assert failure.inputs == LAST_BLOCK and "x[target]" in failure.detail


@pytest.mark.emulator
def test_the_last_block_of_a_sound_kernel_stays_within():
    assert out_of_reach(LADDER.op, LADDER.rung("2"), Emulated(), ["bfloat16"]) is None
