"""Tables about whole training steps, from doc/results/training and doc/results/logs."""

from collections.abc import Sequence
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json, read_text
from ladder.core.measure import results

# What tests/gpu_vs_torch.py times, in the order of the tables, and what a page calls it.
CONTENDERS = {
    "ours, --rungs best": "`--rungs best`",
    "ours, --rungs library": "`--rungs library`",
    "PyTorch, compiled": "PyTorch, compiled",
    "PyTorch, CUDA graph": "PyTorch, compiled, CUDA graph",
    "PyTorch, graph, cuDNN": "the same with cuDNN's attention",
}


def step_times(device: str) -> str:
    """Time of a training step of ours and of PyTorch, for each dtype and batch size."""
    rows = _measured(device)
    lines = ["| | | ms/step | tokens/s | GiB |", "|---|---|--:|--:|--:|"]
    for dtype, batch in dict.fromkeys((row["dtype"], row["B"]) for row in rows):
        job = f" B={batch}" + (f", {dtype}" if dtype != "bf16" else "")
        for what, label in CONTENDERS.items():
            for row in rows:
                if (row["dtype"], row["B"], row["what"]) == (dtype, batch, what):
                    name = label + results.since(row)
                    lines.append(f"|{job} | {name} | {_speed(row)} | {row['gib']:.1f} |")
                    job = ""
    return "\n".join(lines)


def step_summary(device: str, dtype: str) -> str:
    """Ours beside the fastest way to run PyTorch: a line each, a column for each batch size."""
    rows = [row for row in _measured(device) if row["dtype"] == dtype]
    batches = sorted({row["B"] for row in rows})
    heads = [f"B={batch}: ms/step | tokens/s" for batch in batches]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "--:|--:|" * len(batches)]
    for label, prefix in (
        ("hand-written kernels only, `--rungs best`", "ours, --rungs best"),
        ("cuBLAS for the matrix products, `--rungs library`", "ours, --rungs library"),
        ("PyTorch, compiled, the fastest of its variants", "PyTorch"),
    ):
        named = [row for row in rows if row["what"].startswith(prefix)]
        if {row["B"] for row in named} != {*batches}:  # not measured on this device
            continue
        fastest = [min((r for r in named if r["B"] == b), key=lambda r: r["ms"]) for b in batches]
        cells = [_speed(row) + results.since(row) for row in fastest]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _measured(device: str) -> Sequence[dict[str, Any]]:
    path = results.kept(f"training/{device}-torch.json")
    try:
        steps: list[dict[str, Any]] = read_json(path)["steps"]
    except (KeyError, TypeError) as error:
        raise LadderError(f"{path} holds no step times: {error!r}") from None
    return steps


def _speed(row: dict[str, Any]) -> str:
    return f"{row['ms']:,.2f} | {row['tokens_per_second']:,.0f}"


def log(name: str) -> str:
    """The output that is kept in doc/results/logs under a name, without its comments."""
    lines = read_text(results.kept(f"logs/{name}.txt")).splitlines()
    return "\n".join(line for line in lines if not line.startswith("# "))
