"""Expressions compute what Python would, and take neither time nor memory, whatever they say."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.core.common.errors import LadderError
from ladder.core.contract.expressions import (
    MOST_CHARACTERS,
    ceil_div,
    evaluate_whole,
    find_tiling,
    parse,
)

NAMES = {"N": 100, "C": 768, "warp": 32, "real": "float16", "float16": "float16", "yes": True}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3*C", 2304),
        ("C // warp % 5 + 7 - 2", 9),
        ("-7 // 2", -4),
        ("-N % 7", 5),
        ("+N", 100),
        ("ceil_div(N, 16)", 7),
        ("min(N, C) * max(2, 3, 1)", 300),
        ("N if C > 700 else 1 // 0", 100),
        ("1 if C < 700 else 2 if C < 800 else 3", 2),
        ("(N, C + 1)", (100, 769)),
        ("()", ()),
        ("64 < N <= 100", True),
        ("64 < N < 100 < 1 // 0", False),
        ("N == 100 and C != 768", False),
        ("N == 1 or not C < 0", True),
        ("N < 0 and 1 // 0", False),
        ("real in (float16, 3)", True),
        ("real not in (3, 4)", True),
        ("real == float16", True),
        ("N and real", True),
        ("(N > 50) * 3", 3),
        ("yes + 1", 2),
    ],
)
def test_the_value_is_pythons(text, value):
    assert parse(text).evaluate(NAMES) == value


@given(st.integers(0, 2**31), st.integers(1, 2**31))
def test_ceil_div_rounds_up(a, b):
    assert (ceil_div(a, b) - 1) * b < a <= ceil_div(a, b) * b


HOSTILE = [
    *("__import__('os').system('true')", "__import__(1)", "eval(1)", "os.system(1)"),
    *("N.__class__", "().__class__", "[1, 2]", "{1: 2}", "[n for n in (1, 2)]", "f'{N}'"),
    *("(n for n in (1, 2))", "lambda: 1", "(x := 3)", "(1, 2)[0]", "await N", "N; C", "N = 3"),
    *("'text'", "1.5", "True", "None", "...", "10**10**10", "2 << 9", "N / 2", "~N", "N @ C"),
    *("N > 0 && C > 0", "N is C", "N in real", "min(*(1, 2))", "min(**N)", "", "1 +", "\0"),
    *("(" * 240 + ")" * 240, "-" * 400 + "1", "not " * 100 + "1", "(" * 60 + "1" + ",)" * 60),
    *("+".join("1" * 200), "9" * 400, "1" * (MOST_CHARACTERS + 1), "1" * 10**6),
]


@pytest.mark.parametrize("text", HOSTILE, ids=[text[:20] for text in HOSTILE])
def test_what_is_no_plain_arithmetic_is_refused_at_once(text):
    start = time.perf_counter()
    with pytest.raises(LadderError) as refused:
        parse(text)
    assert time.perf_counter() - start < 1
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 700


@pytest.mark.parametrize(
    "text",
    [
        *("M + 1", "wrap", "N // (C - 768)", "N % 0", "ceil_div(N, 0)", "ceil_div(N)", "min()"),
        *("min(N)", "real + 1", "-real", "real < 3", "(1, 2) * 1000000", "min((1, 2), 3)"),
        *("*".join(["9999999999"] * 8), "C*C*C*C*C*C*C", "real * 9223372036854775807"),
        "matmul.tiles.stream_k(warp, C, blocks=N) * 9999999999",
    ],
)
def test_what_has_no_value_is_refused_with_the_expression(text):
    expression = parse(text, find_tiling)
    with pytest.raises(LadderError, match=re.escape(text)):
        expression.evaluate(NAMES)


def test_a_refusal_says_what_to_write_instead():
    for text, remedy in [("N / 2", r"ceil_div\(a, b\)"), ("a && b", "and, or"), ("wrap", "warp")]:
        with pytest.raises(LadderError, match=remedy):
            parse(text).evaluate(NAMES)


def test_names_are_listed_as_they_appear_and_functions_apart():
    expression = parse("min(C, N) if warp == 32 else ceil_div(C, 2)")
    assert expression.names == ("C", "N", "warp")
    assert set(expression.functions) == {"min", "ceil_div"}


def test_a_whole_number_is_asked_for_and_nothing_else():
    assert evaluate_whole("3*C", {"C": 4}) == 12
    with pytest.raises(LadderError, match=r": \(1, 2\) "):
        evaluate_whole("(1, 2)", {})


@pytest.mark.parametrize(
    "name",
    [
        *("os.system", "os.path.exists", "layernorm.tiles.any", "contract.expressions.find_tiling"),
        *("matmul.tiles.tiling", "matmul.tiles.__builtins__", "matmul.tiles.stream"),
    ],
)
def test_a_header_names_tile_heuristics_only(name):
    with pytest.raises(LadderError, match=r"matmul\.tiles|" + re.escape(name)):
        parse(f"{name}(N)", find_tiling)


def test_a_tile_heuristic_may_return_several_numbers():
    text = "matmul.tiles.stream_k(warp, C, blocks=N)"
    assert len(parse(text, find_tiling).evaluate(NAMES)) > 1
