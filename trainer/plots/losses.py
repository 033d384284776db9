"""The picture of a run's losses, and the colours that all pictures here share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ladder.common.files import atomic_write

BLUE, ORANGE, INK, GRID = "#3b75af", "#d1603d", "#333333", "#e4e4e4"

Losses = Sequence[tuple[int, float]]  # (step, loss in nats per token)


def draw_losses(train: Losses, val: Losses, title: str, path: Path) -> None:
    """Write a picture of training and validation losses, of which there is at least one."""
    import matplotlib

    matplotlib.use("Agg")  # no screen needed
    import matplotlib.pyplot as plt
    from matplotlib.patheffects import withStroke

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
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("loss (nats per token)", color=INK)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    axes.legend(frameon=False)
    try:
        with atomic_write(path) as file:
            figure.savefig(file, format="png")
    finally:
        plt.close(figure)
