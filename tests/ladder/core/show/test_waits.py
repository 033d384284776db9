"""The picture of who waits for whom: what a ring's warps do, a race, and where it is cut."""

import contextlib
import dataclasses
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.emulator import report as reports
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.kernel import KernelError
from ladder.core.show.pictures import waits
from ladder.core.verify import sandbox
from tests.ladder.emulation import line, run, rung, zeros

pytestmark = pytest.mark.emulator

RING = """#include "hopper.cuh"
extern "C" __global__ void k(float *out, int steps) {
    __shared__ Mbarrier full[2], empty[2];
    __shared__ float stages[2];
    for (int i = 0; threadIdx.x == 0 && i < 2; i++) {
        mbarrier_init(&full[i], 32);
        mbarrier_init(&empty[i], 1);
    }
    __syncthreads();
    for (int i = 0; i < steps; i++) {
        int stage = i % 2, parity = i / 2 % 2;
        if (threadIdx.x >= 32) {
            mbarrier_wait(&empty[stage], parity ^ 1);
            if (threadIdx.x == 32) stages[stage] = i;  // WRITE
            mbarrier_arrive(&full[stage]);
        } else {
            mbarrier_wait(&full[stage], parity);
            if (threadIdx.x == 0) *out += stages[stage];  // READ
            if (threadIdx.x == 0) mbarrier_arrive(&empty[stage]);
        }
    }
}
"""


def seen(tmp_path, source, steps=4):
    device = Emulated(counting=True).variant(record=True)
    with contextlib.suppress(KernelError):
        run(device, tmp_path, source, 1, 64, zeros(1), np.int32(steps))
    return device.report()


def steps_of(report):
    return waits.Steps(report.timelines[-1])


def drawn(tmp_path, report):
    return waits.of_report(report, rung(tmp_path, RING), "a ring").svg()


def test_a_consumer_goes_on_a_step_after_its_stage_is_filled(tmp_path):
    bars = steps_of(seen(tmp_path, RING)).bars
    barriers = {bar.row for bar in bars if isinstance(bar.row, str)}
    assert barriers == {"full[0]", "full[1]", "empty[0]", "empty[1]"}
    assert all(bar.kind != "problem" for bar in bars)
    filled = [bar for bar in bars if bar.row == (0, 1) and bar.kind == "arrives"]
    waited = [bar for bar in bars if bar.row == (0, 0) and bar.text.startswith("full")]
    assert len(filled) == len(waited) == 4
    assert all(wait.end >= fill.end for wait, fill in zip(waited, filled, strict=True))
    freed = [bar for bar in bars if bar.row == (0, 0) and bar.kind == "arrives"]
    again = [bar for bar in bars if bar.row == (0, 1) and "empty[0], phase 0" in bar.text]
    assert again[-1].end >= freed[0].end


def test_the_two_accesses_of_a_race_are_joined(tmp_path):
    source = re.sub(r"mbarrier_wait\(.*", "", RING)
    report = seen(tmp_path, source, steps=1)
    marked = {bar.line for bar in steps_of(report).bars if bar.kind == "problem"}
    assert marked == {line(source, "WRITE"), line(source, "READ")}
    texts = ["".join(each.itertext()) for each in ET.fromstring(drawn(tmp_path, report)).iter()]
    assert "no barrier" in texts


def test_a_wait_without_an_end_is_the_problem(tmp_path):
    steps = steps_of(seen(tmp_path, RING.replace("mbarrier_arrive(&empty[stage]);", ";")))
    stuck = [bar for bar in steps.bars if bar.kind == "problem"]
    assert {bar.end for bar in stuck} == {steps.end}
    assert {bar.text.partition(",")[0] for bar in stuck if bar.line} == {"full[0]", "empty[0]"}


def test_what_is_left_out_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "KEPT", 20)
    report = seen(tmp_path, RING, steps=50)
    (launch,) = report.timelines
    assert len(launch.events) == 20 and launch.left_out > 100
    assert f"{launch.left_out:,} more events " in drawn(tmp_path, report)


def test_an_answer_that_no_kernel_gives_is_refused(tmp_path):
    report = seen(tmp_path, RING)
    events = report.timelines[0].events
    report.timelines[0] = dataclasses.replace(
        report.timelines[0], events=[events[3]._replace(kind="?"), *events]
    )
    with pytest.raises(LadderError, match="kernel's process"), sandbox.distrusted():
        drawn(tmp_path, report)
