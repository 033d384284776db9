"""A model written down as calls of ops on named buffers: gpt2.py writes, the trainer runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.model.gpt2 import GPT2Config


@dataclass(frozen=True)
class Buffer:
    """An array of the program.

    dtype    "real" (the run's), "float32", "int32" or "uint32"
    kind     "parameter", "gradient", "moment", "master", "input", "activation" or "scratch"
    stacked  the first dimension counts layers, and a call in a layer takes its slice
    inside   (name, start): the buffer is a part of another one, from that element on
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str
    stacked: bool = False
    inside: tuple[str, int] | None = None


Ref = tuple[str, int | None]  # a buffer, or one layer of a stacked one


@dataclass(frozen=True, eq=False)
class Call:
    """One op call: `args` in the order of the op's contract; `where` is its place in the model."""

    op: str
    args: tuple[Ref | None, ...]
    dims: Mapping[str, int]
    scalars: Mapping[str, float]
    where: str


@dataclass(frozen=True)
class Program:
    """The op calls of one model at one batch size, and the buffers that they work on.

    forward   tokens to logits to losses, with dropout; logits become their gradient
    evaluate  the same without dropout (the same calls where the model has none)
    predict   `evaluate` up to the logits
    backward  accumulates the gradients of all parameters; follows `forward`
    update    the global norm of the gradients, then AdamW, tensor by tensor
    fusions   the names of those that its calls went through (fusion.py)

    Only the small buffers of kind "input" change between steps: tokens and targets (B, T), dloss
    (1: what a unit of each loss is worth), rng (4, see dropout), hyper (9, see adamw).
    """

    config: GPT2Config
    B: int
    T: int
    buffers: Mapping[str, Buffer]
    forward: tuple[Call, ...]
    evaluate: tuple[Call, ...]
    predict: tuple[Call, ...]
    backward: tuple[Call, ...]
    update: tuple[Call, ...]
    fusions: tuple[str, ...] = ()

    @property
    def training_step(self) -> tuple[Call, ...]:
        """The calls of a training step, in order."""
        return (*self.forward, *self.backward, *self.update)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of every part; those of `predict` are among those of `evaluate`."""
        return (*self.forward, *self.evaluate, *self.backward, *self.update)


class Part:
    """Collects the calls of one part of the program."""

    def __init__(self, config: GPT2Config, B: int, T: int, buffers: Mapping[str, Buffer]):
        C = config.channels
        self.config, self.buffers = config, buffers
        self.calls: list[Call] = []
        self.layer: int | None = None
        self.tokens = {"B": B, "T": T, "C": C, "V": config.padded_vocab, "P": config.context}
        self.heads = {"B": B, "T": T, "C": C, "NH": config.heads}
        self.rows = {"N": B * T, "C": C}
        self.flat = {"N": B * T * C}
        self.flat4 = {"N": B * T * 4 * C}

    def linear(self, C: int, OC: int) -> dict[str, int]:
        return {**self.rows, "C": C, "OC": OC}

    def call(self, where: str, op: str, dims: Mapping[str, int], args: str, **scalars) -> None:
        """Add a call. `args` names buffers, stacked ones for this layer's slice; "-" is None."""
        where = where if self.layer is None else f"h{self.layer}.{where}"
        refs = tuple(None if arg == "-" else self.ref(arg) for arg in args.split())
        self.calls.append(Call(op, refs, dims, scalars, where))

    def ref(self, name: str) -> Ref:
        if name == "stream":  # what enters the current layer, or behind the last one, ln_f
            below = self.config.layers - 1 if self.layer is None else self.layer - 1
            return ("residual3", below) if below >= 0 else ("encoded", None)
        return (name, self.layer if self.buffers[name].stacked else None)
