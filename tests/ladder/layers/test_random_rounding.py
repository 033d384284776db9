"""ladder/include/rounding.cuh gives the bits of reference/rounding.py, and the checker sees to it
that a rung uses it rightly."""

import re

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract import rung_file
from ladder.core.contract.ladder import find
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.op import DTYPES
from ladder.core.device.open import open_device
from ladder.core.verify.check import check
from reference.philox import random_words
from reference.rounding import round_at_random

pytestmark = pytest.mark.emulator

SOURCE = """\
// rounding forward, rung 1: one thread per element
// Launch: rounding_forward<<<ceil_div(N, 64), 64>>>
#include "rounding.cuh"

extern "C" __global__ void rounding_forward(
    real* out, const float* inp, const unsigned* rng, unsigned stream, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = round_at_random(inp[i], random_word(rng, stream, i));
}
"""


@pytest.fixture(params=["emulated", "cuda"])
def device(request):
    try:
        return open_device(request.param)
    except LadderError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("real", ["float16", "bfloat16"])
def test_the_kernel_rounds_to_the_bits_of_the_reference(device, real, tmp_path):
    (tmp_path / "1_rounding.cu").write_text(SOURCE)
    rung = rung_file.parse(tmp_path / "1_rounding.cu", "rounding_forward")
    draw = np.random.default_rng(0)
    anything = draw.integers(0, 2**32, 6001, dtype=np.uint32).view(np.float32)
    weights = draw.standard_normal(6000).astype(np.float32)
    small = weights * np.float32(1e-6)
    edges = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519, 65521, 3.4e38, 1e-45])
    x = np.concatenate([anything, weights, small, edges])
    rng = np.array([7, 8, 9, 10], np.uint32)
    arrays = [device.empty(shape, d) for shape, d in ((x.shape, DTYPES[real]), (x.shape, "f4"))]
    state = device.empty((4,), np.dtype(np.uint32))
    device.upload(arrays[1], x)
    device.upload(state, rng)
    kernel = device.compile(rung, {}, DTYPES[real])["rounding_forward"]
    launch = Launch("", (-(-x.size // 64), 1, 1), (64, 1, 1))
    kernel(launch, (*arrays, state, np.uint32(2**31 + 3), np.int32(x.size)))
    got = device.download(arrays[0])
    with np.errstate(all="ignore"):
        expected = round_at_random(x, random_words(rng, 2**31 + 3, slice(0, x.size)), DTYPES[real])
    numbers = ~np.isnan(expected)
    assert np.isnan(got[~numbers]).all()
    np.testing.assert_array_equal(got[numbers].view(np.uint16), expected[numbers].view(np.uint16))


@pytest.mark.parametrize(
    ("sound", "planted"),
    [
        ("words.y", "words.x"),
        ("if (rng == nullptr)", "if (true)"),
        ("(unsigned)(i / 4)", "(unsigned)i"),
        ("round_at_random(exact.z, words.z)", "round_at_random(exact.z, ~words.z)"),
        ("random_word(rng, stream, i)", "random_word(rng, stream, i + 1)"),
        ("first + i", "i"),
    ],
)
def test_a_rung_that_rounds_by_other_words_is_caught(sound, planted, tmp_path):
    ladder = find("adamw.update")
    source = ladder.rung(2).source
    assert sound in source
    (tmp_path / "mine.cu").write_text(source.replace(sound, planted))
    rung = rung_file.parse(tmp_path / "mine.cu", ladder.op.kernel)
    shapes = [{"N": 1002}]
    report = check(
        ladder, rung, open_device("emulated"), dtypes=["bfloat16"], shapes=shapes, brief=True
    )
    assert not report.passed
    text = str(report)
    share, word = re.search(r" is ([01]\.\d+) of the way .* or ([01]\.\d+) of 2\^32", text).groups()
    assert f", is {'less' if float(word) < float(share) else 'not less'}: " in text
    assert "±" not in text
