"""What the notebook on GPT-2 calls, beside ladder/core/show/notebook.py.

    from trainer import notebook as gpt

    gpt.calls(program, layer=3)        a table: what one layer does, and what that takes
    run = gpt.start(shape, B=8, T=64)  a run of the trainer, to be taken step by step
    gpt.finetune()                     a picture of a run whose log is in doc/results

Nothing that it shows of measurements is typed: it is read from doc/results.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from IPython.display import Markdown, display

from ladder.core.common.files import read_json
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.measure import results
from ladder.core.show.notebook import draw
from reference.rounding import round_at_random
from trainer.commands import climb as measured_climb
from trainer.commands import step_timing
from trainer.data.tokenizers import GPT2Tokenizer
from trainer.engine import memory
from trainer.files.logs import History, read_history
from trainer.model.model_config import ModelConfig
from trainer.model.program import Program, build
from trainer.notebook.exercises import check_floor, check_order, mlp_backward
from trainer.notebook.small_run import Run, start
from trainer.plots import runs as plots
from trainer.plots import training_step

# what the notebook calls from here although it stands elsewhere
__all__ = ["check_floor", "check_order", "mlp_backward", "start"]

LOGS = results.SHIPPED / "logs"
BF16 = DTYPES["bfloat16"]


# ---- the program --------------------------------------------------------------------------------


def calls(program: Program, layer: int, part: str = "forward", real: np.dtype = BF16) -> None:
    """What one layer does in the "forward" or "backward" part: a table of its op calls."""
    lines = [
        "| place | op | dimensions | writes | reads | MB | MFLOP |",
        "|" + "---|" * 5 + "--:|--:|",
    ]
    for call in getattr(program, part):
        if not call.where.startswith(f"h{layer}."):
            continue
        op = find(call.op).op
        args = [(arg, ref[0]) for arg, ref in zip(op.args, call.args, strict=True) if ref]
        cells = [
            call.where,
            call.op,
            " ".join(f"{name}={size}" for name, size in call.dims.items()),
            " ".join(name for arg, name in args if arg.role != "in"),
            " ".join(name for arg, name in args if arg.role == "in"),
            f"{op.least_bytes(call.dims, real) / 1e6:,.1f}",
            f"{op.flops(call.dims) / 1e6:,.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    display(Markdown("\n".join(lines)))


def flops_and_bytes(program: Program, real: np.dtype = BF16) -> None:
    """FLOPs and least bytes of a training step, by op."""
    title = f"A training step of GPT-2, B={program.B} T={program.T}, {real.name}, by op"
    calls = ((call.op, call.dims) for call in program.training_step)
    draw(training_step.flops_and_bytes(calls, real, title), title)


def memory_by_kind(shape: ModelConfig, B: int, T: int) -> None:
    """The memory of a training run, by kind; nothing is allocated."""
    rows = {"fp32": memory.by_kind(build(shape, B, T), DTYPES["float32"])}
    for level in range(3):
        sizes = memory.by_kind(build(shape, B, T, recompute=level), BF16)
        rows["bf16" + (f", -r {level}" if level else "")] = sizes
    title = f"What is allocated to train, B={B} T={T}"
    draw(training_step.memory(rows, title), title)


# ---- losses -------------------------------------------------------------------------------------


def losses(title: str, **curves: Run) -> None:
    """Training losses of runs, by name; underscores stand for spaces."""
    runs = {name.replace("_", " "): run for name, run in curves.items()}
    first = next(iter(runs.values()))
    levels = {f"ln {first.shape.vocab}": float(np.log(first.shape.vocab)), **first.counted()}
    lists = {name: run.losses for name, run in runs.items()}
    draw(plots.losses(lists, levels, title), title)


def compare(one: Run, other: Run) -> None:
    """Two runs over the steps that both have taken: their losses, and how far apart these are."""
    steps = min(len(one.losses), len(other.losses))
    names = one.name, other.name
    figure = plots.compare(one.losses[:steps], other.losses[:steps], names)
    draw(figure, f"losses of {names[0]} and {names[1]}")


# ---- number formats -----------------------------------------------------------------------------


def formats(run: Run, scale: float, mark: str, size: float) -> None:
    """What number formats can hold, above the gradients of a run, plain and times a loss scale;
    `mark` names another gradient, of a given size."""
    title = "What three number formats can hold, and the sizes of gradients"
    draw(training_step.formats(run.activation_gradients(), scale, (mark, size), title), title)


def add_up(start: float, step: float, count: int) -> dict[str, np.ndarray]:
    """A weight after each of `count` small additions, by how it is kept between them."""
    nearest, at_random, master = BF16.type(start), BF16.type(start), np.float32(start)
    words = np.random.default_rng(0).integers(0, 2**32, (count, 1), dtype=np.uint32)
    paths: dict[str, Any] = {"exact": start + step * np.arange(1, count + 1)}
    paths |= {"bfloat16": [], "bfloat16, rounded at random": [], "float32, a master copy": []}
    for word in words:
        nearest = BF16.type(np.float32(nearest) + np.float32(step))
        moved = np.float32(at_random) + np.float32(step)
        at_random = round_at_random(np.array([moved]), word, BF16)[0]
        master += np.float32(step)
        for path, value in zip(list(paths.values())[1:], (nearest, at_random, master), strict=True):
            path.append(float(value))
    return {name: np.asarray(path) for name, path in paths.items()}


def drift(start: float, step: float, count: int) -> None:
    """The same as a picture."""
    title = f"{count} updates of {step:g} to a weight of {start:g}"
    draw(training_step.drift(add_up(start, step, count), title), title)


# ---- what was measured --------------------------------------------------------------------------


def finetune() -> History:
    """The finetune on a GPU, and its first steps on a CPU; its log, for the samples."""
    run = read_history(LOGS / "nvidia-h200-finetune.jsonl")
    reference = read_history(LOGS / "cpu-finetune-10-steps.jsonl")
    title = "GPT-2 124M on tinyshakespeare, from random weights, bf16, B=4 T=1024, NVIDIA H200"
    vocab = GPT2Tokenizer.vocab
    draw(plots.finetune(run.train, run.val, reference.train, vocab, title), title)
    return run


def step_times(device: str = "nvidia-h200") -> None:
    """A training step of ours beside PyTorch's."""
    path = step_timing.FOLDER / f"{device}-torch.json"
    content = read_json(path)
    rows = [
        {**row, "what": row["what"] + results.since(row)}
        for row in sorted(content["steps"], key=lambda row: not row["what"].startswith("ours"))
    ]
    title = f"A training step of GPT-2 124M, T=1024, {content['machine']['name']}: "
    draw(training_step.times(rows, f"{title}shorter is better"), f"{title}shorter is better")


def measured_profiles() -> list[dict[str, Any]]:
    """Profiles of GPT-2 124M from doc/results, the smallest B first; measure/profile.py says
    what is in them."""
    paths = sorted(step_timing.FOLDER.glob("*-profile-gpt2-*.json"))
    profiles = [read_json(path) for path in paths]
    return sorted((p for p in profiles if "gpu" in p["machine"]), key=lambda p: p["B"])


def profile() -> dict[str, Any]:
    """Where the time of a measured step goes, and where several were measured, of all of them side
    by side. Returns the first."""
    first, *others = measured_profiles()
    title = f"GPT-2 124M, {_setting(first)}, {first['machine']['name']}: {first['step_ms']:.2f} ms"
    draw(training_step.profile(first, title), title)
    if others:
        title = "Nanoseconds for each token of a step, GPT-2 124M"
        named = {f"{_setting(p)}\n{p['machine']['name']}": p for p in (first, *others)}
        draw(training_step.profiles(named, title), title)
    return first


def _setting(p: Mapping[str, Any]) -> str:
    library = any(row["rung"].startswith("cublas") for row in p["ops"])
    flags = p.get("kernels", "").removeprefix("best").removeprefix("library").strip("-")
    parts = [f"B={p['B']} T={p['T']}", p["dtype"], "with cuBLAS" if library else "", flags]
    return ", ".join(part for part in parts if part) + results.since(p)


def climb() -> None:
    """What each ladder was worth to the step, where that has been measured."""
    paths = sorted(step_timing.FOLDER.glob("*-climb*.json"))
    for path in paths:
        figure = measured_climb.draw(read_json(path))
        draw(figure, "tokens per second as one op after the other rises")
    if not paths:
        how = "`make climb`, on a machine with an NVIDIA GPU, measures and draws it"
        display(Markdown(f"*No climb has been measured yet: {how}.*"))
