"""The course of runs, drawn over each other from their logs."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ladder.core.common.errors import LadderError
from trainer.files import logs
from trainer.files.logs import History


class Mark(NamedTuple):
    """What OpenAI's models of one size reach.

    loss  of GPT-2's weights, on llm.c's FineWeb validation shard, in nats per token
    gpt2  accuracy of GPT-2's weights on HellaSwag, by llm.c's dev/data/hellaswag.py
    gpt3  the same of GPT-3, zero-shot (Brown et al. 2020, table H.1)
    """

    loss: float
    gpt2: float
    gpt3: float


MARKS = {  # by GPT-2's size; GPT-3's is the next to it: 125M, 350M, 760M, 1.3B
    "124M": Mark(3.424958, 0.294463, 0.337),
    "350M": Mark(3.083089, 0.375224, 0.436),
    "774M": Mark(3.000580, 0.431986, 0.510),
    "1558M": Mark(2.831273, 0.488946, 0.547),
}
COLUMNS = (  # of a table of runs
    *("steps", "last training", "best validation", "at step", "best HellaSwag"),
    *("ms/step", "tokens/s"),
)
SMOOTHED = 100  # the moving average takes this part of a run's steps, unless --smooth says another


def plot(directory: Path) -> Path:
    """Write `loss.png` in a run's folder, from its log; return its path.

    Raises LadderError where the folder has no log, or the log no losses.
    """
    history = read_losses(logs.find_log(directory))
    return draw({directory.name: history}, directory / "loss.png")


def draw(
    runs: dict[str, History], path: Path, smooth: int | None = None, marks: str | None = None
) -> Path:
    """Write the picture of some runs, by name.

    smooth  steps of the moving average; None: a part of the longest run's
    marks   a size of MARKS
    """
    from trainer.plots import runs as plots  # takes half a second: not before a run begins
    from trainer.plots.style import save

    first = next(iter(runs.values()))
    start = dict(first.train)
    curves = {
        _label(name, run) if 1 < len(runs) <= len(plots.COLOURS) else name: {
            plots.TRAINING: run.train,
            plots.VALIDATION: run.val,
            plots.TRAIN_SPLIT: run.train_split,
            plots.EVALUATION: run.evaluation,
            plots.DIFFERENCE: [
                (step, loss - start[step])
                for step, loss in run.train
                if run is not first and step in start
            ],
            plots.TIME: run.ms[1:],
            plots.RATE: run.lr,
            plots.NORM: run.norm,
        }
        for name, run in runs.items()
    }
    lines = {}
    if marks is not None:
        mark = MARKS[marks]
        lines[plots.VALIDATION] = {f"GPT-2 {marks}": mark.loss}
        lines[plots.EVALUATION] = {f"GPT-2 {marks}": mark.gpt2, f"GPT-3 {marks}": mark.gpt3}
    window = smooth or max(len(run.train) for run in runs.values()) // SMOOTHED
    title = next(iter(runs)) if len(runs) == 1 else ""
    save(plots.draw_runs(curves, title, window, lines), path)
    return path


def best_values(run: History) -> tuple[str, ...]:
    """What a table shows in COLUMNS: steps, the mean training loss of the last hundredth of them,
    the least validation loss and its step, the highest accuracy, and the medians of a step's time
    and speed; "-" for what the log does not have."""
    steps = max((curve[-1][0] for curve in (run.train, run.val) if curve), default=0)
    tail = [loss for _, loss in run.train[-max(1, len(run.train) // SMOOTHED) :]]
    training = f"{statistics.fmean(tail):.4f}" if tail else "-"
    validation, at = "-", "-"
    if run.val:
        step, loss = min(run.val, key=lambda pair: pair[1])
        validation, at = f"{loss:.4f}", f"{step:,}"
    accuracy = f"{max(value for _, value in run.evaluation):.4f}" if run.evaluation else "-"
    # Without the first step, which takes longer: caches are cold, and kernels may be compiled.
    times, speeds = ([value for _, value in curve][1:] for curve in (run.ms, run.speed))
    ms = f"{statistics.median(times):,.2f}" if times else "-"
    speed = f"{statistics.median(speeds):,.0f}" if speeds else "-"
    return f"{steps:,}", training, validation, at, accuracy, ms, speed


def table_of(
    fields: Sequence[str], runs: Iterable[tuple[Iterable[str], History]]
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Columns and rows: for each run the values of some fields, then its best values, without the
    columns that all runs lack."""
    columns = [*fields, *(f"{name}>" for name in COLUMNS)]
    rows = [(*values, *best_values(history)) for values, history in runs]
    kept = [i for i in range(len(columns)) if any(row[i] != "-" for row in rows)]
    return [columns[i] for i in kept], [tuple(row[i] for i in kept) for row in rows]


def _label(name: str, run: History) -> str:
    """A run's name with its least validation loss and its speed, as far as they are known."""
    _, _, loss, _, _, ms, speed = best_values(run)
    facts = f"validation {loss}", f"{ms} ms/step", f"{speed} tokens/s"
    known = ", ".join(fact for fact in facts if "-" not in fact.split())
    return f"{name}: {known}" if known else name


def read_losses(log: Path) -> History:
    """Raises LadderError where the log holds no losses."""
    history = logs.read_history(log)
    if not history.train and not history.val:
        raise LadderError(f"{log} holds no losses; name the log of a run that has taken a step")
    return history
