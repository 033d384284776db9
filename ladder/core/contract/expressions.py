"""Arithmetic that stands in text, such as `ceil_div(N, 4) if warp == 32 else 1`.

A header can be a stranger's, so none of it reaches Python's own `eval`: `parse` accepts a few kinds
of nodes of Python's syntax tree and refuses every other one, and `Expression.evaluate` computes
with integers below 2**63 only. What is written takes little time and memory, whatever it is. The
meaning is Python's, but for `and` and `or`, which give True or False.

    parse("min(N, 4) * warp").evaluate({"N": 100, "warp": 32})    128
"""

from __future__ import annotations

import ast
import difflib
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ladder.core.common.errors import LadderError

Value = int | str | tuple["Value", ...]
Names = Mapping[str, Value]
Function = Callable[..., int | tuple[int, ...]]
Evaluator = Callable[[Names], Value]

MOST_CHARACTERS = 500
MOST_DEPTH = 30  # of nodes within nodes
MOST = 2**63  # integers stay below it, and above its negative

_ALLOWED = "whole numbers, names, + - * // %, comparisons, and, or, not, if else, tuples, functions"


class ExpressionError(LadderError):
    """An expression that is not one, or has no value."""


def ceil_div(a: int, b: int) -> int:
    """How many times `b` fits into `a`, rounded up: blocks of `b` that cover `a`."""
    return -(-a // b)


FUNCTIONS: Mapping[str, Function] = {"ceil_div": ceil_div, "min": min, "max": max}


def no_more_functions(name: str) -> Function:
    """The default for `parse`: refuses functions that are not in FUNCTIONS."""
    raise ExpressionError(f"there is no function {name}, only {', '.join(FUNCTIONS)}")


@dataclass(frozen=True)
class Expression:
    """A parsed expression.

    text       as it was written
    names      the names that it uses, in order of their appearance, without functions
    functions  every function that it calls, by the name that it is called by
    """

    text: str
    names: tuple[str, ...]
    functions: Mapping[str, Function] = field(repr=False, compare=False)
    _value: Evaluator = field(repr=False, compare=False)

    def evaluate(self, names: Names) -> Value:
        """Its value. Raises ExpressionError where it has none, such as for a division by 0."""
        try:
            return self._value(names)
        except ExpressionError as error:
            raise ExpressionError(f"cannot evaluate {self.text!r}: {error}") from None


def evaluate_whole(text: str, names: Mapping[str, int]) -> int:
    """The value of an expression that must be a whole number: "3*C"."""
    value = parse(text).evaluate(names)
    if not isinstance(value, int):
        raise ExpressionError(f"cannot evaluate {text!r}: {value!r} is not a whole number")
    return int(value)


_OF_C = re.compile(r"&&|\|\||!(?!=)|\?")


@functools.lru_cache(maxsize=4096)
def parse(text: str, find: Callable[[str], Function] = no_more_functions) -> Expression:
    """Read an expression.

    find  the function behind a name that is not in FUNCTIONS, with its dots; raises ExpressionError

    Raises ExpressionError, naming what is not allowed.
    """
    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(
            f"cannot read {text[:30]!r}…: it has {len(text)} characters, and {MOST_CHARACTERS} "
            "are allowed"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        hint = "; write and, or, not, 'a if b else c'" if _OF_C.search(text) else ""
        raise ExpressionError(
            f"cannot read {text!r}: {what or 'it is nested too deeply'}{hint}"
        ) from None
    functions: dict[str, Function] = {}
    try:
        names = _check(tree, functions, find, MOST_DEPTH)
    except ExpressionError as error:
        raise ExpressionError(f"cannot read {text!r}: {error}") from None
    return Expression(text, tuple(dict.fromkeys(names)), functions, _evaluator(tree, functions))


# ---- reading ------------------------------------------------------------------------------------


def _check(
    node: ast.AST, functions: dict[str, Function], find: Callable[[str], Function], depth: int
) -> list[str]:
    """The names below a node, in order; `functions` takes in those that are called."""
    if depth == 0:
        raise ExpressionError(f"it is nested more than {MOST_DEPTH} deep")
    parts: list[ast.expr]
    match node:
        case ast.Constant(value=value):
            if type(value) is not int:
                raise ExpressionError(f"{value!r} is not a whole number")
            _bounded(value)
            return []
        case ast.Name(id=name):
            return [name]
        case ast.Tuple(elts=parts):
            pass
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            parts = [operand]
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _ARITHMETIC:
            parts = [left, right]
        case ast.BoolOp(values=parts):
            pass
        case ast.Compare(left=left, ops=signs, comparators=others) if all(
            type(sign) in _COMPARISONS for sign in signs
        ):
            parts = [left, *others]
        case ast.IfExp(test=test, body=body, orelse=other):
            parts = [body, test, other]
        case ast.Call(func=function, args=arguments, keywords=keywords):
            name = _dotted(function)
            functions[name] = FUNCTIONS[name] if name in FUNCTIONS else find(name)
            if any(keyword.arg is None for keyword in keywords):
                raise ExpressionError("** is not allowed")
            parts = [*arguments, *(keyword.value for keyword in keywords)]
        case ast.BinOp(op=ast.Div()):
            raise ExpressionError(
                "/ is not allowed: write // to round down, ceil_div(a, b) to round up"
            )
        case ast.BinOp(op=sign) | ast.UnaryOp(op=sign):
            raise ExpressionError(f"{type(sign).__name__} is not allowed, only {_ALLOWED}")
        case _:
            raise ExpressionError(f"{type(node).__name__} is not allowed, only {_ALLOWED}")
    return [name for part in parts for name in _check(part, functions, find, depth - 1)]


def _dotted(node: ast.expr) -> str:
    """The name of a function, `min` or `matmul.tiles.stream_k`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise ExpressionError(f"{type(node).__name__} is not allowed as a function")


# ---- evaluating ---------------------------------------------------------------------------------

_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_COMPARISONS = (*_ORDER, ast.Eq, ast.NotEq, ast.In, ast.NotIn)


def _evaluator(node: ast.expr, functions: Mapping[str, Function]) -> Evaluator:
    """What computes the value of a node that `_check` has let pass. An expression is read once and
    evaluated for thousands of shapes, so the kind of each node is looked at here, and only once."""

    def below(*parts: ast.expr) -> list[Evaluator]:
        return [_evaluator(part, functions) for part in parts]

    match node:
        case ast.Constant(value=int(number)):
            return lambda names: number
        case ast.Name(id=name):
            return lambda names: names[name] if name in names else _missing(name, names)
        case ast.Tuple(elts=elements):
            values = below(*elements)
            return lambda names: tuple([value(names) for value in values])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            (value,) = below(operand)
            return lambda names: not value(names)
        case ast.UnaryOp(op=sign, operand=operand):
            (value,) = below(operand)
            factor = -1 if isinstance(sign, ast.USub) else 1
            return lambda names: factor * _whole(value(names))
        case ast.BinOp(left=first, op=sign, right=second):
            left, right = below(first, second)
            combine = _ARITHMETIC[type(sign)]
            return lambda names: _arithmetic(node, combine, left(names), right(names))
        case ast.BoolOp(op=joint, values=conditions):
            values, stop = below(*conditions), isinstance(joint, ast.Or)
            return lambda names: any(bool(v(names)) is stop for v in values) is stop
        case ast.Compare(left=first, ops=signs, comparators=others):
            left, *values = below(first, *others)
            if len(signs) == 1:
                holds, (right,) = _comparison(signs[0]), values
                return lambda names: holds(left(names), right(names))
            links = [*zip(map(_comparison, signs), values, strict=True)]
            return lambda names: _chain(left(names), links, names)
        case ast.IfExp(test=condition, body=body, orelse=other):
            test, yes, no = below(condition, body, other)
            return lambda names: (yes if test(names) else no)(names)
        case ast.Call(func=called, args=arguments, keywords=keywords):
            name = _dotted(called)
            positional = below(*arguments)
            named = {str(k.arg): _evaluator(k.value, functions) for k in keywords}
            return lambda names: _call(
                name,
                functions[name],
                [_whole(value(names)) for value in positional],
                {key: _whole(value(names)) for key, value in named.items()},
            )
    raise AssertionError(f"_check let {ast.dump(node)} pass")


def _missing(name: str, names: Names) -> Value:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
    raise ExpressionError(f"there is no {name}{hint}")


def _arithmetic(
    node: ast.expr, combine: Callable[[int, int], int], left: Value, right: Value
) -> int:
    if not (isinstance(left, int) and isinstance(right, int)):
        left, right = _whole(left), _whole(right)
    try:
        result = combine(left, right)
    except ZeroDivisionError:
        raise ExpressionError(f"{ast.unparse(node)} divides by 0") from None
    return result if -MOST < result < MOST else _bounded(result)


Comparison = Callable[[Value, Value], bool]


def _comparison(sign: ast.cmpop) -> Comparison:
    """What an operator asks of two values."""
    match sign:
        case ast.Eq():
            return operator.eq
        case ast.NotEq():
            return operator.ne
        case ast.In():
            return _is_in
        case ast.NotIn():
            return lambda left, right: not _is_in(left, right)
    order = _ORDER[type(sign)]
    return lambda left, right: order(_whole(left), _whole(right))


def _is_in(left: Value, right: Value) -> bool:
    if not isinstance(right, tuple):
        raise ExpressionError(f"'in' takes a tuple, not {right!r}")
    return left in right


def _chain(left: Value, links: Sequence[tuple[Comparison, Evaluator]], names: Names) -> bool:
    """A chain of comparisons, `a <= b < c`, which ends at the first that does not hold."""
    for holds, value in links:
        right = value(names)
        if not holds(left, right):
            return False
        left = right
    return True


def _call(name: str, function: Function, positional: list[int], named: dict[str, int]) -> Value:
    try:
        result = function(*positional, **named)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ExpressionError(f"{name}: {error}") from None
    if isinstance(result, tuple):
        return tuple(_bounded(part) for part in result)
    return _bounded(result)


def _whole(value: Value) -> int:
    if not isinstance(value, int):
        raise ExpressionError(f"{value!r} is not a whole number")
    return value


def _bounded(value: int) -> int:
    if not -MOST < value < MOST:
        raise ExpressionError("a number is larger than 2**63")
    return value
