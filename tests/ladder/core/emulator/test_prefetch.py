"""A kernel that starts while the one before it runs: what it may do before it waits for that."""

import pytest

from ladder.core.contract.launch_plan import Launch
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.kernel import KernelError
from tests.ladder.emulation import array, devices, line, rung, zeros

pytestmark = pytest.mark.emulator

SOURCE = """
#include "dependent_launch.cuh"
extern "C" __global__ void k(float* out, const float* inp, const float* weight) {
    float factor = weight[threadIdx.x];
    // BEFORE
    wait_for_previous();  // WAIT
    start_next();
    out[threadIdx.x] = factor * inp[threadIdx.x];
}
"""


def launch(folder, source, device, prefetch=("weight",)):
    out, inp, weight = zeros(32), array(range(32)), array([2] * 32)
    real = out.dtype
    kernels = device.compile(rung(folder, source), {}, real)
    kernels["k"](Launch("k", (1, 1, 1), (32, 1, 1), 0, prefetch), (out, inp, weight))
    return out


@pytest.mark.parametrize("device", devices())
def test_what_prefetch_names_may_be_read_before_the_wait(tmp_path, device):
    assert list(launch(tmp_path, SOURCE, device)) == [2 * i for i in range(32)]


@pytest.mark.parametrize(
    ("early", "names"),
    [
        ("factor += inp[0];", "read of inp .* Prefetch"),
        ("out[threadIdx.x] = 0;", "write of out "),
        ("const_cast<float*>(weight)[threadIdx.x] = 0;", "write of weight "),
    ],
)
def test_other_accesses_before_the_wait_are_reported(tmp_path, early, names):
    source = SOURCE.replace("// BEFORE", f"{early}  // BUG")
    with pytest.raises(KernelError, match=names) as caught:
        launch(tmp_path, source, Emulated(counting=True))
    assert {(p.kind, p.line) for p in caught.value.problems} == {("too early", line(source))}
    assert launch(tmp_path, source, Emulated(counting=True), prefetch=())[1]  # it starts later


def test_a_thread_that_returns_without_the_wait_is_reported(tmp_path):
    source = SOURCE.replace("// BEFORE", "if (threadIdx.x == 7) return;")
    with pytest.raises(KernelError, match="wait_for_previous") as caught:
        launch(tmp_path, source, Emulated())
    assert [(p.kind, p.thread) for p in caught.value.problems] == [("too early", (7, 0, 0))]
