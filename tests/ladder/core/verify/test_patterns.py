"""What a report says of wrong elements: where they are, and what usually causes it."""

import numpy as np
import pytest

from ladder.core.verify.patterns import likely_cause, never_written, where

VALUE = np.random.default_rng(0).standard_normal((12, 20)).astype(np.float32)


def wrong_at(*index) -> np.ndarray:
    wrong = np.zeros(VALUE.shape, bool)
    wrong[index] = True
    return wrong


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (wrong_at(3, 5), "row 3 of 12; column 5 of 20"),
        (wrong_at(slice(8, None)), "rows 8 to 11 of 12; all 20 columns"),
        (
            wrong_at(slice(None), slice(3, None, 4)),
            "all 12 rows; every 4th column of 20, from 3 on",
        ),
        (wrong_at(0, [1, 2, 7]), "row 0 of 12; 3 of 20 columns between 1 and 7"),
        (np.array([False, True, True]), "elements 1 to 2 of 3"),
        (np.array([True]), "the only element"),
    ],
)
def test_the_place_of_wrong_elements(wrong, text):
    assert where(wrong) == text


def cause(got: np.ndarray, before=None) -> str:
    wrong = ~(got == VALUE)  # so that nan is wrong
    return likely_cause(got, VALUE, wrong, before) or ""


def changed(index, change) -> np.ndarray:
    got = VALUE.copy()
    got[index] = change(got[index])
    return got


UNWRITTEN = np.uint32(0xFFFFFFFF).view(np.float32)


@pytest.mark.parametrize(
    ("got", "text"),
    [
        (changed(slice(8, None), lambda _: UNWRITTEN), "the grid is too small, or a guard"),
        (changed(slice(None), lambda _: UNWRITTEN), "the store, or the launch, is missing"),
        (changed(slice(None), lambda x: x / 8), "0.125 times what they must be: a scale factor"),
        (changed((0, 0), lambda x: x * 4), "4 times what they must be: elements are added more"),
        (changed((slice(None), -1), lambda x: x + 1), "only the last columns are wrong: the tail"),
        (changed(slice(1, None), lambda x: x[::-1] + 9), "everything before row 1 is right"),
        (changed((slice(None), slice(None, None, 4)), lambda x: x**2), "every 4th element"),
        (changed(slice(None), lambda x: x[0] + 1), "every row has the same values"),
        (changed(slice(None), lambda x: x**2 + 1), "every element is wrong"),
    ],
)
def test_the_likely_cause(got, text):
    assert text in cause(got)


def test_one_boundary_is_no_period():
    value, got = np.zeros(512), np.zeros(512)
    got[255] = 0.3
    assert likely_cause(got, value, got != value) is None


def test_a_nan_that_was_computed_is_not_called_unwritten():
    with np.errstate(invalid="ignore"):
        computed = changed((2, slice(None)), lambda x: (x * 0) / (x * 0))
    assert "0 / 0" in cause(computed)
    assert not never_written(computed).any()
    half = np.full(3, 0xFFFF, np.uint16).view(np.float16)
    assert never_written(half).all()
    assert not never_written(np.full(3, np.nan, np.float16)).any()


def test_an_output_that_accumulates_is_compared_with_what_it_held():
    before = np.random.default_rng(1).standard_normal(VALUE.shape)
    assert "nothing is added" in cause(before.astype(np.float32), before)
    assert "overwrites" in cause((VALUE - before).astype(np.float32), before)
    for times in (2, 9):
        got = before + times * (VALUE - before)
        assert f"{times} times too much is added" in cause(got.astype(np.float32), before)
    assert "wrong sign" in cause((2 * before - VALUE).astype(np.float32), before)
    moved = (before + (VALUE - before)[::-1]).astype(np.float32)
    assert "belongs to other elements" in cause(moved, before)
