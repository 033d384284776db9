"""Counts and pictures of memory accesses say what a GPU would do."""

import numpy as np
import pytest

from ladder.core.contract.ladder import find, ladders
from ladder.core.show import source_code
from ladder.core.show.pictures.accesses import touched_sectors
from ladder.core.show.trace import own_lines, per_request, trace

pytestmark = pytest.mark.emulator

FORWARD = find("layernorm.forward")
DIMS = {"N": 64, "C": 64}


@pytest.fixture(scope="module")
def reports():
    return {number: trace(FORWARD, FORWARD.rung(number), "float32", DIMS) for number in (1, 3)}


def reads_of_inp(report, rung):
    return [c for c in own_lines(report, rung) if (c.buffer, c.kind) == ("inp", "read")]


@pytest.mark.parametrize(("rung", "sectors"), [(1, 32.0), (3, 4.0)])
def test_lanes_that_read_neighbours_share_sectors(reports, rung, sectors):
    for count in reads_of_inp(reports[rung], FORWARD.rung(rung)):
        assert per_request(count) == (sectors, 4.0, "sectors")


def test_the_sectors_of_a_request_are_those_that_it_touches(reports):
    access = next(a for a in reports[1].accesses if a.buffer == "inp")
    assert touched_sectors(access) == [8 * lane for lane in range(32)]  # rows of 256 bytes


@pytest.mark.parametrize(("op", "number"), [("layernorm.forward", "3"), ("matmul.forward", "1")])
def test_the_same_lines_access_the_same_buffers_in_every_type(op, number):
    ladder = find(op)
    rung = ladder.rung(number)
    reports = [trace(ladder, rung, dtype) for dtype in ("float32", "float16", "bfloat16")]
    single, *others = [{(c.line, c.kind, c.buffer) for c in own_lines(r, rung)} for r in reports]
    assert single and all(other == single for other in others)


@pytest.mark.parametrize("name", sorted(ladders()))
def test_the_shape_to_trace_is_small_and_the_contract_accepts_it(name):
    op = find(name).op
    dims = source_code.small_shape(op)
    assert set(dims) == set(op.dims)
    assert all(size >= 1 for size in dims.values())
    assert op.flops(dims) <= source_code.MOST_FLOPS
    assert all(np.prod(arg.resolve_shape(dims)) >= 1 for arg in op.args)
