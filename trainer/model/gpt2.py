"""GPT-2 (Radford et al. 2019) as a list of op calls: the program that the trainer runs.

    x = wte[tokens] + wpe                              embedding
    for each of L layers:
        x = x + attproj(attention(qkv(ln_1(x))))       residual2
        x = x + fcproj(gelu(fc(ln_2(x))))              residual3
    logits = ln_f(x) @ wte.T                           the head shares the token table
    loss = crossentropy(softmax(logits), targets)

`build` writes this down as calls of ops on named buffers, forward, backward and update, and knows
nothing of devices or kernels: the trainer binds each call to a rung. Buffers and tensors have the
names that llm.c gives them. What the backward pass reads is kept per layer, (L, ...); gradients of
activations live in a few buffers that all layers share. What is written here is one simple op after
the other; fusions put one op in the place of two when the list is complete (fusion.py).

Dropout acts where GPT-2 has it, after the embedding and at the end of both branches, except inside
the attention matrix, which is never stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from trainer.model.fusion import FUSIONS, JOIN, fuse
from trainer.model.program import Buffer, Call, Part, Program

PARAMETERS = (
    *("wte", "wpe", "ln1w", "ln1b", "qkvw", "qkvb", "attprojw", "attprojb"),
    *("ln2w", "ln2b", "fcw", "fcb", "fcprojw", "fcprojb", "lnfw", "lnfb"),
)


@dataclass(frozen=True)
class GPT2Config:
    """The shape of a model. Rows of wte from `vocab` to `padded_vocab` are 0 and stay so."""

    context: int = 1024
    vocab: int = 50257
    padded_vocab: int = 50304
    layers: int = 12
    heads: int = 12
    channels: int = 768
    dropout: float = 0.0

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """The 16 tensors in llm.c's order; those of the layers are stacked, (L, ...)."""
        L, C = self.layers, self.channels
        return {
            "wte": (self.padded_vocab, C),
            "wpe": (self.context, C),
            "ln1w": (L, C),
            "ln1b": (L, C),
            "qkvw": (L, 3 * C, C),
            "qkvb": (L, 3 * C),
            "attprojw": (L, C, C),
            "attprojb": (L, C),
            "ln2w": (L, C),
            "ln2b": (L, C),
            "fcw": (L, 4 * C, C),
            "fcb": (L, 4 * C),
            "fcprojw": (L, C, 4 * C),
            "fcprojb": (L, C),
            "lnfw": (C,),
            "lnfb": (C,),
        }


# Streams of random words: dropouts count from 0 (embedding, then attproj and fcproj of each layer),
# the rounding of weights from here, in the order of PARAMETERS.
ROUNDING_STREAMS = 1 << 31

MATRICES = ("wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw")  # what weight decay applies to


def initial_parameters(config: GPT2Config, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """GPT-2's random initialisation, one (name, float32 array) at a time.

    Matrices are normal with deviation 0.02, the two projections onto the residual stream with
    0.02 / sqrt(2L), since 2L of them add up there; LayerNorm weights are 1, all biases 0.
    """
    rng = np.random.default_rng(seed)
    for name, shape in config.parameter_shapes().items():
        if name in MATRICES:
            tensor = rng.standard_normal(shape, np.float32)
            residual = name in ("attprojw", "fcprojw")
            tensor *= 0.02 / math.sqrt(2 * config.layers) if residual else 0.02
        else:
            tensor = np.full(shape, 1.0 if name in ("ln1w", "ln2w", "lnfw") else 0.0, np.float32)
        if name == "wte":
            tensor[config.vocab :] = 0
        yield name, tensor


def build(
    config: GPT2Config,
    B: int,
    T: int,
    *,
    training: bool = True,
    recompute: int = 0,
    fusions: Collection[str] = (),
    master_weights: bool = True,
    stochastic_rounding: bool = False,
) -> Program:
    """The program for batches of B sequences of T tokens; not `training`: only its forward part.

    recompute  what the backward pass computes again instead of keeping it for every layer, as
               llm.c's -r: 1 the output of gelu, 2 those of ln_1 and ln_2 as well
    fusions    names of FUSIONS, to take several ops in one
    master_weights       16-bit weights have float32 copies, which the update moves
    stochastic_rounding  the update rounds 16-bit weights at random, not to nearest

    Raises ValueError where the shape is not possible.
    """
    if B < 1 or not 1 <= T <= config.context:
        raise ValueError(f"B={B}, T={T}: both must be positive, and T at most {config.context}")
    if config.channels % config.heads:
        raise ValueError(f"{config.channels} channels do not divide into {config.heads} heads")
    buffers = _buffers(config, B, T, training, recompute)
    if training:
        _add_optimizer_buffers(buffers, config, master_weights)
    if training and (config.dropout or stochastic_rounding):
        buffers["rng"] = Buffer((4,), "uint32", "input")
    fusions = tuple(name for name in FUSIONS if name in fusions)
    rules = [rule for name in fusions for rule in FUSIONS[name]]
    if recompute >= 2 and JOIN in rules:
        # The backward pass computes ln_1 and ln_2 again, from the residual stream alone. By the
        # same kernel as in the forward pass it gets the same bits; a fused one may round otherwise.
        rules.remove(JOIN)

    def calls(write: Callable[..., None], *args: float) -> tuple[Call, ...]:
        part = Part(config, B, T, buffers)
        write(part, *args)
        return fuse(part.calls, rules)

    predict, loss = calls(_forward, 0.0), calls(_loss)
    evaluate = forward = predict + loss
    if training and config.dropout:
        forward = calls(_forward, config.dropout) + loss
    backward = calls(_backward) if training else ()
    update = calls(_update, master_weights, stochastic_rounding) if training else ()
    if training and "residual_layernorm" in fusions:
        del buffers["dbranch"]  # what a branch gives back to the stream is added, never stored
    return Program(config, B, T, buffers, forward, evaluate, predict, backward, update, fusions)


def _buffers(
    config: GPT2Config, B: int, T: int, training: bool, recompute: int
) -> dict[str, Buffer]:
    L, C, NH = config.layers, config.channels, config.heads
    buffers = {}

    def add(kind: str, dtype: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for name, shape in shapes.items():
            buffers[name] = Buffer(shape, dtype, kind)

    def add_stacked(dtype: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for name, shape in shapes.items():
            buffers[name] = Buffer((L, *shape), dtype, "activation", stacked=True)

    for name, shape in config.parameter_shapes().items():
        stacked = name not in ("wte", "wpe", "lnfw", "lnfb")
        buffers[name] = Buffer(shape, "real", "parameter", stacked)
    add("input", "int32", {"tokens": (B, T), "targets": (B, T)})
    add("input", "float32", {"dloss": (1,)})
    # what the backward pass reads
    add("activation", "real", {"encoded": (B, T, C), "lnf": (B, T, C)})
    add("activation", "real", {"logits": (B, T, config.padded_vocab)})
    add("activation", "float32", {"lnf_mean": (B, T), "lnf_rstd": (B, T), "losses": (B, T)})
    add_stacked("real", {"qkv": (B, T, 3 * C), "atty": (B, T, C), "fch": (B, T, 4 * C)})
    add_stacked("real", {"residual2": (B, T, C), "residual3": (B, T, C)})
    for names, size, level in ((("fch_gelu",), 4 * C, 1), (("ln1", "ln2"), C, 2)):
        shapes = dict.fromkeys(names, (B, T, size))
        if recompute >= level:  # one for all layers: filled again when the backward pass comes by
            add("activation", "real", shapes)
        else:
            add_stacked("real", shapes)
    add_stacked("float32", {"ln1_mean": (B, T), "ln1_rstd": (B, T), "lse": (B, NH, T)})
    add_stacked("float32", {"ln2_mean": (B, T), "ln2_rstd": (B, T)})
    # the end of a branch, before it joins the residual stream
    add("scratch", "real", {"branch": (B, T, C)})
    if training and config.dropout:
        add("scratch", "real", {"dropped": (B, T, C)})
    if training:
        add("input", "float32", {"hyper": (9,)})
        add("activation", "float32", {"norm": (1,)})
        add("scratch", "real", {"dresidual": (B, T, C)})
        add("scratch", "real", {"dfch": (B, T, 4 * C), "dfch_gelu": (B, T, 4 * C)})
        # These are never in use at the same time as the buffer they lie in.
        for name, shape, host in [
            ("dbranch", (B, T, C), "branch"),
            ("dqkv", (B, T, 3 * C), "dfch"),
            ("datty", (B, T, C), "dfch_gelu"),
            ("dln", (B, T, C), "dfch_gelu"),
        ]:
            buffers[name] = Buffer(shape, "real", "scratch", inside=(host, 0))
    return buffers


def _add_optimizer_buffers(
    buffers: dict[str, Buffer], config: GPT2Config, master_weights: bool
) -> None:
    """Gradients, as parts of one vector so that their norm is one call; moments; master copies."""
    start = 0
    for name, shape in config.parameter_shapes().items():
        stacked = buffers[name].stacked
        buffers["d" + name] = Buffer(shape, "float32", "gradient", stacked, ("gradients", start))
        buffers[name + ".m"] = Buffer(shape, "float32", "moment")
        buffers[name + ".v"] = Buffer(shape, "float32", "moment")
        if master_weights:
            buffers[name + ".master"] = Buffer(shape, "float32", "master")
        start += math.prod(shape)
    buffers["gradients"] = Buffer((start,), "float32", "gradient")


def _forward(part: Part, dropout: float) -> None:
    """Tokens to logits."""
    call, linear, C, rows = part.call, part.linear, part.config.channels, part.rows
    if dropout:
        call("embedding", "embedding.forward", part.tokens, "branch tokens wte wpe")
        call("embedding", "dropout.forward", part.flat, "encoded branch rng", p=dropout, stream=0)
    else:
        call("embedding", "embedding.forward", part.tokens, "encoded tokens wte wpe")
    for layer in range(part.config.layers):
        part.layer = layer
        _ln_1(part)
        call("qkv", "matmul.forward", linear(C, 3 * C), "qkv ln1 qkvw qkvb")
        call("attention", "attention.forward", part.heads, "atty lse qkv")
        call("attproj", "matmul.forward", linear(C, C), "branch atty attprojw attprojb")
        _join(part, "attproj", "residual2 stream", dropout, 1 + 2 * layer)
        _ln_2(part)
        call("fc", "matmul.forward", linear(C, 4 * C), "fch ln2 fcw fcb")
        _gelu(part)
        call("fcproj", "matmul.forward", linear(4 * C, C), "branch fch_gelu fcprojw fcprojb")
        _join(part, "fcproj", "residual3 residual2", dropout, 2 + 2 * layer)
    part.layer = None
    call("ln_f", "layernorm.forward", rows, "lnf lnf_mean lnf_rstd stream lnfw lnfb")
    call("lm_head", "matmul.forward", linear(C, part.config.padded_vocab), "logits lnf wte -")


def _ln_1(part: Part) -> None:
    args = "ln1 ln1_mean ln1_rstd stream ln1w ln1b"
    part.call("ln_1", "layernorm.forward", part.rows, args)


def _ln_2(part: Part) -> None:
    args = "ln2 ln2_mean ln2_rstd residual2 ln2w ln2b"
    part.call("ln_2", "layernorm.forward", part.rows, args)


def _gelu(part: Part) -> None:
    part.call("gelu", "gelu.forward", part.flat4, "fch_gelu fch")


def _again(part: Part, name: str, compute: Callable[[Part], None]) -> None:
    """In the backward pass: what a layer has computed, once more if it was not kept."""
    if not part.buffers[name].stacked:
        compute(part)


def _join(part: Part, where: str, out_and_inp: str, dropout: float, stream: int) -> None:
    """The branch, with dropout if any, joins the residual stream."""
    if dropout:
        args = "dropped branch rng"
        part.call(where, "dropout.forward", part.flat, args, p=dropout, stream=stream)
    branch = "dropped" if dropout else "branch"
    part.call(where, "residual.forward", part.flat, f"{out_and_inp} {branch}")


def _loss(part: Part) -> None:
    """Logits to losses; the logits become their gradient."""
    dims = {"N": part.rows["N"], "V": part.config.vocab, "Vp": part.config.padded_vocab}
    part.call("loss", "crossentropy.fused", dims, "losses logits targets dloss")


def _backward(part: Part) -> None:
    """The gradient of the logits to those of all parameters, in the reverse order of `_forward`."""
    call, linear, C, rows = part.call, part.linear, part.config.channels, part.rows
    head = linear(C, part.config.padded_vocab)
    call("lm_head", "matmul.backward_weight", head, "dwte logits lnf")
    call("lm_head", "matmul.backward_input", head, "dln logits wte")
    args = "dresidual dlnfw dlnfb dln stream lnfw lnf_mean lnf_rstd"
    call("ln_f", "layernorm.backward", rows, args)
    for layer in reversed(range(part.config.layers)):
        part.layer = layer
        dout = _leave(part, "fcproj", 2 + 2 * layer)
        _again(part, "fch_gelu", _gelu)
        _linear_backward(part, "fcproj", linear(4 * C, C), "dfch_gelu", dout, "fch_gelu")
        call("gelu", "gelu.backward", part.flat4, "dfch dfch_gelu fch")
        _again(part, "ln2", _ln_2)
        _linear_backward(part, "fc", linear(C, 4 * C), "dln", "dfch", "ln2")
        args = "dbranch dln2w dln2b dln residual2 ln2w ln2_mean ln2_rstd"
        call("ln_2", "layernorm.backward", rows, args)
        call("ln_2", "residual.backward", part.flat, "dresidual dbranch")
        dout = _leave(part, "attproj", 1 + 2 * layer)
        _linear_backward(part, "attproj", linear(C, C), "datty", dout, "atty")
        call("attention", "attention.backward", part.heads, "dqkv datty qkv atty lse")
        _again(part, "ln1", _ln_1)
        _linear_backward(part, "qkv", linear(C, 3 * C), "dln", "dqkv", "ln1")
        args = "dbranch dln1w dln1b dln stream ln1w ln1_mean ln1_rstd"
        call("ln_1", "layernorm.backward", rows, args)
        call("ln_1", "residual.backward", part.flat, "dresidual dbranch")
    part.layer = None
    dout = _leave(part, "embedding", 0)
    call("embedding", "embedding.backward", part.tokens, f"dwte dwpe {dout} tokens")


def _leave(part: Part, where: str, stream: int) -> str:
    """The buffer with the gradient of a branch: the residual stream's, with dropout if any."""
    p = part.config.dropout
    if not p:
        return "dresidual"
    args = "dropped dresidual rng"
    part.call(where, "dropout.backward", part.flat, args, p=p, stream=stream)
    return "dropped"


def _linear_backward(
    part: Part, name: str, dims: Mapping[str, int], dinp: str, dout: str, inp: str
) -> None:
    bias_dims = {"N": dims["N"], "OC": dims["OC"]}
    part.call(name, "matmul.backward_bias", bias_dims, f"d{name}b {dout}")
    part.call(name, "matmul.backward_weight", dims, f"d{name}w {dout} {inp}")
    part.call(name, "matmul.backward_input", dims, f"{dinp} {dout} {name}w")


def _update(part: Part, master_weights: bool, stochastic_rounding: bool) -> None:
    """One step of AdamW; weight decay on matrices only."""
    shapes = part.config.parameter_shapes()
    count = sum(math.prod(shape) for shape in shapes.values())
    part.call("clip", "global_norm.forward", {"N": count}, "norm gradients")
    rng = "rng" if stochastic_rounding else "-"
    for index, (name, shape) in enumerate(shapes.items()):
        master = name + ".master" if master_weights else "-"
        args = f"{name} {name}.m {name}.v {master} d{name} norm hyper {rng}"
        scalars = {"decay": float(name in MATRICES), "stream": ROUNDING_STREAMS + index}
        part.call(name, "adamw.update", {"N": math.prod(shape)}, args, **scalars)
