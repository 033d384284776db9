"""What the notebook on GPT-2 calls, beside ladder/core/show/notebook.py.

    from trainer import notebook as gpt

    gpt.calls(program, layer=3)        a table: what one layer does, and what that takes
    run = gpt.start(shape, B=8, T=64)  a run of the trainer, to be taken step by step
    gpt.finetune()                     a picture of a run whose log is in doc/results

Nothing that it shows of measurements is typed: it is read from doc/results.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from IPython.display import Markdown, display
from matplotlib import colormaps

from ladder.core.common.files import read_json
from ladder.core.common.moved import gone
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.measure import results
from ladder.core.measure.roofline import COMPUTE_BOUND
from ladder.core.show.notebook import draw
from ladder.core.show.tables import markdown
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
from trainer.plots.style import BESIDE, BLUE, GREEN, GREY, GRID, INK, ORANGE, figure_of

# what the notebook calls from here although it stands elsewhere
__all__ = ["check_floor", "check_order", "mlp_backward", "start"]

LOGS = results.SHIPPED / "logs"
BF16 = DTYPES["bfloat16"]
KINDS = {  # of memory, in the order in which they are stacked
    "parameter": BLUE,
    "master": "#8fb3d9",
    "gradient": ORANGE,
    "moment": "#e9b44c",
    "activation": GREEN,
    "scratch": "#b9cfae",
    "input": GREY,
}
FORMATS = {
    "float32": np.finfo(np.float32),
    "bfloat16": ml_dtypes.finfo(ml_dtypes.bfloat16),
    "float16": np.finfo(np.float16),
}

__getattr__ = functools.partial(gone, __name__)


# ---- the program --------------------------------------------------------------------------------


def calls(program: Program, layer: int, part: str = "forward", real: np.dtype = BF16) -> None:
    """What one layer does in the "forward" or "backward" part: a table of its op calls."""
    titles = ("place", "op", "dimensions", "writes", "reads", "MB", "MFLOP")
    rows = []
    for call in getattr(program, part):
        if not call.where.startswith(f"h{layer}."):
            continue
        op = find(call.op).op
        args = [(arg, ref[0]) for arg, ref in zip(op.args, call.args, strict=True) if ref]
        row = (
            call.where,
            call.op,
            " ".join(f"{name}={size}" for name, size in call.dims.items()),
            " ".join(name for arg, name in args if arg.role != "in"),
            " ".join(name for arg, name in args if arg.role == "in"),
            f"{op.least_bytes(call.dims, real) / 1e6:,.1f}",
            f"{op.flops(call.dims) / 1e6:,.0f}",
        )
        rows.append(row)
    display(Markdown(markdown(titles, rows, left=5)))


def flops_and_bytes(program: Program, real: np.dtype = BF16) -> None:
    """FLOPs and least bytes of a training step, by op: products and attention, and the rest."""
    title = f"A training step of GPT-2, B={program.B} T={program.T}, {real.name}, by op"
    flops: dict[str, int] = {}
    moved: dict[str, int] = {}
    for call in program.training_step:
        op = find(call.op).op
        flops[call.op] = flops.get(call.op, 0) + op.flops(call.dims)
        moved[call.op] = moved.get(call.op, 0) + op.least_bytes(call.dims, real)
    order = sorted(flops, key=lambda name: -flops[name])
    products = [name for name in order if flops[name] > COMPUTE_BOUND * moved[name]]
    figure, panels = figure_of(title, 1.1 + 0.27 * len(order), columns=2, sharey=True)
    units = ("GFLOP", "least bytes, in GB")
    for axes, counts, unit in zip(panels, (flops, moved), units, strict=True):
        total = sum(counts.values())
        colours = [BLUE if name in products else ORANGE for name in order]
        axes.barh(order, [counts[name] / 1e9 for name in order], color=colours, height=0.7)
        for row, name in enumerate(order):
            share = 100 * counts[name] / total
            short = f"{share:.0f} %" if share >= 1 else "< 1 %"
            axes.annotate(short, (counts[name] / 1e9, row), **BESIDE)
        part = 100 * sum(counts[name] for name in products) / total
        axes.set_xlim(0, 1.18 * max(counts.values()) / 1e9)
        axes.set_xlabel(
            f"{unit}: {total / 1e9:,.1f} in total, {min(part, 99.9):.3g} % of it blue", fontsize=9
        )
    panels[0].invert_yaxis()
    draw(figure)


def memory_by_kind(shape: ModelConfig, B: int, T: int) -> None:
    """The memory of a training run: a bar for each way to run, stacked by kind of buffer; nothing
    is allocated."""
    rows = {"fp32": memory.by_kind(build(shape, B, T), DTYPES["float32"])}
    for level in range(3):
        sizes = memory.by_kind(build(shape, B, T, recompute=level), BF16)
        rows["bf16" + (f", -r {level}" if level else "")] = sizes
    title = f"What is allocated to train, B={B} T={T}"
    figure, (axes,) = figure_of(title, 0.9 + 0.42 * len(rows))
    left = np.zeros(len(rows))
    for kind, colour in KINDS.items():
        widths = np.array([sizes.get(kind, 0) / 2**30 for sizes in rows.values()])
        if widths.max() < 0.005:  # the inputs: too little to be seen
            continue
        axes.barh(list(rows), widths, left=left, color=colour, height=0.65, label=kind)
        for row, width in enumerate(widths):
            if width > 0.04 * max(sum(sizes.values()) for sizes in rows.values()) / 2**30:
                place = left[row] + width / 2
                axes.text(place, row, f"{width:.2f}", ha="center", va="center", fontsize=8)
        left += widths
    for row, total in enumerate(left):
        axes.annotate(f"{total:.2f} GiB", (total, row), **BESIDE)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(left))
    axes.set_xlabel("GiB", fontsize=9)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
    axes.legend(frameon=False, fontsize=8, ncols=len(KINDS), **below)
    draw(figure)


# ---- losses -------------------------------------------------------------------------------------


def losses(title: str, **curves: Run) -> None:
    """Training losses of runs, by name; underscores stand for spaces. Dotted lines: the losses of
    simpler models."""
    runs = {name.replace("_", " "): run for name, run in curves.items()}
    first = next(iter(runs.values()))
    levels = {f"ln {first.shape.vocab}": float(np.log(first.shape.vocab)), **first.counted()}
    figure, (axes,) = figure_of(title, 3.4)
    for (name, run), colour in zip(runs.items(), (BLUE, ORANGE), strict=False):
        steps = range(1, len(run.losses) + 1)
        axes.plot(steps, run.losses, color=colour, lw=1.2, label=name)
    beside = {"fontsize": 8, "color": INK, "va": "center", "transform": axes.get_yaxis_transform()}
    for name, level in levels.items():
        axes.axhline(level, color=GREY, ls=":", lw=1.2)
        axes.text(1.005, level, f"{level:.2f}  {name}", **beside)
    _loss_axes(axes, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)  # above the levels
    draw(figure)


def compare(one: Run, other: Run) -> None:
    """Two runs over the steps that both have taken: their losses, and how far apart these are."""
    count = min(len(one.losses), len(other.losses))
    here, there = np.array(one.losses[:count]), np.array(other.losses[:count])
    title = f"{one.name} and {other.name}, the same steps"
    figure, (above, below) = figure_of(title, 3.6, rows=2, sharex=True, height_ratios=(2, 1))
    steps = np.arange(1, count + 1)
    above.plot(steps, here, color=BLUE, lw=4, alpha=0.35, label=one.name)
    above.plot(steps, there, "o", color=INK, ms=3.5, label=other.name)
    _loss_axes(above)
    above.set_xlabel("")
    apart = np.abs(here - there) / np.abs(here)
    below.semilogy(steps, np.maximum(apart, 1e-10), "o-", color=ORANGE, ms=3.5, lw=1)
    below.axhline(2.0**-24, color=GREY, ls=":", lw=1)
    above_line = {"fontsize": 8, "va": "bottom", "ha": "right", "color": INK}
    below.text(steps[-1], 2.0**-24, "half a unit in the last place of float32", **above_line)
    below.set_ylim(1e-9, 1e-4)
    below.set_ylabel("relative difference", fontsize=9)
    below.set_xlabel("step", fontsize=9)
    below.grid(axis="y", color=GRID)
    draw(figure, f"losses of {one.name} and {other.name}")


def _loss_axes(axes: Any, **legend: Any) -> None:
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel("loss (nats per token)", fontsize=9)
    axes.grid(axis="y", color=GRID)
    axes.legend(frameon=False, fontsize=9, **legend)


# ---- number formats -----------------------------------------------------------------------------


def formats(run: Run, scale: float, mark: str, size: float) -> None:
    """What number formats can hold, above the gradients of a run, plain and times a loss scale;
    `mark` names another gradient, of a given size."""
    title = "What three number formats can hold, and the sizes of gradients"
    figure, (above, below) = figure_of(title, 4.2, rows=2, sharex=True)
    for row, info in enumerate(FORMATS.values()):
        limits = info.smallest_subnormal, info.tiny, info.max
        least, normal, most = (math.log2(float(limit)) for limit in limits)
        above.barh(row, most - normal, left=normal, height=0.5, color=BLUE)
        above.barh(row, normal - least, left=least, height=0.5, color="#c5d7ea")
        colour = "white" if most > 100 else INK
        precision = f"{info.nmant + 1} bits of precision"
        above.text(70, row, precision, color=colour, fontsize=9, ha="center", va="center")
    above.set_yticks(range(len(FORMATS)), list(FORMATS), fontsize=9)
    above.invert_yaxis()
    gradients = run.activation_gradients()
    sizes = np.log2(gradients[gradients > 0].astype(np.float64))
    for shift, colour, name in (
        (0, ORANGE, "gradients of activations"),
        (math.log2(scale), GREEN, f"the same, times {scale:,.0f}"),
    ):
        below.hist(sizes + shift, np.arange(-60, 30), color=colour, alpha=0.75, label=name)
    half = FORMATS["float16"]
    for axes in (above, below):
        for limit in (float(half.smallest_subnormal) / 2, float(half.max)):
            axes.axvline(math.log2(limit), color=INK, ls=":", lw=1)
    below.axvline(math.log2(size), color="#7a3e9d", lw=1.5, label=mark)
    below.set_yticks([])
    below.set_ylabel("how many", fontsize=9)
    below.set_xlim(-150, 130)
    ticks = range(-140, 129, 20)
    below.set_xticks(ticks, [f"$2^{{{tick}}}$" for tick in ticks], fontsize=8)
    beyond = "size; float16 rounds to 0 left of the dotted lines, and to infinity right of them"
    below.set_xlabel(beyond, fontsize=9)
    below.legend(frameon=False, fontsize=8, loc="upper left")
    draw(figure)


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
    figure, (axes,) = figure_of(f"{count} updates of {step:g} to a weight of {start:g}", 3.0)
    # the exact one is broad, and the others lie on it
    styles = ((GREY, "-", 5.0), (ORANGE, "-", 2.0), (GREEN, "-", 1.0), (BLUE, "--", 1.5))
    paths = add_up(start, step, count)
    for (name, path), (colour, style, width) in zip(paths.items(), styles, strict=True):
        axes.plot(path, style, color=colour, lw=width, label=name)
    axes.set_xlabel("updates", fontsize=9)
    axes.set_ylabel("the weight", fontsize=9)
    axes.grid(color=GRID)
    axes.legend(frameon=False, fontsize=9)
    draw(figure)


# ---- what was measured --------------------------------------------------------------------------


def finetune() -> History:
    """The finetune on a GPU, and its first steps on a CPU; its log, for the samples."""
    run = read_history(LOGS / "nvidia-h200-finetune.jsonl")
    reference = read_history(LOGS / "cpu-finetune-10-steps.jsonl")
    title = "GPT-2 124M on tinyshakespeare, from random weights, bf16, B=4 T=1024, NVIDIA H200"
    figure, (axes,) = figure_of(title, 3.6)
    axes.plot(*zip(*run.train, strict=True), color=BLUE, lw=1.3, label="training")
    axes.plot(*zip(*run.val, strict=True), "o-", color=ORANGE, lw=1.6, ms=4, label="validation")
    name = f"the NumPy reference on a CPU, {len(reference.train)} steps"
    axes.plot(*zip(*reference.train, strict=True), "x", color=INK, ms=6, label=name)
    for step, loss in (run.val[0], run.val[-1]):
        look = {"textcoords": "offset points", "fontsize": 8, "color": ORANGE}
        axes.annotate(f"{loss:.2f}", (step, loss), (5, 5), **look)
    vocab, chance = GPT2Tokenizer.vocab, math.log(GPT2Tokenizer.vocab)
    axes.axhline(chance, color=GREY, ls=":", lw=1.2, label=f"ln {vocab:,} = {chance:.2f}")
    _loss_axes(axes)
    draw(figure)
    return run


def step_times(device: str = "nvidia-h200") -> None:
    """A training step of ours beside PyTorch's, a panel for each type and batch size."""
    content = read_json(step_timing.FOLDER / f"{device}-torch.json")
    machine = content["machine"]["name"]
    title = f"A training step of GPT-2 124M, T=1024, {machine}: shorter is better"
    rows = [
        {**row, "what": row["what"] + results.since(row)}
        for row in sorted(content["steps"], key=lambda row: not row["what"].startswith("ours"))
    ]
    jobs = sorted({(row["dtype"], row["B"]) for row in rows})
    parts = [[row for row in rows if (row["dtype"], row["B"]) == job] for job in jobs]
    counts = [len(part) for part in parts]
    figure, panels = figure_of(
        title, 1.0 + 0.42 * sum(counts) + 0.35 * len(jobs), rows=len(jobs), height_ratios=counts
    )
    for axes, (dtype, B), chosen in zip(panels, jobs, parts, strict=True):
        colours = [BLUE if row["what"].startswith("ours") else GREY for row in chosen]
        ms = [row["ms"] for row in chosen]
        axes.barh([row["what"] for row in chosen], ms, color=colours, height=0.65)
        for place, each in enumerate(ms):
            axes.annotate(f"{each:.2f} ms", (each, place), **BESIDE)
        axes.set_xlim(0, 1.2 * max(ms))
        axes.set_title(f"B={B}, {dtype}", fontsize=9, loc="left")
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.invert_yaxis()
    draw(figure)


def measured_profiles() -> list[dict[str, Any]]:
    """Profiles of GPT-2 124M from doc/results, the smallest B first; trainer/commands/profile.py
    says what is in them."""
    paths = sorted(step_timing.FOLDER.glob("*-profile-gpt2-*.json"))
    profiles = [read_json(path) for path in paths]
    return sorted((p for p in profiles if "gpu" in p["machine"]), key=lambda p: p["B"])


def profile() -> dict[str, Any]:
    """Where the time of a measured step goes, and where several were measured, of all of them side
    by side. Returns the first."""
    first, *others = measured_profiles()
    _draw_ops(first)
    if others:
        _draw_side_by_side({f"{_setting(p)}\n{p['machine']['name']}": p for p in (first, *others)})
    return first


def _setting(p: Mapping[str, Any]) -> str:
    library = any(row["rung"].startswith("cublas") for row in p["ops"])
    flags = p.get("kernels", "").removeprefix("best").removeprefix("library").strip("-")
    parts = [f"B={p['B']} T={p['T']}", p["dtype"], "with cuBLAS" if library else "", flags]
    return ", ".join(part for part in parts if part) + results.since(p)


def _draw_ops(p: Mapping[str, Any]) -> None:
    """The ops of a step: a bar for the time, and one in front of it for the floor."""
    title = f"GPT-2 124M, {_setting(p)}, {p['machine']['name']}: {p['step_ms']:.2f} ms"
    rows = p["ops"]
    figure, (axes,) = figure_of(title, 1.0 + 0.29 * len(rows))
    names = [f"{row['op']}  {row['rung']}".rstrip() for row in rows]
    axes.barh(names, [row["ms"] for row in rows], color="#b7cde3", height=0.72, label="measured")
    floor = "floor: least time for memory or arithmetic"
    axes.barh(names, [row["floor_ms"] for row in rows], color=BLUE, height=0.36, label=floor)
    for place, row in enumerate(rows):
        share = f"{row['ms']:.3f} ms, {100 * row['ms'] / p['step_ms']:.1f} % of the step"
        axes.annotate(share, (max(row["ms"], row["floor_ms"]), place), **BESIDE)
    axes.set_xlim(0, 1.35 * max(row["ms"] for row in rows))
    axes.set_xlabel("ms", fontsize=9)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    draw(figure)


def _draw_side_by_side(named: Mapping[str, Mapping[str, Any]]) -> None:
    """A stacked bar for each step: nanoseconds per token, by op."""
    title = "Nanoseconds for each token of a step, GPT-2 124M"
    figure, (axes,) = figure_of(title, 1.8 + 0.5 * len(named))
    ops = list(dict.fromkeys(row["op"] for p in named.values() for row in p["ops"]))
    tokens = np.array([p["B"] * p["T"] for p in named.values()])
    ends, colours = np.zeros(len(named)), colormaps["tab20"]
    for i, op in enumerate((*ops, "between ops")):
        gaps = {name: max(0.0, p["gaps_ms"]) for name, p in named.items()}
        of_op = [
            gaps[name] if i == len(ops) else sum(r["ms"] for r in p["ops"] if r["op"] == op)
            for name, p in named.items()
        ]
        widths = 1e6 * np.array(of_op) / tokens
        axes.barh(list(named), widths, left=ends, color=colours(i % 20), height=0.6, label=op)
        ends += widths
    for row, (end, p) in enumerate(zip(ends, named.values(), strict=True)):
        axes.annotate(f"{p['tokens_per_second']:,.0f} tokens/s", (end, row), **BESIDE)
    axes.set_xlim(0, 1.2 * ends.max())
    axes.set_xlabel("ns per token", fontsize=9)
    axes.invert_yaxis()
    figure.legend(frameon=False, fontsize=7, ncols=5, loc="outside lower center")
    draw(figure)


def climb() -> None:
    """What each ladder was worth to the step, where that has been measured."""
    paths = sorted(step_timing.FOLDER.glob("*-climb*.json"))
    for path in paths:
        figure = measured_climb.draw(read_json(path))
        draw(figure, "tokens per second as one op after the other rises")
    if not paths:
        how = "`make climb`, on a machine with an NVIDIA GPU, measures and draws it"
        display(Markdown(f"*No climb has been measured yet: {how}.*"))
