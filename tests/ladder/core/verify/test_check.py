"""The checker is checked: a sound kernel passes, and each bug planted into it is caught."""

import re
from pathlib import Path

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract import op as contract
from ladder.core.contract import rung_file
from ladder.core.contract.ladder import Ladder, find, ladders
from ladder.core.contract.op import DTYPES
from ladder.core.contract.rung_file import Rung
from ladder.core.device.open import Cpu
from ladder.core.emulator import emulated
from ladder.core.verify.check import (
    FROM_UNWRITTEN,
    MOST_BYTES,
    NARROW,
    NO_VALUE,
    STALE,
    Outcome,
    Report,
    _variants,
    check,
    check_case,
    gpt2_shape,
    what_to_run,
)
from ladder.core.verify.guards import WRITES
from ladder.core.verify.inputs import make_inputs
from ladder.core.verify.patterns import EVERY
from ladder.core.verify.tolerance import expect
from tests.mutants.changes import read

PLANTED = Path(__file__).parents[2] / "planted"
SHAPES = [{"N": 3, "C": 31}, {"N": 5, "C": 768}]

BUGS = {change.what: change for change in read(PLANTED, ("bug",))}
# On a GPU these may by chance do no harm, or need a second warp width to be seen.
EMULATED_ONLY = {
    "missing barrier before a read",
    "missing barrier before a write",
    "lost update",
    "does not say that it is not deterministic",
    "sums over a warp of 32 lanes, whatever its width",
}


def planted(tmp_path, direction: str, bug: str | None = None) -> tuple[Ladder, Rung]:
    ladder = find(f"layernorm.{direction}")
    source = (PLANTED / f"{direction}.cu").read_text()
    path = tmp_path / "kernel.cu"
    path.write_text(BUGS[bug].apply(source) if bug else source)
    return ladder, rung_file.parse(path, ladder.op.kernel)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_sound_kernel_passes(tmp_path, device, direction):
    report = check(*planted(tmp_path, direction), device, shapes=SHAPES)
    assert report.passed, report


@pytest.mark.costly
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(tmp_path, device, bug):
    if bug in EMULATED_ONLY and device.is_gpu:
        pytest.skip("only the emulator is sure to see it")
    ladder, rung = planted(tmp_path, BUGS[bug].of.removesuffix(".cu"), bug)
    dtype = "float16" if bug == "sums in the real type" else "float32"
    report = check(ladder, rung, device, dtypes=[dtype], shapes=SHAPES)
    assert not report.passed
    assert report.failures[0].detail


def test_a_kernel_that_is_right_where_warps_are_full_is_told_to_look_past_the_end():
    full, tail, odd = ({"N": 3, "C": size} for size in (1024, 1, 33))
    wrong = Outcome(tail, "float32", "normal", "failed", f"out[0] is 1\n    cause: {EVERY}")
    right = [Outcome(dims, "float32", "normal", "passed") for dims in (full, odd)]
    said = str(Report("op", "rung", "emulated", (right[0], wrong)))
    assert "C=1024" in said and EVERY not in said
    assert EVERY in str(Report("op", "rung", "emulated", (*right, wrong)))
    some = Outcome(tail, "float32", "normal", "failed", "out[0] is 1\n    tolerance: 1")
    said = str(Report("op", "rung", "emulated", (right[0], some)))
    assert said.index("C=1024") < said.index("tolerance")


def test_no_error_is_not_told_as_a_share_of_the_tolerance():
    for error, share in ((0.0, ""), (0.001, "1%"), (0.42, "42%")):
        said = str(Report("op", "rung", "cpu", (Outcome({}, "float32", "", "passed", "", error),)))
        assert share in said and ("%" in said) == bool(share)


@pytest.mark.emulator
def test_what_is_right_with_warps_of_32_alone_is_told_so(tmp_path):
    rung = planted(tmp_path, "backward", "sums over a warp of 32 lanes, whatever its width")
    report = check(*rung, emulated.Emulated(), ["float32"], SHAPES[1:])
    assert NARROW in str(report)


def test_a_rung_that_says_it_loses_digits_is_spared_the_hard_inputs(tmp_path, device):
    ladder, rung = planted(tmp_path, "forward", "variance that cancels")
    outcome = check_case(ladder.op, rung, device, "float32", SHAPES[1], "large mean")
    assert outcome.status == "failed"
    header = {**rung.header, "accurate": ("no, E[x^2] - E[x]^2 cancels",)}
    honest = Rung(rung.id, rung.idea, rung.path, rung.source, header)
    report = check(ladder, honest, device, dtypes=["float32"], shapes=SHAPES[1:])
    assert report.passed, report
    assert {outcome.inputs for outcome in report.outcomes} == {"normal", "second layer"}


# ---- what a failure says, on a Python function instead of a kernel ------------------------------


def python_rung(change=lambda arrays: None, **header: str) -> Rung:
    """A rung that computes layernorm forward rightly, and then does `change`."""

    def run(device, arrays, dims, scalars):
        find("layernorm.forward").op.compute(list(arrays.values()), dims)
        change(arrays)

    return Rung("1", "test", run=run, header={key: (value,) for key, value in header.items()})


def check_python(change, dtypes=("float32",), shapes=SHAPES[:1], **header):
    return check(find("layernorm.forward"), python_rung(change, **header), Cpu(), dtypes, shapes)


@pytest.mark.parametrize(("error", "near"), [(1e-4, True), (0.5, False)])
def test_a_failure_names_element_values_and_a_tolerance_that_is_near(error, near):
    def change(arrays):
        arrays["out"][1, 5] += error

    report = check_python(change)
    assert str(report).startswith("layernorm.forward rung 1 (test) on cpu: ")
    (failure, *_) = report.failures
    assert failure.label == "N=3 C=31, float32"
    first, place, *rest = failure.detail.splitlines()
    assert first.startswith("out[1, 5] ") and "; 1 of 93 " in first
    assert place.strip() == "wrong: row 1 of 3; column 5 of 31 of out"
    assert ("2^-24 |y|" in rest[-1] if rest else False) == near


def test_nan_never_passes():
    def change(arrays):
        arrays["rstd"][2] = np.nan

    assert "rstd[2] is nan" in str(check_python(change))


def test_a_write_around_a_buffer_is_caught():
    def change(arrays):
        beyond = np.lib.stride_tricks.as_strided(arrays["mean"], shape=(4,))
        beyond[3] = 1.0

    (failure, *_) = check_python(change).failures
    assert failure.detail.startswith(WRITES) and "end of mean" in failure.detail


def test_an_error_of_a_few_roundings_passes_and_of_many_does_not():
    def grow(roundings):
        def change(arrays):
            arrays["out"] *= np.float32(1 + roundings * 2**-24)

        return check_python(change)

    assert grow(4).passed
    assert not grow(4000).passed


def test_two_runs_that_differ_need_a_word_in_the_header():
    calls = []

    def change(arrays):
        calls.append(1)
        arrays["out"][0, 0] *= 1 + 2**-23 * (len(calls) % 2)

    assert re.search(r": out\[0, 0\] .*'Deterministic: no'", str(check_python(change)))
    assert check_python(change, deterministic="no, by design").passed


def test_a_shape_that_is_refused_is_not_passed():
    ladder = find("layernorm.forward")
    rung = python_rung(needs="C % 4 == 0")
    report = check(ladder, rung, Cpu(), ["float32"], [{"N": 1, "C": 8}, {"N": 1, "C": 9}])
    each = 1 + len(ladder.op.cases)
    assert [o.status for o in report.outcomes] == ["passed"] * each + ["refused"] * each
    assert re.search(r"C % 4 == 0.* C = 9", report.outcomes[each].detail)
    assert report.passed
    assert re.search(rf"{each} passed, {each} refused.* C % 4 == 0\W", str(report))
    everywhere = check(ladder, rung, Cpu(), ["float32"], [{"N": 1, "C": 9}])
    assert not everywhere.passed
    assert "C % 4 == 0" in str(everywhere)


def test_a_fault_ends_the_check():
    def change(arrays):
        raise LadderError("illegal address")

    report = check_python(change, dtypes=("float32", "float16"))
    assert [outcome.status for outcome in report.outcomes] == ["fault"]
    assert "illegal address" in str(report)


def test_float16_rounds_to_infinity_where_the_reference_overflows():
    op = find("residual.forward").op
    values = {"inp1": np.full(1, 65504, np.float16), "inp2": np.full(1, 65504, np.float16)}
    (output,) = expect(op, {"N": 1}, np.dtype(np.float16), values)
    assert output.verify(np.array([np.inf], np.float16))[0] is None
    assert output.verify(np.array([65504], np.float16))[0] is not None


def relative_tolerance(N: int, dtype: str, name: str) -> float:
    op, real = find("layernorm.backward").op, DTYPES[dtype]
    dims = {"N": N, "C": 64}
    values = make_inputs(op, dims, real, np.random.default_rng(0))
    output = {output.arg.name: output for output in expect(op, dims, real, values)}[name]
    return np.median(output.tolerance) / np.median(np.abs(output.value))


def test_the_tolerance_grows_with_the_roundoff_of_the_type():
    float32, float16, bfloat16 = (
        relative_tolerance(16, dtype, "dinp") for dtype in ("float32", "float16", "bfloat16")
    )
    assert 1e-7 < float32 < 3e-4 < float16 < 2e-3 < bfloat16 < 2e-2


def test_the_tolerance_grows_with_the_number_of_terms():
    assert (
        1e-7
        < relative_tolerance(16, "bfloat16", "dweight")
        < relative_tolerance(1024, "bfloat16", "dweight")
        < 1e-3
    )


@pytest.mark.parametrize("name", sorted(ladders()))
def test_the_shape_for_a_gpu_is_large_but_not_too_large_for_the_reference(name):
    op = find(name).op
    dims = gpt2_shape(op)
    assert set(dims) == set(op.dims)
    assert op.least_bytes(dims, np.dtype(np.float32)) <= MOST_BYTES
    assert all(
        dims[other] == size for other, size in smallest_bench(op).items() if other != op.dims[0]
    )


def smallest_bench(op):
    return min(op.bench.values(), key=lambda dims: op.least_bytes(dims, np.dtype(np.float32)))


def test_roundings_on_the_way_are_allowed_only_to_a_rung_that_declares_them():
    op, real, dims = find("attention.forward").op, DTYPES["bfloat16"], dict(B=1, T=33, C=16, NH=1)
    values = make_inputs(op, dims, real, np.random.default_rng(0))
    expected = {output.arg.name: output for output in expect(op, dims, real, values)}
    for name, moved in (("out", 2e-3), ("lse", 1e-4)):
        output = expected[name]
        wrong = (output.value + moved).astype(real if name == "out" else np.float32)
        assert output.verify(wrong)[0] is not None
        assert (output.verify(wrong, rounds=True)[0] is None) == (name == "out")
    ruined = (expected["out"].value + 1.0).astype(real)
    assert expected["out"].verify(ruined, rounds=True)[0] is not None


def test_factors_of_tf32_are_allowed_only_to_a_rung_that_declares_them():
    """Rounded to nearest or cut off, they are within the tolerance; with 8 bits they are not."""
    op, real = find("matmul.forward").op, DTYPES["float32"]
    dims = {"N": 17, "C": 64, "OC": 48}
    values = make_inputs(op, dims, real, np.random.default_rng(0))
    (expected,) = expect(op, dims, real, values)

    def product(bits, half=0):
        mask = np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
        inp, weight = (
            ((values[name].view(np.uint32) + np.uint32(half)) & mask).view(np.float32)
            for name in ("inp", "weight")
        )
        exact = inp.astype(np.float64) @ weight.T.astype(np.float64) + values["bias"]
        return exact.astype(np.float32)

    for rounded in (product(10, half=0x1000), product(10)):
        assert expected.verify(rounded)[0] is not None
        problem, error = expected.verify(rounded, tf32=True)
        assert problem is None and error > 0.05
    assert expected.verify(product(7), tf32=True)[0] is not None


@pytest.mark.parametrize("name", ["layernorm.backward", "residual_layernorm.backward"])
def test_large_inputs_repeat_whole_rows_with_what_belongs_to_them(monkeypatch, name):
    monkeypatch.setattr(contract, "DISTINCT", 1000)
    op, real = find(name).op, np.dtype(np.float32)
    values = make_inputs(op, {"N": 300, "C": 10}, real, np.random.default_rng(0))
    rows = values["inp"]
    assert np.array_equal(rows[101:], rows[:-101]), "an odd number of rows"
    assert len(np.unique(rows, axis=0)) == 101
    np.testing.assert_allclose(values["mean"], rows.mean(axis=1), rtol=1e-3, atol=1e-6)
    assert len(np.unique(values["dout"])) == 1001, "what is left out is repeated number by number"


@pytest.mark.slow
def test_a_shape_for_a_tile_heuristic_runs_on_a_gpu_of_its_size():
    """Of the rungs that name it, and of no others."""
    ladder, device = find("matmul.backward_weight"), emulated.Emulated()
    _, special = ladder.op.also
    for id, names_it in (("16bit-11", False), ("16bit-13", True)):
        rung = ladder.rung(id)
        shapes = [dims for dims, _ in what_to_run(ladder.op, rung, device, "bfloat16")]
        assert (special.dims in shapes) == names_it
        groups = _variants(ladder.op, rung, device, special.dims)
        few = special.sms if names_it else emulated.MULTIPROCESSORS
        sizes = [each.target(DTYPES["bfloat16"]).multiprocessors for (each, *_) in groups]
        assert sizes == [few, emulated.MANY_MULTIPROCESSORS]


def test_cases_are_tried_where_rows_and_heads_may_differ():
    ladder = find("attention.forward")
    runs = what_to_run(ladder.op, ladder.rung(1), emulated.Emulated(), "float32")
    assert all(any(1 not in d.values() for d, n in runs if n == name) for name in ladder.op.cases)


def test_gelu_of_a_number_far_below_0_may_cancel():
    """In a row without larger numbers, which would show how much. The float32 result is -0."""
    op = find("matmul_gelu.forward").op

    def run(device, arrays, dims, scalars):
        op.compute(list(arrays.values()), dims)
        arrays["out"][arrays["pre"] < -6] = -0.0

    rung = Rung("1", "test", run=run)
    outcome = check_case(op, rung, Cpu(), "float32", {"N": 255, "C": 1, "OC": 2}, "large pre")
    assert outcome.status == "passed", outcome.detail


# ---- the cases of the ops ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ladders()))
def test_the_reference_passes_every_case_of_its_op(name):
    """Rung 0 on NumPy arrays, at a shape that has rows of every kind."""
    op = find(name).op
    (shape,) = [dims for dims in op.shapes if op.flops(dims) < 2e5][-1:]
    report = check(find(name), find(name).rung(0), Cpu(), shapes=[shape])
    assert report.passed, report
    assert {outcome.inputs for outcome in report.outcomes} == {"normal", *op.cases}


def test_a_norm_that_hides_a_gradient_that_is_not_finite_is_caught():
    op = find("global_norm.forward").op

    def run(device, arrays, dims, scalars):
        op.compute([arrays["norm"], np.nan_to_num(arrays["grad"], posinf=1.0)], dims)

    report = check(find(op.name), Rung("1", "test", run=run), Cpu(), shapes=[{"N": 33}])
    assert {o.inputs for o in report.failures} == {
        name for name, case in op.cases.items() if not case.finite
    }


ADDS = """\
// relu backward, rung 1: a test
// Needs:  real == float32
// Launch: relu_backward<<<ceil_div(N, 256), 256>>>
extern "C" __global__ void relu_backward(float* dinp, const float* dout, const float* out, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) dinp[i] += out[i] > 0.0f ? dout[i] : 0.0f;
}
"""
UNWRITTEN = """\
// start sum, rung 1: a test
// Launch: start_sum<<<1, 1>>>
// Scratch: float32 part[1]
extern "C" __global__ void start_sum(float* total, const float* inp, int N, float* part) {
    total[0] += part[0];
}
"""
MAXIMUM = """\
// global_norm forward, rung 1: a test
// Launch: global_norm_forward<<<1, 1>>>
extern "C" __global__ void global_norm_forward(float* norm, const float* grad, int N) {
    float most, sum = 0.0f;
    for (int i = 0; i < N; i++) {
        most = fmaxf(most, -fabsf(grad[i]));
        sum += grad[i] * grad[i];
    }
    norm[0] = most < 0.0f ? sqrtf(sum) : 0.0f;
}
"""


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("op", "text", "cause"),
    [
        ("relu.backward", ADDS, "--fill 'dinp = 0'"),
        ("start.sum", UNWRITTEN, FROM_UNWRITTEN),
        ("global_norm.forward", MAXIMUM, NO_VALUE),
    ],
)
def test_what_nothing_has_written_shows_whatever_is_done_with_it(tmp_path, op, text, cause):
    path = tmp_path / "mine.cu"
    path.write_text(text)
    rung = rung_file.parse(path, find(op).op.kernel)
    report = check(find(op), rung, emulated.Emulated(), ["float32"], shapes=[{"N": 33}])
    assert not report.passed
    assert cause in str(report)


def test_a_kernel_that_replays_what_it_computed_for_the_same_storage_is_caught():
    kept = {}

    def run(device, arrays, dims, scalars):
        out, inp = arrays.values()
        out[:] = kept.setdefault((out.ctypes.data, inp.ctypes.data), np.maximum(inp, 0))

    report = check(find("relu.forward"), Rung("1", "test", run=run), Cpu(), shapes=[{"N": 33}])
    assert STALE.format(11) in str(report)


def test_an_argument_begins_where_the_case_says():
    starts = {}

    def run(device, arrays, dims, scalars):
        find("layernorm.forward").op.compute(list(arrays.values()), dims)
        starts.update({name: array.ctypes.data % 256 for name, array in arrays.items()})

    rung = Rung("1", "test", run=run)
    op = find("layernorm.forward").op
    outcome = check_case(op, rung, Cpu(), "float32", {"N": 3, "C": 5}, "second layer")
    assert outcome.status == "passed", outcome.detail
    assert starts == {"out": 0, "mean": 12, "rstd": 12, "inp": 0, "weight": 20, "bias": 20}


def test_the_gelu_of_a_product_may_be_off_by_what_cancels_in_it():
    """Far below 0, the halves of x cancel but for a few bits of float32's tanh."""
    dims = {"N": 1, "C": 1, "OC": 1}
    one, x = np.ones(1, np.float32), np.float32(-5.2)
    values = {"inp": one[None], "weight": np.full((1, 1), x), "bias": 0 * one}
    (output,) = expect(find("decode.linear_gelu").op, dims, DTYPES["float32"], values)
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    for tanh in (np.tanh(inner), np.nextafter(np.tanh(inner), np.float32(0))):
        got = np.float32(0.5) * x * (1 + tanh)
        assert output.verify(np.full((1, 1), got, np.float32))[0] is None
    assert output.verify(np.full((1, 1), -1e-5, np.float32))[0] is not None
