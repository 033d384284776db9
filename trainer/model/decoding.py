"""Decoding: the programs that draw one token after the other, with a key-value cache.

Both follow from the model's own forward pass, so a model need not say anything about decoding:

    step     the forward pass of one token per text. An embedding, an attention or a linear layer
             of few rows becomes the op of ladder/decode that takes positions and cache, and the
             logits are sampled from at the end. A recorded graph serves every token, because
             everything that changes lies in buffers.
    prefill  the forward pass of T tokens per text. Keys and values of every layer go into the cache
             as well, and what follows the last of these is left out: the first step takes the
             last token of the prompt, and gives the first logits.

Their buffers besides those of the forward pass, for B texts and P = the model's context:

    window     (B, P + 1)     the tokens of each text, drawn ones too; -1: none could be drawn
    positions  (B)            the position of the token that the next step takes
    coins      (B, P)         for the token at each position, the random number that decides on the
                              one after it
    kv         (L, B, P, 2C)  keys and values of L layers: the cache
    starts     (B)            zeros: where prefill begins to fill the cache
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from trainer.model.calls import Buffer, Call, Ref
from trainer.model.fusion import FUSIONS, fuse
from trainer.model.model_config import ModelConfig
from trainer.model.program import Program, build

FEW_ROWS = 8  # texts up to which decode.linear takes the place of matmul.forward


def step(
    config: ModelConfig,
    B: int,
    *,
    vocab: int,
    temperature: float,
    top_k: int,
    fusions: Collection[str] = (),
) -> Program:
    """One token of B texts: it draws the next ones, and moves `positions` on.

    vocab               the ids that may be drawn are those below it
    temperature, top_k  as decode.sample takes them
    """
    plain = build(config, B, 1, training=False)
    cache, kept = _cache_of(plain)
    P = config.context
    calls: list[Call] = []
    for call in plain.predict:
        if call.op == "embedding.forward":
            out, _, *tables = call.args
            args: tuple[Ref | None, ...] = (out, ("window", None), ("positions", None), *tables)
            dims: Mapping[str, int] = {"B": B, "P": P, "C": call.dims["C"], "V": call.dims["V"]}
            calls.append(Call("decode.embedding", args, dims, {}, call.where))
        elif call.op == "attention.forward":
            out, _, qkv = call.args
            args = (out, cache[call], qkv, ("positions", None))
            dims = {"B": B, "P": P, "C": call.dims["C"], "NH": call.dims["NH"]}
            calls.append(Call("decode.append_attention", args, dims, {}, call.where))
        elif call.op == "matmul.forward" and B <= FEW_ROWS:
            calls.append(dataclasses.replace(call, op="decode.linear"))
        else:
            calls.append(call)
    args = (("window", None), ("positions", None), ("logits", None), ("coins", None))
    dims = {"B": B, "P": P, "V": min(vocab, config.vocab), "Vp": config.padded_vocab}
    scalars = {"temperature": temperature, "top_k": top_k}
    calls.append(Call("decode.sample", args, dims, scalars, "sample"))
    inputs = {
        "window": Buffer((B, P + 1), "int32", "input"),
        "positions": Buffer((B,), "int32", "input"),
        "coins": Buffer((B, P), "float32", "input"),
    }
    return _program(plain, calls, {**inputs, **kept}, fusions)


def prefill(config: ModelConfig, B: int, T: int, *, fusions: Collection[str] = ()) -> Program:
    """The keys and values of `tokens` (B, T), as positions 0 to T - 1. A model without attention
    keeps none, and the program has no calls."""
    plain = build(config, B, T, training=False)
    cache, kept = _cache_of(plain)
    calls: list[Call] = []
    last = 0
    for call in plain.predict:
        if call.op == "attention.forward":
            args = (cache[call], call.args[2], ("starts", None))
            dims = {"B": B, "T": T, "P": config.context, "C": call.dims["C"]}
            calls.append(Call("decode.append", args, dims, {}, call.where))
            last = len(calls)
        calls.append(call)
    starts = Buffer((B,), "int32", "input")
    return _program(plain, calls[:last], {"starts": starts, **kept}, fusions)


def _cache_of(plain: Program) -> tuple[dict[Call, Ref], dict[str, Buffer]]:
    """Keys and values of every attention of a model, in the order of its calls, and their buffer;
    a model without attention has none."""
    calls = [call for call in plain.predict if call.op == "attention.forward"]
    if not calls:
        return {}, {}
    shape = (len(calls), plain.B, plain.config.context, 2 * calls[0].dims["C"])
    parts: dict[Call, Ref] = {call: ("kv", layer) for layer, call in enumerate(calls)}
    return parts, {"kv": Buffer(shape, "real", "cache", stacked=True)}


def _program(
    plain: Program,
    calls: Iterable[Call],
    more: Mapping[str, Buffer],
    fusions: Collection[str],
) -> Program:
    """A program of these calls, with the buffers that they use. It has one pass and no loss."""
    fusions = tuple(name for name in FUSIONS if name in fusions)
    fused = fuse(calls, [rule for name in fusions for rule in FUSIONS[name]])
    used = {ref[0] for call in fused for ref in call.args if ref}
    buffers = {
        name: buffer
        for name, buffer in {**plain.buffers, **more}.items()
        if buffer.kind == "parameter" or name in used
    }
    return dataclasses.replace(
        plain, buffers=buffers, forward=fused, evaluate=fused, predict=fused, fusions=fusions
    )
