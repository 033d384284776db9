"""A drawing of how training scales with the number of GPUs."""

from typing import Any

from matplotlib.figure import Figure

from trainer.plots.style import BLUE, GREY, INK, ORANGE, figure_of


def draw(result: dict[str, Any]) -> Figure:
    """Tokens per second against ranks: measured, and what the smallest group promises.

    result  the content of a scaling file (trainer/commands/scaling.py)
    """
    title = (
        f"{result['model']}, B={result['B']} T={result['T']} on each rank, {result['dtype']}, "
        f"{result['machine']['name']}"
    )
    figure, panels = figure_of(title, 3.4, columns=2)
    rows = result["rows"]
    ranks = [row["ranks"] for row in rows]
    for axes, kind, colour in ((panels[0], "weak", BLUE), (panels[1], "strong", ORANGE)):
        speeds = [row[f"{kind}_tokens_per_second"] for row in rows]
        ideal = [speeds[0] / ranks[0] * count for count in ranks]
        axes.plot(ranks, ideal, color=GREY, lw=1, label="ideal")
        axes.plot(ranks, speeds, "o-", color=colour, label=f"{kind} scaling")
        for row, speed in zip(rows, speeds, strict=True):
            share = f"{100 * row[f'{kind}_efficiency']:.0f} %"
            axes.annotate(share, (row["ranks"], speed), (4, -12), textcoords="offset points")
        axes.set_xticks(ranks)
        axes.set_xlabel("ranks", color=INK)
        axes.set_ylabel("tokens/s", color=INK)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, frameon=False)
    return figure
