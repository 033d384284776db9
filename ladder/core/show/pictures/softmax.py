"""Online softmax: running maximum, running sum, and the factor that rescales it.

Of one thread, tile by tile; and of the threads that share a row, which merge what they have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing

VALUE = 20  # pixels that the value of a score takes


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
    name = "tile" if width > 1 else "score"
    drawing = Drawing(
        f"Online softmax of {T} scores, {tile} at a time",
        f"After each {name} only the largest score and the sum are kept. Where a {name} brings a "
        "larger score, the old sum is multiplied by exp(old largest - new largest). "
        f"Here that happens at {name} {' and '.join(map(str, rescaled)) or 'none'}. "
        + " ".join(
            f"{name.capitalize()} {i + 1}: largest {s.largest:.1f}, factor {s.factor:.3f}, "
            f"sum {s.total:.3f}."
            for i, s in enumerate(found)
        ),
    )
    y, bar, high = drawing.top, min(22.0, 352 / len(scores)), 44.0
    low, top = min(scores.min(), 0.0), max(scores.max(), 0.0)
    scale, end = high / (top - low), MARGIN + len(scores) * bar
    if bar >= VALUE:
        for i, score in enumerate(scores):
            x = MARGIN + i * bar + (bar - 3) / 2
            drawing.text(x, y + 4, f"{score:.1f}".replace("-", "−"), 8, "middle")
        drawing.text(end + 16, y + 4, "the scores", 12, colour="muted")
        y += 18
    for number, step in enumerate(found):
        zero = y + top * scale
        for i, score in enumerate(scores):
            if i >= (number + 1) * width:
                break
            new = i >= number * width
            fill = "blue" if new else "pale blue"
            x, size = MARGIN + i * bar, abs(score) * scale
            drawing.box(x, zero - max(score, 0) * scale, bar - 3, max(size, 1), fill)
        line, x = zero - step.largest * scale, end + 16
        drawing.line([(MARGIN, zero), (end, zero)])
        drawing.text(end + 2, zero + 3, "0", 9, colour="muted")
        drawing.line([(MARGIN, line), (end, line)], "red", 1.5, dashed=True)
        drawing.text(x, y + 10, f"{name} {number + 1}", 12, bold=True)
        drawing.text(x + 60, y + 10, f"largest {step.largest:.1f}", 12, colour="red")
        if number:
            drawing.text(x, y + 27, f"old sum × {step.factor:.3f}", 12)
        drawing.text(x, y + 44, f"sum {step.total:.3f}", 12)
        y += high + 22
    drawing.line([(MARGIN, y - 10), (WIDTH - MARGIN, y - 10)])
    text = f"Largest probability: 1 / {found[-1].total:.3f} = {probabilities.max():.3f}"
    drawing.paragraph(MARGIN, y + 8, text, size=12)
    return drawing


@dataclass(frozen=True)
class Share:
    """What one thread has after its part of the row.

    largest, total  of its own scores: the largest, and the sum of exp(score - largest)
    factor          exp(largest - largest of the row), by which its sum is multiplied in the end
    """

    largest: float
    total: float
    factor: float


def shares(scores: np.ndarray, threads: int) -> list[Share]:
    """Thread t has the scores t, t + threads, ... Each thread's loop is `steps`."""
    own = [steps(scores[thread::threads], 1)[-1] for thread in range(threads)]
    row = max(step.largest for step in own)
    return [Share(step.largest, step.total, float(np.exp(step.largest - row))) for step in own]


def draw_threads(*, T: str = "16", threads: str = "4", seed: str = "3") -> Drawing:
    """The scores in the colours of their threads, and how the threads' sums become the row's."""
    count = int(threads)
    scores = np.random.default_rng(int(seed)).normal(size=int(T)).round(1) * 2
    found = shares(scores, count)
    total = sum(share.total * share.factor for share in found)
    drawing = Drawing(
        f"{threads} threads share a row of {T} scores",
        f"Thread t reads the scores t, t + {threads}, and so on. It has the largest of its own "
        "scores, and the sum of exponentials relative to it. In the end every sum is multiplied by "
        "exp(own largest - row's largest), and the products are added. "
        + " ".join(
            f"Thread {t}: largest {s.largest:.1f}, sum {s.total:.3f}, factor {s.factor:.3f}."
            for t, s in enumerate(found)
        )
        + f" Sum of the row: {total:.3f}.",
    )
    fills = ("pale blue", "pale orange", "pale green", "pale purple")
    y, high = drawing.top, 80.0
    low, top = min(scores.min(), 0.0), max(scores.max(), 0.0)
    bar, scale = (WIDTH - 2 * MARGIN) / len(scores), high / (top - low)
    for i, score in enumerate(scores):
        share, x = found[i % count], MARGIN + i * bar
        largest = score == share.largest
        up = y + (top - max(score, 0.0)) * scale
        size, edge = max(abs(score) * scale, 1), ("red", 2) if largest else ("line", 1)
        drawing.box(x, up, bar - 4, size, fills[i % count % len(fills)], *edge)
    y += high + 24
    drawing.box(MARGIN, y - 10, 11, 11, "paper", "red", 2)
    drawing.text(MARGIN + 18, y, "the largest score of its thread", 12, colour="muted")
    y += 26
    places = (MARGIN + 22, 150, 235, 345, 455)
    titles = ("", "own largest", "own sum", "factor", "product")
    for place, title in zip(places, titles, strict=True):
        drawing.text(place, y, title, 12, "middle", colour="muted")
    for thread, share in enumerate(found):
        y += 24
        drawing.box(MARGIN, y - 15, 90, 20, fills[thread % len(fills)])
        drawing.text(MARGIN + 8, y, f"thread {thread}", 12)
        cells = (
            f"{share.largest:.1f}",
            f"{share.total:.3f}",
            f"× {share.factor:.3f}",
            f"{share.total * share.factor:.3f}",
        )
        for place, cell in zip(places[1:], cells, strict=True):
            drawing.text(place, y, cell, 12, "middle")
    y += 12
    drawing.line([(MARGIN, y), (WIDTH - MARGIN, y)])
    y += 20
    row = max(share.largest for share in found)
    drawing.text(MARGIN + 8, y, "row", 12, bold=True)
    drawing.text(places[1], y, f"{row:.1f}", 12, "middle", colour="red", bold=True)
    drawing.text(places[4], y, f"{total:.3f}", 12, "middle", bold=True)
    return drawing
