"""Causal attention in tiles: which tiles of scores are computed, masked and skipped."""

from __future__ import annotations

import numpy as np

from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing

SKIPPED, MASKED, WHOLE = range(3)
FILLS = ("panel", "pale gold", "blue")


def tile_map(T: int, queries: int, keys: int) -> np.ndarray:
    """For each tile of queries (rows) and keys (columns): SKIPPED, MASKED or WHOLE.

    A query attends to the keys up to its own position. A tile is skipped where its first key comes
    after its last query, and whole where its last key does not come after its first query.
    """
    first_query = np.arange(0, T, queries)[:, None]
    first_key = np.arange(0, T, keys)[None, :]
    last_query = np.minimum(first_query + queries, T) - 1
    last_key = np.minimum(first_key + keys, T) - 1
    found = np.full((len(first_query), first_key.shape[1]), MASKED)
    found[first_key > last_query] = SKIPPED
    found[last_key <= first_query] = WHOLE
    return found


def draw(*, T: str = "1024", queries: str = "128", keys: str = "64") -> Drawing:
    """The map of one head."""
    found = tile_map(int(T), int(queries), int(keys))
    counts = [int((found == kind).sum()) for kind in range(3)]
    total = found.size
    wanted = (int(T) + 1) / (2 * int(T))
    drawing = Drawing(
        f"Causal attention, T = {T}: tiles of {queries} queries and {keys} keys",
        f"Of {total} tiles of scores, {counts[SKIPPED]} are skipped, {counts[MASKED]} lie on the "
        f"diagonal and are masked, and {counts[WHOLE]} are whole. The kernel computes "
        f"{(total - counts[SKIPPED]) / total:.0%} of all scores; {wanted:.0%} are needed.",
    )
    y = drawing.paragraph(MARGIN, drawing.top, drawing.description, size=12) + 4
    drawing.text(MARGIN + 24, y, "keys →", 12, colour="muted")
    y += 6
    high, wide = found.shape
    width = min(WIDTH - 2 * MARGIN - 24, 26 * max(wide, high * int(queries) // int(keys)))
    cell, height = width / wide, width / int(T) * int(queries)
    for row in range(high):
        for column in range(wide):
            fill = FILLS[found[row, column]]
            drawing.box(
                MARGIN + 24 + column * cell, y + row * height, cell, height, fill, "paper", 1.5
            )
        drawing.text(MARGIN + 18, y + (row + 0.6) * height, str(row), 11, "end", "muted")
    y = drawing.bottom + 20
    drawing.text(MARGIN, y, "row: tile of queries", 12, colour="muted")
    x = MARGIN + 150.0
    for fill, text in zip(FILLS, ("skipped", "masked", "whole"), strict=True):
        drawing.box(x, y - 11, 13, 13, fill, "line")
        drawing.text(x + 19, y, text, 12)
        x += 95
    return drawing
