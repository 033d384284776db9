"""A kernel takes the arguments that it names, and its header may say which those are."""

import re
import weakref

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import bind
from ladder.core.contract.device import aligned_empty
from ladder.core.contract.ladder import find
from ladder.core.contract.rung_file import parse
from ladder.core.contract.signature import mismatch
from ladder.core.emulator.emulated import Emulated
from ladder.core.verify.check import check

SOFTMAX = find("softmax.forward")
SHAPES = [{"N": 3, "V": 33}]
OURS = """\
// softmax forward: a thread per row
// Launch: softmax_forward<<<ceil_div(N, 32), 32>>>

#include "portable.cuh"

extern "C" __global__ void softmax_forward(int N, const real* logits, int V, real* probs) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) return;
    float highest = to_float(logits[row * V]), sum = 0;
    for (int i = 1; i < V; i++) highest = fmaxf(highest, to_float(logits[row * V + i]));
    for (int i = 0; i < V; i++) sum += expf(to_float(logits[row * V + i]) - highest);
    for (int i = 0; i < V; i++)
        probs[row * V + i] = to_real(expf(to_float(logits[row * V + i]) - highest) / sum);
}
"""
TWO = """\
// softmax forward: exponentials, then quotients
// Needs:  real == float32
// Launch: exponentials<<<N, 1>>>
// Launch: quotients<<<N, 32>>>
// Scratch: float32 sums[N]

extern "C" __global__ void exponentials(float* sums, const float* logits, int V, float* probs) {
    const float* x = logits + blockIdx.x * V;
    float highest = x[0], sum = 0;
    for (int i = 1; i < V; i++) highest = fmaxf(highest, x[i]);
    for (int i = 0; i < V; i++) sum += probs[blockIdx.x * V + i] = expf(x[i] - highest);
    sums[blockIdx.x] = sum;
}

extern "C" __global__ void quotients(float* probs, int V, const float* sums) {
    for (int i = threadIdx.x; i < V; i += 32) probs[blockIdx.x * V + i] /= sums[blockIdx.x];
}
"""
HEADER = """\
// softmax forward: of a textbook
// Needs:  real == float32
// Launch: row_softmax<<<ceil_div(N, 32), 32>>>
// Args:   y = probs; x = logits; rows = N; cols = V

"""
THEIRS = """\
// A row to each thread.
__global__ void row_softmax(const float *x, float *__restrict__ y, size_t cols, unsigned int rows) {
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float highest = x[row * cols], sum = 0;
    for (size_t i = 1; i < cols; i++) highest = fmaxf(highest, x[row * cols + i]);
    for (size_t i = 0; i < cols; i++) sum += expf(x[row * cols + i] - highest);
    for (size_t i = 0; i < cols; i++) y[row * cols + i] = expf(x[row * cols + i] - highest) / sum;
}
"""


@pytest.fixture
def rung(tmp_path):
    def rung(source):
        path = tmp_path / "mine.cu"
        path.write_text(source)
        return parse(path, SOFTMAX.op.kernel)

    return rung


def replaced(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1, old
    return source.replace(old, new)


@pytest.mark.emulator
@pytest.mark.parametrize("source", [OURS, TWO, HEADER + THEIRS], ids=["ours", "two", "theirs"])
def test_a_kernel_gets_what_it_names_in_its_own_order(rung, source):
    report = check(SOFTMAX, rung(source), Emulated(), dtypes=["float32"], shapes=SHAPES)
    assert report.passed, report


WIDER = "int N, const real* logits, int V, real* probs"


@pytest.mark.parametrize(
    ("source", "old", "new", "names"),
    [
        (OURS, "const real* logits", "const real* inp", ["'real* inp'", "Args: inp ="]),
        (OURS, WIDER, f"{WIDER}, int", ["softmax_forward", "'int'"]),
        (OURS, WIDER, f"{WIDER}, const real*", ["softmax_forward", "'real*'"]),
        (OURS, WIDER, f"{WIDER}, int N", [" N ", "'int N' and 'int N'"]),
        (OURS, "int V, ", "float V, ", ["'float V'", "'int V'"]),
        (OURS, "real* probs)", "real probs)", ["'real probs'", "'real* probs'"]),
        (OURS, ", real* probs", "", ["softmax_forward", "'real* probs'", "Args: ... = probs"]),
        (
            OURS,
            "const real* logits",
            "const float* logits",
            ["'float* logits'", "Needs: real == float32"],
        ),
        (TWO, ", const float* sums)", ", const float* sum)", ["quotients", "'float* sum'"]),
        (TWO, "N, 32>>>\n", "N, 32>>>\n// Tiles:  logits[1, 32]\n", ["TensorMap logits_tiles'"]),
        (HEADER + THEIRS, "x = logits", "x = inp", ["x = inp", "real* probs"]),
        (HEADER + THEIRS, "rows = N", "n = N; rows = N", ["n = N", "row_softmax"]),
        (HEADER + THEIRS, "; cols = V", "", ["row_softmax", "'size_t cols'", "Args: cols ="]),
        (HEADER + THEIRS, "x = logits", "x = probs", [" probs ", "'float* x'", "'float* y'"]),
        (HEADER + THEIRS, "float *__restrict__ y", "float y", ["'float y'", "'real* y'"]),
    ],
)
def test_what_the_contract_cannot_hand_over_is_refused_with_a_remedy(rung, source, old, new, names):
    problem = mismatch(SOFTMAX.op, rung(replaced(source, old, new)))
    assert problem is not None
    for name in names:
        assert name in problem


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("x = logits", "x logits", r"\bArgs .*: x logits"),
        ("x = logits", "y = logits", r"\bArgs .* y .*: y = logits"),
    ],
)
def test_a_line_of_args_that_cannot_be_meant_is_refused(rung, old, new, names):
    with pytest.raises(LadderError, match=names):
        rung(replaced(HEADER + THEIRS, old, new))


@pytest.mark.emulator
def test_an_array_that_kernels_take_as_tiles_only_lives_as_long_as_the_binding(rung):
    source = replaced(
        OURS, "const real* logits,", "const __grid_constant__ TensorMap logits_tiles,"
    )
    source = re.sub(r"int row = .*", "}", source, flags=re.DOTALL)
    source = replaced(source, "#include", '#include "hopper.cuh"\n#include')
    tiled = rung(replaced(source, ", 32>>>\n", ", 32>>>\n// Tiles:  logits[1, 32]\n"))
    arrays = {arg.name: aligned_empty((3, 32), np.dtype(np.float32)) for arg in SOFTMAX.op.args}
    logits = weakref.ref(arrays["logits"])
    run = bind(SOFTMAX.op, tiled, Emulated(), np.dtype(np.float32), {"N": 3, "V": 32}, arrays)
    del arrays
    assert logits() is not None
    del run
    assert logits() is None


@pytest.mark.emulator
def test_a_kernel_may_stand_in_a_file_that_the_rung_includes(tmp_path):
    header, code = OURS.split("\n\n", 1)
    (tmp_path / "softmax.cuh").write_text(code)
    path = tmp_path / "mine.cu"
    path.write_text(f'{header}\n\n#include "softmax.cuh"\n')
    rung = parse(path, "softmax_forward")
    assert check(SOFTMAX, rung, Emulated(), ["float32"], SHAPES).passed
    (tmp_path / "softmax.cuh").write_text(code.replace("int V, real* probs", "int V, real* y"))
    assert re.search(r"'real\* y'.* softmax\.forward ", mismatch(SOFTMAX.op, rung))
