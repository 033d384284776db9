"""Our kernels inside PyTorch on a GPU, beside PyTorch's own.

    python -m tests.gpu_in_torch steps    # GPT-2: the gradient of every parameter, and AdamW
    python -m tests.gpu_in_torch times    # training steps in turn: trainer, swapped, torch.compile

`steps` compares with PyTorch in float32, and waits for the GPU only at the end; it exits with
status 1 where a relative distance is above TOLERANCE. `times` takes 1 to 2 minutes for each size
(`-b`), and each max-autotune (`--compiled`) several more. The model is that of transformers where
it is installed, and otherwise trainer/commands/torch_gpt2.py.
"""

from __future__ import annotations

import argparse
import functools
import gc
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from kernel_ladder import torch as kl
from ladder.core.common.errors import LadderError
from tests.gpu_vs_torch import (
    BETAS,
    CLIP,
    DECAY,
    EPS,
    LR,
    job_of,
    recorded,
    weights_of,
    without_keys,
)
from trainer.commands import torch_gpt2
from trainer.commands.step_timing import Job, one_step
from trainer.model.gpt2 import GPT2Config

try:
    import transformers
except ImportError:
    transformers = None

TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2}
UPDATES = 10
MODES = ("default", "max-autotune-no-cudagraphs")
COMPILED = ("reduce-overhead", *MODES, *(f"{mode} in a graph" for mode in MODES))
OURS = ("ours", "ours in a graph", "ours, kl.AdamW", "ours, kl.AdamW in a graph")
# The loss of tokens, parameters, and what kl.AdamW takes.
Model = tuple[Callable[..., torch.Tensor], dict[str, torch.Tensor], Any]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_in_torch")
    parser.add_argument("what", choices=("steps", "times"))
    parser.add_argument("-e", "--model", default="gpt2", help="gpt2 or d6 ...")
    parser.add_argument("-b", "--batch", type=int, nargs="+", default=[4, 16, 64], help="of times")
    parser.add_argument("-t", "--sequence", type=int, default=1024)
    parser.add_argument("--compiled", nargs="*", default=COMPILED[1:], choices=COMPILED)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda", help="cpu for small sizes of steps")
    options = parser.parse_args(argv)
    torch.set_float32_matmul_precision("highest")
    return (steps if options.what == "steps" else times)(options)


def shape_of(options: argparse.Namespace) -> GPT2Config:
    return job_of(options, "fp32", 1, "reference" if options.device == "cpu" else "naive").shape


def apart(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Relative distance; the keys' bias has no gradient but rounding errors."""
    if name.startswith("qkvb") or name.endswith("c_attn.bias"):
        ours, theirs = (without_keys("qkvb", g.view(1, -1)) for g in (ours, theirs))
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


# ---- models -------------------------------------------------------------------------------------


def model_of(shape: GPT2Config, device: str, ours: str | None, padded: bool = False) -> Model:
    """A model with equal weights every time. `ours`: by our kernels, in this type."""
    vocab = shape.padded_vocab if padded else shape.vocab
    torch.manual_seed(0)
    if transformers is not None:
        sizes = {theirs: getattr(shape, our) for our, theirs in shape.hugging_face.fields.items()}
        off = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        config = transformers.GPT2Config(**{**sizes, **off, **ends, "vocab_size": vocab})
        model = transformers.GPT2LMHeadModel(config).to(device)
        if ours is not None:
            kl.swap(model, dtype=ours)
        named = dict(model.named_parameters())
        return lambda tokens: model(tokens, labels=tokens).loss, named, model
    weights, flat = weights_of(shape, device, vocab), {}
    for name, of in weights.items():
        flat |= {f"{name}.{i}": w for i, w in enumerate(of)} if isinstance(of, list) else {name: of}
    swapped = kl.GPT2(shape, [*flat.values()], [False] * len(flat), dtype=ours) if ours else None

    def loss_of(tokens: torch.Tensor) -> Any:
        targets = F.pad(tokens[:, 1:], (0, 1), value=kl.IGNORED)
        if swapped is not None:
            return swapped(tokens, targets, True)[0]
        return torch_gpt2.loss_of(torch_gpt2.logits_of(weights, tokens, shape.heads), targets)

    return loss_of, flat, swapped


def steps(options: argparse.Namespace) -> int:
    """Every gradient of three batches, and the losses while AdamW trains on one, by eager calls
    and by a graph's replays."""
    shape, wrong = shape_of(options), False
    batches = torch.randint(0, shape.vocab, (3, 4, options.sequence), device=options.device)
    loss_of, parameters, _ = model_of(shape, options.device, None)
    right = []
    for tokens in batches:
        loss = loss_of(tokens)
        right.append([loss.detach(), *torch.autograd.grad(loss, [*parameters.values()])])
    for dtype in TOLERANCE:
        loss_of, parameters, _ = model_of(shape, options.device, dtype)
        tokens = batches[0].clone()

        def step(loss_of: Any = loss_of, parameters: Any = parameters, tokens: Any = tokens) -> Any:
            loss = loss_of(tokens)
            return [loss.detach(), *torch.autograd.grad(loss, [*parameters.values()])]

        for how in ("eager", "graph"):
            run, ours = step if how == "eager" else recorded(step, options.device), []
            for batch in batches:
                tokens.copy_(batch)
                ours.append([t.clone() for t in run()])
            pairs = [zip(*each, strict=True) for each in zip(ours, right, strict=True)]
            far = dict.fromkeys(["loss", *parameters], 0.0)
            for batch_pairs in pairs:
                for name, (a, b) in zip(far, batch_pairs, strict=True):
                    far[name] = float(np.maximum(far[name], apart(name, a, b)))  # NaN stays
            worst = max(far, key=far.__getitem__)
            bad = not far[worst] <= TOLERANCE[dtype] or not all(np.isfinite([*far.values()]))
            wrong |= bad
            print(
                f"{dtype} {how}: loss {far['loss']:.1e}, gradients median "
                f"{np.median([*far.values()]):.1e}, farthest {far[worst]:.1e} {worst}"
                f"{'  WRONG' * bad}",
                flush=True,
            )
        pytorchs = losses_of(shape, batches[0], OURS[0], dtype)
        for name in OURS[2:]:
            losses = losses_of(shape, batches[0], name, dtype)
            distance = float(((losses - pytorchs) / pytorchs).abs().max())
            bad = not distance <= LOSS_TOLERANCE[dtype]
            wrong |= bad
            print(
                f"{dtype} {name}: losses of {UPDATES} steps {distance:.1e} from those by "
                f"torch.optim.AdamW{'  WRONG' * bad}",
                flush=True,
            )
    return int(wrong)


def losses_of(shape: GPT2Config, tokens: torch.Tensor, name: str, dtype: str) -> torch.Tensor:
    """While a model learns these tokens, from the fourth step on: `recorded` takes three."""
    step = training_step(shape, tokens, name, dtype)
    for _ in range(0 if tokens.is_cuda and name.endswith("in a graph") else 3):
        step()
    return torch.stack([step().clone() for _ in range(UPDATES)])


# ---- times --------------------------------------------------------------------------------------


def times(options: argparse.Namespace) -> int:
    """Print milliseconds of a step in bf16: each way in turn with the trainer's, again and
    again."""
    for B in options.batch:
        job = job_of(options, "bf16", B, "best")
        tokens = torch.randint(0, job.shape.vocab, (B, options.sequence), device="cuda")
        for name in (*OURS, *options.compiled):
            gc.collect()
            job.device.free_unused()
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:
                both = beside_trainer(job, tokens, name, options.rounds)
            except (LadderError, RuntimeError) as error:
                print(f"B={B:2} {name:37} {str(error).splitlines()[0]}", flush=True)
                continue
            size = torch.cuda.max_memory_allocated() / 2**30
            print(
                f"B={B:2} {name:37} {both[1]:8.2f} ms, the trainer beside it {both[0]:8.2f}: "
                f"{both[1] / both[0]:.3f} x, {size:.1f} GiB",
                flush=True,
            )
    return 0


def beside_trainer(job: Job, tokens: torch.Tensor, name: str, rounds: int) -> list[float]:
    """Milliseconds of a step of the trainer, and of this one."""
    step = training_step(job.shape, tokens, name)
    step()  # torch.compile's tuning leaves no room for a trainer at B=64
    torch.cuda.empty_cache()
    trainer = functools.partial(one_step, job.engine())
    ways = [(trainer, job.device.synchronize), (step, torch.cuda.synchronize)]
    return in_turn(ways, rounds)


def training_step(
    shape: GPT2Config, tokens: torch.Tensor, name: str, dtype: str = "bf16"
) -> Callable[[], torch.Tensor]:
    """Forward, backward, clipping and AdamW, fused; PyTorch's own under autocast, with the padded
    vocabulary, which is faster. Returns the loss."""
    ours, graph = name.startswith("ours"), name.endswith("in a graph")
    device = tokens.device.type
    loss_of, parameters, model = model_of(shape, device, dtype if ours else None, padded=not ours)
    if not ours:
        mode = name.removesuffix(" in a graph")
        loss_of = torch.compile(loss_of, mode=mode)
    held, clipped = [*parameters.values()], "kl.AdamW" in name
    kinds = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}
    if clipped:
        optimizer = kl.AdamW(model, **kinds, max_norm=CLIP)
    else:
        bare = {"params": [p for p in held if p.dim() == 1], "weight_decay": 0}
        groups = [{"params": [p for p in held if p.dim() > 1]}, bare]
        optimizer = torch.optim.AdamW(groups, **kinds, fused=True, capturable=graph)

    def step() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=not ours, cache_enabled=not graph):
            loss = loss_of(tokens)
        loss.backward()
        if not clipped:
            torch.nn.utils.clip_grad_norm_(held, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return recorded(step, device) if graph else step


def in_turn(
    ways: Sequence[tuple[Callable[[], Any], Callable[[], None]]], rounds: int
) -> list[float]:
    """Milliseconds of a step of each: the median of rounds of about a quarter of a second."""

    def seconds(step: Callable[[], Any], wait: Callable[[], None], count: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return (time.perf_counter() - start) / count

    for _ in range(2):  # the first one compiles and records
        counts = [max(4, round(0.25 / seconds(*way, 4))) for way in ways]
    turns = [[seconds(*way, n) for way, n in zip(ways, counts, strict=True)] for _ in range(rounds)]
    return [1e3 * float(np.median(each)) for each in zip(*turns, strict=True)]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LadderError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
