"""`python -m trainer plot RUN`: draw the losses of a run again, from its log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ladder.common.command_line import Parser
from ladder.common.errors import LadderError
from trainer.run import logs


def main(argv: Sequence[str]) -> int:
    """The command line of `python -m trainer plot`."""
    parser = Parser(prog="python -m trainer plot", description="Draw loss.png from a run's log.")
    parser.add_argument("run", type=Path, help="the folder of a run")
    print(plot(parser.parse_args(argv).run))
    return 0


def plot(directory: Path) -> Path:
    """Write `loss.png` from `log.jsonl` in a run's folder; return its path.

    Raises LadderError where the folder has no log, or the log no losses.
    """
    log = directory / "log.jsonl"
    history = logs.read_history(log)
    if not history.train and not history.val:
        raise LadderError(f"{log} holds no losses yet; train a step first")
    from trainer.plots.losses import draw_losses  # takes half a second: not before a run begins

    picture = directory / "loss.png"
    draw_losses(history.train, history.val, directory.name, picture)
    return picture
