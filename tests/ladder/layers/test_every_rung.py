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


@pytest.mark.parametrize(("ladder", "rung", "dtype"), CASES)
def test_a_rung_computes_what_its_contract_says(ladder, rung, dtype, device):
    if rung.is_reference:
        device = open_device("cpu")
    elif rung not in ladder.on(device):
        pytest.skip(f"a library's, not for {device.name}")
    if not rung.claims(device.target(DTYPES[dtype])):
        pytest.skip(f"it needs {'; '.join(rung.conditions())}")
    # Of the two types of 16 bits, one is enough to look closely at.
    report = check(ladder, rung, device, [dtype], brief=dtype == "float16")
    assert report.passed, report
