"""Online softmax, tile by tile: running maximum, running sum, and the factor that rescales it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ladder.show.pictures.drawing import MARGIN, WIDTH, Drawing


@dataclass(frozen=True)
class Step:
    """What is known after a tile of scores.

    largest  the largest score so far
    factor   exp(largest before - largest now), by which the old sum is multiplied
    total    the sum of exp(score - largest) so far
    """

    largest: float
    factor: float
    total: float


def steps(scores: np.ndarray, tile: int) -> list[Step]:
    """Source: Milakov and Gimelshein, arXiv:1805.02867, algorithm 3, a tile at a time."""
    found: list[Step] = []
    largest, total = -np.inf, 0.0
    for start in range(0, len(scores), tile):
        part = scores[start : start + tile]
        new = max(largest, float(part.max()))
        factor = float(np.exp(largest - new))
        total = total * factor + float(np.exp(part - new).sum())
        largest = new
        found.append(Step(largest, factor, total))
    return found


def draw(*, T: str = "16", tile: str = "4", seed: str = "3") -> Drawing:
    """A panel for each tile: the scores so far as bars, and what is kept of them."""
    width = int(tile)
    scores = np.random.default_rng(int(seed)).normal(size=int(T)).round(1) * 2
    found = steps(scores, width)
    probabilities = np.exp(scores - found[-1].largest) / found[-1].total
    rescaled = [i + 1 for i, step in enumerate(found) if i and step.factor < 1]
    drawing = Drawing(
        f"Online softmax of {T} scores, {tile} at a time",
        "After each tile only the largest score and the sum are kept. Where a tile brings a larger "
        "score, the old sum is multiplied by exp(old largest - new largest). "
        f"Here that happens at tile {' and '.join(map(str, rescaled)) or 'none'}. "
        + " ".join(
            f"Tile {i + 1}: largest {s.largest:.1f}, factor {s.factor:.3f}, sum {s.total:.3f}."
            for i, s in enumerate(found)
        ),
    )
    y, bar, high = drawing.top, 15, 44.0
    low, top = min(scores.min(), 0.0), max(scores.max(), 0.0)
    scale = high / (top - low)
    for number, step in enumerate(found):
        zero = y + top * scale
        for i, score in enumerate(scores):
            if i >= (number + 1) * width:
                break
            new = i >= number * width
            fill = "blue" if new else "pale blue"
            x, size = MARGIN + i * bar, abs(score) * scale
            drawing.box(x, zero - max(score, 0) * scale, bar - 3, max(size, 1), fill)
        line = zero - step.largest * scale
        drawing.line([(MARGIN, line), (MARGIN + len(scores) * bar, line)], "red", 1.5, dashed=True)
        x = MARGIN + len(scores) * bar + 16
        drawing.text(x, y + 10, f"tile {number + 1}", 12, bold=True)
        drawing.text(x + 52, y + 10, f"largest {step.largest:.1f}", 12, colour="red")
        if number:
            drawing.text(x, y + 27, f"old sum × {step.factor:.3f}", 12)
        drawing.text(x, y + 44, f"sum {step.total:.3f}", 12)
        y += high + 22
    drawing.line([(MARGIN, y - 10), (WIDTH - MARGIN, y - 10)])
    text = f"Largest probability: 1 / {found[-1].total:.3f} = {probabilities.max():.3f}"
    drawing.paragraph(MARGIN, y + 8, text, size=12)
    return drawing
