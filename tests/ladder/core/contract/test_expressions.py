"""Expressions compute what Python would, and take neither time nor memory, whatever they say."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.core.common.errors import LadderError
from ladder.core.contract.expressions import MOST_CHARACTERS, ceil_div, evaluate_whole, parse
from ladder.core.contract.tilings import find

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
    ("__import__('os').system('true')", "Call is not allowed as a function"),
    ("__import__(1)", "no function __import__"),
    ("eval(1)", "no function eval"),
    ("N.__class__", "Attribute is not allowed"),
    ("os.system(1)", "no function os.system"),
    ("().__class__", "Attribute is not allowed"),
    ("[1, 2]", "List is not allowed"),
    ("{1: 2}", "Dict is not allowed"),
    ("[n for n in (1, 2)]", "ListComp is not allowed"),
    ("(n for n in (1, 2))", "GeneratorExp is not allowed"),
    ("lambda: 1", "Lambda is not allowed"),
    ("(x := 3)", "NamedExpr is not allowed"),
    ("f'{N}'", "JoinedStr is not allowed"),
    ("'text'", "'text' is not a whole number"),
    ("1.5", "1.5 is not a whole number"),
    ("True", "True is not a whole number"),
    ("None", "None is not a whole number"),
    ("...", "Ellipsis is not a whole number"),
    ("(1, 2)[0]", "Subscript is not allowed"),
    ("10**10**10", "Pow is not allowed"),
    ("2 << 9", "LShift is not allowed"),
    ("N / 2", r"/ is not allowed: write // to round down, ceil_div\(a, b\) to round up"),
    ("N > 0 && C > 0", "invalid syntax; write and, or, not, 'a if b else c'"),
    ("~N", "Invert is not allowed"),
    ("N @ C", "MatMult is not allowed"),
    ("N is C", "Compare is not allowed"),
    ("N in real", "Compare is not allowed"),
    ("min(*(1, 2))", "Starred is not allowed"),
    ("min(**N)", r"\*\* is not allowed"),
    ("await N", "cannot read"),
    ("N; C", "cannot read"),
    ("N = 3", "cannot read"),
    ("", "cannot read"),
    ("1 +", "cannot read"),
    ("\0", "cannot read"),
    ("(" * 240 + ")" * 240, "cannot read"),
    ("-" * 400 + "1", "nested"),
    ("not " * 100 + "1", "nested more than 30 deep"),
    ("(" * 60 + "1" + ",)" * 60, "nested more than 30 deep"),
    ("+".join("1" * 200), "nested more than 30 deep"),
    ("9" * 400, r"larger than 2\*\*63"),
    ("1" * (MOST_CHARACTERS + 1), "it has 501 characters"),
    ("1" * 10**6, "it has 1000000 characters"),
]


@pytest.mark.parametrize(("text", "says"), HOSTILE, ids=[text[:20] for text, _ in HOSTILE])
def test_what_is_no_plain_arithmetic_is_refused_at_once(text, says):
    start = time.perf_counter()
    with pytest.raises(LadderError, match=says) as refused:
        parse(text)
    assert time.perf_counter() - start < 1
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 700


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("M + 1", "there is no M; there are N, C, warp"),
        ("wrap", "there is no wrap; did you mean warp"),
        ("N // (C - 768)", "zero"),
        ("N % 0", "zero"),
        ("ceil_div(N, 0)", "ceil_div: "),
        ("ceil_div(N)", "ceil_div: "),
        ("min()", "min: "),
        ("min(N)", "min: "),
        ("real * 9223372036854775807", "'float16' is not a whole number"),
        ("matmul.tiles.stream_k(warp, C, blocks=N) * 9999999999", "is not a whole number"),
        ("real + 1", "'float16' is not a whole number"),
        ("-real", "'float16' is not a whole number"),
        ("real < 3", "not supported"),
        ("(1, 2) * 1000000", r"\(1, 2\) is not a whole number"),
        ("min((1, 2), 3)", r"\(1, 2\) is not a whole number"),
        ("*".join(["9999999999"] * 8), r"larger than 2\*\*63"),
        ("C*C*C*C*C*C*C", r"larger than 2\*\*63"),
    ],
)
def test_what_has_no_value_says_why(text, says):
    expression = parse(text, find)
    with pytest.raises(LadderError, match=says) as refused:
        expression.evaluate(NAMES)
    assert str(refused.value).startswith(f"cannot evaluate {text!r}: ")


def test_names_are_listed_as_they_appear_and_functions_apart():
    expression = parse("min(C, N) if warp == 32 else ceil_div(C, 2)")
    assert expression.names == ("C", "N", "warp")
    assert set(expression.functions) == {"min", "ceil_div"}


def test_a_whole_number_is_asked_for_and_nothing_else():
    assert evaluate_whole("3*C", {"C": 4}) == 12
    with pytest.raises(LadderError, match=r"\(1, 2\) is not a whole number"):
        evaluate_whole("(1, 2)", {})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("os.system", "there is no function os.system"),
        ("os.path.exists", "there is no function os.path.exists"),
        ("layernorm.tiles.any", "there is no function layernorm.tiles.any"),
        ("contract.tilings.find", "there is no function contract.tilings.find"),
        ("matmul.tiles.tiling", "there is no function matmul.tiles.tiling"),
        ("matmul.tiles.__builtins__", "there is no function matmul.tiles.__builtins__"),
        ("matmul.tiles.stream", "matmul.tiles has stream_k"),
    ],
)
def test_a_header_names_tile_heuristics_only(name, says):
    with pytest.raises(LadderError, match=says):
        parse(f"{name}(N)", find)


def test_a_tile_heuristic_may_return_several_numbers():
    text = "matmul.tiles.stream_k(warp, C, blocks=N)"
    assert len(parse(text, find).evaluate(NAMES)) > 1
