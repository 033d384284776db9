"""The tile heuristics give the choices that the matmul chapters explain, for 132 SMs."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ladder.core.contract.expressions import ceil_div
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.emulator.emulated import Emulated
from ladder.matmul import tiles

SMS = 132
SIZES = st.integers(1, 400)


@pytest.mark.parametrize("id", [12, 13, 14])
def test_the_shape_for_stream_k_cuts_the_last_steps_of_a_tile(id):
    """As backward_weight 16bit rungs 12 to 14 find it out, for one of 3 tiles."""
    op = find("matmul.backward_weight").op
    sms, dims, _ = op.also[1]
    target = Emulated().variant(multiprocessors=sms).target(DTYPES["bfloat16"])
    constants = find(op.name).rung(f"16bit-{id}").plan(dims, target).constants
    assert (constants["TILES"], constants["REST"], constants["STEPS"]) == (3, 3, 23)
    assert cut(sms, 3, 23) == [False, True, False]


def cut(sms, rest, steps):
    """Whether the last steps of each of `rest` tiles are split between two blocks."""
    share, line = tiles.stream_k(rest, steps, sms)
    left = steps % share
    firsts = (tile * left for tile in range(rest))
    return [left > 1 and first // line < (first + left - 1) // line for first in firsts]


@given(SIZES, st.integers(1, 60000), SIZES)
def test_the_chosen_width_takes_no_more_time_than_the_other(high, columns, places):
    def time(width):
        return ceil_div(high * ceil_div(columns, width), places) * width

    chosen = tiles.tile_columns(high, columns, places, 256, 192)
    assert chosen in (192, 256) and time(chosen) == min(time(192), time(256))


@pytest.mark.parametrize(("columns", "kept"), [(384, 128), (1152, 192), (1536, 192)])
def test_the_kept_part_of_weight_is_as_wide_as_the_chapter_says(columns, kept):
    assert tiles.kept_columns(16384 // 64, columns, SMS) == kept


@pytest.mark.parametrize(
    ("left", "share", "line"),
    [
        (18, 10, 4),  # 7 parts of each tile; the seventh has what six leave
        (54, 32, 1),
        (72, 35, 35),  # an equal number of steps: 35 of each tile, and 35 of the line of the rest
        (1179 - 8 * SMS, 64, 1),  # 8 waves of whole tiles, and 123 more
        (0, 1, 1),  # nothing is left to share
    ],
)
def test_what_stream_k_shares(left, share, line):
    assert tiles.stream_k(left, 64, SMS) == (share, line)


@pytest.mark.slow
@given(SIZES, SIZES, st.integers(1, 200))
def test_stream_k_has_a_block_for_every_step(left, steps, blocks):
    assume(left < blocks)
    share, line = tiles.stream_k(left, steps, blocks)
    full, rest = divmod(steps, share)
    in_line = ceil_div(left * rest, line)
    assert full * left + in_line <= blocks


@pytest.mark.parametrize(
    ("columns", "rows", "chosen"),
    [
        (768, 768, (192, 5)),
        (768, 2304, (128, 1)),
        (768, 3072, (192, 1)),
        (768, 50304, (192, 1)),
    ],
)
def test_whole_tiles_or_parts_of_them_at_4096_rows(columns, rows, chosen):
    assert tiles.split_tiles(rows // 128, columns, rows, 4096 // 64, SMS) == chosen


def test_a_long_sum_is_split_for_three_waves():
    assert tiles.split_tiles(3072 // 128, 768, 3072, 65536 // 64, SMS) == (192, 4)  # 384 parts


@given(SIZES, st.integers(1, 60000), SIZES, st.integers(1, 1000))
def test_no_part_of_a_split_is_empty(high, columns, steps, blocks):
    width, parts = tiles.split_tiles(high, columns, 128 * high, steps, blocks)
    assert width in (128, 192) and 1 <= parts <= steps


@pytest.mark.parametrize(
    ("count", "steps", "parts"),
    [(12, 1024, 11), (36, 1024, 11), (48, 1024, 11), (12, 64, 5), (36, 64, 5), (48, 64, 4)],
)
def test_equal_parts_fill_whole_waves_of_clusters(count, steps, parts):
    assert tiles.equal_parts(count, steps, SMS // 2, 2) == parts


@given(SIZES, st.integers(1, 2000), st.integers(1, 200), st.integers(0, 20))
def test_no_equal_part_is_empty(count, steps, blocks, end):
    parts = tiles.equal_parts(count, steps, blocks, end)
    assert ceil_div(steps, ceil_div(steps, parts)) == parts


@pytest.mark.parametrize(("count", "parts"), [(36, 7), (108, 7), (144, 7)])
def test_sums_over_rows_are_split_for_full_waves(count, parts):
    assert tiles.split_rows(count, 4096, 2 * SMS) == parts


@given(SIZES, st.integers(1, 70000), st.integers(1, 600))
def test_a_part_of_a_sum_over_rows_is_not_too_short(count, rows, places):
    parts = tiles.split_rows(count, rows, places)
    assert 1 <= parts <= ceil_div(rows, tiles.LEAST_ROWS)
