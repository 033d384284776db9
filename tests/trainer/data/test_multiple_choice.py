"""Files of multiple-choice examples are llm.c's byte for byte, and damage is named."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.core.common.errors import LadderError
from tests.trainer.damage import damaged, header
from trainer.data.multiple_choice import Example, read_examples, write_examples

EXAMPLES = [Example([5, 6], [[1], [2, 3], [4], [50256]], 3), Example([7], [[1]] * 4, 0)]


def packed(numbers):
    return struct.pack(f"<{len(numbers)}H", *numbers)


FIRST = [65535, 34, 0, 3, 4, 2, 5, 6, 1, 1, 2, 2, 3, 1, 4, 1, 50256]
SECOND = [65535, 30, 1, 0, 4, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1]
GOOD = header(20240522, 1, 2, 34) + packed(FIRST + SECOND)


def read(path, content, **how):
    path.write_bytes(content)
    return read_examples(path, **{"vocab": 50257, **how})


def test_a_file_has_llmcs_layout(tmp_path):
    write_examples(tmp_path / "x.bin", EXAMPLES)
    assert (tmp_path / "x.bin").read_bytes() == GOOD


def test_examples_survive_their_file(tmp_path):
    assert read(tmp_path / "x.bin", GOOD) == EXAMPLES


@pytest.mark.parametrize(
    "example",
    [
        Example([5], [[1]] * 3, 0),
        Example([5], [[1]] * 4, 4),
        Example([], [[1]] * 4, 0),
        Example([5], [[1], [1], [], [1]], 0),
        Example([65535], [[1]] * 4, 0),
        Example([-1], [[1]] * 4, 0),
        Example([5], [[1]] * 4, -1),
        Example([5] * 32754, [[1]] * 4, 0),
        Example([5] * 32768, [[1]] * 4, 0),
    ],
)
def test_an_example_that_does_not_fit_the_format_is_refused_and_nothing_written(tmp_path, example):
    with pytest.raises(LadderError, match=r"x\.bin: example 1 .* 4 "):
        write_examples(tmp_path / "x.bin", [EXAMPLES[0], example])
    assert list(tmp_path.iterdir()) == []


def test_the_longest_example_and_the_ends_of_the_vocabulary_fit(tmp_path):
    longest = Example([0, 65534] + [5] * 32751, [[1]] * 4, 0)  # 65,534 bytes
    write_examples(tmp_path / "x.bin", [longest])
    assert read_examples(tmp_path / "x.bin", vocab=65535) == [longest]


@pytest.mark.parametrize(
    "content, names",
    [
        (b"", " 0 bytes;"),
        (header(20240520, 1, 9), "20240520 .* 20240522; .*prepare hellaswag"),
        (header(20240522, 2, 0), "version 2"),
        (header(20240522, 1, 0), " 0 examples"),
        (GOOD[:-2], "example 1 .* 1 tokens, .* 0 "),
        (GOOD + b"\0", " 2 examples, .* 1 bytes"),
        (GOOD.replace(packed([65535, 30]), packed([65535, 28])), "example 1 .* 28 bytes"),
        (GOOD.replace(packed([65535, 30, 1]), packed([65535, 30, 2])), "example 1 .* 30, 2, "),
        (GOOD.replace(packed([1, 0, 4, 1, 7]), packed([1, 4, 4, 1, 7])), r"example 1 .* 1, 4, 4\]"),
        (GOOD.replace(packed([34, 0, 3]), packed([26, 0, 3])), r"example 0 \("),
        (GOOD.replace(packed([4, 1, 7]), packed([4, 0, 7])), "example 1 .* 0 tokens"),
        (header(20240522, 1, 3, 34) + GOOD[1024:], r"example 2 \("),
    ],
)
def test_damage_is_named_with_the_file_in_one_line(tmp_path, content, names):
    with pytest.raises(LadderError, match=names) as caught:
        read(tmp_path / "x.bin", content)
    assert "x.bin" in str(caught.value) and "\n" not in str(caught.value)


def test_a_token_beyond_the_vocabulary_is_named(tmp_path):
    with pytest.raises(LadderError, match=r"example 0 .* 50256, .* 257;"):
        read(tmp_path / "x.bin", GOOD, vocab=257)


@pytest.mark.slow
@given(st.one_of(st.binary(max_size=1200), damaged(GOOD)))
def test_fuzzed_files_are_examples_or_refused_by_name(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzzed_examples.bin"
    try:
        examples = read(path, content)
    except LadderError as error:
        assert str(path) in str(error)
        return
    for example in examples:
        assert 0 <= example.label < len(example.completions) == 4
        assert all(map(len, (example.context, *example.completions)))
