"""Every rung of every ladder is right: all shapes and dtypes, on the emulator or on the GPU.

`python -m ladder check OP` runs the same from the command line.
"""

import pytest

from ladder.contract.dtypes import DTYPES
from ladder.contract.ladder import ladders
from ladder.device.open import open_device
from ladder.verify.check import check

CASES = [
    pytest.param(
        ladder,
        rung,
        dtype,
        id=f"{ladder.op.name}-{rung.id}-{dtype}",
        # One process for all rungs of a ladder: the reference runs once for all of them.
        marks=pytest.mark.xdist_group(f"{ladder.op.name}-{dtype}"),
    )
    for ladder in ladders().values()
    for rung in ladder.rungs
    for dtype in ladder.op.reals
]


@pytest.mark.emulator
@pytest.mark.gpu
@pytest.mark.parametrize(("ladder", "rung", "dtype"), CASES)
def test_a_rung_computes_what_its_contract_says(ladder, rung, dtype, device):
    """In one type under every order of threads and width of a warp, in the others under one."""
    brief = dtype != main_type(ladder, rung, device)
    report = check_on(ladder, rung, dtype, device, brief)
    assert report.passed, report


@pytest.mark.emulator
@pytest.mark.sweep
@pytest.mark.parametrize(("ladder", "rung", "dtype"), CASES)
def test_a_rung_does_so_under_every_order_in_every_type(ladder, rung, dtype, device):
    if dtype == main_type(ladder, rung, device) or device.variants() == device.variants(brief=True):
        pytest.skip("the test above covers it")
    report = check_on(ladder, rung, dtype, device, brief=dtype == "float16")
    assert report.passed, report


def main_type(ladder, rung, device):
    """The first type that the rung is written for."""
    claimed = (d for d in ladder.op.reals if rung.claims(device.target(DTYPES[d])))
    return next(claimed, None)


def check_on(ladder, rung, dtype, device, brief):
    if rung.is_reference:
        device = open_device("cpu")
    elif rung not in ladder.on(device):
        pytest.skip(f"a library's, not for {device.name}")
    if not rung.claims(device.target(DTYPES[dtype])):
        pytest.skip(f"it needs {'; '.join(rung.conditions())}")
    return check(ladder, rung, device, [dtype], brief=brief)
