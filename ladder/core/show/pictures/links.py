"""What crosses the links between GPUs in one call of a kernel with ranks: from whom, to whom."""

import math

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import Ladder, find
from ladder.core.contract.op import DTYPES, Dims
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.report import Report
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.source_code import parse_shape
from ladder.core.show.trace import ALL, default_dtype, trace

ACROSS = 3  # matrices side by side
CELL, HIGH = 33.0, 24.0
FEW = 0.005  # of a vector: less are flags


def crossed(report: Report, ladder: Ladder, rung: Rung, dtype: str, dims: Dims) -> np.ndarray:
    """Bytes from rank i to rank j, (R, R), in a run that was recorded with all its requests.

    A rank that reads from a peer receives; one that writes to a peer sends. What a rank does in its
    own memory crosses no link. Raises LadderError where the op has no ranks.
    """
    if not ladder.op.ranks:
        raise LadderError(f"{ladder.op.name} has no ranks, so nothing crosses a link")
    ranks = dims[ladder.op.ranks]
    rows = {arg.name: arg.nbytes(dims, DTYPES[dtype]) // ranks for arg in ladder.op.args}
    for buffer in rung.plan(dims, Emulated().target(DTYPES[dtype])).scratch:
        rows[buffer.name] = math.prod(buffer.shape[1:]) * np.dtype(buffer.stored).itemsize
    crossed_bytes = np.zeros((ranks, ranks), np.int64)
    for access in (access for access in report.accesses if access.space == "global"):
        user = access.block[1]
        for offset in access.offsets:
            owner = offset // rows[access.buffer]
            way = (owner, user) if access.kind == "read" else (user, owner)
            crossed_bytes[way] += access.bytes
    np.fill_diagonal(crossed_bytes, 0)
    return crossed_bytes


def draw(op: str, *rungs: str, shape: str) -> Drawing:
    """A matrix for each rung: senders are rows, receivers columns, cells are in vectors."""
    ladder, dims, named = find(op), parse_shape(find(op).op, shape), find(op).op.ranks
    ranks = dims[named] if named else 0
    if named and not 2 <= ranks <= 4:
        raise LadderError(f"picture links: {ranks} ranks; choose 2 to 4")
    vectors = {}
    for chosen in map(ladder.rung, rungs):
        real = default_dtype(chosen)
        report = trace(ladder, chosen, real, dims, keep=ALL)
        moved = crossed(report, ladder, chosen, real, dims)
        vectors[chosen.id] = moved / dims["N"] / DTYPES[real].itemsize
    received = {rung: sent.sum(axis=0).max() for rung, sent in vectors.items()}
    each = "; ".join(f"rung {rung}: {most:.2f}" for rung, most in received.items())
    drawing = Drawing(
        f"{op}, {ranks} ranks: what crosses the links",
        "Rows send, columns receive. A number says how many vectors' bytes go from one rank to "
        "another in a call; a dot, that only flags do. Each rank receives, in vectors: "
        f"{each}. The least is 2 (R - 1) / R = {2 * (ranks - 1) / ranks:g}.",
    )
    top = drawing.paragraph(MARGIN, drawing.top, drawing.description, size=12) + 6
    pitch = (WIDTH - 2 * MARGIN) / ACROSS
    high = (ranks + 1) * HIGH + 38
    for index, rung in enumerate(vectors):
        x, y = MARGIN + index % ACROSS * pitch, top + index // ACROSS * high
        drawing.text(x, y + 12, f"rung {rung}", 13, bold=True)
        least = received[rung] < 2 * (ranks - 1) / ranks + ranks * FEW
        drawing.text(x + 52, y + 12, f"{received[rung]:.2f} to each", 12,
                     colour="green" if least else "ink")  # fmt: skip
        _matrix(drawing, x, y + 20, vectors[rung])
    return drawing


def _matrix(drawing: Drawing, x: float, y: float, vectors: np.ndarray) -> None:
    for rank in range(len(vectors)):
        left = x + 16 + rank * CELL
        drawing.text(left + CELL / 2, y + 12, str(rank), 11, "middle", "muted")
        drawing.text(x + 4, y + 18 + rank * HIGH + 16, str(rank), 11, colour="muted")
    for (sender, receiver), value in np.ndenumerate(vectors):
        at = x + 16 + receiver * CELL, y + 18 + sender * HIGH
        many = value >= FEW
        fill = "pale blue" if many else "panel" if sender != receiver else "paper"
        title = f"rank {sender} to rank {receiver}: {value:.3f} vectors"
        drawing.box(*at, CELL, HIGH, fill, "paper", 1.5, title)
        text = f"{value:.2f}".rstrip("0").rstrip(".") if many else "·" if value else ""
        drawing.text(at[0] + CELL / 2, at[1] + 16, text, 12, "middle")
