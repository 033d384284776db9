"""kernel_ladder.load on NumPy's arrays."""

import numpy as np
import pytest

import kernel_ladder
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find

pytestmark = pytest.mark.emulator


def layernorm(rows=(6,), dtype=np.float32):
    """Arrays of layernorm.forward, its outputs not a number."""
    rng = np.random.default_rng(0)
    out, mean = np.full((*rows, 64), np.nan, dtype), np.full(rows, np.nan, np.float32)
    inp, *both = (rng.standard_normal(shape).astype(dtype) for shape in ((*rows, 64), 64, 64))
    return [out, mean, mean.copy(), inp, *both]


@pytest.mark.parametrize("rows", [(6,), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rung_computes_what_the_reference_does(rows, dtype):
    dtype = kernel_ladder.DTYPES[dtype]
    ours, theirs = layernorm(rows, dtype), layernorm(rows, dtype)
    kernel_ladder.load("layernorm.forward", "warp_per_row")(*ours)
    kernel_ladder.load("layernorm.forward", 0)(*theirs)
    for a, b in zip(ours, theirs, strict=True):
        eps = 2**-7 if dtype.itemsize == 2 else 1e-5
        np.testing.assert_allclose(a.astype("f"), b.astype("f"), atol=eps, rtol=eps)


def test_dimensions_and_scalars_are_keywords_where_no_shape_tells_them():
    out, wte = np.zeros((7, 8), np.float32), np.zeros((4, 8), np.float32)
    dout, tokens = np.ones((1, 3, 8), np.float32), np.full((1, 3), 5, np.int32)
    kernel_ladder.load("embedding.backward", 1)(out, wte, dout, tokens)
    assert out[5].tolist() == [3.0] * 8
    ones, kept = np.ones(64, np.float32), np.empty(64, np.float32)
    dropout = kernel_ladder.load("dropout.forward", 1)
    dropout(kept, ones, np.zeros(4, np.uint32), p=0.5, stream=0)
    assert set(kept) == {0.0, 2.0}
    with pytest.raises(LadderError, match=r"dropout\.forward .*\bstream="):
        dropout(kept, ones, np.zeros(4, np.uint32), p=0.5)


@pytest.mark.parametrize(
    ("place", "change", "names"),
    [
        (4, lambda a: a[:32], r"\bweight .*float32 \(64,\).*float32 \(32,\)"),
        (1, lambda a: a.astype(np.float64), r"\bmean .*float32 \(6,\).*float64"),
        (3, lambda a: a[0], r"\binp .*\(N C\).*\(64,\)"),
        (0, lambda a: np.asfortranarray(a), r"\bout .*contiguous"),
        (5, lambda a: np.append(a, a)[1:65], r"\bbias .*\b16 bytes"),
        (3, lambda a: a.tolist(), "NumPy.*CuPy.*PyTorch.*list"),
        (3, lambda a: None, r"\binp$"),
        (3, lambda a: np.zeros(a.shape, np.int64), r"\binp .*float32.*int64"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(place, change, names):
    arrays = layernorm()
    arrays[place] = change(arrays[place])
    with pytest.raises(LadderError, match=names):
        kernel_ladder.load("layernorm.forward", 3)(*arrays)


def test_a_wrong_number_of_arrays_and_a_missing_library_are_refused():
    with pytest.raises(LadderError, match=r"\bout, mean, rstd, inp, weight, bias\b.* 5 "):
        kernel_ladder.load("layernorm.forward", 3)(*layernorm()[1:])
    square = np.zeros((8, 8), np.float32)
    with pytest.raises(LadderError, match=r"\bcublas\b.*\bemulated"):
        kernel_ladder.load("matmul.forward", "cublas")(square, square, square, None)
    with pytest.raises(LadderError, match=r"all_reduce\.sum .*--device cuda:0,1"):
        kernel_ladder.load("all_reduce.sum", 1)


@pytest.mark.slow
def test_a_file_of_ones_own_is_checked_before_it_runs(tmp_path):
    source = find("start.add").rung(1).source
    a, b, c = (np.full(8, value, np.float32) for value in (1, 2, 0))
    for name, text in (("right", source), ("wrong", source.replace("a[i] + b[i]", "a[i] - b[i]"))):
        (tmp_path / f"{name}.cu").write_text(text)
    assert "a[i] + b[i]" in source
    kernel_ladder.load("start.add", tmp_path / "right.cu")(c, a, b)
    assert c.tolist() == [3.0] * 8
    with pytest.raises(LadderError, match=r"wrong\.cu"):
        kernel_ladder.load("start.add", tmp_path / "wrong.cu")(c, a, b)
    assert c.tolist() == [3.0] * 8
