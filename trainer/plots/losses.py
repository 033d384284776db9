"""Draws the course of the loss from the log of a run.

python -m trainer plot runs/gpt2-tinyshakespeare      # writes loss.png there
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ladder.common.command_line import Parser
from ladder.common.errors import LadderError
from ladder.common.files import atomic_write
from trainer.run import logs

BLUE, ORANGE, INK, GRID = "#3b75af", "#d1603d", "#333333", "#e4e4e4"


def draw_losses(directory: Path) -> Path:
    """Write `loss.png` from `log.jsonl` in `directory`; return its path."""
    import matplotlib

    matplotlib.use("Agg")  # no screen needed
    import matplotlib.pyplot as plt
    from matplotlib.patheffects import withStroke

    log = directory / "log.jsonl"
    if not log.exists():
        raise LadderError(f"{log} does not exist; name the folder of a run")
    entries = logs.read(log)
    # A step's training loss is measured before its update, as is a validation at that step.
    train = [(e["step"], e["train_loss"]) for e in entries if e.get("train_loss") is not None]
    val = [(e["step"], e["val_loss"]) for e in entries if e.get("val_loss") is not None]
    if not train and not val:
        raise LadderError(f"{log} holds no losses yet; train a step first")

    figure, axes = plt.subplots(figsize=(7.2, 4.2), dpi=140, layout="constrained")
    if train:
        axes.plot(*zip(*train, strict=True), color=BLUE, linewidth=1.2, label="training")
    if val:
        halo = [withStroke(linewidth=3, foreground="white")]
        axes.plot(
            *zip(*val, strict=True), "o-", color=ORANGE, linewidth=1.8, markersize=4.5,
            label="validation",
        )  # fmt: skip
        for (step, loss), side in ((val[0], "left"), (val[-1], "right")):
            axes.annotate(
                f"{loss:.3f}", (step, loss), (0, 8), textcoords="offset points", ha=side,
                color=ORANGE, fontsize=9, path_effects=halo,
            )  # fmt: skip
    axes.set_title(directory.name, loc="left", color=INK, fontsize=11)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("loss (nats per token)", color=INK)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    axes.legend(frameon=False)
    path = directory / "loss.png"
    try:
        with atomic_write(path) as file:
            figure.savefig(file, format="png")
    finally:
        plt.close(figure)
    return path


def main(argv: Sequence[str]) -> int:
    """The command line of `python -m trainer plot`."""
    parser = Parser(prog="python -m trainer plot", description="Draw loss.png from a run's log.")
    parser.add_argument("run", type=Path, help="the folder of a run")
    print(draw_losses(parser.parse_args(argv).run))
    return 0


if __name__ == "__main__":
    from trainer.settings.command import run

    sys.exit(run(main, sys.argv[1:]))
