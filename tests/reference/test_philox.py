"""Philox against the known answers that its authors publish (Random123,
kat_vectors, seven rounds), and the dropout that is drawn from it."""

import numpy as np
import pytest

from reference import attention, attention_dropout, dropout
from reference.philox import philox4x32, random_words


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "5f6fb709 0d893f64 4f121f81 4f730a48"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "5207ddc2 45165e59 4d8ee751 8c52f662"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "4dfccaba 190a87f0 c47362ba b6b5242a"),
    ],
)  # fmt: skip
def test_known_answers(counter, key, words):
    counter, key, words = ([int(word, 16) for word in x.split()] for x in (counter, key, words))
    assert philox4x32(counter, key).tolist() == [words]


def test_many_counters_at_once_are_the_same_as_one_by_one():
    first = np.arange(5)
    together = philox4x32((first, 7, 8, 9), (1, 2))
    for i in first:
        np.testing.assert_array_equal(together[i], philox4x32((i, 7, 8, 9), (1, 2))[0])


def drop(inp, p=0.3, stream=1, rng=(1, 2, 3, 4)):
    out = np.full_like(inp, np.nan)
    dropout.forward(out, inp, np.array(rng, np.uint32), p=p, stream=stream)
    return out


def test_dropout_keeps_elements_whose_half_word_reaches_the_threshold():
    N, threshold = 200_003, 19_661  # several blocks, and not a multiple of 8; 0.3 of 65,536
    words = philox4x32((np.arange(-(-N // 8)), 1, 3, 4), (1, 2))
    halves = [words >> 16 * (k % 2) & 0xFFFF for k in range(2)]
    halves = np.stack(halves, axis=2).reshape(-1)[:N]  # of each word, the lower one first
    out = drop(np.ones(N), 0.3)
    np.testing.assert_array_equal(out != 0, halves >= threshold)
    np.testing.assert_array_equal(out[out != 0], 1 / (1 - threshold / 65536))


def test_dropout_without_probability_changes_nothing():
    inp = np.random.default_rng(0).standard_normal(100)
    np.testing.assert_array_equal(drop(inp, p=0.0), inp)


def test_random_words_start_again_after_2_to_the_34_elements():
    rng = np.array([1, 2, 3, 4], np.uint32)
    first, again = (random_words(rng, 5, slice(at, at + 8)) for at in (0, 2**34))
    np.testing.assert_array_equal(first, again)


STATE = np.array([1, 2, 3, 4], np.uint32)


def test_sixteen_elements_of_attention_share_a_counter_with_a_byte_each():
    T, head, tiles = 37, 2, 3
    mask = attention_dropout.keep_mask(STATE, head, T, p=0.3, stream=5)
    for query in (0, 5, 13, 31, 36):
        for key in (0, 9, 20, 29, 36):
            row, column = query // 16 * 4 + query % 8 // 2, key // 16 * 4 + key % 8 // 2
            group = (head * 4 * tiles + row) * 4 * tiles + column
            word = philox4x32((group, 5, 3, 4), (1, 2))[0][query % 2 * 2 + key % 2]
            byte = int(word) >> 8 * (query // 8 % 2 * 2 + key // 8 % 2) & 255
            assert mask[query, key] == (1 / (1 - 77 / 256) if byte >= 77 else 0)  # 77 / 256: 0.3008


@pytest.mark.parametrize("values", [dropout.VALUES, attention_dropout.VALUES])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1 - 2**-24])
def test_the_threshold_is_the_nearest_to_the_probability_that_keeps_some(p, values):
    assert dropout.drop_threshold(p, values) == min(round(p * values), values - 1)


def test_attention_without_probability_is_attention():
    qkv = np.random.default_rng(0).standard_normal((2, 19, 3 * 6))
    plain, dropped = [(np.empty((2, 19, 6)), np.empty((2, 3, 19))) for _ in range(2)]
    attention.forward(*plain, qkv)
    attention_dropout.forward(*dropped, qkv, STATE, p=0.0, stream=5)
    for expected, got in zip(plain, dropped, strict=True):
        np.testing.assert_array_equal(got, expected)
