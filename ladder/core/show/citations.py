"""Measured numbers in the sentences of a page name the file that they come from, and are checked.

A comment at the end of a paragraph, which no reader sees, names a file of the repository and the
numbers that the paragraph took from it:

    A step takes 8.36 ms, 35 % less than PyTorch's.
    <!-- from doc/results/logs/times.txt: 8.36, 35 % = (11.30 / 8.36 - 1) * 100 -->

A number alone stands in the file as it stands in the paragraph. `shown = expression` is a number
that follows from numbers of the file: the expression's value rounds to the one that is shown.
`shown >= expression` is a bound. Digits and powers of ten need not be in the file.

A number that follows from shapes and sizes alone, and was not measured, has its sum instead:

    A step of 64 channels loads 48 KB for 4.2 MFLOP, 87 FLOPs per byte, 5 times as many as before.
    <!-- worked out: 5 times = (2 * 128 * 256 * 64 / (384 * 128)) / 16 -->

A number that stands in a table of the same page, which is made from the kernels, or follows from
such numbers, is looked up there. So it cannot outlive them:

    The loop has 373 instructions, 27 fewer than before.
    <!-- from this page's tables: 373, 27 = 400 - 373 -->
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ladder.core.common.errors import LadderError

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"
# of what is measured
UNITS = r"ms|µs|us|s|seconds|tokens/s|tok/s|[TG]FLOP/s|[TG]B/s|GiB|GB|%|[×x](?! ?\d)|times"

TABLES = "this page's tables"
_GENERATED = re.compile(r"<!-- ladder:begin .*?<!-- ladder:end -->", re.DOTALL)
_CITATION = re.compile(
    r"<!-- (?:from (?P<files>[^:>]+)|worked out): (?P<numbers>.+?) -->", re.DOTALL
)
_ENTRY = re.compile(rf"(?P<shown>{NUMBER})(?: (?:{UNITS}))?(?:\s*(?P<sign>=|>=)\s*(?P<rest>.+))?")
_MEASURED = re.compile(rf"(?<![\w.,-])(?P<number>{NUMBER})(?:[ -]?(?:{UNITS}))(?![\w/])")
_NOT_PROSE = re.compile(
    r"<!-- ladder:begin .*?<!-- ladder:end -->|```.*?```|^(?: {4}|\t).*?$|`[^`\n]*`|\$[^$\n]*\$"
    r"|!\[(?:[^]\\]|\\.)*\]|\]\([^)]*\)",  # what a picture's file says in words is no sentence
    re.DOTALL | re.MULTILINE,
)
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def problems(text: str, root: Path) -> Iterator[str]:
    """What is wrong with the citations of a page, one line each."""
    for paragraph in _paragraphs(text):
        for citation in _CITATION.finditer(paragraph):
            prose, files = _CITATION.sub("", paragraph), citation["files"]
            try:
                if files == TABLES:
                    source = "\n".join(_GENERATED.findall(text))
                else:
                    source = files and "\n".join(_read(root, name) for name in files.split(", "))
                for entry in re.split(r",\s+", citation["numbers"]):
                    _check(entry.strip(), prose, source)
            except LadderError as error:
                yield f"from {files}: {error}" if files else f"worked out: {error}"


def uncited(text: str) -> Iterator[str]:
    """The measured numbers, with their units, that no comment of their paragraph names."""
    for paragraph in _paragraphs(_NOT_PROSE.sub(_blank, text)):
        cited = {
            _value(match["shown"])
            for citation in _CITATION.finditer(paragraph)
            for entry in re.split(r",\s+", citation["numbers"])
            if (match := _ENTRY.fullmatch(entry.strip()))
        }
        for measured in _MEASURED.finditer(_CITATION.sub("", paragraph)):
            if _value(measured["number"]) not in cited:
                yield measured[0]


def in_sentences(text: str) -> Iterator[str]:
    """The measured numbers, with their units, that stand in no table, and all citations."""
    sentences = re.sub(r"^ *\|.*$", "", _NOT_PROSE.sub(_blank, text), flags=re.MULTILINE)
    yield from (match[0] for match in _CITATION.finditer(sentences))
    yield from (match[0] for match in _MEASURED.finditer(_CITATION.sub("", sentences)))


def _paragraphs(text: str) -> list[str]:
    return re.split(r"\n\s*\n", text)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _read(root: Path, name: str) -> str:
    try:
        return (root / name).read_text(encoding="utf-8")
    except OSError as error:
        raise LadderError(f"cannot be read: {error.strerror}") from None


def _check(entry: str, prose: str, source: str | None) -> None:
    """Raise LadderError where an entry of a comment does not hold; no source: it is worked out."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise LadderError(f"write a number, or 'number = expression', instead of {entry!r}")
    shown, sign, expression = match["shown"], match["sign"], match["rest"]
    if not _contains(prose, shown):
        raise LadderError(f"{shown} is not in the paragraph")
    if sign is None:
        if source is None:
            raise LadderError(f"say how {shown} is worked out: '{shown} = expression'")
        if not _contains(source, shown):
            raise LadderError(f"{shown} is not in the file")
        return
    for number in re.findall(NUMBER, expression):
        if source is not None and not (
            _contains(source, number) or re.fullmatch(r"\d|10*", number)
        ):
            raise LadderError(f"{number} is not in the file")
    try:
        value = _evaluate(ast.parse(expression.replace(",", ""), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError) as error:
        raise LadderError(f"cannot evaluate {expression}: {error}") from None
    holds = _value(shown) >= value if sign == ">=" else _rounds_to(value, shown)
    if not holds:
        raise LadderError(f"{expression} is {value:.6g}, not {shown}")


def _contains(text: str, number: str) -> bool:
    """Whether a number stands in a text by itself, not as a part of a longer one."""
    return re.search(rf"(?<![\d.])(?<!\d,){re.escape(number)}(?![\de]|[.,]\d)", text) is not None


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _rounds_to(value: float, shown: str) -> bool:
    """Whether a value is the number that is shown, to the last digit that is shown."""
    digits, _, exponent = shown.replace(",", "").partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(value - _value(shown)) <= 0.5 * unit * (1 + 1e-9)


def _evaluate(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError("only numbers, + - * / and brackets")
