"""A GPT-2 of PyTorch's that computes with the kernels of the ladders.

    model = GPT2(config, parameters, across, dtype="bf16")
    loss, logits = model(tokens, targets)

Forward and backward are one autograd.Function. It runs the program of the trainer (program.py), by
the kernels that the trainer would choose, in PyTorch's memory and on its current stream, one stream
at a time. Each new shape (B, T) is set up when it is met, which may compile and measure.
"""

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ladder.core.call.arrays import Place, as_array, device_name, place_of
from ladder.core.call.torch_ops import TORCH
from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import Binder, Run
from ladder.core.contract.ladder import find
from ladder.core.contract.peers import address
from trainer.engine import memory
from trainer.engine.engine import Scratch, early_reads, views
from trainer.engine.rung_map import rung_of
from trainer.flags import Flags
from trainer.model.calls import Call
from trainer.model.gpt2 import GPT2Config
from trainer.open import builder, open_machine

IGNORED = -100  # the target of a row that does not count
MOST_KEPT = 16  # parts that are bound to a memory, by where the gradients are


class GPT2:
    """The loss and the logits of a GPT-2, with gradients for its parameters.

    parameters  float32, in the order of `config.parameters()`, those of the layers one by one; the
                table of tokens without padding
    across      whether each is the transpose of a matrix as our kernels read it
    flags       of the trainer, as keywords: dtype ("fp32", "bf16"), rungs, rung, fuse, ...
    """

    def __init__(
        self, config: GPT2Config, parameters: Sequence[Tensor], across: Sequence[bool], **flags: Any
    ) -> None:
        self.config, self.parameters, self.across = config, [*parameters], [*across]
        self.where, gpu = parameters[0].device, place_of(parameters[0]).gpu
        for p in parameters:
            if p.dtype != torch.float32 or p.device != self.where:
                raise LadderError(f"parameters must be float32 in one place, not {p.dtype}")
        default = {"dtype": "fp32", "rungs": "reference"} if gpu is None else {}
        self.machine = open_machine(Flags(**{"device": device_name(gpu), **default, **flags}))
        if self.machine.choice.dtype == "fp16":
            raise LadderError("in fp16, gradients of the logits vanish: choose dtype='bf16'")
        self.first: Passes | None = None  # of all, which share its weights and its update
        # The versions of the parameters when AdamW wrote their weights.
        self.cast_at: list[tuple[int, int]] | None = None
        self._passes: dict[tuple[int, ...], Passes] = {}

    def versions(self) -> list[tuple[int, int]]:
        """What changes when parameters are written in place, or get other memory."""
        return [(p._version, p.data_ptr()) for p in self.parameters]

    def __deepcopy__(self, memo: Any) -> "GPT2":
        raise LadderError("copy a model before the swap, and let the copy load its state_dict")

    def __call__(
        self, tokens: Tensor, targets: Tensor | None = None, training: bool = False
    ) -> tuple[Tensor | None, Tensor | None]:
        """The mean loss of the targets but IGNORED ones, and the logits (B, T, V): None without
        targets, and where the loss is differentiated.

        training  whether dropout acts, if the model has any
        """
        if not tokens.device == self.where == self.parameters[0].device:
            raise LadderError(f"the tokens are not on {self.where}; move a model before the swap")
        for given in (tokens, tokens if targets is None else targets):
            if given.shape != tokens.shape or given.dim() != 2 or given.is_floating_point():
                raise LadderError(f"tokens and targets are integers (B, T), not {given.shape}")
        bad = (tokens < 0) | (tokens >= self.config.vocab)
        if targets is not None:
            bad |= (targets != IGNORED) & ((targets < 0) | (targets >= self.config.vocab))
        torch._assert_async(~bad.any(), f"a token is none of {self.config.vocab}")
        if (shape := (*tokens.shape,)) not in self._passes:
            if place_of(tokens).recorded:
                raise LadderError(f"call the model once at the shape {shape} before it is recorded")
            with torch.inference_mode(False):  # so that training can use the same memory
                self._passes[shape] = Passes(self, *shape)
        passes = self._passes[shape]
        args = tokens, targets, training and self.config.has_dropout
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters):
            loss, logits = _Differentiated.apply(passes, *args, *self.parameters)
            return loss, logits
        with torch.inference_mode(False), torch.no_grad():
            self.cast_at = None  # averages of weights often come and go through `.data`
            kept, _, loss, logits = passes.forward(*args, with_logits=True)
            passes.free[place_of(tokens)].append(kept)
        return loss, logits


class Buffers:
    """The buffers of some kinds in one piece of PyTorch's memory: a new one of zeros, or the bytes
    `given`."""

    def __init__(self, passes: "Passes", *kinds: str, given: Tensor | None = None) -> None:
        sizes = passes.layout.bytes_of(kinds)
        if given is None:
            size, where = sum(sizes.values()), passes.model.where
            wide = torch.zeros(size // 8, dtype=torch.int64, device=where)  # quicker than bytes
            given = wide.view(torch.uint8)
        self.bytes = given
        arenas = {}
        for arena, piece in zip(sizes, self.bytes.split([*sizes.values()]), strict=True):
            arenas[arena] = as_array(piece.view(TORCH[arena[1]]), passes.device, arena[0])
        self.arrays = views(passes.program, passes.real, passes.layout, arenas)
        self.runs: dict[Any, list[Run]] = {}  # what was bound to it, by part of the program

    def __getitem__(self, name: str) -> Tensor:
        array = self.arrays[name]
        start = address(array) - self.bytes.data_ptr()
        flat = self.bytes[start : start + array.nbytes].view(TORCH[array.dtype])
        return flat.view(array.shape)


class Passes:
    """The passes of a model at one shape: parts of the trainer's program."""

    def __init__(self, model: GPT2, B: int, T: int) -> None:
        machine = model.machine
        kernels = machine.choose(builder(model.config, T), B)
        self.model, self.program, self.rungs = model, kernels.program, kernels.rungs
        self.device: Any = machine.device
        self.device.free_unused()  # what choosing has left
        self.real = machine.choice.real
        self.layout = memory.lay_out(self.program, self.real)
        *predict, lm_head = self.program.predict
        forward, backward = self.program.forward, self.program.backward
        head = 1 + max(i for i, call in enumerate(backward) if call.where == "lm_head")
        # Whether head and loss are one op in training: exponentials stand in the logits' place.
        self._fused = forward[-1].where == "lm_head"
        self.parts = {
            **{"forward": forward[: -1 if self._fused else -2], "predict": predict},
            **{"logits": [lm_head], "loss": self.program.evaluate[-1:], "fused": forward[-1:]},
            **{"head": backward[:head], "layers": backward[head:], "update": self.program.update},
        }
        # A kernel may start while the one before it ends, unless it would read too early.
        self._overlaps = not any([*early_reads(part, self.rungs)] for part in self.parts.values())
        calls = [call for part in self.parts.values() for call in part]
        needed = memory.scratch_needed(calls, self.device, self.real, self.rungs)
        self._scratch = Scratch(self.device, needed)
        self._binder = functools.cache(self._binder_of)
        self.free: dict[Place, list[Buffers]] = defaultdict(list)  # that no backward pass needs
        model.first = model.first or self
        fresh = model.first is self  # weights in the type of the run
        self.weights: Buffers = Buffers(self, "parameter") if fresh else model.first.weights
        self._cast = [*self.each(self.weights, "{}")]

    def each(self, held: Buffers, form: str) -> Iterator[Tensor]:
        """Parameters or, with "d{}", gradients and so on, as the model has them."""
        across = iter(self.model.across)
        for name, parameter in self.model.config.parameters().items():
            whole = held[form.format(name)][: self.model.config.vocab if name == "wte" else None]
            for tensor in whole if parameter.stacked else [whole]:
                yield tensor.t() if next(across) else tensor

    def forward(
        self, tokens: Tensor, targets: Tensor | None, dropout: bool, with_logits: bool
    ) -> tuple[Buffers, Tensor | None, Tensor | None, Tensor | None]:
        """The memory that the backward pass needs, which targets count, loss and logits.

        with_logits  False, with targets, before a backward pass
        """
        pools, place = [self.free[place_of(tokens)]], place_of(tokens)
        written, self.model.cast_at = self.model.cast_at, None  # PyTorch's fused optimizers leave
        if self.model.versions() != written:  # versions as they are
            torch._foreach_copy_(self._cast, self.model.parameters)
        if place.recorded:  # a graph keeps the memory that it was recorded with
            pools += self.free.values()
        pool = next(filter(None, pools), None)
        kept = pool.pop() if pool else Buffers(self, "input", "activation", "scratch")
        kept["tokens"].copy_(tokens)
        if dropout:
            words = torch.randint(-(2**31), 2**31, (4,), device=tokens.device)
            kept["rng"].view(torch.int32).copy_(words)
        self.run(place, "forward" if dropout else "predict", kept)
        logits = valid = loss = None
        fused = self._fused and not with_logits
        if not fused:
            self.run(place, "logits", kept)
        if with_logits:
            logits = kept["logits"][..., : self.model.config.vocab].clone()
        if targets is not None:
            valid = targets != IGNORED
            each = 1 / valid.sum().clamp(min=1)
            kept["dloss"].copy_(each)
            kept["targets"].copy_(torch.where(valid, targets, 0))
            self.run(place, "fused" if fused else "loss", kept)
            loss = torch.where(valid, kept["losses"], 0).sum() * each
        return kept, valid, loss, logits

    def backward(
        self, kept: Buffers, valid: Tensor | None, dloss: Any, dlogits: Any
    ) -> Iterator[Tensor]:
        gradients, place = Buffers(self, "gradient"), place_of(kept.bytes)
        V = self.model.config.vocab
        if valid is None:
            kept["logits"][..., :V] = dlogits
            kept["logits"][..., V:] = 0
            if self._fused:
                kept["factors"].fill_(1)
                kept["scaled"].copy_(kept["lnf"])
            self.run(place, "head", kept, gradients)
        else:  # What a row counts comes in behind the logits: they are much larger.
            counts = valid * dloss
            if self._fused:
                kept["factors"].mul_(counts)
            kept["scaled" if self._fused else "lnf"].mul_(counts[..., None])
            self.run(place, "head", kept, gradients)
            if not self._fused:
                kept["dln"].mul_(counts[..., None])
        self.run(place, "layers", kept, gradients)
        self.free[place].append(kept)
        return self.each(gradients, "d{}")

    def run(self, place: Place, part: str, kept: Buffers, extra: Buffers | None = None) -> None:
        lent = contextlib.nullcontext if place.stream is None else self.device.on
        key = part, extra.bytes.data_ptr() if extra else 0
        with lent(place.stream):
            if key not in kept.runs or place.stream is None:  # NumPy's arrays would keep `extra`
                if len(kept.runs) >= MOST_KEPT:
                    kept.runs.clear()
                arrays = self.weights.arrays | kept.arrays | (extra.arrays if extra else {})
                kept.runs[key] = [self._bound(call, arrays) for call in self.parts[part]]
            first, *others = kept.runs[key]
            first()  # behind a kernel of PyTorch's
            if place.recorded:
                self.device.recording = self._overlaps
            for run in others:
                run()

    def _bound(self, call: Call, arrays: Mapping[str, Any]) -> Run:
        named: dict[str, Any] = {}
        for arg, ref in zip(find(call.op).op.args, call.args, strict=True):
            named[arg.name] = None
            if ref is not None and ref[0] in arrays:  # weights of 32 bits have no master copies
                array = arrays[ref[0]] if ref[1] is None else arrays[ref[0]][ref[1]]
                named[arg.name] = array.reshape(arg.resolve_shape(call.dims))
        self._scratch.rewind()
        return self._binder(call)(named, call.scalars, self._scratch.take)

    def _binder_of(self, call: Call) -> Binder:
        op = find(call.op).op
        return Binder(op, rung_of(self.rungs, call), self.device, op.real_in(self.real), call.dims)


class _Differentiated(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, passes: Passes, tokens: Tensor, targets: Any, dropout: bool, *parameters: Tensor
    ) -> Any:
        results = passes.forward(tokens, targets, dropout, with_logits=targets is None)
        ctx.passes, ctx.versions = passes, passes.model.versions()
        ctx.kept, ctx.valid, loss, logits = results
        return loss, logits

    @staticmethod
    def backward(ctx: Any, dloss: Any, dlogits: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("gradients have none of their own, as create_graph asks")
        if ctx.kept is None:
            raise RuntimeError("the backward pass overwrites what it reads: it runs only once")
        if ctx.versions != ctx.passes.model.versions():
            raise RuntimeError("a parameter was changed between the forward and the backward pass")
        kept, ctx.kept = ctx.kept, None
        gradients = ctx.passes.backward(kept, ctx.valid, dloss, dlogits)
        pairs = zip(gradients, ctx.needs_input_grad[4:], strict=True)
        return *[None] * 4, *(gradient if needed else None for gradient, needed in pairs)
