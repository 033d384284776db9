"""`python -m trainer plot RUN ...`: draw the course of runs over each other, from their logs.

A run is the folder of a run of this trainer or of llm.c, or a log in it. The marks are those that
llm.c's notebook draws (karpathy/llm.c, dev/vislog.ipynb).
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ladder.core.common.command_line import Parser
from ladder.core.common.errors import LadderError
from trainer.files import logs
from trainer.files.logs import History
from trainer.report import Display, open_console


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
PICTURES = (".png", ".svg", ".pdf")
SMOOTHED = 100  # the moving average takes this part of a run's steps, unless --smooth says another


def main(argv: Sequence[str]) -> int:
    """The command line of `python -m trainer plot`."""
    parser = Parser(
        prog="python -m trainer plot",
        description="Draw losses, evaluations, learning rate and gradient norm of one or more runs "
        "over each other, and print their best values.",
    )
    parser.add_argument(
        "run", type=Path, nargs="+", help="the folder of a run, also of llm.c's, or its log"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help="the picture; default loss.png in the folder of a single run, else runs.png",
    )
    parser.add_argument(
        "--smooth",
        type=int,
        metavar="N",
        help="show training loss and norm as moving averages over N steps; 1: as logged; default "
        f"1/{SMOOTHED} of the steps",
    )
    parser.add_argument(
        "--marks",
        choices=MARKS,
        metavar=" | ".join(MARKS),
        help="draw what GPT-2 and GPT-3 of that size reach on FineWeb and HellaSwag",
    )
    words = parser.parse_args(argv)
    if words.smooth is not None and words.smooth < 1:
        raise LadderError(f"--smooth {words.smooth}: choose 1 or more steps")
    logs_of = [logs.find_log(run) for run in words.run]
    output = words.output
    if output is None:
        output = logs_of[0].parent / "loss.png" if len(logs_of) == 1 else Path("runs.png")
    if output.suffix not in PICTURES:
        raise LadderError(f"-o {output}: its name must end in {', '.join(PICTURES)}")
    runs = {name: _read(log) for name, log in zip(_names(logs_of), logs_of, strict=True)}
    Display(open_console(), 0).table(
        ("run", "steps>", "last training>", "best validation>", "at step>", "best HellaSwag>"),
        [(name, *best_values(history)) for name, history in runs.items()],
    )
    print(draw(runs, output, words.smooth, words.marks))
    return 0


def plot(directory: Path) -> Path:
    """Write `loss.png` in a run's folder, from its log; return its path.

    Raises LadderError where the folder has no log, or the log no losses.
    """
    history = _read(logs.find_log(directory))
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

    curves = {
        name: {
            plots.TRAINING: run.train,
            plots.VALIDATION: run.val,
            plots.TRAIN_SPLIT: run.train_split,
            plots.EVALUATION: run.evaluation,
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
    figure = plots.draw_runs(curves, title, window, lines)
    save(figure, path)
    return path


def best_values(run: History) -> tuple[str, str, str, str, str]:
    """Steps, the mean training loss of the last hundredth of them, the least validation loss and
    its step, and the highest accuracy, as a table shows them."""
    steps = max((curve[-1][0] for curve in (run.train, run.val) if curve), default=0)
    tail = [loss for _, loss in run.train[-max(1, len(run.train) // SMOOTHED) :]]
    training = f"{statistics.fmean(tail):.4f}" if tail else "-"
    validation, at = "-", "-"
    if run.val:
        step, loss = min(run.val, key=lambda pair: pair[1])
        validation, at = f"{loss:.4f}", f"{step:,}"
    accuracy = f"{max(value for _, value in run.evaluation):.4f}" if run.evaluation else "-"
    return f"{steps:,}", training, validation, at, accuracy


def _read(log: Path) -> History:
    """Raises LadderError where the log holds no losses."""
    history = logs.read_history(log)
    if not history.train and not history.val:
        raise LadderError(f"{log} holds no losses; name the log of a run that has taken a step")
    return history


def _names(logs_of: Sequence[Path]) -> list[str]:
    """Names that tell runs apart: their folders, without what all paths begin with."""
    folders = [Path(os.path.abspath(log.parent)) for log in logs_of]
    if len(set(folders)) == 1:
        return [folders[0].name] if len(folders) == 1 else [str(log) for log in logs_of]
    if len({folder.name for folder in folders}) == len(folders):
        return [folder.name for folder in folders]
    common = os.path.commonpath(folders)
    return [os.path.relpath(folder, common) for folder in folders]
