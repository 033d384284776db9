"""A model is one class: a second one trains, resumes, samples and is exported by the same code."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from tests.trainer.tiny import assert_same, losses, parameters, run
from trainer.commands.sample import open_generator
from trainer.data.tokenizers import ByteTokenizer
from trainer.files import huggingface, weights
from trainer.flags import Flags
from trainer.model import registry
from trainer.model.calls import Buffer, Call, CallList
from trainer.model.model_config import HuggingFaceFormat, ModelConfig, Parameter, Size
from trainer.model.program import build


@dataclass(frozen=True, kw_only=True)
class MLPConfig(ModelConfig):
    """Each token sees itself and its position only: embedding, a hidden layer, logits."""

    channels: int = 8
    hidden: int = 12

    hugging_face = HuggingFaceFormat(
        model_type="mlp",
        class_name="MLPModel",
        prefix="mlp.",
        tensors={
            "table": ("tokens.weight", False),
            "places": ("places.weight", False),
            "hiddenw": ("hidden.weight", True),
            "hiddenb": ("hidden.bias", False),
            "outw": ("out.weight", False),
        },
        tied={},
        ignored="",
        fields={
            "context": "context",
            "vocab": "vocab_size",
            "channels": "width",
            "hidden": "hidden",
        },
    )

    def parameters(self) -> dict[str, Parameter]:
        C, H, Vp = self.channels, self.hidden, self.padded_vocab
        return {
            "table": Parameter((Vp, C), deviation=0.5),
            "places": Parameter((self.context, C), deviation=0.5),
            "hiddenw": Parameter((H, C), decay=True, deviation=0.5),
            "hiddenb": Parameter((H,)),
            "outw": Parameter((Vp, H), decay=True, deviation=0.1),
        }

    def activations(self, B: int, T: int, *, training: bool, recompute: int) -> dict[str, Buffer]:
        sizes = {"x": self.channels, "h": self.hidden, "h_gelu": self.hidden}
        kinds = {"": "activation", **({"d": "scratch"} if training else {})}
        return {
            prefix + name: Buffer((B, T, size), "real", kind)
            for prefix, kind in kinds.items()
            for name, size in sizes.items()
        }

    def dims(self, B: int, T: int) -> tuple[dict, dict, dict, dict]:
        C, H, Vp, N = self.channels, self.hidden, self.padded_vocab, B * T
        tokens = {"B": B, "T": T, "C": C, "V": Vp, "P": self.context}
        linear = {"N": N, "C": C, "OC": H}
        return tokens, linear, {"N": N * H}, {"N": N, "C": H, "OC": Vp}

    def forward(self, B: int, T: int, buffers: Mapping[str, Buffer], dropout: bool) -> list[Call]:
        calls, (tokens, linear, flat, head) = CallList(buffers), self.dims(B, T)
        calls.call("embedding", "embedding.forward", tokens, "x tokens table places")
        calls.call("hidden", "matmul.forward", linear, "h x hiddenw hiddenb")
        calls.call("gelu", "gelu.forward", flat, "h_gelu h")
        calls.call("out", "matmul.forward", head, "logits h_gelu outw -")
        return calls.calls

    def backward(self, B: int, T: int, buffers: Mapping[str, Buffer]) -> list[Call]:
        calls, (tokens, linear, flat, head) = CallList(buffers), self.dims(B, T)
        calls.call("out", "matmul.backward_weight", head, "doutw logits h_gelu")
        calls.call("out", "matmul.backward_input", head, "dh_gelu logits outw")
        calls.call("gelu", "gelu.backward", flat, "dh dh_gelu h")
        bias = {"N": B * T, "OC": self.hidden}
        calls.call("hidden", "matmul.backward_bias", bias, "dhiddenb dh")
        calls.call("hidden", "matmul.backward_weight", linear, "dhiddenw dh x")
        calls.call("hidden", "matmul.backward_input", linear, "dx dh hiddenw")
        calls.call("embedding", "embedding.backward", tokens, "dtable dplaces dx tokens")
        return calls.calls

    def flops_per_token(self, T: int) -> int:
        return 6 * self.hidden * (self.channels + self.padded_vocab)

    @property
    def summary(self) -> str:
        return f"{self.channels} channels, {self.hidden} hidden"


SMALL = MLPConfig(context=24, vocab=257, padded_vocab=384)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """The two lines of the registry."""
    monkeypatch.setitem(registry.MODELS, "mlp", MLPConfig)
    monkeypatch.setitem(registry.SIZES, "mlp-small", Size(SMALL, tokenizer="bytes"))


def train(tmp_path, name, **changes):
    directory = tmp_path / name
    settings = {"model": "mlp-small", "output": str(directory), "checkpoint_every": 4, **changes}
    _, screen = run(tmp_path, **settings)
    return directory, losses(directory), screen


def test_it_learns_and_a_resumed_run_is_the_same_run(tmp_path):
    whole, course, screen = train(tmp_path, "whole", steps=8, sample_every=8, sample_tokens=5)
    assert "mlp-small: 8 channels, 12 hidden, 257 tokens" in screen
    assert course[-1] < course[0] - 0.1
    parts, _, _ = train(tmp_path, "parts", steps=8)
    shutil.rmtree(parts / "step_00000008")
    _, again, _ = train(tmp_path, "parts", steps=8, resume=1)
    assert again == course
    assert_same(parameters(whole, 8), parameters(parts, 8))


def test_fusing_changes_no_bit_of_it(tmp_path):
    names = "matmul_gelu", "residual_layernorm"
    assert train(tmp_path, "plain")[1] == train(tmp_path, "fused", fuse=",".join(names))[1]
    fused = build(SMALL, 2, 5, fusions=names)
    assert "matmul_gelu.forward" in {call.op for call in fused.forward}


def test_it_is_exported_and_sampled_from(tmp_path):
    directory, _, _ = train(tmp_path, "run", steps=4)
    model = weights.open_model(str(directory), vocab=257, seed=1, data_dir=tmp_path)
    assert model.shape == SMALL
    tensors = {name: array for name, _, array in model.pieces}
    huggingface.export_huggingface(tmp_path / "hf", SMALL, tensors.__getitem__, ByteTokenizer())
    again, pieces = huggingface.load_huggingface(tmp_path / "hf")
    assert again == SMALL
    for name, _, array in pieces:
        np.testing.assert_array_equal(array, tensors[name], err_msg=name)
    words = {"device": "cpu", "data_dir": str(tmp_path), "prompt": "a", "sample_tokens": 3}
    drawn = []
    for name in (directory, tmp_path / "hf"):
        flags = Flags(model=str(name), tokenizer="bytes", **words)
        generator = open_generator(flags)[2]
        drawn.append(list(generator.generate([[256, 97]], 3, [np.random.default_rng(1)])))
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 3
