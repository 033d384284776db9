"""The lecture's model: its size, what it computes, and that its gradients are right."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from reference.layernorm import forward as layernorm
from tests.trainer.cpu_engines import assert_derivatives, run_batch
from tests.trainer.model.test_program import random_engine
from trainer.commands.export import main as export
from trainer.files import weights
from trainer.model import registry
from trainer.model.lecture_gpt import LectureGPTConfig
from trainer.model.program import build, initial_parameters

SMALL = LectureGPTConfig(context=6, vocab=11, padded_vocab=16, layers=2, heads=2, channels=8)


def test_it_has_the_lectures_10_788_929_parameters():
    config = registry.SIZES["char-lecture"].config.with_vocab(65)
    assert sum(math.prod(shape) for shape in config.unpadded_shapes().values()) == 10_788_929
    assert (config.dropout, config.attention_dropout, config.context) == (0.2, 0.2, 256)
    assert weights.tokenizer_of("char-lecture") == "chars"


def test_matrices_start_alike_and_all_tensors_decay():
    config = replace(registry.SIZES["char-lecture"].config.with_vocab(65), layers=1)
    for name, tensor in initial_parameters(config, 1):
        parameter = config.parameters()[name]
        assert parameter.decay, name
        if parameter.deviation:
            used = tensor[tuple(map(slice, config.unpadded_shapes()[name]))]
            assert abs(used.std() / 0.02 - 1) < 0.05, name


def test_its_logits_are_those_of_the_equations():
    engine, tokens, _ = random_engine(SMALL)
    w = {name: engine.read(name) for name in SMALL.parameters()}
    engine.write("tokens", tokens)
    engine.predict()

    def norm(x, name, layer=...):
        out, mean, rstd = np.empty_like(x), np.empty(len(x)), np.empty(len(x))
        layernorm(out, mean, rstd, x, w[name + "w"][layer], w[name + "b"][layer])
        return out

    for row, ours in zip(tokens, engine.read("logits").reshape(2, 5, 16), strict=True):
        x = w["wte"][row] + w["wpe"][:5]  # (T, C)
        for i in range(2):
            q, k, v = np.split(norm(x, "ln1", i) @ w["qkvw"][i].T, 3, axis=1)  # no bias
            heads = []
            for columns in (slice(0, 4), slice(4, 8)):
                probs = np.tril(np.exp(q[:, columns] @ k[:, columns].T / 2))
                heads.append(probs / probs.sum(1, keepdims=True) @ v[:, columns])
            x = x + np.hstack(heads) @ w["attprojw"][i].T + w["attprojb"][i]
            hidden = np.maximum(norm(x, "ln2", i) @ w["fcw"][i].T + w["fcb"][i], 0)
            x = x + hidden @ w["fcprojw"][i].T + w["fcprojb"][i]
        logits = norm(x, "lnf") @ w["headw"].T + w["headb"]
        np.testing.assert_allclose(ours, logits, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_its_gradients_are_the_derivative_of_the_loss(dropout):
    config = replace(SMALL, dropout=dropout, attention_dropout=dropout)
    assert_derivatives(*random_engine(config))


RELU = ("matmul_relu",), ("matmul_relu_backward",), ("matmul_relu", "matmul_relu_backward")


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [0, 2])
@pytest.mark.parametrize("fusions", RELU, ids="+".join)
def test_fusing_the_relu_changes_no_bit_of_losses_and_gradients(fusions, recompute):
    """In float64. Dropout is on, so that the gradient's buffers are all in use."""
    config = replace(SMALL, dropout=0.2, attention_dropout=0.2)
    seen = []
    for names in ((), fusions):
        engine, tokens, targets = random_engine(config, recompute=recompute, fusions=names)
        run_batch(engine, tokens, targets)
        ops = {call.op for call in engine.program.training_step}
        assert ("matmul_relu.forward" in ops) == ("matmul_relu" in names)
        assert ("matmul_relu.backward_input" in ops) == ("matmul_relu_backward" in names)
        seen.append([engine.read(name) for name in ("losses", "gradients")])
    for plain, fused in zip(*seen, strict=True):
        np.testing.assert_array_equal(fused, plain)


def test_fusing_dropout_into_the_residual_changes_no_bit_of_losses_and_gradients():
    """In float64. What stays apart: a dropout behind ln_f, which has no stream to add to."""
    config = replace(SMALL, dropout=0.2, attention_dropout=0.2)
    seen = []
    joined = ("residual_layernorm",)
    for names in (joined, (*joined, "dropout_residual_layernorm")):
        engine, tokens, targets = random_engine(config, fusions=names)
        run_batch(engine, tokens, targets)
        seen.append([engine.read(name) for name in ("losses", "gradients")])
    for plain, fused in zip(*seen, strict=True):
        np.testing.assert_array_equal(fused, plain)
    forward, backward = (
        [call.op for call in calls] for calls in (engine.program.forward, engine.program.backward)
    )
    branches = 2 * config.layers
    assert forward.count("dropout_residual_layernorm.forward") == branches
    assert "dropout.forward" not in forward and "residual_layernorm.forward" not in forward
    assert backward.count("dropout_residual_layernorm.backward") == branches - 1
    assert backward.count("dropout.backward") == 1
    assert backward.count("residual_layernorm.backward") == 1  # of the first layer's ln_1


@pytest.mark.parametrize("recompute", [0, 1])
def test_the_input_of_the_relu_is_not_kept_and_fused_nowhere_in_memory(recompute):
    plain, fused = (
        build(SMALL, 2, 5, recompute=recompute, fusions=names) for names in ((), RELU[2])
    )
    assert plain.buffers["fch"].inside == ("dfch", 0) and not plain.buffers["fch"].stacked
    assert "fch" not in fused.buffers
    for program in (plain, fused):  # -r 1 saves nothing here: the output is what is kept
        assert program.buffers["fch_gelu"].stacked
        assert "relu.forward" not in {call.op for call in program.backward}
    inference = build(SMALL, 2, 5, training=False).buffers["fch"]
    assert inference.kind == "scratch" and inference.inside is None


@pytest.mark.parametrize("form", ["llmc", "hf"])
def test_an_export_is_refused_with_what_to_do_instead(form, tmp_path):
    with pytest.raises(LadderError, match=r"GPT-2's .*\(-n\)"):
        export(["char-lecture", "--tokenizer", "bytes", "--to", form, "-o", str(tmp_path / "out")])
    assert list(tmp_path.iterdir()) == []
