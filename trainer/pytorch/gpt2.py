"""A GPT-2 of PyTorch's that computes with the kernels of the ladders.

    model = GPT2LMHeadModel.from_pretrained("gpt2").cuda()
    swap(model, dtype="bf16")
    model(tokens, labels=tokens).loss.backward()

Forward and backward are one autograd.Function. It runs the program of the trainer (program.py), by
the kernels that the trainer would choose, in PyTorch's memory and on its current stream, one stream
at a time. Each new shape (B, T) is set up when it is met, which may compile and measure.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.core.call.arrays import as_array, device_name
from ladder.core.call.torch_ops import TORCH, capturing
from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import Binder, Run, binder
from ladder.core.contract.ladder import find
from ladder.core.contract.peers import address
from trainer.engine import memory
from trainer.engine.engine import Scratch, early_reads, views
from trainer.engine.rung_map import rung_of
from trainer.files.huggingface import config_of, named_tensors
from trainer.flags import Flags
from trainer.model.calls import Call
from trainer.model.gpt2 import GPT2Config
from trainer.model.program import build
from trainer.open import open_machine

IGNORED = -100  # the target of a row that does not count
DINPUT = "matmul.backward_input"
MOST_KEPT = 8  # places of the gradients for which the passes are bound


def swap(model: Any, **flags: Any) -> Any:
    """Let transformers' GPT2LMHeadModel compute with our kernels; it is called as before.

    flags  of the trainer, as keywords: dtype ("fp32", "bf16"), rungs ("best", ...), rung, fuse

    Parameters, float32, keep their names, shapes and values; matrices are laid out anew, as our
    kernels read them. With labels and gradients, the output has no logits, which become their own
    gradient. Calls with masks, caches and the like go to the old forward.

    Raises LadderError for a model that is not GPT-2 as it was published.
    """
    from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions

    c, where = model.config, Path("model.config")
    config = config_of(c.to_dict(), where)
    if not isinstance(config, GPT2Config) or c.embd_pdrop != c.resid_pdrop:
        raise LadderError(f"{where}: it must be GPT-2, with embd_pdrop and resid_pdrop the same")
    config = replace(config, dropout=c.resid_pdrop, attention_dropout=c.attn_pdrop)
    form = config.hugging_face
    assert form is not None
    parameters, across = [], []
    for name, _, theirs in named_tensors(form, config):
        parameters.append(model.get_parameter(form.prefix + theirs))
        across.append(form.tensors[name][1])
        if across[-1]:  # (in, out) becomes a view of (out, in)
            parameters[-1].data = parameters[-1].data.t().contiguous().t()
    ours, old = GPT2(config, parameters, across, **flags), model.forward

    @torch.compiler.disable
    def forward(input_ids: Tensor | None = None, labels: Tensor | None = None, **more: Any) -> Any:
        known = {"use_cache": (True, False), "return_dict": (True,), "logits_to_keep": (0,)}
        more = {key: value for key, value in more.items() if value is not None}
        other = [k for k, v in more.items() if isinstance(v, Tensor) or v not in known.get(k, ())]
        if other or input_ids is None:
            if model.training:
                warnings.warn(f"transformers' own kernels run, for {other}", stacklevel=2)
            return old(input_ids=input_ids, labels=labels, **more)
        if labels is not None:  # row t is to predict token t + 1
            labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        loss, logits = ours(input_ids, labels, model.training)
        return CausalLMOutputWithCrossAttentions(loss=loss, logits=logits)

    model.forward = forward
    return model


class GPT2:
    """The loss and the logits of a GPT-2, with gradients for its parameters.

    parameters  float32, in the order of `config.parameters()`, those of the layers one by one; the
                table of tokens without padding
    across      whether each is the transpose of a matrix as our kernels read it
    flags       as those of `swap`
    """

    def __init__(
        self, config: GPT2Config, parameters: Sequence[Tensor], across: Sequence[bool], **flags: Any
    ) -> None:
        self.config, self.parameters, self.across = config, [*parameters], [*across]
        self.where = parameters[0].device
        for p in parameters:
            if p.dtype != torch.float32 or p.device != self.where:
                raise LadderError(
                    f"a parameter is {p.dtype} on {p.device}, not float32 on {self.where}"
                )
        default = {} if self.where.type == "cuda" else {"dtype": "fp32", "rungs": "reference"}
        typed = {"device": device_name(self.where.index), **default, **flags}
        self.machine = open_machine(Flags(**typed))
        if self.machine.choice.dtype == "fp16":
            raise LadderError(
                "in fp16 the gradients of the logits would vanish: choose dtype='bf16'"
            )
        self._passes: dict[tuple[int, ...], _Passes] = {}

    def __call__(
        self, tokens: Tensor, targets: Tensor | None = None, training: bool = False
    ) -> tuple[Tensor | None, Tensor | None]:
        """The mean loss of the targets but IGNORED ones, and the logits (B, T, V): None without
        targets, and where the loss is differentiated.

        training  whether dropout acts, if the model has any
        """
        bad = (tokens < 0) | (tokens >= self.config.vocab)
        if targets is not None:
            bad |= (targets != IGNORED) & ((targets < 0) | (targets >= self.config.vocab))
        torch._assert_async(~bad.any(), f"a token is none of {self.config.vocab}")
        shape = (*tokens.shape,)
        if shape not in self._passes:
            if capturing(self.where):
                raise LadderError(f"call the model once at the shape {shape} before it is captured")
            self._passes[shape] = _Passes(self, *shape)
        args = self._passes[shape], tokens, targets, training and self.config.has_dropout
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters):
            loss, logits = _Differentiated.apply(*args, *self.parameters)
            return loss, logits
        with torch.no_grad():
            kept, _, loss, logits = args[0].forward(*args[1:], keeps_logits=True)
            args[0].free[args[0].stream()].append(kept)
        return loss, logits


class _Memory:
    """The buffers of some kinds in one piece of PyTorch's memory."""

    def __init__(self, passes: _Passes, *kinds: str) -> None:
        layout, self._all, arenas = passes.layout, passes.program.buffers, {}
        sizes = {a: n * a[1].itemsize for a, n in layout.sizes.items() if a[0] in kinds}
        where, self.runs = passes.model.where, dict[Any, list[Run]]()
        # What is added to, and what nobody writes between two parameters, begins at 0.
        self.bytes = torch.zeros(sum(sizes.values()), dtype=torch.uint8, device=where)
        pieces = self.bytes.split([*sizes.values()])
        for arena, piece in zip(sizes, pieces, strict=True):
            arenas[arena] = as_array(piece.view(TORCH[arena[1]]), passes.device, arena[0])
        self.arrays = views(passes.program, passes.real, layout, arenas)

    def tensor(self, name: str) -> Tensor:
        """A buffer as a tensor."""
        array = self.arrays[name]
        start = address(array) - self.bytes.data_ptr()
        flat = self.bytes[start : start + array.nbytes].view(TORCH[array.dtype])
        return flat.view(array.shape)


class _Passes:
    """The passes of a model at one shape."""

    def __init__(self, model: GPT2, B: int, T: int) -> None:
        machine = model.machine
        options = {"master_weights": False}
        kernels = machine.choose(
            lambda B, fusions: build(model.config, B, T, fusions=fusions, **options), B
        )
        self.model, self.program, self.rungs = model, kernels.program, kernels.rungs
        self.device: Any = machine.device
        self.real = machine.choice.real
        self.layout = memory.lay_out(self.program, self.real)
        *forward, loss = self.program.forward
        backward = self.program.backward
        head = 1 + [(call.where, call.op) for call in backward].index(("lm_head", DINPUT))
        self.parts = {
            "forward": forward,
            "predict": self.program.predict,
            "loss": [loss],
            "head": backward[:head],
            "layers": backward[head:],
        }
        calls = [call for part in self.parts.values() for call in part]
        # A kernel may start while the one before it ends, unless it would read too early.
        self._overlaps = not any([*early_reads(part, self.rungs)] for part in self.parts.values())
        needed = memory.scratch_needed(calls, self.device, self.real, self.rungs)
        self._scratch = Scratch(self.device, needed)
        self._bind = functools.cache(self._binder)
        self.free: dict[Any, list[_Memory]] = defaultdict(list)  # by stream
        self._weights = _Memory(self, "parameter")  # in the type of the run
        self._cast = [*self._each(self._weights)]

    def _each(self, held: _Memory, d: str = "") -> Iterator[Tensor]:
        """Parameters or gradients, as the model has them."""
        across = iter(self.model.across)
        for name, parameter in self.model.config.parameters().items():
            whole = held.tensor(d + name)
            whole = whole[: self.model.config.vocab] if name == "wte" else whole
            for tensor in whole if parameter.stacked else [whole]:
                yield tensor.t() if next(across) else tensor

    def stream(self) -> tuple[int, bool]:
        """The current one, and whether it is recorded."""
        if not self.device.is_gpu:
            return 0, False
        index = self.model.where.index
        return torch._C._cuda_getCurrentRawStream(index), torch.cuda.is_current_stream_capturing()

    def forward(
        self, tokens: Tensor, targets: Tensor | None, dropout: bool, keeps_logits: bool
    ) -> tuple[_Memory, Tensor | None, Tensor | None, Tensor | None]:
        """The memory that the backward pass needs, which targets count, loss and logits."""
        torch._foreach_copy_(self._cast, self.model.parameters)
        recorded = self.stream()[1]
        # A graph keeps the memory that it was recorded with.
        pools = [self.free[self.stream()], *(self.free.values() if recorded else ())]
        pool = next((pool for pool in pools if pool), None)
        kept = pool.pop() if pool else _Memory(self, "input", "activation", "scratch")
        kept.tensor("tokens").copy_(tokens)
        if dropout:
            words = torch.randint(-(2**31), 2**31, (4,), device=tokens.device)
            kept.tensor("rng").view(torch.int32).copy_(words)
        self.run("forward" if dropout else "predict", kept)
        logits = valid = loss = None
        if keeps_logits:
            logits = kept.tensor("logits")[..., : self.model.config.vocab].clone()
        if targets is not None:
            valid = targets != IGNORED
            each = 1 / valid.sum().clamp(min=1)
            kept.tensor("dloss").copy_(each)
            kept.tensor("targets").copy_(torch.where(valid, targets, 0))
            self.run("loss", kept)
            loss = torch.where(valid, kept.tensor("losses"), 0).sum() * each
        return kept, valid, loss, logits

    def backward(
        self, kept: _Memory, valid: Tensor | None, dloss: Tensor | None, dlogits: Tensor | None
    ) -> Iterator[Tensor]:
        """The gradients of all parameters."""
        gradients = _Memory(self, "gradient")
        if dlogits is not None:
            logits = kept.tensor("logits")
            logits[..., : self.model.config.vocab] = dlogits
            logits[..., self.model.config.vocab :] = 0
            self.run("head", kept, gradients)
        else:  # All that follows is linear in what a row counts: it enters here, where it is small.
            counts = (valid * dloss)[..., None]
            kept.tensor("lnf").mul_(counts)
            self.run("head", kept, gradients)
            kept.tensor("dln").mul_(counts)
        self.run("layers", kept, gradients)
        self.free[self.stream()].append(kept)
        return self._each(gradients, "d")

    def run(self, part: str, kept: _Memory, gradients: _Memory | None = None) -> None:
        key = part, gradients.bytes.data_ptr() if gradients and self.device.is_gpu else 0
        stream, recorded = self.stream()
        lent = self.device.on if self.device.is_gpu else lambda *_: contextlib.nullcontext()
        with lent(stream):
            if key not in kept.runs or (gradients and not self.device.is_gpu):
                if len(kept.runs) > MOST_KEPT:
                    kept.runs.clear()
                arrays = (
                    self._weights.arrays | kept.arrays | (gradients.arrays if gradients else {})
                )
                kept.runs[key] = [self._bound(call, arrays) for call in self.parts[part]]
            first, *others = kept.runs[key]
            first()  # behind a kernel of PyTorch's
        with lent(stream, recorded and self._overlaps):
            for run in others:
                run()

    def _bound(self, call: Call, arrays: Mapping[str, Any]) -> Run:
        named = {}
        for arg, ref in zip(find(call.op).op.args, call.args, strict=True):
            array = None if ref is None else arrays[ref[0]]
            if array is not None and ref[1] is not None:
                array = array[ref[1]]
            named[arg.name] = None if array is None else array.reshape(arg.resolve_shape(call.dims))
        self._scratch.rewind()
        return self._bind(call)(named, call.scalars, self._scratch.take)

    def _binder(self, call: Call) -> Binder:
        op = find(call.op).op
        return binder(op, rung_of(self.rungs, call), self.device, op.real_in(self.real), call.dims)


class _Differentiated(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, passes: _Passes, tokens: Tensor, targets: Any, dropout: bool, *parameters: Tensor
    ) -> Any:
        keeps = targets is None
        ctx.kept, ctx.valid, loss, logits = passes.forward(tokens, targets, dropout, keeps)
        ctx.passes, ctx.versions = passes, [p._version for p in parameters]
        return loss, logits

    @staticmethod
    def backward(ctx: Any, dloss: Any, dlogits: Any) -> Any:
        if ctx.kept is None:
            raise RuntimeError("the backward pass overwrites what it reads: it runs only once")
        if ctx.versions != [p._version for p in ctx.passes.model.parameters]:
            raise RuntimeError("a parameter was changed between the forward and the backward pass")
        kept, ctx.kept = ctx.kept, None
        found = ctx.passes.backward(kept, ctx.valid, dloss, dlogits)
        needed = ctx.needs_input_grad[4:]
        return *[None] * 4, *(g if need else None for g, need in zip(found, needed, strict=True))
