"""cuda::barrier, cuda::pipeline and memcpy_async on the emulator: the right kernels of barriers.cu
pass, and what breaks a rule is named. The kernels take the bug as an argument."""

import re
from pathlib import Path

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.kernel import KernelError
from tests.ladder.emulation import array, bugs_in, run, short, zeros

pytestmark = pytest.mark.emulator

FILE = Path(__file__).parent / "barriers.cu"
SOURCE = FILE.read_text()
BUGS = bugs_in(SOURCE)
ROWS = 7
RNG = np.random.default_rng(0)
INPUT = array(RNG.integers(-9, 10, (ROWS + 1, 64)))


def launch(device, name, bug, *more, threads=64):
    """What a kernel makes of the rows."""
    out = zeros(64)
    inp = array(INPUT[:ROWS])  # with nothing behind it
    args = out, *(() if name == "leave" else (inp, np.int32(ROWS), np.int32(BUGS[bug]))), *more
    kernels = device.compile(Rung("1", "a test", FILE, SOURCE), {}, np.dtype(np.float32))
    kernels[name](Launch(name, (1, 1, 1), (threads, 1, 1), 0), args)
    return out


def neighbours(rows):
    return rows.sum(0) + rows.sum(0)[np.arange(64) ^ 1]


ALL = neighbours(INPUT[:ROWS])
LAST = neighbours(INPUT[ROWS - 1 : ROWS] * (np.arange(64) % 4 >= 2))  # that are not copied
RIGHT = {
    "split": INPUT[:ROWS].sum(0) + np.roll(INPUT[:ROWS].sum(0), 32),
    "leave": np.arange(64) % 4,
    "counted": ALL,
    "stages": ALL,
    "roles": ALL,
    "own": ALL,
    "groups": ALL,
    "primitives": ALL - LAST,
}


@pytest.mark.parametrize("kernel", RIGHT)
@pytest.mark.parametrize("mode", ["late", "early", "counting", "counting early"])
def test_right_kernels_pass(devices, kernel, mode):
    for more in [(np.int32(0),), (np.int32(1),)] if kernel == "roles" else [()]:
        threads = 96 if kernel == "roles" else 64
        out = launch(devices[mode], kernel, "NONE", *more, threads=threads)
        assert (out == RIGHT[kernel]).all()


# What the counting mode says of each: the kind, the marks of the lines (either of them may be the
# one that comes second), and what the message names.
RULES = [
    ("split", "NO_INIT", "barrier misuse", "ARRIVE", "barrier ready .* init$"),
    ("split", "INIT_TWICE", "barrier misuse", "AGAIN", "barrier used again"),
    ("split", "INIT_NOT_SEEN", "barrier misuse", "ARRIVE MAKE", "ready, .* no barrier .* init"),
    ("split", "COUNT_TOO_LARGE", "deadlock", "WAIT", "ready .* phase 0, .* 64 of 65 "),
    ("split", "COUNT_TOO_SMALL", "race", "FILL READ", "no barrier"),
    ("split", "NO_ARRIVE", "deadlock", "WAIT", "ready .* phase 0, .* 63 of 64 "),
    ("split", "NO_WAIT", "race", "FILL READ", "no barrier"),
    ("split", "ARRIVES_TWICE", "race", "FILL READ", "no barrier"),
    ("split", "OLD_TOKEN", "barrier misuse", "WAIT", "ready .* token of phase 0, .* phase 1 "),
    ("split", "OTHER_TOKEN", "barrier misuse", "OTHER", r"used .* token .* arrive\(\)"),
    ("counted", "NEVER_WAITED", "in flight", "COPY", r"memcpy_async .* barrier ready\[0\]"),
    ("counted", "READ_TOO_EARLY", "race", "COPY READ", "memcpy_async .* barrier or pipeline"),
    ("counted", "REFILLED_TOO_EARLY", "race", "COPY READ", "memcpy_async"),
    ("counted", "MISALIGNED", "misaligned", "COPY", "memcpy_async .* 256 bytes .* 16$"),
    ("counted", "ODD_SIZE", "misaligned", "COPY", "memcpy_async .* 252 bytes .* 16$"),
    ("counted", "PAST_END", "out of bounds", "COPY", "write of 16 .* row, .* 512 "),
    ("stages", "NO_COMMIT", "deadlock", "WAIT", "stage 0 .* state, .* producer_commit "),
    ("stages", "NO_RELEASE", "deadlock", "ACQUIRE", "state, .* consumer_release .* 63 of 64 "),
    ("stages", "NO_ACQUIRE", "race", "COPY READ", "memcpy_async"),
    ("stages", "READ_TOO_EARLY", "race", "COPY READ", "memcpy_async .* barrier or pipeline"),
    ("stages", "EARLY_RELEASE", "race", "COPY READ", "no barrier"),
    ("roles", "WRONG_PRODUCERS", "deadlock", "WAIT ACQUIRE", "32 of 33 "),
    ("own", "WAIT_TOO_FEW", "race", "COPY READ", "memcpy_async .* no wait .* barrier"),
    ("own", "NO_BARRIER", "race", "COPY READ", "memcpy_async"),
    ("own", "REFILLED_TOO_EARLY", "race", "COPY READ", "memcpy_async"),
    ("groups", "NO_WAIT", "race", "COPY READ FIRST", "memcpy_async .* no wait .* barrier"),
    ("groups", "NEVER_WAITED", "in flight", "COPY", "memcpy_async .* no commit and wait"),
    ("primitives", "WAIT_TOO_FEW", "race", "COPY READ", "memcpy_async .* no wait .* barrier"),
    ("primitives", "ODD_PIECE", "misaligned", "COPY", "memcpy_async .* 12 bytes; 4, 8 and 16 "),
]


def marked(kernel, mark):
    """The number of the line of a kernel that carries a mark."""
    begin = SOURCE.index(f"void {kernel}(")
    return SOURCE.count("\n", 0, SOURCE.index(f"// {mark}\n", begin)) + 1


@pytest.mark.parametrize("kernel, bug, kind, marks, names", RULES, ids=short)
def test_broken_rule_is_named(devices, kernel, bug, kind, marks, names):
    more = (np.int32(0),) if kernel == "roles" else ()
    with pytest.raises(KernelError) as error:
        launch(devices["counting"], kernel, bug, *more, threads=96 if more else 64)
    lines = {marked(kernel, mark) for mark in marks.split()}
    problem = next(problem for problem in error.value.problems if problem.kind == kind)
    assert problem.line in lines, error.value
    assert re.search(names, problem.message)


@pytest.mark.parametrize(
    ("kernel", "bug", "kind", "names"),
    [
        ("counted", "READ_TOO_EARLY", "barrier misuse", r"ready\[0\] .* phase 0 .* 64 threads"),
        ("stages", "READ_TOO_EARLY", "barrier misuse", "state, .* phase 0 .* 64 threads"),
        ("own", "WAIT_TOO_FEW", "in flight", "memcpy_async"),
        ("groups", "NEVER_WAITED", "in flight", "memcpy_async"),
    ],
)
def test_a_missing_wait_is_named_in_fast_mode(devices, kernel, bug, kind, names):
    with pytest.raises(KernelError) as error:
        launch(devices["late"], kernel, bug)
    (problem,) = error.value.problems
    assert problem.kind == kind and re.search(names, problem.message)


def test_a_stage_that_is_released_too_early_gives_wrong_results_in_fast_mode(devices):
    assert (launch(devices["early"], "stages", "EARLY_RELEASE") != ALL).any()


@pytest.mark.parametrize(
    ("copy", "kind"),
    [("x, (float*)nullptr + 64, 256", "crash"), ("x, inp, 1 << 20", "out of bounds")],
)
def test_a_copy_from_or_to_nowhere_ends_the_launch_only(tmp_path, copy, kind):
    source = f"""\
#include <cuda/barrier>
extern "C" __global__ void k(const float* inp) {{
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    __shared__ float x[64];
    init(&ready, 1);
    cuda::memcpy_async({copy}, ready);
    ready.arrive_and_wait();
}}
"""
    with pytest.raises(KernelError) as error:
        run(Emulated(), tmp_path, source, 1, 1, array(INPUT[0]))
    assert [(problem.kind, problem.line) for problem in error.value.problems] == [(kind, 6)]


STATE_AGAIN = """\
#include <cooperative_groups.h>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
__device__ float next(cg::thread_block block, const float* inp) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 1> state;
    __shared__ float x;
    auto pipe = cuda::make_pipeline(block, &state);  // which ends with this function
    pipe.producer_acquire();
    if (threadIdx.x == 0) cuda::memcpy_async(&x, inp, sizeof(float), pipe);
    pipe.producer_commit();
    pipe.consumer_wait();
    float result = x;
    pipe.consumer_release();
    return result;
}
extern "C" __global__ void k(float* out, const float* inp) {
    auto block = cg::this_thread_block();
    for (int i = 0; i < 3; i++) {
        out[i * blockDim.x + threadIdx.x] = next(block, inp + i);
        if (SYNC) block.sync();
    }
}
"""


def test_the_state_of_a_pipeline_serves_again_after_all_have_left(tmp_path):
    args = (out := zeros(3, 64)), array(INPUT[0])
    device = Emulated(counting=True)
    run(device, tmp_path, STATE_AGAIN, 1, 64, *args, defines={"SYNC": 1})
    assert (out == INPUT[0][:3, None]).all()
    with pytest.raises(KernelError, match=r"stage 0 of the pipeline state.* again"):
        run(device, tmp_path, STATE_AGAIN, 1, 64, *args, defines={"SYNC": 0})


def test_a_copy_that_is_no_copy_to_shared_memory_is_made_at_once(tmp_path):
    source = """\
#include <cuda/pipeline>
extern "C" __global__ void k(float* out, const float* inp) {
    auto pipe = cuda::make_pipeline();
    cuda::memcpy_async(out + threadIdx.x, inp + threadIdx.x, sizeof(float), pipe);
    pipe.producer_commit();
    pipe.consumer_wait();
    out[threadIdx.x] += 1.0f;
}
"""
    out = zeros(64)
    run(Emulated(counting=True), tmp_path, source, 1, 64, out, array(INPUT[0]))
    assert (out == INPUT[0] + 1).all()


def test_a_barrier_of_a_larger_scope_is_refused(tmp_path):
    source = """\
#include <cuda/barrier>
extern "C" __global__ void k() {
    __shared__ cuda::barrier<cuda::thread_scope_device> all;
    init(&all, 1);
}
"""
    with pytest.raises(LadderError, match="thread_scope_block"):
        run(Emulated(), tmp_path, source, 1, 32)
