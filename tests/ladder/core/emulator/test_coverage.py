"""Counts of branches and loops, and that the shapes of the checker take every rung through all."""

import numpy as np
import pytest

from ladder.core.contract.ladder import ladders
from ladder.core.contract.op import DTYPES
from ladder.core.emulator.coverage import instrument, spots_of
from ladder.core.emulator.emulated import Emulated
from ladder.core.verify.check import check
from tests.ladder.emulation import run, rung, zeros

KERNEL = """\
extern "C" __global__ void k(int *out, int n) {
    // if (never) for (;;)
    int i = threadIdx.x;
    if (i >= n) return;
    if (int odd = i % 2; odd) out[i] = 1;
    else if (i < 0) out[i] = 2;
#pragma unroll
    for (int j = 0; j < i; j++) {
        if (j == 2) continue;
        out[i] += 10;
    }
    while (out[i] > 25) out[i] -= 1;
    for (int j = 0; j < 0; j++) out[i] = 0;
}
"""


@pytest.mark.emulator
def test_branches_and_loops_are_counted_by_thread(tmp_path):
    device, out = Emulated(count_branches=True), zeros(8, dtype="int32")
    run(device, tmp_path, KERNEL, 1, 8, out, np.int32(5))
    assert out.tolist() == [0, 11, 20, 21, 25, 0, 0, 0]
    spots = {(spot.line, spot.kind): spot for spot in device.coverage(rung(tmp_path, KERNEL))}
    assert spots[4, "if"].counts[:2] == (5, 3)
    assert spots[5, "if"].counts[:2] == (3, 2)
    assert spots[6, "if"].never == "never true"
    assert spots[8, "for"].counts == (1, 1, 3, 0, 4), "none, one and more rounds; 0 to 4"
    assert spots[9, "if"].counts[:2] == (8, 2)
    assert spots[12, "while"].counts[:2] == (5, 5)
    assert spots[13, "for"].never == "no round"
    assert len(spots) == 7


def test_a_line_keeps_its_number_and_comments_and_directives_stay():
    source = '#if (A) && \\\n    (B)\nint f() { return g("if (x)"); }  // for (;;)\n#endif\n'
    assert instrument(source).endswith(f"#line 1\n{source}")
    assert spots_of(source) == []


# What no shape or value that is checked reaches: (op, rung, condition): why.
UNREACHED: dict[tuple[str, str, str], str] = {
    ("attention.backward", id, "start < first + own"): (
        "with KEYS = 64, a block has one warpgroup; of 128 keys, a second one would skip queries"
    )
    for id in ("16bit-8", "16bit-9", "16bit-10")
}

RUNGS = [
    pytest.param(ladder, rung, id=f"{ladder.op.name}-{rung.id}")
    for ladder in ladders().values()
    for rung in ladder.rungs
    if rung.path is not None
]


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("op", "id"),
    [("layernorm.forward", "9"), ("matmul.forward", "16bit-16")],
)
def test_few_shapes_already_run_every_branch(op, id):
    assert left_out(ladders()[op], ladders()[op].rung(id), few=True) == []


@pytest.mark.emulator
@pytest.mark.sweep
@pytest.mark.parametrize(("ladder", "rung"), RUNGS)
def test_every_branch_and_loop_of_a_rung_runs(ladder, rung):
    assert left_out(ladder, rung) == []


def left_out(ladder, rung, few=False):
    """The branches and loops of which some way is never taken: in all types together, or in the
    last with few shapes."""
    device = Emulated(count_branches=True)
    reals = [real for real in ladder.op.reals if rung.claims(device.target(DTYPES[real]))]
    for real in reals[-1:] if few else reals:
        report = check(ladder, rung, device, [real], few=few)
        assert report.passed, report
    return [
        f"{spot.line}: {spot.kind} ({spot.text}): {spot.never}"
        for spot in device.coverage(rung)
        if spot.never and (ladder.op.name, rung.id, spot.text) not in UNREACHED
    ]
