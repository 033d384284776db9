"""Blocks that go from tile to tile: what one tile leaves behind must not get into the next.

The ops' own shapes have too few tiles for that. These have more than there are blocks, tiles that
stick out, widths of 192 and 256, shares that end within a tile, and more heads than go at a time.
"""

import pytest

from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.device.open import open_device
from ladder.core.emulator import emulated
from ladder.core.verify.check import check, check_case

pytestmark = [pytest.mark.emulator, pytest.mark.costly]


def each(*ladders):
    """(op, id) of every rung of (op, ids)."""
    cases = [(op, id) for op, ids in ladders for id in ids]
    return pytest.mark.parametrize(("op", "id"), cases)


SHAPES = [  # multiprocessors, and N, C, OC
    (4, (520, 136, 136)),
    (4, (700, 264, 264)),
    (2, (390, 392, 328)),
    (8, (300, 72, 136)),  # forward 16bit-16: the second warpgroups have nothing to do
    (3, (2440, 264, 64)),  # backward_weight: an equal number of steps, from several tiles
]
IN_MAKE_TEST = (2, 4)  # of these: most tiles to a block, and shares that end within a tile


@pytest.mark.parametrize(
    ("multiprocessors", "sizes"),
    [
        pytest.param(*shape, marks=[pytest.mark.sweep] * (i not in IN_MAKE_TEST))
        for i, shape in enumerate(SHAPES)
    ],
)
@each(
    ("matmul.forward", (13, 14, 15, "16bit-15b", 16, 18)),
    ("matmul.backward_input", (13, 14)),
    ("matmul.backward_weight", (12, 13, 14, 15, 16, 17)),
    ("matmul.backward_weight_bias", ("16bit-4", 5, 6, 7, 8, 9)),
    ("matmul_gelu.forward", ("16bit-8", 11)),
    ("matmul_gelu.backward_input", ("16bit-5", 6)),
    ("matmul_residual.forward", ("16bit-2",)),
    ("matmul_crossentropy.forward", ("16bit-2",)),
    ("matmul_crossentropy.backward_input", ("16bit-2",)),
)
def test_many_tiles_to_a_block(monkeypatch, op, id, multiprocessors, sizes):
    monkeypatch.setattr(emulated, "MULTIPROCESSORS", multiprocessors)
    device = open_device("emulated")
    dims = dict(zip(("N", "C", "OC"), sizes, strict=True))
    if "V" in find(op).op.dims:
        dims["V"] = dims["OC"] - 5
    outcome = check_case(find(op).op, find(op).rung(id), device, "bfloat16", dims, brief=True)
    assert outcome.status == "passed", outcome


@pytest.mark.parametrize(
    ("multiprocessors", "sizes"),
    [(3, (650, 136, 200)), pytest.param(2, (390, 328, 376), marks=pytest.mark.sweep)],
)
@each(
    ("matmul.forward", (17,)),
    ("matmul.backward_input", (15,)),
    ("matmul_relu.forward", ("16bit-5",)),
    ("matmul_relu.backward_input", ("16bit-4",)),
)
def test_blocks_that_keep_their_weight(monkeypatch, op, id, multiprocessors, sizes):
    """They go down 11 rows of tiles, or 7; the sizes are N, and those within and across weight."""
    monkeypatch.setattr(emulated, "MULTIPROCESSORS", multiprocessors)
    device = open_device("emulated")
    names = ("N", "C", "OC") if op.endswith("forward") else ("N", "OC", "C")
    dims = dict(zip(names, sizes, strict=True))
    outcome = check_case(find(op).op, find(op).rung(id), device, "bfloat16", dims, brief=True)
    assert outcome.status == "passed", outcome


@pytest.mark.parametrize(("multiprocessors", "columns"), [(1, 8), (4, 6)])
@each(
    ("matmul.forward", ("float32-6", "float32-7")),
    ("matmul.backward_input", ("float32-6", "float32-7")),
)
def test_tiles_of_either_width(monkeypatch, op, id, multiprocessors, columns):
    """The width depends on the number of multiprocessors, and the ops' own shapes choose 6: that
    one is checked under every order of threads there."""
    monkeypatch.setattr(emulated, "MULTIPROCESSORS", multiprocessors)
    device, dims = open_device("emulated"), {"N": 130, "C": 100, "OC": 100}
    rung = find(op).rung(id)
    assert rung.plan(dims, device.target(DTYPES["float32"])).constants["COLUMNS"] == columns
    report = check(find(op), rung, device, ["float32"], [dims], brief=columns == 6)
    assert report.passed, report


@pytest.mark.sweep
@each(("attention.forward", (12, 13)), ("attention.backward", (10, 11)))
def test_more_heads_than_go_at_a_time(op, id):
    device, dims = open_device("emulated"), {"B": 33, "T": 131, "C": 16, "NH": 2}
    rung = find(op).rung(id)
    assert rung.plan(dims, device.target(DTYPES["bfloat16"])).constants["GROUPS"] == 2
    report = check(find(op), rung, device, ["bfloat16"], [dims], brief=True)
    assert report.passed, report


@each(("attention.backward", ("16bit-12",)), ("attention_dropout.backward", ("16bit-5",)))
def test_heads_one_after_the_other(monkeypatch, op, id):
    """One block, three heads of four tiles: each barrier goes through several phases."""
    monkeypatch.setattr(emulated, "MULTIPROCESSORS", 1)
    device, dims = open_device("emulated"), {"B": 1, "T": 200, "C": 192, "NH": 3}
    outcome = check_case(find(op).op, find(op).rung(id), device, "bfloat16", dims, brief=True)
    assert outcome.status == "passed", outcome
