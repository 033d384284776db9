"""Token files are llm.c's byte for byte, damage is named, and a loader's position is exact."""

import errno
import json
import os
import re
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder.core.common.errors import LadderError
from tests.trainer.damage import damaged, header
from trainer.data.token_files import TokenLoader, pair_of, read_tokens, write_tokens


def token_file(path, count=100, *, first=0):
    write_tokens(path, np.arange(first, first + count))
    return path


def loader(path, B=2, T=3, *, shuffle=False, seed=0, vocab=65536, **how):
    return TokenLoader(path, B, T, vocab=vocab, shuffle=shuffle, seed=seed, **how)


def test_a_file_has_llmcs_layout(tmp_path):
    write_tokens(tmp_path / "x.bin", np.array([1, 50256, 65535]))
    expected = header(20240520, 1, 3) + struct.pack("<3H", 1, 50256, 65535)
    assert (tmp_path / "x.bin").read_bytes() == expected


@pytest.mark.parametrize("token", [-1, 65536])
def test_tokens_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path, token):
    with pytest.raises(LadderError, match="65535"):
        write_tokens(tmp_path / "x.bin", np.array([0, token]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content, names",
    [
        (b"", " 0 bytes.* 1024"),
        (header(20240520, 1, 0)[:1023], " 1023 bytes.* 1024"),
        (header(20240519, 1, 0), "20240519 .*20240520"),
        (b"First Citizen:\nBefore", r"--dataset .*x\.bin$"),
        (header(20240801, 7, 4000), "Llama 3's .*--dataset"),
        (header(20240326, 3, 1024), "model.* -e$"),
        (header(20240520, 2, 0), "version 2"),
        (header(20240520, 1, 10) + b"\0" * 18, " 10 tokens.* 9;"),
        (header(20240520, 1, 10) + b"\0" * 22, " 10 tokens.* 11;"),
        (header(20240520, 1, 10) + b"\0" * 21, r" 10 tokens.* 10\.5;"),
        (header(20240520, 1, -1), " -1 tokens"),
        (header(20240520, 1, 2**31 - 1), f" {2**31 - 1} tokens"),
    ],
)
def test_damage_is_named_with_the_file_in_one_line(tmp_path, content, names):
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(LadderError, match=names) as caught:
        read_tokens(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_the_remedy_for_tokens_without_a_header_writes_a_token_file(tmp_path):
    """As nanoGPT's prepare.py leaves them."""
    path = tmp_path / "train.bin"
    tokens = np.arange(4000) % 250
    tokens.astype("<u2").tofile(path)
    with pytest.raises(LadderError) as refused:
        loader(path)
    exec(re.search('python -c "(.*)"$', str(refused.value))[1])
    assert read_tokens(tmp_path / "headed_train.bin").tolist() == tokens.tolist()


def test_a_missing_file_suggests_the_set_that_it_names():
    for pattern, remedy in (
        ("dev/data/tinyshakespeare/tiny_shakespeare_train.bin", "--dataset tinyshakespeare"),
        ("edu_fineweb100B/edu_fineweb_train_*.bin", "--dataset fineweb-edu-100B"),
        ("mine/*.bin", "--dataset"),
    ):
        with pytest.raises(LadderError, match=rf"{re.escape(pattern)}; .* {remedy}$"):
            loader(pattern)


def test_a_file_that_is_cut_short_during_a_run_is_one_line(tmp_path):
    path = token_file(tmp_path / "x.bin")
    batches = loader(path)
    batches.next_batch()
    os.truncate(path, 1024)
    with pytest.raises(LadderError, match=r"x\.bin .* 100 tokens, .* 1024 "):
        batches.next_batch()


def test_a_header_that_promises_much_allocates_nothing(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(header(20240520, 1, 2**31 - 1) + b"\0" * 64)
    tracemalloc.start()
    try:
        with pytest.raises(LadderError):
            loader(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


GOOD = header(20240520, 1, 40) + np.arange(40, dtype="<u2").tobytes()


@pytest.mark.slow
@given(st.one_of(st.binary(max_size=1200), damaged(GOOD)), st.booleans())
def test_fuzzed_files_load_whole_or_are_refused_by_name(tmp_path_factory, content, shuffle):
    path = tmp_path_factory.getbasetemp() / "fuzzed.bin"
    path.write_bytes(content)
    try:
        batches = loader(path, vocab=50257, shuffle=shuffle)
        for _ in range(2 * batches.batches):
            inputs, targets = batches.next_batch()
            assert inputs.shape == targets.shape == (2, 3)
            assert inputs.min() >= 0 and inputs.max() < 50257
    except LadderError as error:
        assert str(path) in str(error)
    else:
        assert len(content) == 1024 + 2 * batches.tokens


def test_a_full_disk_is_an_error_that_leaves_the_old_file(tmp_path, monkeypatch):
    path = token_file(tmp_path / "x.bin")
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LadderError, match=r"x\.bin: No space left"):
        token_file(path, 50)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_windows_advance_by_a_batch_and_targets_are_the_next_tokens(tmp_path):
    batches = loader(token_file(tmp_path / "x.bin", 16), B=2, T=3)
    assert (batches.tokens, batches.batches) == (16, 2)
    inputs, targets = batches.next_batch()
    assert inputs.dtype == targets.dtype == np.int32
    assert inputs.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert targets.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert batches.next_batch()[0].tolist() == [[6, 7, 8], [9, 10, 11]]
    # 4 tokens are left, less than a window of 7: the next epoch begins.
    assert batches.next_batch()[0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_shards_follow_one_another_by_name(tmp_path):
    for i in (1, 0):
        token_file(tmp_path / f"x_{i}.bin", 7, first=10 * i)
    batches = loader(tmp_path / "x_*.bin")
    assert [batches.next_batch()[0][0, 0] for _ in range(4)] == [0, 10, 0, 10]


def test_a_path_with_the_letters_of_a_pattern_is_a_path(tmp_path):
    (tmp_path / "run[1]").mkdir()
    assert loader(token_file(tmp_path / "run[1]" / "x.bin")).tokens == 100


def epochs(batches, count):
    """First token of every batch, epoch by epoch: in these files it says which window it is."""
    return [
        [int(batches.next_batch()[0][0, 0]) for _ in range(batches.batches)] for _ in range(count)
    ]


def test_shuffled_epochs_hold_every_window_once_in_another_order(tmp_path):
    for i in range(3):
        token_file(tmp_path / f"x_{i}.bin", 100, first=1000 * i)
    pattern = tmp_path / "*.bin"
    ordered = epochs(loader(pattern), 1)[0]
    first, second = epochs(loader(pattern, shuffle=True, seed=1), 2)
    assert sorted(first) == sorted(second) == ordered
    assert first != ordered and first != second
    assert epochs(loader(pattern, shuffle=True, seed=1), 2) == [first, second]
    assert epochs(loader(pattern, shuffle=True, seed=2), 1) != [first]
    for epoch in (first, second):  # one shard is open at a time
        assert len({window // 1000 for window in epoch[:16]}) == 1


def test_the_shuffled_order_is_the_same_on_every_machine(tmp_path):
    path = token_file(tmp_path / "x.bin", 8 * 6 + 1)
    windows = np.array(epochs(loader(path, shuffle=True, seed=42), 2)) // 6
    assert windows.tolist() == [[5, 4, 2, 7, 6, 0, 1, 3], [6, 3, 1, 0, 5, 2, 4, 7]]


# The first tokens of the batches that llm.c's own loader took, compiled: two epochs of the three
# files below, by (rank, ranks).
TAKEN_BY_LLMC = {
    (0, 1): [
        *(206, 218, 212, 242, 236, 200, 230, 224, 106, 100, 124, 112, 118, 130, 0, 30),
        *(12, 48, 54, 42, 36, 18, 24, 6, 236, 224, 200, 242, 212, 218, 206, 230),
        *(100, 112, 118, 130, 124, 106, 24, 48, 30, 18, 42, 54, 0, 12, 6, 36),
    ],
    (0, 2): [
        *(224, 236, 212, 200, 112, 100, 124, 12, 0, 36, 24, 48),
        *(0, 24, 12, 36, 48, 212, 224, 200, 236, 124, 100, 112),
    ],
    (1, 2): [
        *(206, 230, 218, 242, 30, 18, 42, 54, 6, 106, 130, 118),
        *(106, 130, 118, 242, 218, 230, 206, 30, 54, 6, 42, 18),
    ],
}


@pytest.mark.parametrize("rank, ranks", TAKEN_BY_LLMC)
def test_llmcs_order_is_llmcs_on_every_rank_from_any_position(tmp_path, rank, ranks):
    for i, windows in enumerate((5, 3, 4)):
        token_file(tmp_path / f"x_{i}.bin", 12 * windows + 1, first=100 * i)
    options = dict(vocab=65536, shuffle=True, rank=rank, ranks=ranks, llmc_order=True)
    batches = TokenLoader(tmp_path / "*.bin", 2, 3, **options)
    taken = TAKEN_BY_LLMC[rank, ranks]
    assert batches.batches == 24
    for i, first in enumerate(taken):
        resumed = TokenLoader(tmp_path / "*.bin", 2, 3, **options)
        resumed.restore(json.loads(json.dumps(batches.state())))
        inputs, targets = batches.next_batch()
        assert inputs[0, 0] == first, i
        assert (targets == inputs + 1).all()
        assert np.array_equal(resumed.next_batch()[0], inputs)
        assert resumed.state() == batches.state()


@pytest.mark.parametrize(
    ("llmc_order", "name", "value"),
    [
        *((True, "batch", 25), (True, "epoch", 10**12), (True, "ranks", 2)),
        *(
            (False, name, value)
            for name in ("epoch", "shard", "batch")
            for value in (-1, None, "1")
        ),
        *((False, "batch", 17), (False, "shard", 1)),
    ],
)
def test_a_damaged_position_is_refused_at_once_and_left_as_it_was(
    tmp_path, llmc_order, name, value
):
    batches = loader(token_file(tmp_path / "x.bin"), shuffle=True, llmc_order=llmc_order)
    before = batches.state()
    with pytest.raises(LadderError, match=f"position .*{value}"):
        batches.restore(before | {name: value})
    assert batches.state() == before
    batches.next_batch()


@pytest.mark.parametrize(
    "given, other", [("train", "val"), ("val", "train"), ("a_train_[01]", "a_val_[01]")]
)
def test_the_other_half_of_a_set_has_the_other_name(tmp_path, given, other):
    folder = tmp_path / "train"
    folder.mkdir()
    for split in ("train", "val"):
        token_file(folder / f"a_{split}_0.bin")
        token_file(folder / f"{split}.bin")
    splits = ("train", "val") if "train" in given else ("val", "train")
    assert pair_of(str(folder / f"{given}.bin"), *splits) == str(folder / f"{other}.bin")
    assert pair_of(str(folder / f"b_{given}.bin"), *splits) is None
    assert pair_of(str(folder / "x.bin"), *splits) is None


@pytest.mark.slow
@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(7, 60), min_size=1, max_size=4),
    shuffle=st.booleans(),
    seed=st.integers(-5, 2**64),
    before=st.integers(0, 60),
)
def test_a_restored_loader_continues_bit_for_bit(tmp_path_factory, sizes, shuffle, seed, before):
    directory = tmp_path_factory.mktemp("restored")
    for i, size in enumerate(sizes):
        token_file(directory / f"x_{i}.bin", size, first=100 * i)
    stopped = loader(directory / "x_*.bin", shuffle=shuffle, seed=seed)
    for _ in range(before):
        stopped.next_batch()
    state = json.loads(json.dumps(stopped.state()))
    resumed = loader(directory / "x_*.bin", shuffle=shuffle, seed=seed)
    resumed.restore(state)
    assert resumed.state() == stopped.state()
    for _ in range(2 * stopped.batches + 1):
        for a, b in zip(stopped.next_batch(), resumed.next_batch(), strict=True):
            assert np.array_equal(a, b)
    assert resumed.state() == stopped.state()


@pytest.mark.parametrize(
    "name, other", [("B", 1), ("T", 4), ("seed", 1), ("shuffle", True), ("tokens", 90)]
)
def test_a_position_in_other_data_is_refused(tmp_path, name, other):
    path, shorter = token_file(tmp_path / "x.bin", 100), token_file(tmp_path / "y.bin", 90)
    before = loader(shorter) if name == "tokens" else loader(path, **{name: other})
    with pytest.raises(LadderError, match=f": {name} .*{other}"):
        loader(path).restore(before.state())


def test_a_token_beyond_the_vocabulary_is_named_with_its_place(tmp_path):
    write_tokens(tmp_path / "x.bin", np.array([0] * 9 + [50257] + [0] * 10))
    batches = loader(tmp_path / "x.bin", vocab=50257)
    batches.next_batch()
    with pytest.raises(LadderError, match=r"x\.bin: token 9 .* 50257,"):
        batches.next_batch()


@pytest.mark.parametrize("count", [0, 1, 6])
def test_a_shard_shorter_than_a_batch_is_named(tmp_path, count):
    token_file(tmp_path / "x_0.bin")
    token_file(tmp_path / "x_1.bin", count)
    with pytest.raises(LadderError, match=rf"x_1\.bin .*{count} .* B=2 T=3 "):
        loader(tmp_path / "x_*.bin")


def test_a_batch_beyond_all_memory_is_refused_as_too_large_for_the_file(tmp_path):
    with pytest.raises(LadderError, match=r"x\.bin .* B=1099511627776 .* -b or -t"):
        loader(token_file(tmp_path / "x.bin"), B=2**40, T=2**40)


def test_a_file_that_changes_during_the_run_is_noticed_at_the_next_epoch(tmp_path):
    path = token_file(tmp_path / "x.bin", 7)
    batches = loader(path)
    batches.next_batch()
    token_file(path, 14)
    with pytest.raises(LadderError, match=r"x\.bin .* 7 tokens, .* 14$"):
        batches.next_batch()
