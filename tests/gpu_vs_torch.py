"""GPT-2 beside PyTorch on the same GPU: the same losses and gradients, and how long each takes.

    python -m tests.gpu_vs_torch steps     # 10 AdamW steps from the same weights, on the same data
    python -m tests.gpu_vs_torch times     # the time of a step at B=4 and B=64

`steps` exits with status 1 where something is out of tolerance:

    fp32   losses 1e-4, and the gradient of every tensor 1e-4 in relative distance
    bf16   losses 1e-2, against PyTorch under autocast

Distances grow from step to step: where a gradient is next to nothing, AdamW makes a step of full
length of a rounding error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ladder.core.common.errors import LadderError
from ladder.core.measure import results
from reference import adamw
from tests.golden import torch_gpt2
from trainer.commands.step_timing import FOLDER, Job, machine_of, open_job, time_steps, write_json
from trainer.engine.engine import Engine
from trainer.flags import Flags
from trainer.model.gpt2 import GPT2Config
from trainer.model.program import initial_parameters

TOLERANCE = {
    "fp32": {"loss": 1e-4, "gradient": 1e-4},
    "bf16": {"loss": 1e-2},
}
LR, BETAS, EPS, DECAY, CLIP = 1e-4, (0.9, 0.95), 1e-8, 0.1, 1.0

Gradients = dict[str, torch.Tensor]
# milliseconds of a step, bytes of memory, and for ours the ids and the code of its rungs
Measured = tuple[float, int, dict[str, dict[str, str]]]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_vs_torch")
    parser.add_argument("what", choices=("steps", "times"))
    parser.add_argument("-e", "--model", default="gpt2", help="gpt2 or d6 ...")
    parser.add_argument("-b", "--batch", type=int, nargs="+", help="steps: 4; times: 4 64")
    parser.add_argument("-t", "--sequence", type=int, default=1024)
    parser.add_argument("-x", "--steps", type=int, help="steps: 10; times: 20")
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=[*TOLERANCE])
    parser.add_argument("--rungs", nargs="+", help="steps: naive best library; times: best library")
    parser.add_argument("--device", default="cuda", help="cpu for steps of the reference")
    options = parser.parse_args(argv)
    torch.set_float32_matmul_precision("highest")  # no TF32, as in ours
    return (compare_steps if options.what == "steps" else compare_times)(options)


def job_of(options: argparse.Namespace, dtype: str, batch: int, rungs: str) -> Job:
    flags = Flags(
        model=options.model,
        batch=batch,
        sequence=options.sequence,
        dtype=dtype,
        rungs=rungs,
        device=options.device,
        steps=1,
    )
    return open_job(flags, "gpu_vs_torch")


def weights_of(shape: GPT2Config, device: str, vocab: int) -> dict[str, Any]:
    """The first weights by name: those of the layers as lists, and so many rows of wte."""
    weights: dict[str, Any] = {}
    for name, array in initial_parameters(shape, seed=0):
        whole = torch.from_numpy(array[:vocab] if name == "wte" else array).to(device)
        stacked = shape.parameters()[name].stacked
        parts = [part.clone().requires_grad_() for part in (whole if stacked else [whole])]
        weights[name] = parts if stacked else parts[0]
    return weights


def recorded(work: Callable[[], Any], device: str) -> Callable[[], Any]:
    """The same work as a CUDA graph, with results at one place."""
    if device == "cpu":
        return work
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay(kept: Any = work) -> Any:  # the graph does not keep what it works on
        graph.replay()
        return result

    return replay


# ---- steps --------------------------------------------------------------------------------------


def compare_steps(options: argparse.Namespace) -> int:
    """Print a table for each dtype and set of rungs; 1 if any is out of tolerance, else 0."""
    (B,), T, steps = options.batch or [4], options.sequence, options.steps or 10
    wrong = False
    for dtype in options.dtypes:
        shape = job_of(options, dtype, B, "naive").shape
        rng = np.random.default_rng(1)
        batches = [rng.integers(0, shape.vocab, (2, B, T)) for _ in range(steps)]
        theirs = list(torch_steps(shape, batches, dtype, options.device))
        for rungs in options.rungs or ("naive", "best", "library"):
            job = job_of(options, dtype, B, rungs)
            ids = ", ".join(f"{op} {rung.id}" for op, rung in job.kernels.rungs.items())
            print(f"\n{options.model} B={B} T={T} {dtype}, --rungs {rungs}: {ids}")
            wrong |= report(our_steps(job.engine(), batches), theirs, TOLERANCE[dtype])
        del theirs
    return int(wrong)


def torch_steps(
    shape: GPT2Config, batches: Sequence[np.ndarray], dtype: str, device: str
) -> Iterator[tuple[float, Gradients]]:
    """Loss and gradients of each step, by PyTorch without torch.compile."""
    weights = {}
    for name, array in initial_parameters(shape, seed=0):
        array = array[: shape.vocab] if name == "wte" else array
        weights[name] = torch.from_numpy(array).to(device).requires_grad_()
    optimizer = torch_gpt2.optimizer_of(weights, lr=LR, betas=BETAS, eps=EPS, decay=DECAY)
    for batch in batches:
        tokens, targets = torch.from_numpy(batch).to(device)
        exact = sdpa_kernel(SDPBackend.MATH) if dtype == "fp32" else contextlib.nullcontext()
        with exact, torch.autocast(device, torch.bfloat16, enabled=dtype == "bf16"):
            logits = torch_gpt2.logits_of(weights, tokens, shape.heads)
        loss = torch_gpt2.loss_of(logits.float(), targets)
        optimizer.zero_grad()
        loss.backward()
        gradients = {name: w.grad.clone() for name, w in weights.items()}
        torch.nn.utils.clip_grad_norm_(list(weights.values()), CLIP)
        optimizer.step()
        yield loss.item(), gradients


def our_steps(engine: Engine, batches: Sequence[np.ndarray]) -> Iterator[tuple[float, Gradients]]:
    """The same by the rungs. The gradients are views of the engine's own."""
    shape = engine.program.config
    for name, array in initial_parameters(shape, seed=0):  # it has others, quick to make
        engine.write(name, array)
    engine.write("dloss", np.array([1 / batches[0][0].size]))
    for step, (tokens, targets) in enumerate(batches, start=1):
        engine.write("tokens", tokens)
        engine.write("targets", targets)
        engine.zero_gradients()
        engine.forward()
        engine.backward()
        loss = float(engine.read("losses").mean(dtype=np.float64))
        engine.device.synchronize()  # PyTorch works on another stream
        gradients = {
            n: torch.from_dlpack(engine.arrays["d" + n]) for n in engine.program.config.parameters()
        }
        yield loss, {**gradients, "wte": gradients["wte"][: shape.vocab]}
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        options = dict(lr=LR, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=DECAY)
        engine.write("hyper", adamw.hyper(step=step, **options, clip=CLIP))
        engine.update()


def report(
    ours: Iterator[tuple[float, Gradients]],
    theirs: Sequence[tuple[float, Gradients]],
    tolerance: Mapping[str, float],
) -> bool:
    """Print the steps side by side; whether one is out of tolerance."""
    print(f"{'step':>4} {'ours':>10} {'PyTorch':>10} {'loss off':>9}   farthest gradient")
    wrong = False
    worst: dict[str, float] = {}
    for step, ((our_loss, mine), (loss, gradients)) in enumerate(zip(ours, theirs, strict=True), 1):
        far = {}
        for name, gradient in gradients.items():
            a, b = (without_keys(name, g.double()) for g in (mine[name], gradient))
            far[name] = float((a - b).norm() / b.norm())
            worst[name] = max(worst.get(name, 0.0), far[name])
        farthest = max(far, key=far.__getitem__)
        off = {"loss": abs(our_loss - loss), "gradient": far[farthest]}
        bad = [what for what, limit in tolerance.items() if not off[what] <= limit]
        wrong |= bool(bad)
        print(
            f"{step:4} {our_loss:10.6f} {loss:10.6f} {off['loss']:9.1e}   "
            f"{off['gradient']:.1e} {farthest}"
            + (f"   OUT OF TOLERANCE: {', '.join(bad)}" if bad else "")
        )
    print("gradients at worst: " + ", ".join(f"{name} {d:.1e}" for name, d in worst.items()))
    return wrong


def without_keys(name: str, gradient: torch.Tensor) -> torch.Tensor:
    """The keys' bias adds the same to all scores of a query: its gradient is rounding error."""
    if name != "qkvb":
        return gradient
    q, _, v = gradient.chunk(3, dim=1)
    return torch.cat([q, v], dim=1)


# ---- times --------------------------------------------------------------------------------------


def compare_times(options: argparse.Namespace) -> int:
    """Print a table of step times; keep each in doc/results/training/<device>-torch.json, in the
    place of an older one of the same job."""
    machine = machine_of(job_of(options, options.dtypes[0], 1, "naive").device)
    path = FOLDER / f"{results.slug(machine['name'])}-torch.json"
    machine |= {"torch": torch.__version__, "cuda_of_torch": torch.version.cuda}
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"steps": []}
    rows = {job_key(row): row for row in before["steps"]}
    print(f"{'B':>4} {'dtype':>6}  {'':24}{'ms/step':>10}{'tokens/s':>12}{'GiB':>8}")
    for dtype in options.dtypes:
        for B in options.batch or (4, 64):
            for name, measure in contenders(options, dtype, B, options.steps or 20):
                try:
                    ms, size, of_ours = measure()
                except (LadderError, RuntimeError) as error:  # PyTorch's own are RuntimeErrors
                    print(f"{B:4} {dtype:>6}  {name:24}{str(error).splitlines()[0]}")
                    continue
                row = {"B": B, "T": options.sequence, "dtype": dtype, "what": name, "ms": ms}
                speed = 1e3 * B * options.sequence / ms
                row |= {"tokens_per_second": speed, "gib": size / 2**30, "date": str(date.today())}
                row |= of_ours
                rows[job_key(row)] = row
                print(f"{B:4} {dtype:>6}  {name:24}{ms:10.2f}{speed:12,.0f}{size / 2**30:8.1f}")
                steps = sorted(rows.values(), key=job_key)
                write_json(path, {"machine": machine, "model": options.model, "steps": steps})
    print(f"written to {path}")
    return 0


def job_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["dtype"], row["B"], row["T"], row["what"]


def contenders(
    options: argparse.Namespace, dtype: str, B: int, steps: int
) -> Iterator[tuple[str, Callable[[], Measured]]]:
    """(name, function that measures a step)."""
    for rungs in options.rungs or ("best", "library"):
        yield (
            f"ours, --rungs {rungs}",
            lambda rungs=rungs: time_ours(job_of(options, dtype, B, rungs), steps),
        )
    shape = job_of(options, dtype, B, "naive").shape
    T = options.sequence
    yield "PyTorch, compiled", lambda: time_torch(shape, B, T, dtype, steps, False)
    yield "PyTorch, CUDA graph", lambda: time_torch(shape, B, T, dtype, steps, True)
    if dtype == "bf16":  # its other attention kernel, which it does not choose by itself
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            yield "PyTorch, graph, cuDNN", lambda: time_torch(shape, B, T, dtype, steps, True)


def time_ours(job: Job, steps: int) -> Measured:
    engine = job.engine()
    rungs = results.of_step(engine.rungs)
    ms = float(np.median(time_steps(engine, steps)))
    size = engine.memory_by_kind().total()
    del engine
    job.device.free_unused()
    return ms, size, rungs


def time_torch(shape: GPT2Config, B: int, T: int, dtype: str, steps: int, graph: bool) -> Measured:
    """torch.compile, fused AdamW, clipping, the vocabulary padded as ours; with the whole step in
    a CUDA graph or not."""
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    weights = weights_of(shape, "cuda", shape.padded_vocab)
    options = dict(lr=LR, betas=BETAS, eps=EPS, fused=True, capturable=graph)
    optimizer = torch_gpt2.optimizer_of(weights, decay=DECAY, **options)
    parameters = [w for group in optimizer.param_groups for w in group["params"]]
    tokens, targets = torch.randint(0, shape.vocab, (2, B, T), device="cuda")

    @torch.compile
    def loss_of(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = torch_gpt2.logits_of(weights, tokens, shape.heads)
        return torch_gpt2.loss_of(logits, targets)

    def step() -> None:
        with torch.autocast(
            "cuda", torch.bfloat16, enabled=dtype == "bf16", cache_enabled=not graph
        ):
            loss = loss_of(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not graph)

    for _ in range(5):
        step()
    run = recorded(step, "cuda") if graph else step
    times = []
    for _ in range(max(3, steps // 4)):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(4):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 4)
    return float(np.median(times)), torch.cuda.max_memory_allocated(), {}


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LadderError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
