"""What the wrong elements of an output have in common, and what usually causes that.

    where(wrong)                      which rows and columns: "row 128 on of 200, all 64 columns"
    likely_cause(got, value, wrong)   one sentence, or None where nothing stands out

The array counts as a matrix: its last dimension is the columns, all others together the rows.
"""

import numpy as np

SAME = 1e-2  # relative: how far ratios may be apart that count as one factor
WHOLE = 1e-4  # relative: how far a factor may be from a whole number that counts as one
FACTOR_SHARE = 0.9  # of the wrong elements that one factor must explain
UNWRITTEN = "no thread writes any element"  # what a cause begins with where the fill is left
EVERY = "every element is wrong: look at what all share (the formula, an operand, a missing step)"
SAME_ROWS = "every row has the same values: what differs from row to row is left out"
PERIODS = (128, 64, 32, 16, 8, 4, 2)  # of tiles, lanes and vectors


def where(wrong: np.ndarray) -> str:
    """Which rows and columns have wrong elements."""
    if wrong.ndim < 2:
        return _span(wrong.reshape(-1), "element")
    rows, columns = _rows_and_columns(wrong)
    return f"{_span(rows, 'row')}; {_span(columns, 'column')}"


def likely_cause(
    got: np.ndarray, value: np.ndarray, wrong: np.ndarray, before: np.ndarray | None = None
) -> str | None:
    """The usual cause of such errors.

    value   what the elements must be
    before  for an output that accumulates: what it held before the run
    """
    unwritten = never_written(got) & wrong
    if unwritten.any():
        if unwritten.sum() == wrong.sum():
            which = UNWRITTEN if wrong.all() else "no thread writes these elements"
            return f"{which}: {_left_out(wrong)}"
        return (
            f"{unwritten.sum()} of the {wrong.sum()} wrong elements were never written, or come "
            "from memory that was never written"
        )
    values = np.asarray(got[wrong], np.float64)
    if np.isnan(values).any():
        return (
            "nan that the kernel computed: 0 / 0, infinity - infinity, 0 * infinity, or arithmetic "
            "with memory that nothing has written"
        )
    if (abs(values) > 1e38).any():  # the pattern of variables that nothing has set is -1.7e38
        return "so large: a register or variable that nothing has set, an overflow, or x / 0"
    if before is not None and (cause := _accumulation(got, value, before, wrong)):
        return cause
    if factor := _constant_factor(got, value, wrong):
        twice = "elements are added more than once, or " if _whole(factor) else ""
        return f"the wrong elements are {factor:.4g} times what they must be: {twice}a scale factor"
    if got.ndim > 1 and _rows_are_equal(got) and not _rows_are_equal(value):
        return SAME_ROWS
    return _by_place(wrong)


def _rows_are_equal(array: np.ndarray) -> bool:
    rows = array.reshape(-1, array.shape[-1])
    return bool((rows == rows[0]).all())


def never_written(got: np.ndarray) -> np.ndarray:
    """Where elements still have the bits that outputs are filled with: all of them 1, which no
    arithmetic returns for 0 / 0."""
    words = np.ascontiguousarray(got).view(f"u{got.dtype.itemsize}")
    return np.asarray(words == np.iinfo(words.dtype).max)


def _rows_and_columns(wrong: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows, and which columns, have a wrong element."""
    flat = wrong.reshape(-1, wrong.shape[-1]) if wrong.ndim else wrong.reshape(1, 1)
    return np.atleast_1d(flat.any(axis=1)), np.atleast_1d(flat.any(axis=0))


def _span(hit: np.ndarray, what: str) -> str:
    size, indices = hit.size, np.flatnonzero(hit)
    first, last = int(indices[0]), int(indices[-1])
    if indices.size == size:
        return f"all {size} {what}s" if size > 1 else f"the only {what}"
    if indices.size == 1:
        return f"{what} {first} of {size}"
    if indices.size == last - first + 1:
        return f"{what}s {first} to {last} of {size}"
    if step := _step(indices):
        return f"every {_ordinal(step)} {what} of {size}, from {first} on"
    return f"{indices.size} of {size} {what}s between {first} and {last}"


def _step(indices: np.ndarray) -> int | None:
    """The distance between indices that are all equally far apart."""
    steps = np.unique(np.diff(indices))
    return int(steps[0]) if steps.size == 1 and indices.size > 2 else None


def _ordinal(n: int) -> str:
    return f"{n}{'th' if n // 10 % 10 == 1 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def _left_out(wrong: np.ndarray) -> str:
    """Why a kernel writes nothing to some elements."""
    if wrong.all():
        return "the store, or the launch, is missing, or its condition never holds"
    if any(_is_tail(hit) for hit in _rows_and_columns(wrong)):
        return "the grid is too small, or a guard for the tail cuts off too much"
    return "a loop's stride or bound, or the condition of the store, leaves them out"


def _is_tail(hit: np.ndarray) -> bool:
    first = int(np.argmax(hit))
    return first > 0 and bool(hit[first:].all())


def _accumulation(
    got: np.ndarray, value: np.ndarray, before: np.ndarray, wrong: np.ndarray
) -> str | None:
    """What has gone wrong where an output must be added to: got, in terms of before and value."""
    got, value, before = (np.asarray(a, np.float64)[wrong] for a in (got, value, before))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        added = value - before

        def near(other: np.ndarray) -> bool:
            room = SAME * (np.abs(added) + np.abs(other))
            return bool(np.mean(np.abs(got - other) <= room) > FACTOR_SHARE)

        if near(before):
            return "nothing is added: these elements are as they were before the run"
        if near(added):
            return "the result overwrites what the output held, and must be added to it"
        times = float(np.median((got - before) / added))
        if times > 1.5 and (got.size < 3 or near(before + np.round(times) * added)):
            return f"{times:.4g} times too much is added: elements are counted more than once"
        if near(before - added):
            return "the result is added with the wrong sign"
        if got.size > 2 and abs((got - value).sum()) < 1e-4 * np.abs(got - value).sum():
            return "the sum of all is right: what is added belongs to other elements"
    return None


def _constant_factor(got: np.ndarray, value: np.ndarray, wrong: np.ndarray) -> float | None:
    """What the wrong elements have been multiplied with, if it is nearly the same for all."""
    if got.dtype.kind in "iu":
        return None
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.asarray(got[wrong], np.float64) / np.asarray(value[wrong], np.float64)
    ratios = ratios[np.isfinite(ratios)]
    factor = float(np.median(ratios)) if ratios.size else 0.0
    if ratios.size < 3 and not _whole(factor):
        return None  # so few may have any ratio; only whole numbers tell
    same = np.abs(ratios - factor) <= SAME * abs(factor)
    return factor if factor and same.mean() > FACTOR_SHARE and abs(factor - 1) > SAME else None


def _whole(factor: float) -> bool:
    return factor > 1.5 and abs(factor - round(factor)) < WHOLE * factor


def _by_place(wrong: np.ndarray) -> str | None:
    """What the place of the wrong elements tells."""
    if wrong.all():
        return None if wrong.size < 3 else EVERY
    rows, columns = _rows_and_columns(wrong)
    for hit, what in ((rows, "row"), (columns, "column")):
        if hit.size == 1 or not _is_tail(hit):
            continue
        first = int(np.argmax(hit))
        if hit.size - first <= max(8, hit.size // 8):
            return f"only the last {what}s are wrong: the tail is handled wrongly"
        return (
            f"everything before {what} {first} is right: look at what begins there (the next tile, "
            "block, warp, or round of a loop)"
        )
    indices = np.flatnonzero(wrong)
    for period in PERIODS:
        often = 2 * indices.size > wrong.size // period  # not every 256th, say
        if often and wrong.size >= 4 * period and np.unique(indices % period).size == 1:
            return (
                f"every {_ordinal(period)} element is wrong: an index within a vector, warp or tile"
            )
    alone = indices.size == 1 and not columns.all() and not rows.all()
    return "a single element is wrong: a boundary" if alone else None
