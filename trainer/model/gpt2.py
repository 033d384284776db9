"""GPT-2 (Radford et al. 2019) as a list of op calls: the program that the trainer runs.

    x = wte[tokens] + wpe                              embedding
    for each of L layers:
        x = x + attproj(attention(qkv(ln_1(x))))       residual2
        x = x + fcproj(gelu(fc(ln_2(x))))              residual3
    logits = ln_f(x) @ wte.T                           the head shares the token table
    loss = crossentropy(softmax(logits), targets)

This file writes down, forward and backward, calls of ops on named buffers, and knows nothing of
devices or kernels; loss and update are the same for every model (program.py). Buffers and tensors
have the names that llm.c gives them. What the backward pass reads is kept per layer, (L, ...);
gradients of activations live in a few buffers that all layers share.

Dropout acts where GPT-2 has it: after the embedding, at the end of both branches, and on the
probabilities inside attention, by ops of their own (attention_dropout): the matrix is never stored.

A variant is a class that derives from GPT2Config (lecture_gpt.py). The passes leave out a bias that
it lacks, and take its activation function, its head and the places of its dropout.

The end of the file says which sizes have names, and how files of Hugging Face and llm.c hold the
tensors.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trainer.model.calls import Buffer, Call, CallList, Ref
from trainer.model.model_config import (
    HuggingFaceFormat,
    LlmcFormat,
    ModelConfig,
    Parameter,
    Pretrained,
    Size,
    padded,
)


@dataclass(frozen=True, kw_only=True)
class GPT2Config(ModelConfig):
    """The size of a GPT-2; by default that of GPT-2 124M."""

    context: int = 1024
    vocab: int = 50257
    padded_vocab: int = 50304
    layers: int = 12
    heads: int = 12
    channels: int = 768

    activation: ClassVar[str] = "gelu"  # the layer of the ladder; its buffer is fch_gelu
    head: ClassVar[tuple[str, str]] = ("wte", "-")  # weight and bias
    drops_embedding: ClassVar[bool] = True  # whether dropout acts behind the embedding, too
    hugging_face: ClassVar[HuggingFaceFormat | None] = HuggingFaceFormat(
        model_type="gpt2",
        class_name="GPT2LMHeadModel",
        prefix="transformer.",
        # Their linear layers are `Conv1D`, which stores (in features, out features); ours are
        # (out, in).
        tensors={
            "wte": ("wte.weight", False),
            "wpe": ("wpe.weight", False),
            "ln1w": ("h.{}.ln_1.weight", False),
            "ln1b": ("h.{}.ln_1.bias", False),
            "qkvw": ("h.{}.attn.c_attn.weight", True),
            "qkvb": ("h.{}.attn.c_attn.bias", False),
            "attprojw": ("h.{}.attn.c_proj.weight", True),
            "attprojb": ("h.{}.attn.c_proj.bias", False),
            "ln2w": ("h.{}.ln_2.weight", False),
            "ln2b": ("h.{}.ln_2.bias", False),
            "fcw": ("h.{}.mlp.c_fc.weight", True),
            "fcb": ("h.{}.mlp.c_fc.bias", False),
            "fcprojw": ("h.{}.mlp.c_proj.weight", True),
            "fcprojb": ("h.{}.mlp.c_proj.bias", False),
            "lnfw": ("ln_f.weight", False),
            "lnfb": ("ln_f.bias", False),
        },
        tied={"lm_head.weight": "wte.weight"},
        ignored=r"h\.\d+\.attn\.(masked_)?bias",  # the causal mask as a buffer
        fields={
            "context": "n_positions",
            "vocab": "vocab_size",
            "layers": "n_layer",
            "heads": "n_head",
            "channels": "n_embd",
        },
        dropouts={
            "resid_pdrop": "dropout",
            "embd_pdrop": "dropout",
            "attn_pdrop": "attention_dropout",
        },
    )
    llmc: ClassVar[LlmcFormat | None] = LlmcFormat(
        model_magic=20240326,
        state_magic=20240327,
        fields=("context", "vocab", "layers", "heads", "channels", "padded_vocab"),
    )

    def parameters(self) -> dict[str, Parameter]:
        """The 16 tensors in llm.c's order; those of the layers are stacked, (L, ...).

        Matrices are normal with deviation 0.02, the two projections onto the residual stream with
        0.02 / sqrt(2L), since 2L of them add up there; LayerNorm weights are 1, all biases 0.
        Weight decay applies to matrices.
        """
        L, C = self.layers, self.channels
        deviation, onto_residual = 0.02, 0.02 / math.sqrt(2 * L)

        def stacked(*shape: int, deviation: float = 0.0, value: float = 0.0) -> Parameter:
            return Parameter((L, *shape), True, deviation > 0, deviation, value)

        return {
            "wte": Parameter((self.padded_vocab, C), decay=True, deviation=deviation),
            "wpe": Parameter((self.context, C), decay=True, deviation=deviation),
            "ln1w": stacked(C, value=1.0),
            "ln1b": stacked(C),
            "qkvw": stacked(3 * C, C, deviation=deviation),
            "qkvb": stacked(3 * C),
            "attprojw": stacked(C, C, deviation=onto_residual),
            "attprojb": stacked(C),
            "ln2w": stacked(C, value=1.0),
            "ln2b": stacked(C),
            "fcw": stacked(4 * C, C, deviation=deviation),
            "fcb": stacked(4 * C),
            "fcprojw": stacked(C, 4 * C, deviation=onto_residual),
            "fcprojb": stacked(C),
            "lnfw": Parameter((C,), value=1.0),
            "lnfb": Parameter((C,)),
        }

    def activations(self, B: int, T: int, *, training: bool, recompute: int) -> dict[str, Buffer]:
        L, C, NH = self.layers, self.channels, self.heads
        buffers: dict[str, Buffer] = {}

        def add(kind: str, dtype: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
            for name, shape in shapes.items():
                buffers[name] = Buffer(shape, dtype, kind)

        def add_stacked(dtype: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
            for name, shape in shapes.items():
                buffers[name] = Buffer((L, *shape), dtype, "activation", stacked=True)

        # what the backward pass reads
        add("activation", "real", {"encoded": (B, T, C), "lnf": (B, T, C)})
        add("activation", "float32", {"lnf_mean": (B, T), "lnf_rstd": (B, T)})
        add_stacked("real", {"qkv": (B, T, 3 * C), "atty": (B, T, C)})
        add_stacked("real", {"residual2": (B, T, C), "residual3": (B, T, C)})
        add_stacked("real", {self.activation_keeps: (B, T, 4 * C)})
        again = {"ln1": (C, 2), "ln2": (C, 2)}  # width, and the `recompute` that drops it
        if self.activation_keeps == "fch":
            again["fch_gelu"] = (4 * C, 1)
        for name, (size, level) in again.items():
            if recompute >= level:  # one for all layers: filled again in the backward pass
                add("activation", "real", {name: (B, T, size)})
            else:
                add_stacked("real", {name: (B, T, size)})
        add_stacked("float32", {"ln1_mean": (B, T), "ln1_rstd": (B, T), "lse": (B, NH, T)})
        add_stacked("float32", {"ln2_mean": (B, T), "ln2_rstd": (B, T)})
        # the end of a branch, before it joins the residual stream
        add("scratch", "real", {"branch": (B, T, C)})
        if self.activation_keeps == "fch_gelu":
            add("scratch", "real", {"fch": (B, T, 4 * C)})
        if training and self.dropout > 0:
            add("scratch", "real", {"dropped": (B, T, C)})
        if training:
            add("scratch", "real", {"dresidual": (B, T, C)})
            add("scratch", "real", {"dfch": (B, T, 4 * C), "dfch_gelu": (B, T, 4 * C)})
            # These are never in use at the same time as the buffer they lie in.
            insides = [
                ("dbranch", (B, T, C), "branch"),
                ("dqkv", (B, T, 3 * C), "dfch"),
                ("datty", (B, T, C), "dfch_gelu"),
                ("dln", (B, T, C), "dfch_gelu"),
            ]
            if self.activation_keeps == "fch_gelu":
                insides.append(("fch", (B, T, 4 * C), "dfch"))
            for name, shape, host in insides:
                buffers[name] = Buffer(shape, "real", "scratch", inside=(host, 0))
        return buffers

    @property
    def activation_keeps(self) -> str:
        """The buffer that the activation function's derivative takes: gelu's takes the input, and
        relu's the output, so that its input need not be kept."""
        return "fch_gelu" if self.activation == "relu" else "fch"

    def forward(self, B: int, T: int, buffers: Mapping[str, Buffer], dropout: bool) -> list[Call]:
        part = Part(self if dropout else self.without_dropout(), B, T, buffers)
        _forward(part)
        return part.calls

    def backward(self, B: int, T: int, buffers: Mapping[str, Buffer]) -> list[Call]:
        part = Part(self, B, T, buffers)
        _backward(part)
        return part.calls

    def flops_per_token(self, T: int) -> int:
        """6 N + 12 L C T.

        PaLM (Chowdhery et al. 2022), appendix B, and nanoGPT: 6 per parameter that takes part in a
        matrix product, tables that are only looked up left out, and the attention over the full
        T x T square. What a causal attention saves, and what is computed again, does not count.
        """
        tables = {"wte", "wpe"} - {*self.head}
        shapes = self.parameter_shapes()
        parameters = sum(math.prod(shape) for name, shape in shapes.items() if name not in tables)
        return 6 * parameters + 12 * self.layers * self.channels * T

    @property
    def summary(self) -> str:
        return f"{self.layers} layers, {self.heads} heads, {self.channels} channels"

    def refusal(self) -> str | None:
        if refusal := super().refusal():
            return refusal
        if self.channels % self.heads:
            return f"{self.channels} channels do not divide into {self.heads} heads"
        return None

    def hugging_face_settings(self) -> dict[str, Any]:
        return {
            "activation_function": "gelu_new",  # the tanh approximation
            "layer_norm_epsilon": 1e-5,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "tie_word_embeddings": True,
            "n_inner": 4 * self.channels,
        }

    @classmethod
    def of_hugging_face_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> "GPT2Config | None":
        """Heads are taken to be 64 wide, as in every GPT-2 that was published."""
        tables = [shapes.get(name, ()) for name in ("wte.weight", "wpe.weight")]
        if [len(shape) for shape in tables] != [2, 2]:
            return None
        (vocab, channels), (context, _) = tables
        config = cls(
            context=context,
            vocab=vocab,
            padded_vocab=padded(vocab),
            layers=sum(re.fullmatch(r"h\.\d+\.ln_1\.weight", name) is not None for name in shapes),
            heads=channels // 64,
            channels=channels,
        )
        return None if config.refusal() or channels % 64 else config


class Part(CallList):
    """Collects the calls of one pass; knows the dimensions that these have."""

    def __init__(self, config: GPT2Config, B: int, T: int, buffers: Mapping[str, Buffer]):
        super().__init__(buffers)
        self.config = config
        C = config.channels
        V, P = config.padded_vocab, config.context
        self.embedding_dims = {"B": B, "T": T, "C": C, "V": V, "P": P}
        self.attention_dims = {"B": B, "T": T, "C": C, "NH": config.heads}
        self.norm_dims = {"N": B * T, "C": C}  # of a layernorm
        self.flat_dims = {"N": B * T * C}  # of an op that goes element by element
        self.flat_mlp_dims = {"N": B * T * 4 * C}  # the same inside the MLP

    def linear_dims(self, C: int, OC: int) -> dict[str, int]:
        """The dimensions of a linear layer from C to OC channels."""
        return {"N": self.norm_dims["N"], "C": C, "OC": OC}

    def bias(self, name: str) -> str:
        """The name of a bias, or "-" if the model has none of that name."""
        return name if name in self.buffers else "-"

    def ref(self, name: str) -> Ref:
        """A buffer's; "stream" is the residual stream that enters the current layer, or ln_f."""
        if name != "stream":
            return super().ref(name)
        below = self.config.layers - 1 if self.layer is None else self.layer - 1
        return ("residual3", below) if below >= 0 else ("encoded", None)


def _forward(part: Part) -> None:
    """Tokens to logits."""
    call, linear, C = part.call, part.linear_dims, part.config.channels
    dropout = part.config.dropout
    if dropout and part.config.drops_embedding:
        call("embedding", "embedding.forward", part.embedding_dims, "branch tokens wte wpe")
        args = "encoded branch rng"
        call("embedding", "dropout.forward", part.flat_dims, args, p=dropout, stream=0)
    else:
        call("embedding", "embedding.forward", part.embedding_dims, "encoded tokens wte wpe")
    for layer in range(part.config.layers):
        part.layer = layer
        _ln_1(part)
        call("qkv", "matmul.forward", linear(C, 3 * C), f"qkv ln1 qkvw {part.bias('qkvb')}")
        _attention(part, "forward", "atty lse qkv")
        call("attproj", "matmul.forward", linear(C, C), "branch atty attprojw attprojb")
        _join(part, "attproj", "residual2 stream", 1 + 2 * layer)
        _ln_2(part)
        call("fc", "matmul.forward", linear(C, 4 * C), "fch ln2 fcw fcb")
        _activate(part)
        call("fcproj", "matmul.forward", linear(4 * C, C), "branch fch_gelu fcprojw fcprojb")
        _join(part, "fcproj", "residual3 residual2", 2 + 2 * layer)
    part.layer = None
    call("ln_f", "layernorm.forward", part.norm_dims, "lnf lnf_mean lnf_rstd stream lnfw lnfb")
    weight, bias = part.config.head
    head = linear(C, part.config.padded_vocab)
    call("lm_head", "matmul.forward", head, f"logits lnf {weight} {bias}")


def _ln_1(part: Part) -> None:
    args = "ln1 ln1_mean ln1_rstd stream ln1w ln1b"
    part.call("ln_1", "layernorm.forward", part.norm_dims, args)


def _ln_2(part: Part) -> None:
    args = "ln2 ln2_mean ln2_rstd residual2 ln2w ln2b"
    part.call("ln_2", "layernorm.forward", part.norm_dims, args)


def _activate(part: Part) -> None:
    name = part.config.activation
    part.call(name, f"{name}.forward", part.flat_mlp_dims, "fch_gelu fch")


def _attention(part: Part, direction: str, args: str) -> None:
    """Attention forward or backward, with dropout if any, whose streams follow the branches'."""
    dims, p = part.attention_dims, part.config.attention_dropout
    if not p:
        part.call("attention", f"attention.{direction}", dims, args)
        return
    assert part.layer is not None
    stream = 1 + 2 * part.config.layers + part.layer
    op = f"attention_dropout.{direction}"
    part.call("attention", op, dims, f"{args} rng", p=p, stream=stream)


def _join(part: Part, where: str, out_and_inp: str, rng_stream: int) -> None:
    """The branch, with dropout if any, joins the residual stream.

    rng_stream  which of the random generator's streams drops elements: a different one each time
    """
    p = part.config.dropout
    if p:
        args = "dropped branch rng"
        part.call(where, "dropout.forward", part.flat_dims, args, p=p, stream=rng_stream)
    branch = "dropped" if p else "branch"
    part.call(where, "residual.forward", part.flat_dims, f"{out_and_inp} {branch}")


def _backward(part: Part) -> None:
    """The gradient of the logits to those of all parameters, in the reverse order of `_forward`."""
    call, linear, C = part.call, part.linear_dims, part.config.channels
    head = linear(C, part.config.padded_vocab)
    weight, bias = part.config.head
    activation = part.config.activation
    _linear_backward(part, "lm_head", head, "dln", "logits", "lnf", weight, bias)
    args = "dresidual dlnfw dlnfb dln stream lnfw lnf_mean lnf_rstd"
    call("ln_f", "layernorm.backward", part.norm_dims, args)
    for layer in reversed(range(part.config.layers)):
        part.layer = layer
        dout = _leave(part, "fcproj", 2 + 2 * layer)
        if not part.buffers["fch_gelu"].stacked:  # it was not kept: once more
            _activate(part)
        _linear_backward(part, "fcproj", linear(4 * C, C), "dfch_gelu", dout, "fch_gelu")
        args = f"dfch dfch_gelu {part.config.activation_keeps}"
        call(activation, f"{activation}.backward", part.flat_mlp_dims, args)
        if not part.buffers["ln2"].stacked:
            _ln_2(part)
        _linear_backward(part, "fc", linear(C, 4 * C), "dln", "dfch", "ln2")
        args = "dbranch dln2w dln2b dln residual2 ln2w ln2_mean ln2_rstd"
        call("ln_2", "layernorm.backward", part.norm_dims, args)
        call("ln_2", "residual.backward", part.flat_dims, "dresidual dbranch")
        dout = _leave(part, "attproj", 1 + 2 * layer)
        _linear_backward(part, "attproj", linear(C, C), "datty", dout, "atty")
        _attention(part, "backward", "dqkv datty qkv atty lse")
        if not part.buffers["ln1"].stacked:
            _ln_1(part)
        _linear_backward(part, "qkv", linear(C, 3 * C), "dln", "dqkv", "ln1")
        args = "dbranch dln1w dln1b dln stream ln1w ln1_mean ln1_rstd"
        call("ln_1", "layernorm.backward", part.norm_dims, args)
        call("ln_1", "residual.backward", part.flat_dims, "dresidual dbranch")
    part.layer = None
    dout = _leave(part, "embedding", 0) if part.config.drops_embedding else "dresidual"
    call("embedding", "embedding.backward", part.embedding_dims, f"dwte dwpe {dout} tokens")


def _leave(part: Part, where: str, rng_stream: int) -> str:
    """The buffer with the gradient of a branch: the residual stream's, with dropout if any."""
    p = part.config.dropout
    if not p:
        return "dresidual"
    args = "dropped dresidual rng"
    part.call(where, "dropout.backward", part.flat_dims, args, p=p, stream=rng_stream)
    return "dropped"


def _linear_backward(
    part: Part,
    where: str,
    dims: Mapping[str, int],
    dinp: str,
    dout: str,
    inp: str,
    weight: str = "",
    bias: str = "",
) -> None:
    """weight, bias  by default named after the layer"""
    weight, bias = weight or f"{where}w", bias or part.bias(f"{where}b")
    if bias != "-":
        bias_dims = {"N": dims["N"], "OC": dims["OC"]}
        part.call(where, "matmul.backward_bias", bias_dims, f"d{bias} {dout}")
    part.call(where, "matmul.backward_weight", dims, f"d{weight} {dout} {inp}")
    part.call(where, "matmul.backward_input", dims, f"{dinp} {dout} {weight}")


# layers: (channels, heads); GPT-2's four sizes, and llm.c's smaller and larger ones
DEPTHS = {
    6: (384, 6),
    12: (768, 12),
    24: (1024, 16),
    36: (1280, 20),
    48: (1600, 25),
    60: (1920, 30),
    72: (2880, 30),
    84: (3456, 36),
}
GPT3 = {  # of llm.c's descriptors gpt3:cCHANNELS: layers, and channels of a head
    384: (6, 64),
    768: (12, 64),
    1024: (24, 64),
    1536: (24, 96),
    2048: (24, 128),
    2560: (32, 80),
    4096: (32, 128),
    12288: (96, 128),
}
PRETRAINED = {  # layers; the commit of openai-community/NAME, and the sha256 of its weights
    "gpt2": (
        *(12, "607a30d783dfa663caf39e06633721c8d4cfcd7e"),
        "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
    ),
    "gpt2-medium": (24, "6dcaa7a952f72f9298047fd5137cd6e4f05f41da", ""),
    "gpt2-large": (
        *(36, "32b71b12589c2f8d625668d2335a01cac3249519"),
        "5f47f3e12f91cd33b662ce7e433b6150ad5512b5884a2cee961b50e9c3bbebce",
    ),
    "gpt2-xl": (
        *(48, "15ea56dee5df4983c59b2538573817e1667135e2"),
        "0f8b28eb05a8075f48b61b6f35332978c74fc7763fa9fb4051a1c30511736a6a",
    ),
}

CHARACTERS: Mapping[str, Any] = {  # nanoGPT's character model
    **{"context": 256, "vocab": 65, "padded_vocab": 128, "layers": 6, "heads": 6},
    **{"channels": 384, "dropout": 0.2, "attention_dropout": 0.2},
}


def of_depth(layers: int) -> GPT2Config:
    """GPT-2 with the width that belongs to a depth of DEPTHS."""
    channels, heads = DEPTHS[layers]
    return GPT2Config(layers=layers, channels=channels, heads=heads)


def of_channels(channels: int) -> GPT2Config:
    """A model of the sizes of GPT-3 (Brown et al. 2020, table 2.1), with its context of 2048. Every
    layer attends to all positions, as in llm.c; GPT-3's do in turns with sparse ones."""
    layers, head_size = GPT3[channels]
    heads = channels // head_size
    return GPT2Config(context=2048, layers=layers, channels=channels, heads=heads)


SIZES = {
    **{
        name: Size(
            of_depth(layers), pretrained=Pretrained(f"openai-community/{name}", revision, sha256)
        )
        for name, (layers, revision, sha256) in PRETRAINED.items()
    },
    **{f"d{layers}": Size(of_depth(layers)) for layers in DEPTHS},
    **{f"gpt2:d{layers}": Size(of_depth(layers)) for layers in DEPTHS},
    **{f"gpt3:c{channels}": Size(of_channels(channels)) for channels in GPT3},
    "char": Size(GPT2Config(**CHARACTERS), tokenizer="chars"),
    "char-small": Size(  # the one that nanoGPT trains on a laptop's CPU
        GPT2Config(context=64, vocab=65, padded_vocab=128, layers=4, heads=4, channels=128), "chars"
    ),
}
