"""Stochastic rounding: to one of two neighbours, and right on average."""

import ml_dtypes
import numpy as np
import pytest

from reference.philox import random_words
from reference.rounding import round_at_random

NARROW = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
SUBNORMAL = 3.3e-7  # to float16


def words(n, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32)


def rounded(x, dtype, seed=0):
    x = np.asarray(x, np.float32)
    return round_at_random(x, words(x.size, seed), dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_number_of_the_type_stays_what_it_is(dtype):
    every = np.arange(2**16, dtype=np.uint16).view(dtype)
    result = rounded(every.astype(np.float32), dtype)
    numbers = ~np.isnan(every)
    np.testing.assert_array_equal(result[numbers].view(np.uint16), every[numbers].view(np.uint16))
    assert np.isnan(result[~numbers]).all()


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("value", [1.0003, -1.0003, 0.99999, 3.14159, -2e-5, SUBNORMAL, 1e-9])
def test_the_mean_is_the_number_itself(dtype, value):
    n = 1 << 18
    got = rounded(np.full(n, value), dtype).astype(np.float64)
    low, high = got.min(), got.max()
    exact = float(np.float32(value))
    assert low <= exact <= high
    if low == high:
        # So near to a neighbour that the other one, whose share this is, never came up.
        gap = float(np.spacing(np.abs(got[:1]).astype(dtype))[0])
        assert abs(exact - low) / gap < 30 / n
    else:
        assert np.unique(got).size == 2
        share = (exact - low) / (high - low)
        deviation = np.sqrt(share * (1 - share) / n)
        assert abs((got == high).mean() - share) < 5 * deviation


@pytest.mark.slow
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_the_share_that_is_rounded_up_is_exact(dtype):
    """All 24-bit numbers in turn stand for all random words: not a single one too many."""
    every = np.arange(1 << 24, dtype=np.uint32) << np.uint32(8)
    one = np.array(1, dtype)
    above = np.nextafter(one, np.array(2, dtype))
    share = 0.5 + 2**-8
    x = np.float32(float(one) + share * (float(above) - float(one)))
    got = round_at_random(np.full(every.size, x), every, dtype)
    assert np.count_nonzero(got == above) == share * every.size


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_the_larger_number_never_ends_below_the_smaller(dtype):
    rng = np.random.default_rng(1)
    bits = np.sort(rng.integers(0, 0x7F800000, 1 << 16, dtype=np.uint32))
    x = bits.view(np.float32)
    for word in (0, 0x7FFFFFFF, 0xFFFFFFFF):
        same = np.full(x.size, word, np.uint32)
        assert (np.diff(round_at_random(x, same, dtype).astype(np.float64)[x < 6e4]) >= 0).all()
        both = round_at_random(x, same, dtype), round_at_random(-x, same, dtype)
        np.testing.assert_array_equal(both[0], -both[1])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_what_is_not_finite_stays_and_what_nearly_overflows_does_not(dtype):
    largest = float(ml_dtypes.finfo(dtype).max)
    just_above = np.float32(largest) * np.float32(1.0001)
    x = np.repeat(np.float32([np.inf, -np.inf, np.nan, just_above]), 50)
    got = rounded(x, dtype).astype(np.float64).reshape(4, 50)
    assert (got[0] == np.inf).all() and (got[1] == -np.inf).all() and np.isnan(got[2]).all()
    assert (got[3] == largest).all()


def test_words_are_those_of_the_counter_whatever_the_block():
    rng = np.array([1, 2, 3, 4], np.uint32)
    whole = random_words(rng, 5, slice(0, 1001))
    np.testing.assert_array_equal(random_words(rng, 5, slice(400, 703)), whole[400:703])
    others = random_words(rng, 6, slice(0, 1001)), random_words(rng[::-1], 5, slice(0, 1001))
    assert not any((other == whole).any() for other in others)
