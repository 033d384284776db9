"""Colours, figures and files that all drawings of the trainer share."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ladder.core.common.files import atomic_write

BLUE, ORANGE, INK, GRID = "#3b75af", "#d1603d", "#333333", "#e4e4e4"
GREY, GREEN = "#9a9a9a", "#6a9a58"
BESIDE: Any = {  # a text to the right of a point; an SVG drops spaces before it
    "xytext": (8, 0),
    "textcoords": "offset points",
    "va": "center",
    "fontsize": 8,
    "color": INK,
}


def figure_of(
    title: str, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, list[Any]]:
    """A figure as wide as a notebook, and its panels row by row; no window opens. `options`: what
    else `Figure.subplots` takes."""
    figure = Figure(figsize=(9.5, height), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **options).reshape(-1))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8, color=GRID)
    write_title(figure, title)
    return figure, panels


def write_title(figure: Figure, title: str) -> None:
    """A title from the left. It may hold a user's name: what lies between two $ is no formula."""
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", color=INK, parse_math=False)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the file's name ends in. An SVG is for light and dark
    pages; the other formats have a white ground."""
    with atomic_write(path) as file:
        if path.suffix == ".svg":
            from ladder.core.show.pictures import charts  # loads the pictures of kernels, too

            file.write(charts.svg(figure).encode())
        else:
            figure.savefig(file, format=path.suffix[1:], metadata={"Creator": "Kernel Ladder"})
