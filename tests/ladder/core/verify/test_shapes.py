"""The shapes that a rung is checked at follow from the rung: tiles, rings, tails, blocks."""

import numpy as np
import pytest

from ladder.core.contract import rung_file
from ladder.core.contract.ladder import find, ladders
from ladder.core.contract.op import DTYPES
from ladder.core.contract.target import Target
from ladder.core.device.open import open_device
from ladder.core.verify.shapes import TURNS, derive_shapes

FLOAT32 = np.dtype(np.float32)
TARGET = Target("emulated", 32, 4, 227 << 10, FLOAT32)


def derived(tmp_path, op, header, target=TARGET, **more):
    ladder = find(op)
    path = tmp_path / "mine.cu"
    kernel = ladder.op.kernel
    path.write_text(
        f"// a layer, rung 1: a test\n{header.format(kernel=kernel)}\n\nvoid {kernel}();\n"
    )
    return derive_shapes(ladder.op, rung_file.parse(path, kernel), target, **more)


def test_a_tile_is_filled_lacks_one_element_and_has_one_too_many(tmp_path):
    header = "// Define: BLOCK = 192\n// Launch: {kernel}<<<ceil_div(N, BLOCK), BLOCK>>>"
    sizes = [dims["N"] for dims in derived(tmp_path, "gelu.forward", header)]
    assert 1 in sizes
    assert {0, 1, 191} <= {size % 192 for size in sizes if size > 1}
    assert {1, 2, 3} <= {-(-size // 192) for size in sizes}


def test_sizes_keep_to_what_the_rung_needs(tmp_path):
    header = "// Needs: N % 4 == 0; N <= 1500\n// Launch: {kernel}<<<ceil_div(N, 4 * 64), 64>>>"
    sizes = [dims["N"] for dims in derived(tmp_path, "gelu.forward", header)]
    assert all(size % 4 == 0 for size in sizes)
    assert {4, 1500} <= set(sizes), "the smallest and the largest"
    assert {0, 4, 252} <= {size % 256 for size in sizes}


def test_rows_begin_where_a_wider_access_could_not(tmp_path):
    header = "// Needs: C % 4 == 0\n// Launch: {kernel}<<<N, 64>>>"
    shapes = derived(tmp_path, "layernorm.forward", header)
    assert any(dims["N"] > 1 and dims["C"] % 8 == 4 < dims["C"] for dims in shapes)


def test_a_ring_goes_round_more_than_twice(tmp_path):
    header = (
        "// Define: TILE = 128; DEPTH = 32; STAGES = 5\n"
        "// Launch: {kernel}<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), 256>>>"
    )
    shapes = derived(tmp_path, "matmul.forward", header)
    long = [dims for dims in shapes if dims["C"] > 2 * 5 * 32]
    assert long
    assert all(min(dims["N"], dims["OC"]) >= 127 for dims in long), "and all threads have work"
    assert any(dims["N"] % 128 == 1 for dims in shapes)


def test_blocks_of_a_persistent_kernel_get_more_than_two_tiles(tmp_path):
    header = "// Launch: {kernel}<<<min(ceil_div(N, 8), 2 * multiprocessors), 8 * warp>>>"
    sizes = [dims["N"] for dims in derived(tmp_path, "layernorm.forward", header)]
    assert max(sizes) > 2 * 8 * 2 * TARGET.multiprocessors


def test_tiles_of_a_persistent_kernel_have_more_steps_than_its_ring_has_stages(tmp_path):
    header = (
        "// Needs: sm == 90\n"
        "// Define: TILE = 128; DEPTH = 32; STAGES = 5;\n"
        "//         TILES = ceil_div(OC, TILE) * ceil_div(N, TILE)\n"
        "// Launch: {kernel}<<<min(TILES, multiprocessors), 256>>>"
    )
    shapes = derived(tmp_path, "matmul.forward", header)
    assert any(
        -(-dims["N"] // 128) * -(-dims["OC"] // 128) > 2 * TARGET.multiprocessors
        for dims in shapes
        if dims["C"] > 5 * 32
    )


def test_the_tiles_of_a_block_take_a_ring_round_twice_where_no_single_tile_can(tmp_path):
    """Of a rung that keeps its weight: 6 steps at most, 12 stages."""
    header = (
        "// Needs: sm == 90; C <= 384\n"
        "// Define: TILE = 64; DEPTH = 64; STAGES = 12; WIDE = ceil_div(OC, TILE);\n"
        "//         HIGH = ceil_div(N, TILE)\n"
        "// Launch: {kernel}<<<WIDE * min(HIGH, max(1, multiprocessors // WIDE)), 256>>>"
    )
    rounds = []
    for dims in derived(tmp_path, "matmul.forward", header):
        high, wide = -(-dims["N"] // 64), -(-dims["OC"] // 64)
        tiles = -(-high // max(1, TARGET.multiprocessors // wide))
        rounds.append((tiles, tiles * -(-dims["C"] // 64) / 12))
    assert any(tiles > 4 and times > 2 for tiles, times in rounds), "each of two buffers of two"


def test_a_goal_that_takes_too_long_is_named(tmp_path):
    header = (
        "// Define: TILE = 1024; DEPTH = 32; STAGES = 20;\n"
        "//         TILES = ceil_div(OC, TILE) * ceil_div(N, TILE)\n"
        "// Launch: {kernel}<<<min(TILES, multiprocessors), 256>>>"
    )
    given_up = []
    derived(tmp_path, "matmul.forward", header, give_up=given_up.append)
    assert f"{TURNS} (matmul_forward)" in given_up


def test_each_value_of_a_constant_is_tried(tmp_path):
    header = (
        "// Define: WIDE = 2 if C > 700 else 1\n// Launch: {kernel}<<<ceil_div(N, 4), 4 * warp>>>"
    )
    assert {dims["C"] > 700 for dims in derived(tmp_path, "layernorm.forward", header)} == {
        True,
        False,
    }


def test_a_rung_that_takes_no_shape_gets_none(tmp_path):
    header = "// Needs: sm >= 90; N < 0\n// Launch: {kernel}<<<1, 1>>>"
    assert derived(tmp_path, "gelu.forward", header) == []


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ladders()))
def test_shapes_of_every_rung_fit_the_op_and_the_rung(name):
    """In one type; there are few of them, they differ, and no goal of weight is given up."""
    ladder, device = find(name), open_device("emulated")
    for rung in ladder.rungs:
        able = (real for real in ladder.op.reals if rung.claims(device.target(DTYPES[real])))
        target = device.target(DTYPES[next(able)])
        given_up = []
        shapes = derive_shapes(ladder.op, rung, target, given_up.append)
        assert not given_up, rung.id
        assert 3 <= len(shapes) <= 25, rung.id
        assert len({tuple(dims.values()) for dims in shapes}) == len(shapes)
        if rung.path is not None:
            assert all(ladder.op.misfit(dims) is None for dims in shapes)
            assert all(rung.plan(dims, target).refusal is None for dims in shapes)
