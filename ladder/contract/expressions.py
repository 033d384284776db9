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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ladder.common.errors import LadderError

Value = int | str | tuple["Value", ...]
Function = Callable[..., int | tuple[int, ...]]

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
    _tree: ast.expr = field(repr=False, compare=False)

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """Its value. Raises ExpressionError where it has none, such as for a division by 0."""
        try:
            return _evaluate(self._tree, names, self.functions)
        except ExpressionError as error:
            raise ExpressionError(f"cannot evaluate {self.text!r}: {error}") from None


def evaluate_whole(text: str, names: Mapping[str, int]) -> int:
    """The value of an expression that must be a whole number: "3*C"."""
    value = parse(text).evaluate(names)
    if not isinstance(value, int):
        raise ExpressionError(f"cannot evaluate {text!r}: {value!r} is not a whole number")
    return int(value)


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
        raise ExpressionError(
            f"cannot read {text!r}: {what or 'it is nested too deeply'}"
        ) from None
    functions: dict[str, Function] = {}
    try:
        names = _check(tree, functions, find, MOST_DEPTH)
    except ExpressionError as error:
        raise ExpressionError(f"cannot read {text!r}: {error}") from None
    return Expression(text, tuple(dict.fromkeys(names)), functions, tree)


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
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            parts = [left, right]
        case ast.BoolOp(values=parts):
            pass
        case ast.Compare(left=left, ops=operators, comparators=others) if all(
            type(operator) in _COMPARISONS for operator in operators
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
        case ast.BinOp(op=operator) | ast.UnaryOp(op=operator):
            raise ExpressionError(f"{type(operator).__name__} is not allowed, only {_ALLOWED}")
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
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_ORDER: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_COMPARISONS = (*_ORDER, ast.Eq, ast.NotEq, ast.In, ast.NotIn)


def _evaluate(
    node: ast.expr, names: Mapping[str, Value], functions: Mapping[str, Function]
) -> Value:
    """The value of a node that `_check` has let pass."""

    def value(part: ast.expr) -> Value:
        return _evaluate(part, names, functions)

    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return _look_up(name, names)
        case ast.Tuple(elts=parts):
            return tuple(value(part) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not value(operand)
        case ast.UnaryOp(op=sign, operand=operand):
            number = _whole(value(operand))
            return -number if isinstance(sign, ast.USub) else number
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _whole(value(left)), _whole(value(right))
            if b == 0 and isinstance(operator, (ast.FloorDiv, ast.Mod)):
                raise ExpressionError(f"{ast.unparse(node)} divides by 0")
            return _bounded(_ARITHMETIC[type(operator)](a, b))
        case ast.BoolOp(op=operator, values=parts):
            stop = isinstance(operator, ast.Or)
            return next((stop for part in parts if bool(value(part)) is stop), not stop)
        case ast.Compare(left=left, ops=operators, comparators=others):
            return _compare(value(left), operators, (value(other) for other in others))
        case ast.IfExp(test=test, body=body, orelse=other):
            return value(body if value(test) else other)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            name = _dotted(function)
            positional = [_whole(value(argument)) for argument in arguments]
            named = {str(keyword.arg): _whole(value(keyword.value)) for keyword in keywords}
            return _call(name, functions[name], positional, named)
    raise AssertionError(f"_check let {ast.dump(node)} pass")


def _look_up(name: str, names: Mapping[str, Value]) -> Value:
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
    raise ExpressionError(f"there is no {name}{hint}")


def _compare(left: Value, operators: list[ast.cmpop], others: Iterator[Value]) -> bool:
    """A chain of comparisons, `a <= b < c`, which ends at the first that does not hold."""
    for operator, right in zip(operators, others, strict=True):
        match operator:
            case ast.Eq():
                holds = left == right
            case ast.NotEq():
                holds = left != right
            case ast.In() | ast.NotIn():
                if not isinstance(right, tuple):
                    raise ExpressionError(f"'in' takes a tuple, not {right!r}")
                holds = (left in right) is isinstance(operator, ast.In)
            case _:
                holds = _ORDER[type(operator)](_whole(left), _whole(right))
        if not holds:
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
