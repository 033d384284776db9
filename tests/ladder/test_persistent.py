"""Blocks that go from tile to tile: what one tile leaves behind must not get into the next.

The ops' own shapes have too few tiles for that. These have more than there are blocks, tiles that
stick out, widths of 192 and 256, and shares that end within a tile.
"""

import pytest

import ladder.emulator
from ladder.check import check
from ladder.contract import find
from ladder.device import open_device

CASES = [
    ("matmul.forward", (13, 14, 15, 16)),
    ("matmul.backward_input", (13, 14)),
    ("matmul.backward_weight", (12, 13, 14, 15)),
    ("matmul_gelu.forward", (7, 8)),
]
SHAPES = [  # multiprocessors, and N, C, OC
    (4, (520, 136, 136)),
    (4, (700, 264, 264)),
    (2, (390, 392, 328)),
    (8, (300, 72, 136)),  # forward 16: the second warpgroups have nothing to do
    (3, (2440, 264, 64)),  # backward_weight: an equal number of steps, from several tiles
]


@pytest.mark.parametrize(("multiprocessors", "sizes"), SHAPES)
@pytest.mark.parametrize(("op", "number"), [(op, n) for op, numbers in CASES for n in numbers])
def test_many_tiles_to_a_block(monkeypatch, op, number, multiprocessors, sizes):
    monkeypatch.setattr(ladder.emulator, "MULTIPROCESSORS", multiprocessors)
    device = open_device("emulated")
    dims = dict(zip(("N", "C", "OC"), sizes, strict=True))
    report = check(find(op), find(op).rung(number), device, ["bfloat16"], [dims], brief=True)
    assert report.passed, report
