"""Races that people write on purpose: the same value by a whole warp, volatile, and atomicCAS."""

import numpy as np
import pytest

from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.kernel import KernelError
from tests.ladder.emulation import array, line, run, zeros

pytestmark = pytest.mark.emulator

SAME_VALUE = """\
    __shared__ float sums[2];
    float sum = inp[threadIdx.x / 32];
    sums[threadIdx.x / 32] = sum + (threadIdx.x == ODD ? 1.0f : 0.0f);
    __syncthreads();
    if (threadIdx.x == 0) out[0] = sums[0] + sums[1];
"""


def run_same_value(tmp_path, odd):
    out = zeros(1)
    args = (out, array([2.0, 3.0]))
    run(Emulated(counting=True), tmp_path, SAME_VALUE, 1, 64, *args, defines={"ODD": odd})
    return out


@pytest.mark.parametrize("odd", [3, 31, 40])
def test_one_lane_that_writes_another_value_races(tmp_path, odd):
    with pytest.raises(KernelError) as caught:
        run_same_value(tmp_path, odd)
    assert {problem.kind for problem in caught.value.problems} == {"race"}


def test_lanes_of_a_warp_may_all_write_the_same_value(tmp_path):
    assert run_same_value(tmp_path, 99) == [5.0]


VOLATILE = """\
    volatile __shared__ float sums[32];
    int lane = threadIdx.x;
    sums[lane] = inp[lane];
    SYNC;
    if (lane < 16) out[lane] = sums[lane] + sums[lane + 16];  // BUG
"""


def test_volatile_shared_memory_needs_syncwarp_and_says_so(tmp_path):
    inp, out = np.arange(32, dtype=np.float32), zeros(16)
    device = Emulated(counting=True)
    right = VOLATILE.replace("SYNC", "__syncwarp()")
    run(device, tmp_path, right, 1, 32, out, array(inp))
    assert (out == inp[:16] + inp[16:]).all()
    with pytest.raises(KernelError, match=r"volatile orders nothing: since Volta.*__syncwarp\(\)"):
        run(device, tmp_path, VOLATILE.replace("SYNC;", ""), 1, 32, out, array(inp))
    assert line(VOLATILE) in {problem.line for problem in device.report().problems}


CAS = """\
extern "C" __global__ void k(int* out) {
    int old = FIRST, seen;
    do {
        seen = old;
        old = atomicCAS(out, seen, max(seen, (int)threadIdx.x));
    } while (old != seen);
}
"""


def test_a_plain_read_before_a_loop_of_atomic_cas_is_explained(tmp_path):
    out = zeros(1, dtype=np.int32)
    device = Emulated(counting=True)
    run(device, tmp_path, CAS.replace("FIRST", "atomicAdd(out, 0)"), 1, 64, out)
    assert out == [63]
    with pytest.raises(KernelError, match=r"does no harm.*read by atomicAdd\(address, 0\)"):
        run(device, tmp_path, CAS.replace("FIRST", "*out"), 1, 64, zeros(1, dtype=np.int32))


@pytest.mark.parametrize("grid", [1, 3])
def test_where_threads_and_blocks_race_a_barrier_is_no_remedy(tmp_path, grid):
    args = zeros(1), array(np.ones(96))
    source = "    out[0] += inp[blockIdx.x * 32 + threadIdx.x];  // BUG\n"
    with pytest.raises(KernelError) as caught:
        run(Emulated(counting=True), tmp_path, source, grid, 32, *args)
    message = str(caught.value)
    assert ("no barrier" in message, "atomicAdd" in message) == (grid == 1, grid > 1)


@pytest.mark.parametrize("last", [32, 64])
def test_two_threads_that_write_one_element_are_told_to_take_their_own(tmp_path, last):
    source = f"    if (threadIdx.x < {last}) out[threadIdx.x % 24] = inp[threadIdx.x];\n"
    args = zeros(24), array(np.arange(64))
    with pytest.raises(KernelError, match="the same element: give each its own"):
        run(Emulated(counting=True), tmp_path, source, 1, 64, *args)
