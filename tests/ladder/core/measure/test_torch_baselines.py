"""PyTorch's calls compute what the reference computes, and are measured without the rungs."""

import dataclasses
import functools
import importlib
import json

import numpy as np
import pytest
from fakes import FakeGpu

from ladder.__main__ import main
from ladder.core.commands import timings
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.measure import results, torch_timing
from ladder.core.measure.timing import Timing
from ladder.core.measure.torch_baselines import BASELINES, taken
from ladder.core.verify.inputs import make_inputs
from ladder.core.verify.tolerance import expect

FLOAT32 = np.dtype(np.float32)
CALLS = [(name, "eager") for name in BASELINES]
CALLS += [(name, "compiled") for name, peer in BASELINES.items() if peer.compiled]
DRAWS = ("dropout.forward", "decode.sample")  # its own random numbers
UNLIKE = {("adamw.update", "eager"): {"clip": 0.0}}  # it does not clip


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def run(torch, op, kind, dims, inputs, device="cpu"):
    """What a peer's function gives, by argument; "eager" and "compiled" run without a compiler."""
    function = BASELINES[op.name].functions[kind]
    copies = {name: array.copy() for name, array in inputs.items()}
    with torch.no_grad():
        values = torch_timing.values_for(BASELINES[op.name], op, dims, copies, device)
        given = functools.partial(function, torch)(**{key: values[key] for key in taken(function)})
    return {name: array_of(value) for name, value in given.items()}


def op_of(name):
    """The op, without dropout inside: PyTorch draws another mask or, in attention on CPUs, none."""
    op = find(name).op
    if op.layer in ("attention_dropout", "dropout_residual_layernorm"):
        return dataclasses.replace(op, scalar_values={**op.scalar_values, "p": 0.0})
    return op


def array_of(value):
    """What a tensor holds; of three gradients (B, NH, T, HS), what dqkv (B, T, 3C) would."""
    if isinstance(value, tuple):
        return np.concatenate([array_of(part.transpose(1, 2).flatten(2)) for part in value], 2)
    return (value.float() if value.dtype.is_floating_point else value).cpu().numpy()


def inputs_of(op, dims, not_taken=(), real=FLOAT32):
    """Random inputs; sums that a call does not add to begin at 0."""
    case = "p = 0" if op.layer == "attention_dropout" else "normal"
    inputs = make_inputs(op, dims, real, np.random.default_rng(1), case)
    for arg in op.args:
        if arg.role == "inout" and arg.name in not_taken:
            inputs[arg.name][...] = 0
    return {name: array for name, array in inputs.items() if name not in op.unmeasured}


@pytest.mark.torch
@pytest.mark.parametrize(("name", "kind"), [c for c in CALLS if c[0] not in DRAWS])
def test_a_peer_computes_what_the_reference_computes(torch, name, kind):
    op = op_of(name)
    missing = {arg.name for arg in op.args} - set(taken(BASELINES[name].functions[kind]))
    for dims in op.shapes[2:4]:
        inputs = inputs_of(op, dims, missing)
        if (name, kind) in UNLIKE:
            change = importlib.import_module(f"ladder.{op.layer}.ops").hyper
            inputs["hyper"] = change(**UNLIKE[name, kind]).astype(np.float32)
        if name == "dropout.backward":
            inputs["dout"][...] = 1  # then the mask can be read off the result
        got = run(torch, op, kind, dims, inputs)
        if name == "dropout.backward":
            assert set(got["dinp"]) <= {np.float32(0), np.float32(1.25)}
            continue
        expected = expect(op, dims, FLOAT32, inputs)
        assert set(got) - {"mask"} == {output.arg.name for output in expected}
        for output in expected:
            assert output.verify(got[output.arg.name])[0] is None


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.parametrize("real", ["bfloat16", "float32"])
@pytest.mark.parametrize(("name", "kind"), [c for c in CALLS if "attention" in c[0]])
def test_attention_calls_other_kernels_on_a_gpu_and_they_compute_it_too(torch, name, kind, real):
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no GPU")
    op, sizes, dtype = op_of(name), {"B": 2, "T": 128, "P": 128, "C": 128, "NH": 2}, DTYPES[real]
    dims = {name: sizes[name] for name in op.dims}
    inputs = inputs_of(op, dims, real=dtype)
    got = run(torch, op, kind, dims, inputs, "cuda")
    for output in expect(op, dims, dtype, inputs):
        assert output.verify(got[output.arg.name], rounds=True)[0] is None


@pytest.mark.torch
def test_dropout_of_a_peer_drops_the_same_share_by_its_own_mask(torch):
    op, dims = find("dropout.forward").op, {"N": 65536}
    inputs = inputs_of(op, dims)
    got = run(torch, op, "eager", dims, inputs)
    np.testing.assert_allclose(got["out"], inputs["inp"] * got["mask"] / 0.8, rtol=1e-6)
    assert got["mask"].mean() == pytest.approx(0.8, abs=0.02)


@pytest.mark.torch
def test_the_token_of_a_peer_is_drawn_by_its_probability(torch):
    op, dims = find("decode.sample").op, {"B": 20000, "P": 3, "V": 2, "Vp": 3}
    inputs = inputs_of(op, dims)
    inputs["logits"][:] = 0.75 * np.log([1, 3, 1000])  # the temperature is 0.75; the last one pads
    inputs["positions"][:] = np.arange(20000) % 3
    got = run(torch, op, "eager", dims, inputs)
    drawn = got["window"][np.arange(20000), inputs["positions"] + 1]
    assert np.bincount(drawn.astype(int)) / 20000 == pytest.approx([0.25, 0.75], abs=0.02)
    np.testing.assert_array_equal(got["positions"], np.minimum(inputs["positions"] + 1, 2))


# ---- PyTorch alone ------------------------------------------------------------------------------

ROW = {"rung": "1", "idea": "any", "library": False, "code": "0", "median_us": 40.0}
KEPT = {
    "op": "relu.forward",
    "dtype": "float32",
    "shape": "small",
    "dims": {"N": 1000},
    "bytes": 8000,
    "flops": 1000,
    "in_cache": True,
    "roof": {"copy_gbps": 100.0, "matrix_tflops": None},
    "date": "2026-01-01",
    "rows": [ROW, {"peer": "PyTorch eager", "median_us": 30.0}],
}


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A GPU with results of one rung and an old PyTorch; PyTorch takes 20 us now."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(timings, "open_device", lambda name: FakeGpu())
    monkeypatch.setattr(torch_timing, "available", lambda: None)

    def measured(op, dims, inputs):
        assert inputs["inp"].shape == (dims["N"],)
        yield "PyTorch eager", Timing(20e-6, 19e-6, 21e-6, 15)
        yield "PyTorch compiled", "failed: no compiler"

    monkeypatch.setattr(torch_timing, "measure_torch", measured)
    return results.record(FakeGpu().description(), KEPT)


def test_pytorch_alone_is_measured_beside_the_rungs_that_are_kept(kept, capsys):
    assert main(["bench", "relu.forward", "--peers", "--save"]) == 0
    (measurement,) = json.loads(kept.read_text())["measurements"]
    rung, peer = measurement["rows"]
    assert rung == ROW
    assert (peer["peer"], peer["median_us"]) == ("PyTorch eager", 20.0)
    assert peer["date"] > KEPT["date"] == measurement["date"]
    assert "PyTorch compiled, float32: failed: no compiler" in capsys.readouterr().out
