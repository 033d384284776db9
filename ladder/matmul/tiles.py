"""Tile sizes and splits of the matmul rungs, chosen by an estimate of the time that they take.

The headers of rungs name these functions (ladder/core/contract/expressions.py). A tile is a block's
part of the result; its sum has many steps, of as many channels or rows as shared memory holds at a
time. A place is room for a block on the GPU, and a wave is a tile, or a part of one, in every
place: a last wave that is nearly empty takes as long as a full one, which is called wave
quantization.

The constants come from an H200, as the chapters in doc/matmul tell. Elsewhere they are a guess.
"""

from typing import NamedTuple

from ladder.core.contract.expressions import ceil_div, tiling

STORE_STEPS = 4  # steps that a block could do in the time that it stores a tile's partial sums
STEP_OVERHEAD = 48  # columns of a tile that a step could have more, for what it costs besides them
SUMS_PER_COLUMN = 1100  # partial sums written and read again in the time of a column of a step
TILES_PER_ROW = 5  # tiles of sums written and read again in the time of one row in every place
LEAST_ROWS = 128  # of a part of a sum over rows


class Shares(NamedTuple):
    """Steps of one tile that go to a block, and of what all tiles have left over."""

    share: int
    line: int


class Split(NamedTuple):
    """Columns of a tile, and into how many equal parts its sum is split."""

    columns: int
    parts: int


@tiling
def tile_columns(
    high: int, columns: int, places: int, wide: int, narrow: int, narrow_cost: int = 0
) -> int:
    """`narrow` columns for a tile where that takes less time, else `wide`.

    high         tiles one below the other
    columns      of the result
    places       blocks that run at a time
    narrow_cost  columns that a narrow tile counts as, where it is less efficient; 0: `narrow`

    The time is counted as waves, times columns of a tile.
    """
    wide_time = ceil_div(high * ceil_div(columns, wide), places) * wide
    narrow_time = ceil_div(high * ceil_div(columns, narrow), places) * (narrow_cost or narrow)
    return narrow if narrow_time < wide_time else wide


@tiling
def kept_columns(high: int, columns: int, places: int) -> int:
    """How many columns of the result the part of weight is for that a block keeps in shared memory:
    128 where that takes less time, else 192.

    high     tiles one below the other
    columns  of the result
    places   blocks that run at a time

    The time is counted as in `tile_columns`. A block waits for as long as three tiles take before
    its first one. A tile of 128 columns is less efficient, and counts as 142.
    """

    def time(width: int, cost: int) -> int:
        return (ceil_div(high * ceil_div(columns, width), places) + 3) * cost

    return 192 if time(192, 192) <= time(128, 142) else 128


@tiling
def stream_k(tiles: int, steps: int, blocks: int) -> Shares:
    """How `blocks` share tiles that are fewer than they are, of so many steps each.

    From each tile, steps // share blocks take `share` steps. What is then left of all tiles,
    steps % share of each, counts as one line of steps: the other blocks take `line` of it each.

    Evenly: a tile is cut into as many equal parts as there are blocks for it, so no block has steps
    of two tiles, but some may have no work. Equally: all blocks have the same number of steps,
    and those in the line store partial sums for each tile that their steps come from. Source:
    stream-K, Osama et al., PPoPP 2023, arXiv:2301.03598.
    """
    even = ceil_div(steps, blocks // max(1, tiles))
    equal = max(1, ceil_div(tiles * steps, blocks))
    stores = equal // max(1, steps % equal) + 1  # by a block in the line
    if equal + STORE_STEPS * stores < even:
        return Shares(equal, equal)
    return Shares(even, max(1, steps % even))


@tiling
def split_tiles(high: int, columns: int, rows: int, steps: int, blocks: int) -> Split:
    """Whole tiles of 128 columns, or tiles of 192 that are split so that a block gets one part or
    three: whichever takes the least time.

    high           tiles of the result one below the other
    columns, rows  of the result
    steps          of each tile's sum
    blocks         that run at a time, each with parts one after the other

    The time is counted in columns of a step: waves, times steps of a part, times what a step
    costs, and the partial sums of all parts but one of each tile, written and read again.
    """

    def tiles(split: Split) -> int:
        return high * ceil_div(columns, split.columns)

    def time(split: Split) -> int:
        waves = ceil_div(tiles(split) * split.parts, blocks)
        step = split.columns + STEP_OVERHEAD
        sums = (split.parts - 1) * columns * rows // SUMS_PER_COLUMN
        return waves * ceil_div(steps, split.parts) * step + sums

    whole = Split(192, 1)
    candidates = [Split(128, 1)]
    for waves in (1, 3):
        parts = min(steps, max(1, waves * blocks // tiles(whole)))
        candidates.append(Split(192, parts))
    return min(candidates, key=time)  # of equal ones the first


@tiling
def equal_parts(tiles: int, steps: int, blocks: int, end: int) -> int:
    """Into how many equal parts to split each tile's sum, so that whole waves of parts take the
    least time.

    tiles   of the result
    steps   of each tile's sum
    blocks  that run at a time, each with parts one after the other
    end     steps that a block could do in the time that the end of a part adds

    No part is empty. Of equal times, the one with the fewest parts is chosen.
    """

    def time(parts: int) -> int:
        return ceil_div(tiles * parts, blocks) * (ceil_div(steps, parts) + end)

    filled = (ceil_div(steps, share) for share in range(steps, 0, -1))  # fewest parts first
    return min(filled, key=time)


@tiling
def split_rows(tiles: int, rows: int, places: int) -> int:
    """Into how many parts to split sums over `rows`, for one wave of blocks, three or four:
    whichever takes the least time.

    tiles   of the result
    places  blocks that run at a time

    The time is counted in rows of a tile: waves, times rows of a part, and what it takes to write
    every part's sums and read them again.
    """

    def time(parts: int) -> int:
        waves = ceil_div(tiles * parts, places)
        return waves * ceil_div(rows, parts) + tiles * parts // TILES_PER_ROW

    most = ceil_div(rows, LEAST_ROWS)
    return min((max(1, min(most, w * places // tiles)) for w in (1, 3, 4)), key=time)
