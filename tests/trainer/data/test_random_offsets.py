"""Rows that begin anywhere in the text: which, how often, from any position, on any rank."""

import itertools
import json

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from trainer.data.token_files import RandomOffsetLoader, TokenLoader, write_tokens

SIZES = {"x_0.bin": 9, "x_1.bin": 4, "x_2.bin": 30}  # tokens; the second holds one row of 3
FIRST = [222, 200, 221, 207]  # where the rows of the first batch begin, by seed 7


@pytest.fixture
def pattern(tmp_path):
    for i, (name, count) in enumerate(SIZES.items()):
        write_tokens(tmp_path / name, np.arange(100 * i, 100 * i + count))
    return tmp_path / "x_*.bin"


def loader(pattern, B=4, T=3, **how):
    return RandomOffsetLoader(pattern, B, T, **{"vocab": 65536, "seed": 7, **how})


def test_rows_are_pieces_of_one_shard_and_all_come_equally_often(pattern):
    batches = loader(pattern, B=500)
    starts = []
    for _ in range(40):
        inputs, targets = batches.next_batch()
        assert inputs.shape == targets.shape == (500, 3)
        assert inputs.dtype == targets.dtype == np.int32
        assert (inputs[:, 1:] == inputs[:, :-1] + 1).all() and (targets == inputs + 1).all()
        starts.append(inputs[:, 0])
    first, counts = np.unique(np.concatenate(starts), return_counts=True)
    rows = [100 * i + at for i, count in enumerate(SIZES.values()) for at in range(count - 3)]
    assert first.tolist() == rows
    expected = 500 * 40 / len(rows)
    assert abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_the_rows_of_a_seed_are_the_same_on_every_machine(pattern):
    assert [loader(pattern).next_batch()[0][:, 0].tolist() for _ in range(2)] == [FIRST, FIRST]
    assert loader(pattern, seed=8).next_batch()[0][:, 0].tolist() != FIRST


def test_a_restored_loader_continues_bit_for_bit(pattern):
    batches = loader(pattern)
    for _ in range(5):
        resumed = loader(pattern)
        resumed.restore(json.loads(json.dumps(batches.state())))
        for one, other in zip(batches.next_batch(), resumed.next_batch(), strict=True):
            assert np.array_equal(one, other)
        assert resumed.state() == batches.state()
    batches.reset()
    assert batches.state() == loader(pattern).state()


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_together_see_the_rows_that_one_process_sees(pattern, ranks):
    alone = loader(pattern)
    group = [loader(pattern, rank=rank, ranks=ranks) for rank in range(ranks)]
    for _ in range(3):
        for batches in group:
            assert np.array_equal(batches.next_batch()[0], alone.next_batch()[0])
        assert all(batches.state() == alone.state() for batches in group)


def test_a_position_in_another_order_or_other_data_is_refused(pattern):
    options = {"vocab": 65536, "seed": 7, "shuffle": True}
    orders = [
        loader(pattern),
        TokenLoader(pattern, 1, 3, **options),
        TokenLoader(pattern, 1, 3, llmc_order=True, **options),
    ]
    for one, other in itertools.permutations(orders, 2):
        with pytest.raises(LadderError, match=": order "):
            one.restore(other.state())
    for name, other in (("B", 5), ("T", 2), ("seed", 1)):
        with pytest.raises(LadderError, match=f": {name} "):
            loader(pattern, **{name: other}).restore(loader(pattern).state())
    for damage in (-1, "1", None, 1.0):
        with pytest.raises(LadderError, match=f": batch {damage}"):
            loader(pattern).restore(loader(pattern).state() | {"batch": damage})


def test_bad_sizes_and_tokens_are_named(pattern):
    with pytest.raises(LadderError, match=r"x_1\.bin .*4 .* T=4 "):
        loader(pattern, T=4)
    with pytest.raises(LadderError, match="B=0 "):
        loader(pattern, B=0)
    with pytest.raises(LadderError, match=r"x_2\.bin: token 29 .* 229,.* 200;"):
        loader(pattern, B=1000, T=1, vocab=200).next_batch()
