"""The engine: memory, views, lists of calls. Numbers are the matter of tests/reference."""

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import ALIGNMENT
from ladder.core.contract.ladder import find
from ladder.core.contract.rung_file import Rung
from ladder.core.device.open import Cpu
from reference import adamw
from tests.trainer.cpu_engines import cpu_engine, distance, run_batch, write_weights
from tests.trainer.tiny import PARAMETERS
from trainer.engine.engine import Engine
from trainer.model.gpt2 import GPT2Config
from trainer.model.program import build, initial_parameters

CONFIG = GPT2Config(context=8, vocab=13, padded_vocab=16, layers=2, heads=2, channels=8)
HYPER = dict(lr=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0)
RNG = np.random.default_rng(0)
TOKENS, TARGETS = RNG.integers(0, 13, (2, 3, 7))


def ready(real=np.float32, config=CONFIG):
    engine = cpu_engine(config, 3, 7, real)
    write_weights(engine, initial_parameters(config, seed=0))
    return engine


def train(engine, steps):
    losses = []
    for step in range(1, steps + 1):
        losses.append(run_batch(engine, TOKENS, TARGETS))
        engine.write("hyper", adamw.hyper(step=step, **HYPER))
        engine.update()
    return losses


def test_padded_rows_of_the_token_table_stay_zero():
    engine = ready()
    train(engine, 3)
    assert not engine.read("wte")[13:].any()
    assert engine.read("wte")[:13].all()


def test_gradient_norm_is_that_of_the_gradients_now_and_update_never_uses_an_old_one():
    seen, unseen = ready(), ready()
    for engine in (seen, unseen):
        run_batch(engine, TOKENS, TARGETS)
        engine.gradient_norm()
        engine.backward()  # the gradients change again (nonsense ones: logits are spent)
        engine.write("hyper", adamw.hyper(step=1, **HYPER))
    expected = np.linalg.norm(seen.read("gradients").astype(np.float64))
    assert seen.gradient_norm() == pytest.approx(expected, rel=1e-6)
    seen.update()
    unseen.update()
    np.testing.assert_array_equal(seen.read("fcw"), unseen.read("fcw"))


def test_predict_leaves_logits_and_forward_leaves_their_gradient():
    engine = ready()
    engine.write("dloss", np.array([1 / 21]))
    engine.write("tokens", TOKENS)
    engine.write("targets", TARGETS)
    engine.predict()
    logits = engine.read("logits")[..., :13].astype(np.float64)
    engine.forward()
    onehot = np.eye(13)[TARGETS]
    expected = (np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True) - onehot) / 21
    np.testing.assert_allclose(engine.read("logits")[..., :13], expected, atol=1e-7)


def test_16_bit_weights_keep_a_float32_master_copy_that_read_returns():
    weights = dict(initial_parameters(CONFIG, seed=0))
    engine = ready(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(engine.read("fcw"), weights["fcw"])
    assert engine.arrays["fcw"].dtype == ml_dtypes.bfloat16
    losses = train(engine, 3)
    assert losses[-1] < losses[0]
    master = engine.read("fcw")
    assert master.dtype == np.float32 and (master != weights["fcw"]).any()
    np.testing.assert_array_equal(engine.arrays["fcw"], master.astype(ml_dtypes.bfloat16))


def test_bfloat16_gradients_are_near_those_of_float32():
    exact, coarse = ready(), ready(ml_dtypes.bfloat16)
    losses = [run_batch(engine, TOKENS, TARGETS) for engine in (exact, coarse)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    for name in PARAMETERS:  # bfloat16 keeps 8 bits
        assert distance(coarse.read("d" + name), exact.read("d" + name)) < 0.05, name


@pytest.mark.parametrize("real", [np.float32, ml_dtypes.bfloat16])
def test_buffers_are_aligned_and_overlap_only_where_declared(real):
    engine = cpu_engine(replace(CONFIG, dropout=0.1), 3, 7, real)
    spans = []
    for name, buffer in engine.program.buffers.items():
        if name in engine.arrays and buffer.inside is None:
            array = engine.arrays[name]
            start = array.ctypes.data
            assert start % ALIGNMENT == 0, name
            spans.append((start, start + array.nbytes))
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for name, buffer in engine.program.buffers.items():
        if buffer.inside is not None and name in engine.arrays:
            assert np.shares_memory(engine.arrays[name], engine.arrays[buffer.inside[0]]), name


def test_a_pass_sees_what_was_written_last_and_a_read_too():
    engine = ready()
    shape = engine.arrays["tokens"].shape
    seen = []
    for value in (1, 2, 1):
        engine.write("tokens", np.full(shape, 0, np.int32))
        engine.write("tokens", np.full(shape, value, np.int32))
        engine.predict()
        seen.append(engine.read("logits"))
    assert np.array_equal(seen[0], seen[2]) and not np.array_equal(seen[0], seen[1])
    engine.write("targets", np.full(shape, 3, np.int32))
    assert (engine.read("targets") == 3).all() and (engine.fetch("tokens")() == 1).all()


def test_nothing_is_allocated_on_the_device_after_the_start():
    class Counting(Cpu):
        allocations = 0

        def empty(self, shape, dtype):
            self.allocations += 1
            return super().empty(shape, dtype)

    device = Counting()
    program = build(CONFIG, 3, 7)
    ops = {call.op for call in program.training_step}
    engine = Engine(program, device, np.float32, {op: find(op).rung(0) for op in ops})
    write_weights(engine, initial_parameters(CONFIG, seed=0))
    before = device.allocations
    train(engine, 2)
    assert device.allocations == before


def test_an_engine_can_use_the_weights_of_another():
    engine = ready()
    rungs = engine.rungs
    program = build(CONFIG, 1, 4, training=False)
    other = Engine(program, Cpu(), np.float32, rungs, weights_of=engine)
    engine.write("tokens", TOKENS)
    other.write("tokens", TOKENS[:1, :4])
    for _ in range(2):  # before and after the weights change
        engine.write("tokens", TOKENS)
        engine.predict()
        other.predict()
        logits = engine.read("logits")[:1, :4]
        np.testing.assert_allclose(other.read("logits"), logits, atol=1e-6)
        train(engine, 1)
    assert set(other.memory_by_kind()) == {"input", "activation", "scratch", "rungs' scratch"}


def test_scratch_of_rungs_is_shared_by_all_calls_and_large_enough_for_each(tmp_path):
    """A device whose kernels only record what they are given."""
    taken = []

    class Recording(Cpu):
        kind = "emulated"

        def compile(self, rung, defines, real):
            return {"gelu_forward": lambda launch, args: taken.append(args[-1])}

    source = tmp_path / "1_gelu.cu"
    source.write_text("void gelu_forward(real* out, float* partial, real* other) {}")
    header = {
        "launch": ("gelu_forward<<<ceil_div(N, 256), 256>>>",),
        "scratch": ("float32 partial[N + 1]; real other[3]",),
    }
    program = build(CONFIG, 3, 7)
    ops = {call.op for call in program.training_step}
    rungs = {op: find(op).rung(0) for op in ops}
    rungs["gelu.forward"] = Rung("1", "records", source, source.read_text(), header)
    engine = Engine(program, Recording(), np.float32, rungs)
    engine.write("tokens", TOKENS)
    engine.predict()
    assert len(taken) == CONFIG.layers
    assert taken[0].shape == (3,) and np.shares_memory(taken[0], taken[1])
    padded = -(-(3 * 7 * 32 + 1) // 64) * 64 + 64
    assert engine.memory_by_kind()["rungs' scratch"] == padded * 4


def test_rungs_of_kernels_are_refused_on_the_cpu(tmp_path):
    header = {"launch": ("gelu_forward<<<1, 1>>>",)}
    program = build(CONFIG, 3, 7)
    ops = {call.op for call in program.training_step}
    rungs = {op: find(op).rung(0) for op in ops}
    rungs["gelu.forward"] = Rung("1", "a kernel", tmp_path / "1_a.cu", "", header)
    with pytest.raises(LadderError, match=r"cpu .*rung 0.*--device emulated"):
        Engine(program, Cpu(), np.float32, rungs)


def test_a_kernel_does_not_prefetch_what_the_call_before_it_writes():
    program = build(CONFIG, 3, 7)
    rungs = {call.op: find(call.op).rung(0) for call in program.training_step}
    rungs["gelu.forward"] = replace(rungs["gelu.forward"], header={"prefetch": ("inp",)})
    with pytest.raises(LadderError, match=r"^h0.gelu, gelu.forward rung 0 .* inp, .*h0.fc, "):
        Engine(program, Cpu(), np.float32, rungs)
    rungs["gelu.forward"] = find("gelu.forward").rung(0)
    rungs["matmul.forward"] = replace(rungs["matmul.forward"], header={"prefetch": ("weight",)})
    Engine(program, Cpu(), np.float32, rungs)
