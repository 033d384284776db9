"""The program: what it declares, how it wires the ops, how weights start."""

import dataclasses
import functools
import math
from collections import Counter
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from ladder.core.contract.ladder import find
from tests.trainer.cpu_engines import assert_derivatives, cpu_engine, run_batch
from tests.trainer.tiny import PARAMETERS
from trainer.model.fusion import FUSIONS
from trainer.model.gpt2 import GPT2Config
from trainer.model.lecture_gpt import LectureGPTConfig
from trainer.model.program import build, initial_parameters
from trainer.model.sharding import ALIGNMENT

STATES = "moment", "master"
SMALL = GPT2Config(context=6, vocab=11, padded_vocab=16, layers=2, heads=2, channels=8, dropout=0.0)


def random_engine(config, B=2, T=5, **options):
    """A float64 engine whose parameters are all random, and a batch for it."""
    engine = cpu_engine(config, B, T, np.float64, **options)
    rng = np.random.default_rng(0)
    for name, shape in config.parameter_shapes().items():
        engine.write(name, rng.normal(1.0 if name in ("ln1w", "ln2w", "lnfw") else 0, 0.3, shape))
    if config.has_dropout:
        engine.write("rng", np.array([1, 2, 3, 4], np.uint32))
    return engine, rng.integers(0, config.vocab, (B, T)), rng.integers(0, config.vocab, (B, T))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_gradients_of_the_whole_model_are_the_derivative_of_the_loss(dropout):
    config = replace(SMALL, dropout=dropout, attention_dropout=dropout)
    assert_derivatives(*random_engine(config))


@pytest.mark.parametrize("real", [np.float32, ml_dtypes.bfloat16])
def test_recomputing_changes_no_bit_and_takes_less_memory(real):
    config = replace(SMALL, dropout=0.2, attention_dropout=0.2)
    weights = dict(initial_parameters(config, seed=0))
    tokens, targets = np.random.default_rng(0).integers(0, 11, (2, 2, 5))
    gradients, activations = [], []
    for recompute in (0, 1, 2):
        engine = cpu_engine(config, 2, 5, real, recompute=recompute)
        for name, tensor in weights.items():
            engine.write(name, tensor)
        engine.write("rng", np.array([1, 2, 3, 4], np.uint32))
        run_batch(engine, tokens, targets)
        gradients.append(engine.read("gradients").tobytes())
        shapes = [b.shape for b in engine.program.buffers.values() if b.kind == "activation"]
        activations.append(sum(math.prod(shape) for shape in shapes))
    assert gradients[0] == gradients[1] == gradients[2]
    B, T, C = 2, 5, SMALL.channels
    spared = SMALL.layers - 1  # one is left for all layers
    assert activations[0] - activations[1] == spared * 4 * B * T * C
    assert activations[1] - activations[2] == spared * 2 * B * T * C


FUSED = (*((name,) for name in FUSIONS), tuple(FUSIONS))


@functools.cache
def losses_and_gradients(dropout, recompute=0, fusions=()):
    config = replace(SMALL, dropout=dropout, attention_dropout=dropout)
    engine, *batch = random_engine(config, recompute=recompute, fusions=fusions)
    run_batch(engine, *batch)
    losses = engine.read("losses")
    engine.evaluate()
    seen = {"losses": losses, "evaluated": engine.read("losses")}
    return seen | {name: engine.read("d" + name) for name in PARAMETERS}


@pytest.mark.costly
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("recompute", [0, 2])
@pytest.mark.parametrize("fusions", FUSED, ids="+".join)
def test_fusing_changes_neither_losses_nor_gradients(fusions, recompute, dropout):
    """In float64, where what is rounded on the way does not show."""
    fused = losses_and_gradients(dropout, recompute, fusions)
    for name, plain in losses_and_gradients(dropout).items():
        np.testing.assert_allclose(fused[name], plain, rtol=1e-12, atol=1e-14, err_msg=name)


def counted(part):
    return Counter(call.op for call in part)


@pytest.mark.parametrize("summing", [True, False])
@pytest.mark.parametrize("recompute", [0, 1, 2])
def test_a_fused_program_calls_the_fused_ops_wherever_they_apply(recompute, summing):
    """`summing`: the residual stream is added in the products, not before the layernorms."""
    L = SMALL.layers
    names = tuple(name for name in FUSIONS if summing or name != "matmul_residual")
    program = build(SMALL, 2, 5, recompute=recompute, fusions=names[::-1])
    forward, backward = counted(program.forward), counted(program.backward)
    assert program.fusions == names
    assert forward["matmul_gelu.forward"] == L and forward["gelu.forward"] == 0
    summed = 2 * L * summing
    assert forward["matmul_residual.forward"] == summed
    assert forward["matmul.forward"] == 3 * L - summed
    assert forward["matmul_crossentropy.forward"] == 1 and forward["crossentropy.fused"] == 0
    assert counted(program.evaluate)["crossentropy.fused"] == 1  # a validation's loss is exact
    again = recompute == 2  # ln_1 and ln_2, by the kernel that the forward pass has used
    joined = 0 if again or summing else 2 * L
    assert forward["residual_layernorm.forward"] == joined
    assert forward["residual.forward"] == 2 * L - joined - summed
    assert forward["layernorm.forward"] == 2 * L + 1 - joined
    assert backward["residual_layernorm.backward"] == 2 * L
    assert backward["layernorm.backward"] == 1 and backward["residual.backward"] == 0
    assert backward["layernorm.forward"] == 2 * L * again
    assert backward["gelu.forward"] == L * (recompute >= 1)
    assert backward["matmul_gelu.backward_input"] == L and backward["gelu.backward"] == 0
    assert backward["matmul.backward_input"] == 3 * L
    assert backward["matmul_crossentropy.backward_input"] == 1
    assert (
        backward["matmul.backward_weight_bias"] == 4 * L and backward["matmul.backward_bias"] == 0
    )
    assert backward["matmul.backward_weight"] == 1  # of the head, which has no bias


def test_the_loss_of_a_head_with_a_bias_is_not_fused():
    config = LectureGPTConfig(**dataclasses.asdict(SMALL))
    plain, fused = (build(config, 2, 5, fusions=names) for names in ((), ("matmul_crossentropy",)))
    for one, other in ((plain.forward, fused.forward), (plain.backward, fused.backward)):
        assert [call.args for call in one] == [call.args for call in other]
    assert plain.buffers == fused.buffers


def test_dropout_acts_in_forward_and_not_in_evaluate():
    engine, tokens, targets = random_engine(replace(SMALL, dropout=0.5, attention_dropout=0.5))
    plain, _, _ = random_engine(SMALL)
    losses = {}
    for name, run in [
        ("train", engine.forward),
        ("eval", engine.evaluate),
        ("plain", plain.forward),
    ]:
        target = plain if name == "plain" else engine
        target.write("tokens", tokens)
        target.write("targets", targets)
        run()
        losses[name] = target.read("losses")
    np.testing.assert_array_equal(losses["eval"], losses["plain"])
    assert (losses["train"] != losses["eval"]).any()


@pytest.mark.parametrize(("dropout", "attention_dropout"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1)])
def test_only_the_dropouts_that_are_asked_for_are_in_a_step(dropout, attention_dropout):
    program = build(replace(SMALL, dropout=dropout, attention_dropout=attention_dropout), 2, 5)
    ops = {call.op for call in program.training_step}
    assert ({"dropout.forward", "dropout.backward"} <= ops) == (dropout > 0)
    inside = {"attention_dropout.forward", "attention_dropout.backward"}
    plain = {"attention.forward", "attention.backward"}
    assert ops & (inside | plain) == (inside if attention_dropout else plain)
    assert ("rng" in program.buffers) == (dropout + attention_dropout > 0)
    assert "attention.forward" in {call.op for call in program.evaluate}


def test_each_dropout_of_a_step_has_its_own_stream_and_backward_repeats_them_all():
    program = build(replace(SMALL, dropout=0.1, attention_dropout=0.1), 2, 5)
    drops = {"forward": [], "backward": []}
    for call in (*program.forward, *program.backward):
        if "dropout" in call.op:
            drops[call.op.split(".")[1]].append((call.where, call.scalars["stream"]))
    assert len({stream for _, stream in drops["forward"]}) == 1 + 3 * SMALL.layers
    assert drops["backward"] == drops["forward"][::-1]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("training", "recompute"), [(False, 0), (True, 0), (True, 2)])
@pytest.mark.parametrize("fusions", [(), *FUSED], ids="+".join)
def test_every_call_fits_its_contract_and_every_buffer_is_used(
    dropout, training, recompute, fusions
):
    config = replace(SMALL, dropout=dropout, attention_dropout=dropout)
    program = build(config, 2, 5, training=training, recompute=recompute, fusions=fusions)
    used = set()
    parts = (program.forward, program.evaluate, program.predict, program.backward, program.update)
    for call in {call for part in parts for call in part}:
        op = find(call.op).op
        assert set(call.dims) == set(op.dims)
        assert set(call.scalars) == {scalar.name for scalar in op.scalars}
        for arg, ref in zip(op.args, call.args, strict=True):
            if ref is None:
                assert arg.optional
                continue
            name, layer = ref
            used.add(name)
            buffer = program.buffers[name]
            shape = buffer.shape if layer is None else buffer.shape[1:]
            assert math.prod(shape) == math.prod(arg.resolve_shape(call.dims)), (call.where, name)
            assert buffer.dtype == arg.dtype or arg.name in ("weight", "wte", "wpe"), name
    hosts = {buffer.inside[0] for buffer in program.buffers.values() if buffer.inside}
    states = {name for name, buffer in program.buffers.items() if buffer.kind in STATES}
    assert set(program.buffers) == used | hosts | states  # checkpoints read these tensor by tensor


@pytest.mark.parametrize("fusions", [(), *FUSED], ids="+".join)
def test_no_call_writes_a_buffer_that_it_reads_under_another_name(fusions):
    program = build(replace(SMALL, dropout=0.1, attention_dropout=0.1), 2, 5, fusions=fusions)
    for call in program.calls:
        refs = [ref for ref in call.args if ref is not None]
        homes = []
        for name, layer in refs:
            inside = program.buffers[name].inside
            shared = inside is not None and program.buffers[name].kind == "scratch"
            homes.append((inside[0], None) if shared else (name, layer))
        assert len(set(homes)) == len(refs), (call.where, call.op, refs)


@pytest.mark.parametrize("prefix, host", [("", "parameters"), ("d", "gradients")])
def test_tensors_are_parts_of_one_vector_those_with_weight_decay_first(prefix, host):
    program = build(SMALL, 2, 5)
    parameters = SMALL.parameters()
    end = 0
    for name in sorted(PARAMETERS, key=lambda name: not parameters[name].decay):
        buffer = program.buffers[prefix + name]
        assert buffer.inside == (host, end)
        end += -(-math.prod(buffer.shape) // ALIGNMENT) * ALIGNMENT
    assert program.buffers[host].shape == (end,)


def test_gpt2_has_124_million_parameters():
    shapes = GPT2Config().parameter_shapes()
    assert " ".join(shapes) == (
        "wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb"
    )
    padding = (50304 - 50257) * 768
    assert sum(math.prod(shape) for shape in shapes.values()) - padding == 124_439_808


def test_initial_weights_follow_gpt2():
    config = GPT2Config(context=64, vocab=500, padded_vocab=512, layers=8, heads=2, channels=64)
    weights = dict(initial_parameters(config, seed=1))
    assert {name: w.shape for name, w in weights.items()} == config.parameter_shapes()
    assert all(w.dtype == np.float32 for w in weights.values())
    for name, w in weights.items():
        if w.ndim == 3 or name in ("wte", "wpe"):
            w = w[:500] if name == "wte" else w
            deviation = 0.005 if name in ("attprojw", "fcprojw") else 0.02  # 0.02 / sqrt(2 * 8)
            assert w.std() == pytest.approx(deviation, rel=0.05), name
            assert abs(w.mean()) < 4 * deviation / math.sqrt(w.size)
        else:
            assert (w == (1 if name in ("ln1w", "ln2w", "lnfw") else 0)).all(), name
    assert not weights["wte"][500:].any()


@pytest.mark.parametrize(
    ("heads", "B", "T", "names"),
    [(2, 2, 7, "T=7"), (2, 0, 5, "B=0"), (2, 2, 0, "T=0"), (3, 2, 5, "8 channels .* 3 heads")],
)
def test_impossible_shapes_are_refused(heads, B, T, names):
    with pytest.raises(ValueError, match=names):
        build(replace(SMALL, heads=heads), B, T)
