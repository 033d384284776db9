"""Arithmetic that stands in text, such as `ceil_div(N, 4) if warp == 32 else 1`.

A header can be a stranger's. So `parse` lets only a few kinds of nodes of Python's syntax tree
reach its compiler, and replaces operators and calls by functions that compute with integers below
2**63 only. What is written takes little time and memory, whatever it is. The meaning is Python's,
but for `and` and `or`, which give True or False.

    parse("min(N, 4) * warp").evaluate({"N": 100, "warp": 32})    128
"""

import ast
import difflib
import functools
import importlib
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ladder.core.common.errors import LadderError
from ladder.core.common.install import ROOT

Value = int | str | tuple["Value", ...]
Names = Mapping[str, Value]
Function = Callable[..., int | tuple[int, ...]]
Find = Callable[[str], Function]
_T = TypeVar("_T", bound=Function)

_LAYERS = Path(__file__).parents[2]  # their folder
MOST_CHARACTERS = 500
MOST_DEPTH = 30  # of nodes within nodes
MOST = 2**63  # integers stay below it, and above its negative

_SAYS = "whole numbers, names, + - * // %, comparisons, and, or, not, if else, tuples, functions"
_OF_C = re.compile(r"&&|\|\||!(?!=)|\?")


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
    _compute: Callable[[Names], Value] = field(repr=False, compare=False)

    def evaluate(self, names: Names) -> Value:
        """Its value. Raises ExpressionError where it has none, such as for a division by 0."""
        try:
            return self._compute(names)
        except NameError as error:
            name = str(error.name)
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            why = f"there is no {name}; {hint}"
        except (TypeError, ValueError, ArithmeticError, ExpressionError) as error:
            why = str(error)
        raise ExpressionError(f"cannot evaluate {self.text!r}: {why}")


def evaluate_whole(text: str, names: Mapping[str, int]) -> int:
    """The value of an expression that must be a whole number: "3*C"."""
    value = parse(text).evaluate(names)
    if not isinstance(value, int):
        raise ExpressionError(f"cannot evaluate {text!r}: {value!r} is not a whole number")
    return int(value)


@functools.lru_cache(maxsize=4096)
def parse(text: str, find: Find = no_more_functions, listed: bool = False) -> Expression:
    """Read an expression; if `listed`, one or more with commas between them, into a tuple.

    find  the function behind a name that is not in FUNCTIONS, with its dots; raises ExpressionError

    Raises ExpressionError, naming what is not allowed.
    """
    reader = _Reader(find)
    shown = repr(text) if len(text) <= MOST_CHARACTERS else f"{text[:30]!r}…"
    try:
        if len(text) > MOST_CHARACTERS:
            raise ExpressionError(f"it has {len(text)} characters, and {MOST_CHARACTERS} may be")
        tree = ast.parse(text.strip() + "," * listed, mode="eval")
        tree.body = reader.visit(tree.body)
        code = compile(ast.fix_missing_locations(tree), "an expression", "eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError, ExpressionError) as error:
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        hint = "; write and, or, not, 'a if b else c'" if _OF_C.search(text) else ""
        raise ExpressionError(
            f"cannot read {shown}: {what or 'it is nested too deeply'}{hint}"
        ) from None
    known = {
        "__builtins__": {},
        **_OPERATORS,
        **{f"{n}()": _checked(n, f) for n, f in reader.called},
    }
    names = tuple(dict.fromkeys(reader.names))
    return Expression(text, names, dict(reader.called), lambda values: eval(code, known, values))


class _Reader:
    """Lets the allowed nodes pass. Operators and calls become calls of functions whose names, such
    as "Add" in brackets, no text can have."""

    def __init__(self, find: Find) -> None:
        self.find, self.depth = find, 0
        self.names: list[str] = []
        self.called: list[tuple[str, Function]] = []

    def visit(self, node: ast.expr) -> ast.expr:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise ExpressionError(f"it is nested more than {MOST_DEPTH} deep")
        result = self._read(node)
        self.depth -= 1
        return result

    def _read(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.Constant(value=value):
                _bounded(_whole(value) if type(value) is int else _no_number(value))
                return node
            case ast.Name(id=name):
                self.names.append(name)
                return node
            case ast.Tuple(elts=elements):
                return ast.Tuple([self.visit(element) for element in elements], ast.Load())
            case ast.IfExp(test=test, body=body, orelse=other):
                first = self.visit(body)  # in the order of the text
                return ast.IfExp(self.visit(test), first, self.visit(other))
            case ast.Compare(left=left, ops=signs, comparators=others) if all(
                map(_allows, signs, others)
            ):
                return ast.Compare(self.visit(left), signs, [self.visit(other) for other in others])
            case ast.BinOp(left=left, op=sign, right=right) if _named(sign) in _OPERATORS:
                return _call(_named(sign), [self.visit(left), self.visit(right)])
            case ast.UnaryOp(op=sign, operand=operand) if _named(sign) in _OPERATORS:
                return _call(_named(sign), [self.visit(operand)])
            case ast.BoolOp(op=sign, values=values):
                return _call("(bool)", [ast.BoolOp(sign, [self.visit(value) for value in values])])
            case ast.Call(func=function, args=arguments, keywords=keywords):
                return self._read_call(_dotted(function), arguments, keywords)
            case ast.BinOp(op=ast.Div()):
                raise ExpressionError(
                    "/ is not allowed: write // to round down, ceil_div(a, b) to round up"
                )
        kind = node.op if isinstance(node, ast.BinOp | ast.UnaryOp) else node
        raise ExpressionError(f"{type(kind).__name__} is not allowed, only {_SAYS}")

    def _read_call(
        self, name: str, arguments: list[ast.expr], keywords: list[ast.keyword]
    ) -> ast.expr:
        self.called.append((name, FUNCTIONS[name] if name in FUNCTIONS else self.find(name)))
        if any(keyword.arg is None for keyword in keywords):
            raise ExpressionError("** is not allowed")
        named = [ast.keyword(keyword.arg, self.visit(keyword.value)) for keyword in keywords]
        return _call(f"{name}()", [self.visit(argument) for argument in arguments], named)


def _allows(sign: ast.cmpop, right: ast.expr) -> bool:
    """Whether a comparison with what stands on its right is one of numbers, or of kinds."""
    if isinstance(sign, ast.In | ast.NotIn):
        return isinstance(right, ast.Tuple)
    return isinstance(sign, ast.Eq | ast.NotEq | ast.Lt | ast.LtE | ast.Gt | ast.GtE)


def _dotted(node: ast.expr) -> str:
    """The name of a function, `min` or `matmul.tiles.stream_k`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise ExpressionError(f"{type(node).__name__} is not allowed as a function")


def _call(name: str, arguments: list[ast.expr], named: list[ast.keyword] | None = None) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), arguments, named or [])


def _named(sign: ast.AST) -> str:
    return f"({type(sign).__name__})"


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of whole numbers, whose result is bounded; its errors begin with its name."""

    def compute(*positional: Value, **named: Value) -> Value:
        whole = [_whole(value) for value in positional]
        also = {key: _whole(value) for key, value in named.items()}
        try:
            result = function(*whole, **also)
        except ZeroDivisionError:
            raise ExpressionError("it divides by 0") from None
        except (TypeError, ValueError) as error:
            raise ExpressionError(f"{name}: {error}") from None
        return tuple(map(_bounded, result)) if isinstance(result, tuple) else _bounded(result)

    return compute


_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "(Add)": _checked("+", operator.add),
    "(Sub)": _checked("-", operator.sub),
    "(Mult)": _checked("*", operator.mul),
    "(FloorDiv)": _checked("//", operator.floordiv),
    "(Mod)": _checked("%", operator.mod),
    "(USub)": _checked("-", operator.neg),
    "(UAdd)": _checked("+", operator.pos),
    "(Not)": operator.not_,
    "(bool)": bool,
}


def _whole(value: Value) -> int:
    return value if isinstance(value, int) else _no_number(value)


def _no_number(value: object) -> int:
    raise ExpressionError(f"{value!r} is not a whole number")


def _bounded(value: int) -> int:
    if not -MOST < value < MOST:
        raise ExpressionError("a number is larger than 2**63")
    return value


# ---- tile heuristics: where one line of a header is not enough ----------------------------------


def tiling(function: _T) -> _T:
    """Marks a function of a layer's `tiles.py` that headers may name, and no other.

        // Define: TILE_COLUMNS = matmul.tiles.tile_columns(HIGH, OC, multiprocessors, 256, 192)

    It takes whole numbers and returns one, or a tuple of them for as many names.
    """
    function.__dict__["is_tiling"] = True
    return function


def find_tiling(name: str) -> Function:
    """The function that a header calls `layer.tiles.function`. Raises ExpressionError."""
    match = re.fullmatch(r"([a-z_]+)\.tiles\.(\w+)", name)
    if match is None or not (_LAYERS / match[1] / "tiles.py").is_file():
        raise ExpressionError(
            f"there is no function {name}, only {', '.join(FUNCTIONS)} and a layer's tile "
            "heuristics, such as matmul.tiles.tile_columns"
        )
    module = vars(importlib.import_module(f"{ROOT}ladder.{match[1]}.tiles"))
    known = [key for key, value in module.items() if getattr(value, "is_tiling", False)]
    if match[2] not in known:
        near = difflib.get_close_matches(match[2], known, n=1) or known
        raise ExpressionError(f"there is no function {name}; {match[1]}.tiles has {near[0]}")
    function: Function = module[match[2]]
    return function
