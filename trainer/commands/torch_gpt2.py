"""GPT-2 written with PyTorch's own layers, gradients and optimizer, and its training step.

The weights stand in a dictionary under llm.c's names, those of the layers as lists of L tensors or
stacked, (L, ...). The module can be imported without PyTorch, and is of no use then.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ladder.core.measure.torch_timing import TorchClock
from trainer.flags import TrainConfig
from trainer.model.gpt2 import GPT2Config

try:
    import torch as torch  # beside_torch.py asks for it
    import torch.nn.functional as F
except ImportError:
    torch = None

Mode = Literal["eager", "compiled", "graph"]
MODES: tuple[Mode, ...] = ("eager", "compiled", "graph")
WARM_UP = 3  # steps that set libraries up, compile, and fill the memory pool of a CUDA graph
Weights = Mapping[str, Any]


def logits_of(w: Weights, tokens: Any, heads: int) -> Any:
    """(B, T, V) logits for tokens (B, T), where wte is (V, C)."""
    B, T = tokens.shape
    C = w["wte"].shape[1]

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return F.layer_norm(x, (C,), weight, bias, eps=1e-5)

    x = w["wte"][tokens] + w["wpe"][:T]
    for layer in range(len(w["qkvw"])):
        h = norm(x, w["ln1w"][layer], w["ln1b"][layer])
        qkv = F.linear(h, w["qkvw"][layer], w["qkvb"][layer]).view(B, T, 3, heads, C // heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, heads, T, head size) each
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h.transpose(1, 2).reshape(B, T, C)
        x = x + F.linear(h, w["attprojw"][layer], w["attprojb"][layer])
        h = norm(x, w["ln2w"][layer], w["ln2b"][layer])
        h = F.gelu(F.linear(h, w["fcw"][layer], w["fcb"][layer]), approximate="tanh")
        x = x + F.linear(h, w["fcprojw"][layer], w["fcprojb"][layer])
    return norm(x, w["lnfw"], w["lnfb"]) @ w["wte"].T


def loss_of(logits: Any, targets: Any) -> Any:
    """The mean loss of logits (B, T, V) against targets (B, T), in nats per token."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class TorchTraining:
    """Optimizer steps of a run's settings in PyTorch: AdamW, clipping, gradient accumulation.

    16-bit types are those of autocast, with weights and moments in float32. The table of tokens has
    padded rows, as ours has, and the logits of these are cut off.

    tf32  in fp32, PyTorch's products may round their factors to TF32
    mode  "eager"; "compiled", by torch.compile; "graph": the same, recorded as CUDA graphs after
          `WARM_UP` steps
    """

    def __init__(
        self,
        shape: GPT2Config,
        weights: Mapping[str, np.ndarray],
        config: TrainConfig,
        mode: Mode,
        tf32: bool = False,
    ) -> None:
        """weights: every parameter in float32, those of the layers stacked."""
        self.shape, self.config, self.mode = shape, config, mode
        kind, _, index = config.device.partition(":")
        self.on_gpu = kind != "cpu"
        self.device = f"cuda:{index or 0}" if self.on_gpu else "cpu"  # "cuda" of ROCm, too
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch._dynamo.reset()
        if self.on_gpu:
            torch.cuda.set_device(self.device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self.weights: dict[str, Any] = {}
        decayed: list[Any] = []
        others: list[Any] = []
        for name, parameter in shape.parameters().items():
            whole = torch.from_numpy(weights[name])
            parts = list(whole) if parameter.stacked else [whole]
            parts = [part.clone().to(self.device).requires_grad_() for part in parts]
            self.weights[name] = parts if parameter.stacked else parts[0]
            (decayed if parameter.decay else others).extend(parts)
        self.parameters = [*decayed, *others]
        graph = mode == "graph"
        self.optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": config.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            # A graph reads the rate from memory.
            lr=torch.tensor(config.lr, device=self.device) if graph else config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=self.on_gpu,
            capturable=graph,
        )
        size = config.batch, config.sequence
        self.tokens = torch.zeros(size, dtype=torch.int64, device=self.device)
        self.targets = torch.zeros_like(self.tokens)
        self.loss = torch.zeros((), device=self.device)  # of the step, added up
        self.forward = self._forward if mode == "eager" else torch.compile(self._forward)
        self.micro, self.update = self._micro, self._update
        self.steps = 0
        self.ends: list[Any] = []

    def step(self, batches: Sequence[tuple[np.ndarray, np.ndarray]], lr: float) -> Any:
        """Take a step on its micro-batches; returns the loss, as a tensor of the device."""
        if self.mode == "graph" and self.steps < WARM_UP:
            stream = torch.cuda.Stream()  # what is recorded must have run on another stream before
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                loss = self._step(batches, lr)
            torch.cuda.current_stream().wait_stream(stream)
        else:
            if self.mode == "graph" and self.steps == WARM_UP:
                capture = TorchClock(torch).capture
                self.micro, self.update = capture(self._micro), capture(self._update)
            loss = self._step(batches, lr)
        self.steps += 1
        self.ends.append(self._now())
        return loss

    def milliseconds(self) -> list[float]:
        """Of each step after the first ones: from the end of the step before to its own."""
        ends = self.ends[WARM_UP:]
        if self.on_gpu:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) for a, b in itertools.pairwise(ends)]
        return [1e3 * (b - a) for a, b in itertools.pairwise(ends)]

    def peak_bytes(self) -> int | None:
        """The most memory of a GPU that was in use; None on a CPU."""
        return int(torch.cuda.max_memory_allocated()) if self.on_gpu else None

    def _step(self, batches: Sequence[tuple[np.ndarray, np.ndarray]], lr: float) -> Any:
        for group in self.optimizer.param_groups:
            if self.mode == "graph":
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        for tokens, targets in batches:
            self._load(self.tokens, tokens)
            self._load(self.targets, targets)
            self.micro()
        loss = self.loss.clone()
        self.loss.zero_()
        self.update()
        return loss

    def _load(self, target: Any, array: np.ndarray) -> None:
        source = torch.from_numpy(array.astype(np.int64))
        target.copy_(source.pin_memory() if self.on_gpu else source, non_blocking=True)

    def _forward(self, tokens: Any, targets: Any) -> Any:
        logits = logits_of(self.weights, tokens, self.shape.heads)
        return loss_of(logits[..., : self.shape.vocab], targets)

    def _micro(self) -> None:
        kind = "cuda" if self.on_gpu else "cpu"
        # Its cache of cast weights is not for graphs.
        cast = {"enabled": self.config.dtype == "bf16", "cache_enabled": self.mode != "graph"}
        with torch.autocast(kind, torch.bfloat16, **cast):
            loss = self.forward(self.tokens, self.targets) / self.config.accumulation
        loss.backward()
        self.loss.add_(loss.detach())

    def _update(self) -> None:
        if self.config.grad_clip > 0:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.mode != "graph")

    def _now(self) -> Any:
        """A mark of the device, or the time of the host."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
