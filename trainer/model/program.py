"""The program of a model at one batch size: the calls of all passes, and the buffers they work on.

`build` puts it together from what the model says of itself (model_config.py) and what every model
has: the loss, and the update (update.py). It knows nothing of devices or kernels: the engine binds
each call to a rung. Where fusions are asked for, one op replaces two when the list is complete
(fusion.py).
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from trainer.model import update
from trainer.model.calls import Buffer, Call, CallList, Fork, Item, op_calls
from trainer.model.forks import spread
from trainer.model.fusion import FUSIONS, JOIN, LOSS, LOSS_BACKWARD, fuse
from trainer.model.model_config import ModelConfig
from trainer.model.sharding import WHOLE, Sharding, Vector, cut, whole


@dataclass(frozen=True)
class Program:
    """The op calls of one model at one batch size, and the buffers that they work on.

    forward   tokens to logits to losses, with dropout; logits become their gradient, or what
              matmul_crossentropy leaves of them
    evaluate  the same without dropout, and the loss by crossentropy.fused
    predict   `evaluate` up to the logits
    backward  accumulates the gradients of all parameters; follows `forward`
    more_backward  the same, in two streams where that pays (forks.py)
    last_backward  the same in the last micro-batch of a step: several ranks also add up their
              gradients; alone, it is `more_backward`
    reduce    the global norm of the gradients
    apply     AdamW; where ranks share that work, the exchange of the new weights
    vector    where parameters and gradients lie, and what is exchanged together (sharding.py); None
              for a process alone
    fusions   the names of those that its calls went through (fusion.py)

    Only the small buffers of kind "input" change between steps: tokens and targets (B, T), dloss
    (1: what a unit of each loss is worth), rng (4, see dropout), hyper (9, see adamw).
    """

    config: ModelConfig
    B: int
    T: int
    buffers: Mapping[str, Buffer]
    forward: tuple[Call, ...]
    evaluate: tuple[Call, ...]
    predict: tuple[Call, ...]
    backward: tuple[Call, ...]
    more_backward: tuple[Item, ...]
    last_backward: tuple[Item, ...]
    reduce: tuple[Item, ...]
    apply: tuple[Item, ...]
    vector: Vector | None = None
    fusions: tuple[str, ...] = ()

    @property
    def update(self) -> tuple[Call, ...]:
        return tuple(op_calls((*self.reduce, *self.apply)))

    @property
    def streams(self) -> tuple[tuple[Call, ...], tuple[Call, ...], tuple[Call, ...]]:
        """The op calls of the main stream, of forks, and of urgent forks. Each stream needs scratch
        memory of its own."""
        items = (*self.more_backward, *self.last_backward, *self.reduce, *self.apply)
        forks = [item for item in items if isinstance(item, Fork)]
        forked = set(op_calls(forks))
        return (
            tuple(call for call in self.calls if call not in forked),
            tuple(op_calls(fork for fork in forks if not fork.urgent)),
            tuple(op_calls(fork for fork in forks if fork.urgent)),
        )

    @property
    def training_step(self) -> tuple[Call, ...]:
        return (*self.forward, *op_calls(self.last_backward), *self.update)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of every part; those of `predict` are among those of `evaluate`."""
        return (*self.forward, *self.evaluate, *op_calls(self.last_backward), *self.update)


def build(
    config: ModelConfig,
    B: int,
    T: int,
    *,
    training: bool = True,
    recompute: int = 0,
    fusions: Collection[str] = (),
    master_weights: bool = True,
    stochastic_rounding: bool = False,
    sharding: Sharding = WHOLE,
) -> Program:
    """The program for batches of B sequences of T tokens; not `training`: only its forward part.

    recompute  what the backward pass computes again instead of keeping it for every layer, as
               llm.c's -r: 1 the activation function's output, 2 those of the norms as well
    fusions    names of FUSIONS, to take several ops in one
    master_weights       16-bit weights have float32 copies, which the update moves
    stochastic_rounding  the update rounds 16-bit weights at random, not to nearest
    sharding   the rank that it is for, and how ranks share the update

    Raises ValueError where the shape is not possible, or does not go with the rest.
    """
    if B < 1 or not 1 <= T <= config.context:
        raise ValueError(f"B={B}, T={T}: both must be positive, and T at most {config.context}")
    if refusal := config.refusal():
        raise ValueError(refusal)
    buffers = _model_buffers(config, B, T, training, recompute)
    vector = whole(config)
    if training:
        update.add_vectors(buffers, config, master_weights, WHOLE, vector)
        if config.has_dropout or stochastic_rounding:
            buffers["rng"] = Buffer((4,), "uint32", "input")
    fusions = tuple(name for name in FUSIONS if name in fusions)
    rules = [rule for name in fusions for rule in FUSIONS[name]]
    if recompute >= 2 and JOIN in rules:
        # The backward pass computes the norms again, from the residual stream alone. By the same
        # kernel as in the forward pass it gets the same bits; a fused one may round otherwise.
        rules.remove(JOIN)
    calls = CallList(buffers)
    dims = {"N": B * T, "V": config.vocab, "Vp": config.padded_vocab}
    calls.call("loss", "crossentropy.fused", dims, "losses logits targets dloss")
    loss = tuple(calls.calls)
    predict = fuse(config.forward(B, T, buffers, dropout=False), rules)
    evaluate = forward = predict + loss
    backward: tuple[Call, ...] = ()
    more_backward: tuple[Item, ...] = ()
    behind: update.Update = (), (), ()
    if training:
        if config.has_dropout:
            forward = fuse(config.forward(B, T, buffers, dropout=True), rules) + loss
        forward = fuse(forward, rules)
        if forward[-1].op == LOSS.fused[0]:
            inp = predict[-1].args[1]
            assert inp is not None
            buffers["factors"], buffers["scaled"] = buffers["losses"], buffers[inp[0]]
        elif LOSS_BACKWARD in rules:
            rules.remove(LOSS_BACKWARD)
        backward = fuse(config.backward(B, T, buffers), rules)
        if sharding.size > 1:
            vector = cut(config, backward, sharding)
            update.add_vectors(buffers, config, master_weights, sharding, vector)
        # With the gradients of biases inside the products, a process alone gains nothing by a
        # second stream. Several ranks exchange gradients beside the pass in any case.
        fused = "matmul_bias_backward" in fusions
        more_backward = backward if fused and sharding.size == 1 else spread(backward, buffers)
        how = stochastic_rounding, sharding, vector
        behind = update.behind(config, buffers, more_backward, *how)
    last_backward, reduce, apply = behind
    used = {ref[0] for call in (*forward, *evaluate, *backward) for ref in call.args if ref}
    buffers = _without_unused_scratch(buffers, used)
    return Program(
        config,
        B,
        T,
        buffers,
        forward=forward,
        evaluate=evaluate,
        predict=predict,
        backward=backward,
        more_backward=more_backward,
        last_backward=last_backward,
        reduce=reduce,
        apply=apply,
        vector=vector if sharding.size > 1 else None,
        fusions=fusions,
    )


def initial_parameters(
    config: ModelConfig, seed: int, *, equal_layers: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    """The model's random initialisation, one (name, float32 array) at a time. `equal_layers`: all
    layers get the same values, which is quicker, and enough to measure times."""
    rng = np.random.default_rng(seed)
    unpadded = config.unpadded_shapes()
    for name, parameter in config.parameters().items():
        if not parameter.deviation:
            yield name, np.full(parameter.shape, parameter.value, np.float32)
            continue
        first = 1 if equal_layers and parameter.stacked else 0  # dimension that is drawn
        tensor = rng.standard_normal(parameter.shape[first:], np.float32)
        tensor *= parameter.deviation
        zero_padding(tensor, unpadded[name][first:])
        yield name, np.broadcast_to(tensor, parameter.shape) if first else tensor


def zero_padding(tensor: np.ndarray, unpadded: tuple[int, ...]) -> None:
    """Set what lies beyond the shape `unpadded` to 0, in place."""
    for axis, size in enumerate(unpadded):
        np.moveaxis(tensor, axis, 0)[size:] = 0


def _without_unused_scratch(
    buffers: Mapping[str, Buffer], used: Collection[str]
) -> dict[str, Buffer]:
    """Without scratch memory that no call names: a fused op does not store the result of the first
    op that it replaces. A buffer that others lie in becomes as large as they need."""
    needed: dict[str, int] = {}
    for name in used:
        if inside := buffers[name].inside:
            host, start = inside
            end = start + math.prod(buffers[name].shape)
            needed[host] = max(end, needed.get(host, 0))
    kept = {}
    for name, buffer in buffers.items():
        if buffer.kind != "scratch" or name in used:
            kept[name] = buffer
        elif name in needed:
            kept[name] = replace(buffer, shape=(needed[name],))
    return kept


def _model_buffers(
    config: ModelConfig, B: int, T: int, training: bool, recompute: int
) -> dict[str, Buffer]:
    buffers = {
        name: Buffer(parameter.shape, "real", "parameter", parameter.stacked)
        for name, parameter in config.parameters().items()
    }
    buffers |= {name: Buffer((B, T), "int32", "input") for name in ("tokens", "targets")}
    buffers["dloss"] = Buffer((1,), "float32", "input")
    buffers["logits"] = Buffer((B, T, config.padded_vocab), "real", "activation")
    buffers["losses"] = Buffer((B, T), "float32", "activation")
    return buffers | config.activations(B, T, training=training, recompute=recompute)
