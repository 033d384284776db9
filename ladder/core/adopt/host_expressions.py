"""The C++ expressions of a host function, as values of a rung's header and as code of a kernel.

A launcher computes grid, block and shared memory from the arguments of the call:

    const int grid_size = ceil_div(N * 32, block_size);

`Scope` says what the names of such an expression stand for in the op. `in_header` gives it in the
words of a header (`ceil_div(N * 32, BLOCK_SIZE)`), `in_code` in those of a kernel that has the op's
arguments. Both walk over its syntax tree.
"""

from __future__ import annotations

import ast
import dataclasses
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ladder.core.adopt.cpp import expression, named, part, parts, text
from ladder.core.adopt.declarations import Declaration
from ladder.core.common.errors import LadderError
from ladder.core.contract.expressions import MOST_CHARACTERS, ceil_div

if TYPE_CHECKING:
    from tree_sitter import Node

_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv},
    **{"%": operator.mod, "<<": operator.lshift, ">>": operator.rshift, "&": operator.and_},
    **{"|": operator.or_, "^": operator.xor, "<": operator.lt, "<=": operator.le},
    **{">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne},
    **{"&&": lambda a, b: a != 0 and b != 0, "||": lambda a, b: a != 0 or b != 0},
}
_HEADER_WORDS = {"/": "//", "&&": "and", "||": "or", "!": "not"}
_OF_BITS = ("|", "^", "&", "<<", ">>")
_CEIL_DIV = re.compile(r"ceil_?div|div_?ceil|i?div_?up|divide_?(round_?)?up|cdiv", re.I)
_BYTES = {
    **{"float": "4", "int": "4", "unsigned": "4", "unsigned int": "4", "uint": "4"},
    **{"double": "8", "half": "2", "float4": "16", "int4": "16", "uint4": "16"},
}
_NAMES = ("identifier", "type_identifier", "field_expression", "qualified_identifier")
_LISTS = ("argument_list", "initializer_list")
_TIGHT = {  # an operator in these binds a name beside it
    *("binary_expression", "unary_expression", "pointer_expression", "cast_expression"),
    *("field_expression", "subscript_expression", "conditional_expression"),
}
_ATOM = re.compile(r"[\w.]+(\([^()]*\)|\[[^\[\]]*\])?")
MOST_DEPTH = 60
MOST_CODE = 10_000  # characters of an expression, its names replaced by what they stand for
MOST_STEPS = 100_000  # to look names up in a function


class UnknownName(LadderError):
    """A name of the host's code that stands for nothing in the op."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no value is known for {name}")
        self.name = name


@dataclass
class Scope:
    """What names stand for: in the header, where a Node is looked up in its turn and a tuple is a
    dim3, and in code."""

    header: dict[str, str | Node | tuple[str, ...]] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    functions: Mapping[str, Declaration] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=lambda: dict(_BYTES))  # of types, for a header
    constants: dict[str, int] = field(default_factory=dict)  # of Define, as they are now
    fixed: frozenset[str] = frozenset()  # names whose meaning no assignment changes
    unclear: dict[str, LadderError] = field(default_factory=dict)  # why a name has no meaning
    steps: list[int] = field(default_factory=lambda: [0])  # so far, of this scope and its copies

    def copy(self) -> Scope:
        """The same meanings, to be changed on their own."""
        return dataclasses.replace(
            self,
            header=dict(self.header),
            code=dict(self.code),
            constants=dict(self.constants),
            unclear=dict(self.unclear),
        )


def number(header: str) -> int | None:
    """The value of a header's expression that is a number."""
    return int(header) if re.fullmatch(r"-?\d+", header) else None


def simple(header: str) -> str:
    """A header's expression without needless brackets. Raises LadderError where it is none."""
    try:
        written = ast.unparse(ast.parse(header, mode="eval"))
    except (SyntaxError, ValueError, MemoryError):
        raise LadderError(f"a header has no expression for {header[:60]!r}") from None
    if len(written) > MOST_CHARACTERS:
        raise LadderError(f"an expression grows too large: {written[:60]}…")
    return written


# ---- in the words of a header -------------------------------------------------------------------


def in_header(node: Node, scope: Scope, depth: int = 0) -> str:
    """The expression for a header. Raises LadderError where a header has no word for it."""
    scope.steps[0] += 1
    if depth > MOST_DEPTH or scope.steps[0] > MOST_STEPS:
        raise LadderError("a name of the launcher stands for itself, or for too much")

    def again(inner: Node | None) -> str:
        return in_header(inner or node, scope, depth + 1)

    node = bare(node)
    if node.type == "number_literal":
        return _whole(text(node))
    if node.type in _NAMES:
        return _value(node, scope, depth)
    if node.type == "sizeof_expression":
        kind = text(part(node, "type") or part(node, "value")).strip("()").replace("const ", "")
        if kind not in scope.sizes:
            raise UnknownName(f"sizeof({kind})")
        return scope.sizes[kind]
    if node.type == "unary_expression":
        sign, inner = text(part(node, "operator")), again(part(node, "argument"))
        if sign in ("-", "+", "!", "not"):
            return simple(f"{_HEADER_WORDS.get(sign, sign)} ({inner})").removeprefix("+")
    if node.type == "binary_expression":
        return _binary(node, again)
    if node.type == "conditional_expression":
        fields = ("consequence", "condition", "alternative")
        first, condition, second = (again(part(node, name)) for name in fields)
        return simple(f"({first}) if ({condition}) else ({second})")
    if node.type == "call_expression":
        return _call(node, scope, depth, again)
    raise LadderError(f"a header has no expression for {text(node)!r}")


def bare(node: Node) -> Node:
    """Without the brackets and casts around it."""
    while node.type in ("parenthesized_expression", "cast_expression") or is_cast(node):
        node = cast_value(node)
    return node


def is_cast(node: Node) -> bool:
    """Whether it is static_cast<int>(x), or int(x)."""
    called = part(node, "function")
    return called is not None and (
        called.type == "primitive_type" or text(part(called, "name")).endswith("_cast")
    )


def cast_value(node: Node) -> Node:
    """What stands in brackets, or is cast."""
    return parts(part(node, "arguments") or node)[-1]


def elements(node: Node) -> list[Node] | None:
    """The parts of a list, or of a dim3; None for another expression."""
    if node.type == "call_expression" and text(part(node, "function")) == "dim3":
        return parts(part(node, "arguments"))
    if node.type == "compound_literal_expression" and text(part(node, "type")) == "dim3":
        return parts(part(node, "value"))
    return parts(node) if node.type in _LISTS else None


def geometry(node: Node, scope: Scope) -> tuple[str, ...]:
    """The one to three sizes of a grid or a block."""
    node = bare(node)
    meaning = scope.header.get(text(node)) if node.type == "identifier" else None
    if isinstance(meaning, tuple):
        return meaning
    if meaning is not None and not isinstance(meaning, str):
        return geometry(meaning, scope)
    listed = elements(node)
    return tuple(in_header(one, scope) for one in ([node] if listed is None else listed))


def _whole(written: str) -> str:
    found = re.fullmatch(r"(0[xX][\da-fA-F]+|\d+)[uUlLzZ]*", written.replace("'", ""))
    if found is None:
        raise LadderError(f"a header knows whole numbers only, not {written}")
    return _result(int(found[1], 16 if found[1][:2] in ("0x", "0X") else 10))


def _result(value: int) -> str:
    if abs(value) >= 2**63:
        raise LadderError("a number of the launcher grows too large")
    return str(int(value))


def _value(node: Node, scope: Scope, depth: int) -> str:
    name = text(node).replace("->", ".")
    owner, axis = name.rpartition(".")[::2]
    if axis in ("x", "y", "z") and owner.isidentifier():
        sizes = geometry(part(node, "argument") or node, scope)
        return dict(zip("xyz", sizes, strict=False)).get(axis, "1")
    meaning = scope.header.get(name)
    if isinstance(meaning, str):
        return meaning
    if meaning is not None and not isinstance(meaning, tuple):
        return in_header(meaning, scope, depth + 1)
    raise scope.unclear.get(name) or UnknownName(name)


def _binary(node: Node, again: Callable[[Node | None], str]) -> str:
    sign = text(part(node, "operator")).replace("and", "&&").replace("or", "||")
    left, right = again(part(node, "left")), again(part(node, "right"))
    a, b = number(left), number(right)
    if a is not None and b is not None and not (sign in "/%" and (b <= 0 or a < 0)):
        if sign in ("<<", ">>") and not 0 <= b < 64:
            raise LadderError(f"a header has no number for {a} {sign} {b}")
        return _result(_OPERATORS[sign](a, b))
    if sign in _OF_BITS:
        raise LadderError(f"a header has no operator {sign}")
    if sign == "*" and "1" in (left, right):
        return right if left == "1" else left
    if (sign, right) in (("+", "0"), ("-", "0"), ("/", "1")):
        return left
    if sign == "/" and (rounded := _rounded_up(node, right, again)):
        return rounded
    return simple(f"({left}) {_HEADER_WORDS.get(sign, sign)} ({right})")


def _rounded_up(node: Node, by: str, again: Callable[[Node | None], str]) -> str:
    """ceil_div(a, b) for (a + b - 1) / b, however it is written; "" for another division."""
    terms = [(sign, again(term)) for sign, term in _terms(part(node, "left"))]
    spent = [(-1, "1"), (1, by)]
    if by.isdecimal() and not all(one in terms for one in spent):
        spent = [(1, str(int(by) - 1))]
    if any(one not in terms for one in spent):
        return ""
    for one in spent:
        terms.remove(one)
    if not terms or any(sign < 0 for sign, _ in terms):
        return ""
    return _ceil_div(simple(" + ".join(f"({term})" for _, term in terms)), by)


def _terms(node: Node | None, sign: int = 1) -> list[tuple[int, Node]]:
    """The parts of a sum with their signs."""
    if node is None:
        return []
    inner = bare(node)
    between = text(part(inner, "operator")) if inner.type == "binary_expression" else ""
    if between not in ("+", "-"):
        return [(sign, node)]
    right = sign if between == "+" else -sign
    return _terms(part(inner, "left"), sign) + _terms(part(inner, "right"), right)


def _ceil_div(a: str, b: str) -> str:
    if a.isdecimal() and b.isdecimal() and b != "0":
        return str(ceil_div(int(a), int(b)))
    return a if b == "1" else simple(f"ceil_div({a}, {b})")


def _call(node: Node, scope: Scope, depth: int, again: Callable[[Node | None], str]) -> str:
    name, given = named(part(node, "function")), parts(part(node, "arguments"))
    if len(given) == 2 and _CEIL_DIV.fullmatch(name):
        return _ceil_div(again(given[0]), again(given[1]))
    if name in ("ceil", "ceilf") and len(given) == 1:
        inner = bare(given[0])
        if text(part(inner, "operator")) != "/":
            return again(inner)
        return _ceil_div(*(_of_floats(part(inner, side), again) for side in ("left", "right")))
    if name in ("min", "max") and len(given) == 2:
        a, b = again(given[0]), again(given[1])
        if number(a) is not None and number(b) is not None:
            return str((min if name == "min" else max)(int(a), int(b)))
        return simple(f"{name}({a}, {b})")
    function = scope.functions.get(name)
    result = _returned(function) if function else None
    if function is None or result is None or len(function.parameters) != len(given):
        raise LadderError(f"a header has no function {name}")
    inside = scope.copy()
    for parameter, one in zip(function.parameters, given, strict=True):
        inside.header[parameter.name] = again(one)
    return in_header(result, inside, depth + 1)


def _of_floats(node: Node | None, again: Callable[[Node | None], str]) -> str:
    """A side of a division of floats, without what makes it one: a factor of 1.0, 256.0 for 256."""
    inner = bare(node) if node else None
    if inner and re.fullmatch(r"1\.0*f?", text(part(inner, "left"))):
        inner = part(inner, "right")
    whole = re.fullmatch(r"(\d+)\.0*[fF]?", text(inner))
    return whole[1] if whole else again(inner)


def _returned(function: Declaration) -> Node | None:
    """What a macro stands for, or a function that only returns an expression."""
    if function.kind == "macro":
        return expression(text(part(function.inner, "value")))
    statements = parts(function.body)
    only = len(statements) == 1 and statements[0].type == "return_statement"
    return next(iter(parts(statements[0])), None) if only else None


# ---- as code ------------------------------------------------------------------------------------


def in_code(node: Node, scope: Scope, tight: bool = False, depth: int = 0) -> str:
    """The expression as C++, its names replaced by what they stand for. `tight`: an operator stands
    beside it."""
    if depth > MOST_DEPTH:
        raise LadderError(f"an expression nests too deep: {text(node)[:80]}")

    def again(inner: Node, tight: bool = False) -> str:
        return in_code(inner, scope, tight, depth + 1)

    meaning = scope.code.get(text(node).replace("->", ".")) if node.type in _NAMES else None
    if meaning is not None:
        return f"({meaning})" if tight and not _ATOM.fullmatch(meaning) else meaning
    if node.type == "parenthesized_expression":
        inner = again(parts(node)[0])
        return inner if _ATOM.fullmatch(inner) else f"({inner})"
    if is_cast(node) and (kind := part(node, "function", "arguments")):
        return f"({text(kind)[1:-1]}){again(cast_value(node), True)}"
    if node.type == "binary_expression" and text(part(node, "operator")) == "*":
        sides = [again(one, True) for one in parts(node)]
        if "1" in sides:
            return sides[1] if sides[0] == "1" else sides[0]
    if not node.children:
        return text(node)
    written, end = "", node.start_byte
    for child in node.children:
        gap = " " if child.start_byte > end and written else ""
        written += gap + again(child, node.type in _TIGHT)
        end = child.end_byte
    if len(written) > MOST_CODE:
        raise LadderError(f"an expression grows too large: {written[:60]}…")
    return written
