"""The C++ expressions of a host function, as values of a rung's header and as code of a kernel.

A launcher computes grid, block and shared memory from the arguments of the call:

    const int grid_size = ceil_div(N * 32, block_size);

`in_code` replaces the host's names in such an expression by what they stand for in the op,
`in_header` gives it in the words of a header: `ceil_div(N * 32, BLOCK_SIZE)`. Both walk over its
syntax tree.
"""

import ast
import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ladder.core.adopt.cpp import Node, expression, named, part, parts, text
from ladder.core.adopt.declarations import Declaration
from ladder.core.common.errors import LadderError
from ladder.core.contract.expressions import MOST_CHARACTERS, evaluate_whole, parse

UNMAPPED = "UNMAPPED_"  # begins the name of what stands for nothing in the op
_OF_BITS = ("|", "^", "&", "<<", ">>")  # which a header does not have
_WORDS = {"&&": "and", "||": "or", "!": "not"}
_CEIL_DIV = re.compile(r"ceil_?div|div_?ceil|i?div_?up|divide_?(round_?)?up|cdiv", re.I)
_BYTES = {
    **{"float": "4", "int": "4", "unsigned": "4", "unsigned int": "4", "uint": "4"},
    **{"double": "8", "half": "2", "float4": "16", "int4": "16", "uint4": "16"},
}
_NAMES = ("identifier", "type_identifier", "field_expression", "qualified_identifier")
_TIGHT = {  # an operator in these binds a name beside it
    *("binary_expression", "unary_expression", "pointer_expression", "cast_expression"),
    *("field_expression", "subscript_expression", "conditional_expression"),
}
_ATOM = re.compile(r"[\w.]+(\([^()]*\)|\[[^\[\]]*\])?")
MOST_CODE = 10_000  # characters of an expression, its names replaced by what they stand for
MOST_STEPS = 100_000  # to look names up in an expression


class UnknownName(LadderError):
    """A name of the host's code that stands for nothing in the op."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no value is known for {name}")
        self.name = name


@dataclass
class Scope:
    """What names stand for.

    code       the host's names: expressions of the op's names, in C++
    fixed      those of them whose meaning no assignment changes
    header     the op's names, and constants of the file: words of a header, or expressions
    defines    constants of Define: numbers
    functions  functions and macros of the file
    sizes      {type: its bytes, in words of a header}
    """

    code: dict[str, str] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    header: dict[str, str | Node] = field(default_factory=dict)
    defines: dict[str, str] = field(default_factory=dict)
    functions: Mapping[str, Declaration] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=lambda: dict(_BYTES))

    def copy(self) -> "Scope":
        """The same meanings, of which those of the host's names can be changed on their own."""
        return dataclasses.replace(self, code=dict(self.code))


def elements(node: Node) -> list[Node] | None:
    """The parts of a list, or of a dim3; None for another expression."""
    if node.type == "call_expression" and text(part(node, "function")) == "dim3":
        return parts(part(node, "arguments"))
    if node.type == "compound_literal_expression" and text(part(node, "type")) == "dim3":
        return parts(part(node, "value"))
    return parts(node) if node.type in ("argument_list", "initializer_list") else None


def _bare(node: Node) -> Node:
    """Without the brackets and casts around it."""
    while node.type in ("parenthesized_expression", "cast_expression") or _is_cast(node):
        node = _operand(node)
    return node


def _is_cast(node: Node) -> bool:
    """Whether it is static_cast<int>(x), or int(x)."""
    called = part(node, "function")
    return called is not None and (
        called.type == "primitive_type" or text(part(called, "name")).endswith("_cast")
    )


def _operand(node: Node) -> Node:
    """What stands in brackets, or is cast."""
    return parts(part(node, "arguments") or node)[-1]


# ---- as code ------------------------------------------------------------------------------------


def in_code(node: Node, scope: Scope, tight: bool = False) -> str:
    """The expression as C++, its names replaced by what they stand for. `tight`: an operator stands
    beside it."""
    meaning = scope.code.get(text(node).replace("->", ".")) if node.type in _NAMES else None
    if meaning is not None:
        return _bracketed(meaning) if tight else meaning
    if node.type == "parenthesized_expression":
        return _bracketed(in_code(_operand(node), scope))
    if _is_cast(node) and (kind := part(node, "function", "arguments")):
        return f"({text(kind)[1:-1]}){_bracketed(in_code(_operand(node), scope))}"
    if text(part(node, "operator")) == "*" and node.type == "binary_expression":
        sides = [in_code(one, scope, True) for one in parts(node)]
        if "1" in sides and len(sides) == 2:
            return sides[sides[0] == "1"]
    if not node.children or node.type == "sizeof_expression":
        return text(node)
    written, end = "", node.start_byte
    for child in node.children:
        gap = " " if child.start_byte > end else ""
        written += gap + in_code(child, scope, node.type in _TIGHT)
        end = child.end_byte
    if len(written) > MOST_CODE:
        raise LadderError(f"an expression grows too large: {written[:60]}…")
    return written


def _bracketed(code: str) -> str:
    return code if _ATOM.fullmatch(code) else f"({code})"


# ---- in the words of a header -------------------------------------------------------------------


def in_header(node: Node, scope: Scope) -> str:
    """The expression for a header. Raises LadderError where a header has no word for it."""
    return _Translator(scope).of(_replaced(node, scope))


def geometry(node: Node, scope: Scope) -> tuple[str, ...]:
    """The one to three sizes of a grid or a block."""
    whole = _bare(_replaced(node, scope))
    listed = elements(whole)
    return tuple(_Translator(scope).of(one) for one in ([whole] if listed is None else listed))


def value(node: Node, scope: Scope, with_defines: bool = True) -> int | None:
    """The number that an expression is, if it is one; with the constants of Define as they are."""
    if with_defines:
        scope = dataclasses.replace(scope, header={**scope.header, **scope.defines})
    try:
        return number(in_header(node, scope))
    except LadderError:
        return None


def number(header: str) -> int | None:
    """The value of a header's expression that is a number."""
    return int(header) if re.fullmatch(r"-?\d+", header) else None


def simple(header: str) -> str:
    """A header's expression without needless brackets; its value, where it names nothing. Raises
    LadderError where it is none."""
    try:
        written = ast.unparse(ast.parse(header, mode="eval"))
    except (SyntaxError, ValueError, MemoryError):
        raise LadderError(f"a header has no expression for {header[:60]!r}") from None
    if len(written) > MOST_CHARACTERS:
        raise LadderError(f"an expression grows too large: {written[:60]}…")
    whole = parse(written)
    return written if whole.names else str(int(evaluate_whole(written, {})))


def _replaced(node: Node, scope: Scope) -> Node:
    """The expression in the names of the op."""
    written = in_code(node, scope)
    tree = expression(written)
    if tree is None:
        raise LadderError(f"a header has no expression for {written!r}")
    return tree


class _Translator:
    """Gives expressions of the op's names in the words of a header."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.header, self.steps = scope, scope.header, 0

    def of(self, node: Node | None) -> str:
        """The words for a node. Raises LadderError where there are none."""
        self.steps += 1
        if node is None or self.steps > MOST_STEPS:
            raise LadderError("a name of the launcher stands for itself, or for too much")
        node = _bare(node)
        if node.type in _NAMES:
            return self.name(node)
        if known := getattr(self, f"of_{node.type}", None):
            return str(known(node))
        raise LadderError(f"a header has no expression for {text(node)!r}")

    def name(self, node: Node) -> str:
        name = text(node).replace("->", ".").removeprefix(UNMAPPED)
        meaning = self.header.get(name)
        if meaning is None:
            raise UnknownName(name)
        return meaning if isinstance(meaning, str) else self.of(meaning)

    def of_number_literal(self, node: Node) -> str:
        digits = re.fullmatch(r"(0[xX][\da-fA-F]+|\d+)[uUlLzZ]*", text(node).replace("'", ""))
        if digits is None:
            raise LadderError(f"a header knows whole numbers only, not {text(node)}")
        return simple(str(int(digits[1], 16 if digits[1][:2] in ("0x", "0X") else 10)))

    def of_sizeof_expression(self, node: Node) -> str:
        kind = text(part(node, "type") or part(node, "value")).strip("()").replace("const ", "")
        if kind not in self.scope.sizes:
            raise UnknownName(f"sizeof({kind})")
        return self.scope.sizes[kind]

    def of_unary_expression(self, node: Node) -> str:
        sign, inner = text(part(node, "operator")), self.of(part(node, "argument"))
        return inner if sign == "+" else simple(f"{_WORDS.get(sign, sign)} ({inner})")

    def of_conditional_expression(self, node: Node) -> str:
        fields = ("consequence", "condition", "alternative")
        first, condition, second = (self.of(part(node, name)) for name in fields)
        return simple(f"({first}) if ({condition}) else ({second})")

    def of_binary_expression(self, node: Node) -> str:
        sign = text(part(node, "operator"))
        sign = _WORDS.get(sign, sign)
        left, right = self.of(part(node, "left")), self.of(part(node, "right"))
        by = number(right)
        if sign in ("<<", ">>") and by is not None and 0 <= by < 63:
            sign, right = {"<<": "*", ">>": "/"}[sign], str(2**by)
        if sign in _OF_BITS:
            raise LadderError(f"a header has no operator {sign}")
        if sign == "*" and "1" in (left, right):
            return right if left == "1" else left
        if (sign, right) in (("+", "0"), ("-", "0"), ("/", "1")):
            return left
        if sign == "/":
            return self.rounded_up(node, right) or simple(f"({left}) // ({right})")
        return simple(f"({left}) {sign} ({right})")

    def rounded_up(self, node: Node, by: str) -> str:
        """ceil_div(a, b) for (a + b - 1) / b, however it is written; "" for another division."""
        terms = [(sign, self.of(term)) for sign, term in _terms(part(node, "left"))]
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

    def of_call_expression(self, node: Node) -> str:
        name, given = named(part(node, "function")), parts(part(node, "arguments"))
        if len(given) == 2 and _CEIL_DIV.fullmatch(name):
            return _ceil_div(self.of(given[0]), self.of(given[1]))
        if name in ("ceil", "ceilf") and len(given) == 1:
            inner = _bare(given[0])
            if text(part(inner, "operator")) != "/":
                return self.of(inner)
            return _ceil_div(*(self.of_floats(part(inner, side)) for side in ("left", "right")))
        if name in ("min", "max") and len(given) == 2:
            return simple(f"{name}({self.of(given[0])}, {self.of(given[1])})")
        function = self.scope.functions.get(name)
        result = _returned(function) if function else None
        if function is None or result is None or len(function.parameters) != len(given):
            raise LadderError(f"a header has no function {name}")
        names = [parameter.name for parameter in function.parameters]
        around = self.header
        self.header = {**around, **dict(zip(names, map(self.of, given), strict=True))}
        written = self.of(result)
        self.header = around
        return written

    def of_floats(self, node: Node | None) -> str:
        """A side of a division of floats, without what makes it one: a factor of 1.0, 256.0."""
        inner = _bare(node) if node else None
        if inner and re.fullmatch(r"1\.0*f?", text(part(inner, "left"))):
            inner = part(inner, "right")
        whole = re.fullmatch(r"(\d+)\.0*[fF]?", text(inner))
        return whole[1] if whole else self.of(inner)


def _ceil_div(a: str, b: str) -> str:
    return a if b == "1" else simple(f"ceil_div({a}, {b})")


def _terms(node: Node | None, sign: int = 1) -> list[tuple[int, Node]]:
    """The parts of a sum with their signs."""
    if node is None:
        return []
    inner = _bare(node)
    between = text(part(inner, "operator")) if inner.type == "binary_expression" else ""
    if between not in ("+", "-"):
        return [(sign, node)]
    right = sign if between == "+" else -sign
    return _terms(part(inner, "left"), sign) + _terms(part(inner, "right"), right)


def _returned(function: Declaration) -> Node | None:
    """What a macro stands for, or a function that only returns an expression."""
    if function.kind == "macro":
        return expression(text(part(function.inner, "value")))
    statements = parts(function.body)
    only = len(statements) == 1 and statements[0].type == "return_statement"
    return next(iter(parts(statements[0])), None) if only else None
