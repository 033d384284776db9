"""Which exercises of the notebooks are solved, kept between sessions.

They are in a small file of the user's own, `solved.json` in $KERNEL_LADDER_STATE, else in
$XDG_STATE_HOME/kernel-ladder, else in ~/.local/state/kernel-ladder. To start anew, delete it.

An exercise is known by its title: the fold "Solution" of a notebook has a kernel that begins with
`// op: title`, or a cell calls a checker of the notebooks on whole models, `gpt.check_order(…)`,
whose name is the title then.
"""

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.files import alone_in, atomic_write, read_json
from ladder.core.common.install import user_folder
from ladder.core.show.pages import ROOT
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing

VARIABLE = "KERNEL_LADDER_STATE"
NOTEBOOKS = ROOT / "notebooks"
MOST_BYTES = 1 << 16  # of the file: some hundred titles
TITLE = re.compile(
    r"^<details><summary>Solution</summary>\n\n```cpp\n// .*?: (.*)$"
    r"|^(?:gpt|climbing|runs)\.(check_\w+)\(",
    re.MULTILINE,
)
BAR, ROW = 210, 24  # width of a bar, and height of a row, in pixels


def file() -> Path:
    """Where the progress is kept; it need not exist yet."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser() / "solved.json"
    return user_folder("XDG_STATE_HOME", ".local/state") / "solved.json"


@functools.cache
def exercises() -> Mapping[str, Sequence[str]]:
    """The titles of the exercises of each notebook, in reading order."""
    titles_of = {}
    for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        matches = (TITLE.search("".join(cell["source"])) for cell in read_json(path)["cells"])
        titles = [match[1] or match[2] for match in matches if match]
        titles_of[path.stem] = list(dict.fromkeys(titles))  # a later cell may check the solution
    return titles_of


def solved() -> set[str]:
    """The titles of the exercises that the reader has solved; of unknown ones, too.

    Raises LadderError where the file holds something else.
    """
    path = file()
    if not os.path.lexists(path):
        return set()
    content = read_json(path, MOST_BYTES)
    titles = content.get("solved") if isinstance(content, dict) else None
    if not isinstance(titles, list) or not all(isinstance(title, str) for title in titles):
        raise LadderError(f"{path} is no list of solved exercises; delete it to start anew")
    return set(titles)


def record(title: str) -> str:
    """Keep that an exercise is solved. Returns what to say about it: "" where no notebook has such
    an exercise, or where it was solved before."""
    where = next((name for name, titles in exercises().items() if title in titles), None)
    if where is None:
        return ""
    try:
        with alone_in(file().parent, wait=True):
            before = solved()
            if title in before:
                return ""
            with atomic_write(file()) as target:
                target.write(json.dumps({"solved": sorted(before | {title})}, indent=1).encode())
    except (LadderError, OSError) as error:
        return f"Solved. (This cannot be kept for the next session: {error})"
    return _encouraging(where, before | {title})


def _encouraging(where: str, titles: set[str]) -> str:
    """How far the reader has come in the notebook of the exercise just solved, and in all."""
    done, count = _count(exercises()[where], titles)
    every = _count([title for own in exercises().values() for title in own], titles)
    said = {
        1: "Your first kernel of this notebook works. A good start!",
        count / 2: "Half of this notebook is done. Keep going!",
        count: "That was the last exercise of this notebook. Congratulations!",
    }.get(done, "Well done!")
    return (
        f"Solved. {said} {done} of {count} here, {every[0]} of {every[1]} in all notebooks; "
        "nb.progress() shows them."
    )


def _count(titles: Sequence[str], done: set[str]) -> tuple[int, int]:
    return sum(title in done for title in titles), len(titles)


def draw() -> Drawing:
    """A bar for each notebook that has exercises, and one for all of them."""
    done = solved()
    rows = {name: _count(titles, done) for name, titles in exercises().items() if titles}
    rows["all notebooks"] = (
        sum(some for some, _ in rows.values()),
        sum(count for _, count in rows.values()),
    )
    said = "; ".join(f"{name}: {some} of {count}" for name, (some, count) in rows.items())
    drawing = Drawing("Exercises solved", f"{said}.")
    y = drawing.top
    for name, (some, count) in rows.items():
        last = name == "all notebooks"
        y += 8 if last else 0
        drawing.text(MARGIN, y + 14, name, bold=last)
        x = WIDTH - MARGIN - 70 - BAR
        drawing.box(x, y + 3, BAR, 14, "panel", "line")
        if some:
            drawing.box(x, y + 3, BAR * some / count, 14, "green" if some == count else "blue")
        drawing.text(WIDTH - MARGIN, y + 14, f"{some} of {count}", anchor="end", bold=last)
        y += ROW
    return drawing
