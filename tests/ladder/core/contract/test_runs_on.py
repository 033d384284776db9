"""The words for where a rung runs follow from its conditions; none of these is lost."""

import pytest

from ladder.core.amd.hip import compiler as hip
from ladder.core.contract.ladder import find, ladders
from ladder.core.contract.launch_plan import LaunchLines
from ladder.core.contract.op import REALS
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.runs_on import FAMILIES, runs_on
from ladder.core.device.cuda import compiler as cuda


def words(needs, reals=REALS):
    return runs_on(Rung("1", "idea", run=print, header={"needs": (needs,)}), reals)


@pytest.mark.parametrize(
    ("needs", "places"),
    [
        ("nothing", "any GPU"),
        ("N % vector == 0; B * NH <= 65535; 8 * C <= shared_bytes", "any GPU"),
        ("real == float32", "any GPU in fp32"),
        ("sm >= 70", "NVIDIA sm_75+"),
        ("sm >= 80; warp == 32", "NVIDIA sm_80+"),
        ("sm == 90; real in (float16, bfloat16)", "NVIDIA sm_90 (H100, H200) in fp16 and bf16"),
        ("sm == 90 or sm == 100", "NVIDIA sm_90, sm_100"),
        (
            "sm >= 80 or sm >= 70 and real == float16; real in (float16, bfloat16)",
            "NVIDIA sm_75+ in fp16; NVIDIA sm_80+ in bf16",
        ),
        ("cdna >= 2 or rdna >= 3", "AMD CDNA 2+, RDNA 3+"),
        ("rdna == 4", "AMD RDNA 4 (RX 9070 XT)"),
        ("warp == 32", "NVIDIA sm_75+, AMD RDNA 2+"),
        ("sm >= 200", "no GPU known here"),
    ],
)
def test_conditions_are_put_into_words(needs, places):
    assert words(needs) == places


def test_types_are_named_only_where_the_op_has_others():
    assert words("real == float32", ("float32",)) == "any GPU"


def test_the_reference_runs_on_the_cpu():
    assert runs_on(find("start.add").rung("0"), REALS) == "CPU"


def test_every_architecture_that_is_compiled_for_has_its_generation():
    known = {g.arch: g.warp for _, generations in FAMILIES for g in generations}
    amd = {arch: gpu.warp for arch, gpu in hip.TYPICAL.items()}
    assert known == {**dict.fromkeys(cuda.TYPICAL, cuda.WARP_SIZE), **amd}


def test_what_a_condition_says_of_the_shape_is_not_lost():
    """Each condition is in the words, or stands beside them."""
    lines = LaunchLines.parse({"needs": ("sm >= 80; C % vector == 0; 8 * C <= shared_bytes",)})
    assert [need.text for need in lines.needs_of_shape] == [
        "C % vector == 0",
        "8 * C <= shared_bytes",
    ]
    for ladder in ladders().values():
        for rung in ladder.rungs:
            left = set(rung.conditions()) - set(rung.shape_conditions())
            assert bool(left) == (runs_on(rung, REALS) not in ("any GPU", "CPU"))
