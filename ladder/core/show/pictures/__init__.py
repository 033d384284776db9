"""Pictures of what cannot be seen: which thread, bank, fragment, stage or wave has what, and when.

    from ladder.core.show import pictures

    picture = pictures.make("ladder", "matmul.forward")   a Drawing
    picture.svg()                                         the text of an SVG file

Pages ask for one with `<!-- ladder:begin picture KIND ... -->`, notebooks with `nb.picture(KIND,
...)`. The kinds, and what they take (`access` and `timeline` also `dtype`):

    access OP RUNG lines=   which lane touches which sector of global memory; lines="x[i]|y[i]":
                            only lines that contain one of these; shape=
    banks OP RUNG line=TEXT one request to shared memory by bank and wavefront; array= shape= title=
    mma                     fragments of mma.sync: lane and register of each element; lane=
    timeline OP RUNG shape=   a TMA pipeline over time: producer, stages, consumers; copy=5
                            product=2 store=1 softmax=0 (durations) cluster=1 until=60
    ring OP RUNG shape=     the stages of a cp.async pipeline, step by step: filled, awaited, read
    ladder OP               measured speeds, from zero
    roofline OP             from 0.1 to 1,000 FLOPs per byte
    links OP RUNG ... shape=  what crosses the links between ranks: from whom, to whom

Each kind is a function in a file of its own. What it draws is computed: from the rung's
launch plan, or from what the emulator records while it runs the rung. The function that computes
it stands beside the one that draws it, and is tested.

A drawing that shows nothing measured or counted, and stands in one or two places, has no kind: it
is a file in doc/img, which a page links to and a notebook shows with `nb.drawing(NAME)`.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from ladder.core.common import cache
from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import find
from ladder.core.show.pictures import (
    accesses,
    banks,
    fragments,
    links,
    measured,
    ring,
    timeline,
)
from ladder.core.show.pictures.drawing import Drawing

KINDS: dict[str, Callable[..., Drawing]] = {
    "access": accesses.draw,
    "banks": banks.draw,
    "mma": fragments.draw,
    "timeline": timeline.draw,
    "ring": ring.draw,
    "links": links.draw,
    "ladder": lambda op: measured.ladder(measured.kept(op)),
    "roofline": lambda op: measured.roofline(measured.kept(op)),
}


def make(kind: str, *args: str, **options: str) -> Drawing:
    """A picture. Raises LadderError for a kind or arguments that there are none of."""
    draw = _find(kind)
    try:
        inspect.signature(draw).bind(*args, **options)
    except TypeError as error:
        takes = " ".join(inspect.signature(draw).parameters)
        raise LadderError(f"picture {kind} takes {takes}: {error}") from None
    return draw(*args, **options)


def made_from(kind: str, *args: str, **options: str) -> str:
    """Names what a picture shows, 12 hexadecimal digits: its arguments and the code of the rung
    among them. It is known without running anything."""
    given = inspect.signature(_find(kind)).bind(*args, **options).arguments
    if kind in ("ladder", "roofline"):
        code = measured.digest(**given)
        return cache.digest("picture", kind, code)[:12]
    rungs = []
    if "op" in given:
        ids = [given["rung"]] if "rung" in given else given["rungs"]
        rungs = [find(given["op"]).rung(id) for id in ids]
    code = " ".join(map(code_identity, rungs))
    return cache.digest("picture", kind, code, *(f"{k}={v}" for k, v in given.items()))[:12]


def drawn_from(picture: Path) -> str | None:
    """The digest that a picture's file was drawn from, or None."""
    try:
        match = re.search(r"ladder:([0-9a-f]{12})", read_text(picture))
    except LadderError:  # it is not there
        return None
    return match.group(1) if match else None


def _find(kind: str) -> Callable[..., Drawing]:
    if kind not in KINDS:
        raise LadderError(f"there is no picture {kind}; there are {', '.join(KINDS)}")
    return KINDS[kind]
