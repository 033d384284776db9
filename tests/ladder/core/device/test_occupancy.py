"""How many blocks of a kernel an SM holds follows from its registers, shared memory and size."""

import re

import pytest

from ladder.core.contract.launch_plan import Launch
from ladder.core.device.cuda.compiler import Resources
from ladder.core.device.cuda.sass import occupancy


def of(registers, shared, threads, arch="sm_90a", dynamic=0):
    launch = Launch("kernel", (1, 1, 1), (threads, 1, 1), dynamic)
    return occupancy(arch, Resources(registers, shared, 0, 0), launch)


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "blocks", "limited_by"),
    [
        (116, 66_560, 256, 2, "registers"),  # all of an SM's registers would do for three
        (116, 90_000, 256, 2, "registers and shared memory"),
        (128, 0, 256, 2, "registers"),
        (129, 0, 256, 1, "registers"),  # a lane gets 136
        (96, 81_920, 288, 2, "registers and shared memory"),  # 9 warps: 5 in one of the parts
        (32, 0, 32, 32, "blocks"),
        (32, 0, 256, 8, "warps and registers"),
        (16, 115_712, 128, 2, "shared memory"),
        (16, 115_713, 128, 1, "shared memory"),
    ],
)
def test_the_scarcest_resource_limits_the_blocks(registers, shared, threads, blocks, limited_by):
    occupancy = of(registers, shared, threads)
    assert (occupancy.blocks, occupancy.limited_by) == (blocks, limited_by)


def test_shared_memory_of_the_launch_counts_too():
    assert of(16, 100, 128, dynamic=115_612).blocks == 2
    assert of(16, 100, 128, dynamic=115_613).blocks == 1


def test_the_share_is_of_the_warps_of_an_sm():
    assert re.fullmatch("6 .* 48 .* 64 .*75%.* registers", str(of(40, 0, 256)))
    assert of(40, 0, 256, "sm_86").share == 1.0  # has room for 48 warps
    assert of(16, 0, 32, "sm_75").limited_by == "blocks"
