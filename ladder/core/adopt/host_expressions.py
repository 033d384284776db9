"""The C++ expressions of a host function, as values of a rung's header and as code of a kernel.

A launcher computes grid, block and shared memory from the arguments of the call:

    const int grid_size = ceil_div(N * 32, block_size);

`parse` reads such an expression, and `Scope` says what its names stand for in the op. `in_header`
gives it in the words of a header (`ceil_div(N * 32, BLOCK_SIZE)`), `in_code` in those of a kernel
that has the op's arguments.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ladder.core.adopt.declarations import Declaration
from ladder.core.adopt.tokens import Token, closing, closing_angle, code, split, text_of
from ladder.core.common.errors import LadderError

_BINARY = {  # how strongly each operator binds
    **dict.fromkeys(("||", "or"), 1),
    **dict.fromkeys(("&&", "and"), 2),
    **dict.fromkeys(("|", "^", "&"), 3),
    **dict.fromkeys(("==", "!="), 4),
    **dict.fromkeys(("<", "<=", ">", ">="), 5),
    **dict.fromkeys(("<<", ">>"), 6),
    **dict.fromkeys(("+", "-"), 7),
    **dict.fromkeys(("*", "/", "%"), 8),
}
_UNARY, _ATOM = 9, 10
_HEADER_WORDS = {"/": "//", "&&": "and", "||": "or"}
_CEIL_DIV = re.compile(
    r"(ceil_?div|div_?ceil|div_?up|divide_?round_?up|cdiv|i?div_?up|ceildiv)", re.I
)
_BYTES = {"float": "4", "int": "4", "unsigned": "4", "uint": "4", "double": "8", "half": "2"}
MOST_DEPTH = 60
MOST_CHARACTERS = 10_000  # of an expression, its names replaced by what they stand for
MOST_STEPS = 100_000  # to look names up in a function


class UnknownName(LadderError):
    """A name of the host's code that stands for nothing in the op."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no value is known for {name}")
        self.name = name


@dataclass(frozen=True)
class Node:
    """A part of an expression: kind is "number", "name", "call", "binary", "unary", "choice",
    "list", "sizeof", "cast", "member" (a.b), "arrow" (a->b), "index", "braces" (T{a, b}) or
    "code" (anything else, as it is written)."""

    kind: str
    text: str
    parts: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Text:
    """An expression as text, how strongly its outermost operator binds, and a number's value."""

    text: str
    binds: int = _ATOM
    value: int | None = None

    def __post_init__(self) -> None:
        if len(self.text) > MOST_CHARACTERS or abs(self.value or 0) >= 2**63:
            raise LadderError(f"an expression grows too large: {self.text[:60]}…")

    def within(self, binds: int) -> str:
        """In brackets where an operator that binds this strongly stands around it."""
        return self.text if self.binds >= binds else f"({self.text})"


Meaning = Text | Node | tuple[Text, ...]  # a Node is looked up in its turn, a tuple is a dim3


@dataclass
class Scope:
    """What names stand for: in the header, and in code."""

    header: dict[str, Meaning] = field(default_factory=dict)
    code: dict[str, Text] = field(default_factory=dict)
    functions: Mapping[str, Declaration] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)  # of types, in words of a header
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


# ---- reading ------------------------------------------------------------------------------------


def parse(tokens: Sequence[Token], depth: int = 0) -> Node:
    """The expression that these tokens are, `depth` brackets deep."""
    reader = _Reader(list(tokens))
    node = reader.expression(0, depth)
    return node if reader.at == len(reader.tokens) else Node("code", text_of(tokens))


def parse_text(text: str) -> Node:
    """The expression that a text is."""
    return parse(code(text))


class _Reader:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at = tokens, 0

    def peek(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def expression(self, least: int, depth: int) -> Node:
        if depth > MOST_DEPTH:
            raise LadderError(f"an expression nests too deep: {text_of(self.tokens)[:80]}")
        left = self.operand(depth)
        while (binds := _BINARY.get(self.peek(), -1)) > least:
            operator = self.peek()
            self.at += 1
            left = Node("binary", operator, (left, self.expression(binds, depth + 1)))
        if least == 0 and self.peek() == "?":
            self.at += 1
            first = self.expression(0, depth + 1)
            self.at += self.peek() == ":"
            left = Node("choice", "?", (left, first, self.expression(0, depth + 1)))
        return left

    def operand(self, depth: int) -> Node:
        if self.at >= len(self.tokens):
            return Node("code", "")
        token = self.tokens[self.at]
        if token.text in ("-", "+", "!", "&", "*", "not"):
            self.at += 1
            return Node("unary", token.text, (self.expression(_UNARY, depth + 1),))
        if token.text == "(":
            end = closing(self.tokens, self.at)
            inside = self.tokens[self.at + 1 : end]
            self.at = end + 1
            if _is_type(inside) and self._starts_operand():
                return Node("cast", text_of(inside), (self.expression(_UNARY, depth + 1),))
            return self.suffixes(parse(inside, depth + 1), depth)
        if token.text == "{":
            end = closing(self.tokens, self.at)
            parts = split(self.tokens[self.at + 1 : end])
            self.at = end + 1
            return Node("list", "", tuple(parse(part, depth + 1) for part in parts))
        self.at += 1
        if token.kind == "number":
            return Node("number", token.text)
        if token.kind == "name":
            return self.suffixes(self.named(token, depth), depth)
        return Node("code", token.text)

    def _starts_operand(self) -> bool:
        if self.at >= len(self.tokens):
            return False
        token = self.tokens[self.at]
        return token.kind in ("name", "number") or token.text in ("(", "-", "&", "{")

    def named(self, token: Token, depth: int) -> Node:
        name = token.text
        if self.peek() == "<" and (end := closing_angle(self.tokens, self.at)) > self.at:
            follows = self.tokens[end + 1].text if end + 1 < len(self.tokens) else ""
            if follows in ("(", "::", "{"):
                inside = self.tokens[self.at + 1 : end]
                self.at = end + 1
                if name.endswith("_cast") and follows == "(":
                    end = closing(self.tokens, self.at)
                    node = parse(self.tokens[self.at + 1 : end], depth + 1)
                    self.at = end + 1
                    return Node("cast", text_of(inside), (node,))
                name += f"<{text_of(inside)}>"
        while self.peek() == "::" and self.at + 1 < len(self.tokens):
            following = self.named_after_scope()
            name += f"::{following}"
        if name.startswith("std::") and self.peek() not in ("(", "{"):
            return Node("name", name)
        return Node("name", name.removeprefix("std::") if self.peek() == "(" else name)

    def named_after_scope(self) -> str:
        self.at += 1
        name = self.tokens[self.at].text
        self.at += 1
        if self.peek() == "<" and (end := closing_angle(self.tokens, self.at)) > self.at:
            name += text_of(self.tokens[self.at : end + 1])
            self.at = end + 1
        return name

    def suffixes(self, node: Node, depth: int) -> Node:
        while self.peek() in ("(", "[", ".", "->", "{"):
            opening = self.peek()
            if opening in (".", "->"):
                self.at += 1
                node = Node("member" if opening == "." else "arrow", self.peek(), (node,))
                self.at += 1
                continue
            end = closing(self.tokens, self.at)
            inside = self.tokens[self.at + 1 : end]
            self.at = end + 1
            if opening == "[":
                node = Node("index", "", (node, parse(inside, depth + 1)))
            elif node.text == "sizeof":
                node = Node("sizeof", text_of(inside))
            else:
                parts = tuple(parse(part, depth + 1) for part in split(inside))
                if node.text == "dim3":
                    node = Node("list", "", parts)
                else:
                    node = Node("call" if opening == "(" else "braces", node.text, parts)
        return node


def _is_type(tokens: Sequence[Token]) -> bool:
    words = {"unsigned", "int", "float", "double", "long", "size_t", "const", "uint", "dim3"}
    if not tokens or any(token.kind != "name" and token.text not in "*&<>::" for token in tokens):
        return False
    return (
        tokens[-1].text in ("*", "&")
        or all(token.text in words for token in tokens)
        or (len(tokens) == 1 and bool(re.search(r"_t$|^float\w$|half|bfloat16$", tokens[0].text)))
    )


# ---- in the words of a header -------------------------------------------------------------------


def in_header(node: Node, scope: Scope, depth: int = 0) -> Text:
    """The expression for a header. Raises LadderError where a header has no word for it."""
    scope.steps[0] += 1
    if depth > MOST_DEPTH or scope.steps[0] > MOST_STEPS:
        raise LadderError("a name of the launcher stands for itself, or for too much")

    def again(part: Node) -> Text:
        return in_header(part, scope, depth + 1)

    if node.kind == "number":
        return _number(node.text)
    if node.kind in ("name", "member", "arrow"):
        return _value(node, scope, depth)
    if node.kind == "cast":
        return again(node.parts[0])
    if node.kind == "sizeof":
        return _size(node.text, scope)
    if node.kind == "unary" and node.text in ("-", "+", "!", "not"):
        inner = again(node.parts[0])
        if node.text == "+":
            return inner
        if node.text == "-":
            value = None if inner.value is None else -inner.value
            return Text(f"-{inner.within(_UNARY)}", _UNARY, value)
        return Text(f"not {inner.within(_ATOM)}", 1)
    if node.kind == "binary":
        return _binary(node, again)
    if node.kind == "choice":
        condition, first, second = node.parts
        return Text(f"{again(first).text} if {again(condition).text} else {again(second).text}", 0)
    if node.kind == "call":
        return _call(node, scope, depth)
    raise LadderError(f"a header has no expression for {in_code(node, Scope()).text!r}")


def geometry(node: Node, scope: Scope) -> tuple[Text, ...]:
    """The one to three sizes of a grid or a block."""
    if node.kind == "name":
        meaning = scope.header.get(node.text)
        if isinstance(meaning, tuple):
            return meaning
        if isinstance(meaning, Node):
            return geometry(meaning, scope)
    if node.kind == "cast":
        return geometry(node.parts[0], scope)
    if node.kind == "list":
        return tuple(in_header(part, scope) for part in node.parts)
    return (in_header(node, scope),)


def _number(text: str) -> Text:
    found = re.fullmatch(r"(0[xX][\da-fA-F]+|\d+)[uUlLzZ]*", text.replace("'", ""))
    if found is None:
        raise LadderError(f"a header knows whole numbers only, not {text}")
    value = int(found[1], 16 if found[1][:2] in ("0x", "0X") else 10)
    return Text(str(value), _ATOM, value)


def _value(node: Node, scope: Scope, depth: int) -> Text:
    name = in_code(node, Scope()).text.replace("->", ".")
    if node.kind == "member" and node.text in ("x", "y", "z") and node.parts[0].kind == "name":
        sizes = geometry(node.parts[0], scope)
        number = "xyz".index(node.text)
        return sizes[number] if number < len(sizes) else Text("1", _ATOM, 1)
    meaning = scope.header.get(name)
    if isinstance(meaning, Text):
        return meaning
    if isinstance(meaning, Node):
        return in_header(meaning, scope, depth + 1)
    raise scope.unclear.get(name) or UnknownName(name)


def _size(kind: str, scope: Scope) -> Text:
    kind = kind.replace("const ", "").strip()
    text = scope.sizes.get(kind) or _BYTES.get(kind.replace("unsigned int", "unsigned"))
    if text is None and kind in ("float4", "int4", "uint4"):
        text = "16"
    if text is None:
        raise UnknownName(f"sizeof({kind})")
    return Text(text, _ATOM, int(text) if text.isdecimal() else None)


def _binary(node: Node, again: Callable[[Node], Text]) -> Text:
    left, right = (again(part) for part in node.parts)
    operator, binds = node.text, _BINARY[node.text]
    known = left.value is not None and right.value is not None
    if operator in ("|", "^", "&", "<<", ">>") and not known:
        raise LadderError(f"a header has no operator {operator}")
    if left.value is not None and right.value is not None:
        value = _fold(operator, left.value, right.value)
        if value is not None:
            return Text(str(value), _ATOM if value >= 0 else _UNARY, value)
    if operator == "*" and 1 in (left.value, right.value):
        return right if left.value == 1 else left
    if (operator, right.value) in (("+", 0), ("-", 0), ("/", 1)):
        return left
    if operator == "/" and (rounded := _rounded_up(node, again)):
        return rounded
    word = _HEADER_WORDS.get(operator, operator)
    return Text(f"{left.within(binds)} {word} {right.within(binds + 1)}", binds)


def _fold(operator: str, a: int, b: int) -> int | None:
    if operator in "/%" and (b == 0 or a < 0 or b < 0):
        return None
    if operator == "<<" and not 0 <= b < 32:
        return None
    return {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a // b,
        "%": lambda: a % b, "<<": lambda: a << b, ">>": lambda: a >> max(b, 0),
        "<": lambda: int(a < b), "<=": lambda: int(a <= b), ">": lambda: int(a > b),
        ">=": lambda: int(a >= b), "==": lambda: int(a == b), "!=": lambda: int(a != b),
        "&&": lambda: int(a != 0 and b != 0), "and": lambda: int(a != 0 and b != 0),
        "||": lambda: int(a != 0 or b != 0), "or": lambda: int(a != 0 or b != 0),
        "|": lambda: a | b, "^": lambda: a ^ b, "&": lambda: a & b,
    }[operator]()  # fmt: skip


def _rounded_up(node: Node, again: Callable[[Node], Text]) -> Text | None:
    """ceil_div(a, b) for (a + b - 1) / b, however it is written."""
    above, below = node.parts
    if above.kind != "binary" or above.text not in "+-":
        return None
    by = again(below)
    terms = _terms(above)
    one = [term for term in terms if term[0] < 0 and again(term[1]).value == 1]
    same = [term for term in terms if term[0] > 0 and again(term[1]).text == by.text]
    less = [t for t in terms if t[0] > 0 and by.value and again(t[1]).value == by.value - 1]
    spent = [one[0], same[0]] if one and same else less[:1]
    if not spent:
        return None
    rest = [term for term in terms if not any(term is other for other in spent)]
    if not rest or any(sign < 0 for sign, _ in rest):
        return None
    return _ceil_div(Text(" + ".join(again(part).within(7) for _, part in rest), 7), by)


def _terms(node: Node, sign: int = 1) -> list[tuple[int, Node]]:
    if node.kind == "binary" and node.text in "+-":
        right = sign if node.text == "+" else -sign
        return _terms(node.parts[0], sign) + _terms(node.parts[1], right)
    return [(sign, node)]


def _ceil_div(a: Text, b: Text) -> Text:
    if a.value is not None and b.value:
        value = -(-a.value // b.value)
        return Text(str(value), _ATOM, value)
    return a if b.value == 1 else Text(f"ceil_div({a.text}, {b.text})")


def _call(node: Node, scope: Scope, depth: int) -> Text:
    def again(part: Node) -> Text:
        return in_header(part, scope, depth + 1)

    if len(node.parts) == 2 and _CEIL_DIV.fullmatch(node.text):
        return _ceil_div(again(node.parts[0]), again(node.parts[1]))
    if node.text in ("ceil", "ceilf") and len(node.parts) == 1:
        inner = _uncast(node.parts[0])
        if inner.kind == "binary" and inner.text == "/":
            return _ceil_div(*(again(_uncast(part)) for part in inner.parts))
        return again(inner)
    if node.text in ("min", "max") and len(node.parts) == 2:
        a, b = (again(part) for part in node.parts)
        if a.value is not None and b.value is not None:
            value = (min if node.text == "min" else max)(a.value, b.value)
            return Text(str(value), _ATOM, value)
        return Text(f"{node.text}({a.text}, {b.text})")
    body = _body(node, scope)
    if body is None:
        raise LadderError(f"a header has no function {node.text}")
    return in_header(body, scope, depth + 1)


def _uncast(node: Node) -> Node:
    """Without what makes a division one of floats: casts, a factor of 1.0, a divisor of 256.0."""
    while node.kind == "cast":
        node = node.parts[0]
    if node.kind == "binary" and node.text == "*" and node.parts[0].text in ("1.0", "1.0f", "1."):
        return node.parts[1]
    if node.kind == "number" and (whole := re.fullmatch(r"(\d+)\.0*[fF]?", node.text)):
        return Node("number", whole[1])
    return node


def _body(node: Node, scope: Scope) -> Node | None:
    """What a macro, or a function that only returns an expression, stands for at this call."""
    function = scope.functions.get(node.text)
    if function is None:
        return None
    text = function.body
    if function.kind != "macro":
        found = re.fullmatch(r"\s*return\s([^;{}]+);\s*", text)
        if found is None:
            return None
        text = found[1]
    given = dict(
        zip((p.split()[-1].strip("*&") for p in function.parameters), node.parts, strict=False)
    )
    if len(given) != len(node.parts):
        return None
    return _replace(parse_text(text), given)


def _replace(node: Node, given: Mapping[str, Node]) -> Node:
    if node.kind == "name" and node.text in given:
        return given[node.text]
    return Node(node.kind, node.text, tuple(_replace(part, given) for part in node.parts))


# ---- as code ------------------------------------------------------------------------------------


def in_code(node: Node, scope: Scope, depth: int = 0) -> Text:
    """The expression as C++, its names replaced by what they stand for."""
    if depth > MOST_DEPTH:
        raise LadderError("a name of the launcher stands for itself")

    def again(part: Node) -> Text:
        return in_code(part, scope, depth + 1)

    if node.kind == "name":
        return scope.code.get(node.text) or Text(node.text)
    if node.kind == "binary":
        left, right = (again(part) for part in node.parts)
        binds = _BINARY[node.text]
        if node.text == "*" and "1" in (left.text, right.text):
            return right if left.text == "1" else left
        return Text(f"{left.within(binds)} {node.text} {right.within(binds + 1)}", binds)
    if node.kind == "unary":
        return Text(node.text + again(node.parts[0]).within(_UNARY), _UNARY)
    if node.kind == "cast":
        return Text(f"({node.text}){again(node.parts[0]).within(_UNARY)}", _UNARY)
    if node.kind == "choice":
        a, b, c = (again(part) for part in node.parts)
        return Text(f"{a.within(1)} ? {b.within(1)} : {c.within(1)}", 0)
    if node.kind == "call":
        return Text(f"{node.text}({', '.join(again(part).text for part in node.parts)})")
    if node.kind in ("list", "braces"):
        return Text(f"{node.text}{{{', '.join(again(part).text for part in node.parts)}}}")
    if node.kind in ("member", "arrow"):
        name = in_code(node.parts[0], Scope()).within(_ATOM)
        found = scope.code.get(f"{name}.{node.text}")
        operator = "." if node.kind == "member" else "->"
        return found or Text(f"{again(node.parts[0]).within(_ATOM)}{operator}{node.text}")
    if node.kind == "index":
        return Text(f"{again(node.parts[0]).within(_ATOM)}[{again(node.parts[1]).text}]")
    if node.kind == "sizeof":
        return Text(f"sizeof({node.text})")
    return Text(node.text)
