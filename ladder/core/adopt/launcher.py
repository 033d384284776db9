"""What a host function does that concerns the GPU: the kernels that it launches, in order, with
the buffers that it sets to a value or allocates, and what it asserts.

    steps = read(file, launcher, scope)

The function is read, not run: local variables are looked up where they are used, an `if` whose
condition is known takes its branch, another one becomes the condition of the launches in it. Loops
are skipped, and a launch in one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ladder.core.adopt.declarations import Declaration
from ladder.core.adopt.host_expressions import (
    MOST_DEPTH,
    Node,
    Scope,
    Text,
    UnknownName,
    geometry,
    in_code,
    in_header,
    parse,
)
from ladder.core.adopt.tokens import (
    MOST_TEMPLATE_TOKENS,
    Token,
    closing,
    closing_angle,
    code,
    split,
    text_of,
)
from ladder.core.common.errors import LadderError

_SKIPPED = {"for", "while", "do", "switch"}
_TYPE_WORDS = {
    *("const", "static", "constexpr", "unsigned", "signed", "long", "short", "struct"),
    *("inline", "volatile", "register"),
}


@dataclass(frozen=True)
class Launched:
    """One launch: the kernel, its template arguments, its geometry and arguments, and when."""

    kernel: str
    template: str
    grid: tuple[Text, ...]
    block: tuple[Text, ...]
    shared: Text
    arguments: tuple[Text, ...]
    condition: str = ""


@dataclass(frozen=True)
class Filled:
    """A cudaMemset: the buffer, each byte of it, and how many bytes."""

    buffer: Text
    byte: int
    bytes: Text
    condition: str = ""


@dataclass(frozen=True)
class Allocated:
    """A cudaMalloc: the variable, the type that it points to, and how many bytes."""

    name: str
    dtype: str
    bytes: Text


@dataclass
class Steps:
    """What a launcher does, in order; `asserts` are conditions in the words of a header."""

    steps: list[Launched | Filled] = field(default_factory=list)
    allocated: list[Allocated] = field(default_factory=list)
    asserts: list[str] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)  # (name, where it is needed)


def launcher_of(file: Sequence[Declaration], kernel: str) -> Declaration | None:
    """The host function that launches a kernel: that of the fewest launches, but `main` last."""
    found = [
        one
        for one in file
        if one.kind == "host" and any(name == kernel for name in launched_by(one))
    ]
    found.sort(key=lambda one: (one.name == "main", len(set(launched_by(one)))))
    return found[0] if found else None


def launched_by(function: Declaration) -> list[str]:
    """The kernels that a host function launches, in order."""
    found = code(function.body)
    return [found[_name_before(found, at)].text for at, t in enumerate(found) if t.text == "<<<"]


def passed_to(function: Declaration, kernel: str) -> list[str]:
    """The arguments of the function's first launch of a kernel, as they are written."""
    found = code(function.body)
    for at, token in enumerate(found):
        if token.text == "<<<" and found[_name_before(found, at)].text == kernel:
            opening = next(j for j in range(at, len(found)) if found[j].text == ">>>") + 1
            inside = found[opening + 1 : closing(found, opening)]
            return [text_of(part) for part in split(inside)]
    return []


def _name_before(tokens: Sequence[Token], at: int) -> int:
    """Where the kernel's name stands, before its template arguments and the `<<<` at `at`."""
    if tokens[at - 1].text not in (">", ">>"):
        return at - 1
    first = max(at - MOST_TEMPLATE_TOKENS, 1)
    openings = (j for j in range(at - 2, first - 1, -1) if tokens[j].text == "<")
    return next((j - 1 for j in openings if closing_angle(tokens, j) == at - 1), at - 1)


def read(function: Declaration, scope: Scope, only: str = "", first: bool = False) -> Steps:
    """What the function does. `only`: the launches of this kernel alone, and what comes before;
    `first`: no further than its first launch."""
    reader = _Reader(only, first)
    reader.block(code(function.body), scope, "")
    return reader.done


class _Reader:
    def __init__(self, only: str, first: bool) -> None:
        self.only, self.first = only, first
        self.done = Steps()
        self.types: dict[str, str] = {}  # of local variables
        self.depth = 0
        self.launched = False

    def block(self, tokens: Sequence[Token], scope: Scope, condition: str) -> None:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise LadderError("the blocks of a host function nest too deep")
        i = 0
        while i < len(tokens) and not (self.first and self.launched):
            i = self.statement(tokens, i, scope, condition)
        self.depth -= 1

    def statement(self, tokens: Sequence[Token], i: int, scope: Scope, condition: str) -> int:
        """Reads the statement that begins at `i`; returns where the next one begins."""
        first = tokens[i].text
        if first == "{":
            end = closing(tokens, i)
            self.block(tokens[i + 1 : end], scope.copy(), condition)
            return end + 1
        if first == "if":
            return self.choice(tokens, i, scope, condition)
        if first in _SKIPPED:
            end = self.after(tokens, i)
            if any(token.text == "<<<" for token in tokens[i:end]):
                if first == "switch":
                    return self.switch(tokens, i, scope, condition)
                raise LadderError(
                    f"a launch stands in a loop ({first}), and a Launch line is done once: name "
                    "the kernel, not its host function, and give --grid and --block"
                )
            return end
        end = i
        while end < len(tokens) and tokens[end].text != ";":
            end = closing(tokens, end) + 1 if tokens[end].text in ("(", "[", "{") else end + 1
        self.simple(list(tokens[i:end]), scope, condition)
        return end + 1

    def after(self, tokens: Sequence[Token], i: int) -> int:
        """Where the statement that begins at `i` ends, without reading it."""
        if tokens[i].text == "{":
            return closing(tokens, i) + 1
        if tokens[i].text in ("if", "for", "while", "switch"):
            end = self.after(tokens, closing(tokens, self.bracket(tokens, i)) + 1)
            if tokens[i].text == "if" and end < len(tokens) and tokens[end].text == "else":
                end = self.after(tokens, end + 1)
            return end
        while i < len(tokens) and tokens[i].text != ";":
            i = closing(tokens, i) + 1 if tokens[i].text in ("(", "[", "{") else i + 1
        return i + 1

    def bracket(self, tokens: Sequence[Token], i: int) -> int:
        return next(j for j in range(i, len(tokens)) if tokens[j].text == "(")

    def choice(self, tokens: Sequence[Token], i: int, scope: Scope, condition: str) -> int:
        opening = self.bracket(tokens, i)
        end = closing(tokens, opening)
        first, second = end + 1, self.after(tokens, end + 1)
        has_else = second < len(tokens) and tokens[second].text == "else"
        after = self.after(tokens, second + 1) if has_else else second
        known, text = self.decide(parse(tokens[opening + 1 : end]), scope)
        either = not text  # nothing is known of it: the launcher's own fallback is left out
        if known is not False:
            inner = scope if known else scope.copy()
            self.part(tokens[first:second], inner, _both(condition, text))
        if has_else and known is not True and not either:
            self.part(tokens[second + 1 : after], scope.copy(), _both(condition, f"not ({text})"))
        elif has_else and known is False:
            self.part(tokens[second + 1 : after], scope, condition)
        return after

    def part(self, tokens: Sequence[Token], scope: Scope, condition: str) -> None:
        """One branch; in braces or not, its assignments are those of `scope`."""
        if tokens and tokens[0].text == "{":
            tokens = tokens[1:-1]
        self.block(tokens, scope, condition)

    def switch(self, tokens: Sequence[Token], i: int, scope: Scope, condition: str) -> int:
        """Reads the case that is taken, where that is known."""
        opening = self.bracket(tokens, i)
        end = closing(tokens, opening)
        body_end = closing(tokens, end + 1)
        value = self.number(parse(tokens[opening + 1 : end]), scope)
        at = end + 2
        taken: list[Token] = []
        taking = False
        while at < body_end:
            if tokens[at].text == "case":
                colon = next(j for j in range(at, body_end) if tokens[j].text == ":")
                case = self.number(parse(tokens[at + 1 : colon]), scope)
                taking |= value is not None and case == value
                at = colon + 1
            elif tokens[at].text == "break":
                taking, at = False, at + 2
            elif tokens[at].text == "default":
                taking |= not taken
                at += 2
            else:
                following = self.after(tokens, at)
                taken += tokens[at:following] if taking else []
                at = following
        self.block(taken, scope.copy(), condition)
        return body_end + 1

    def decide(self, node: Node, scope: Scope) -> tuple[bool | None, str]:
        """(whether it holds, if that is known; the condition in the words of a header)."""
        number = self.number(node, scope)
        if number is not None:
            return bool(number), ""
        try:
            return None, in_header(node, scope).text
        except LadderError:
            return None, ""

    def number(self, node: Node, scope: Scope) -> int | None:
        """The value that an expression has with the constants of Define as they are now."""
        try:
            numbers = scope.copy()
            for name, value in scope.constants.items():
                numbers.header[name] = Text(str(value), value=value)
            return in_header(node, numbers).value
        except LadderError:
            return None

    # ---- simple statements -------------------------------------------------------------------

    def simple(self, tokens: list[Token], scope: Scope, condition: str) -> None:
        texts = [token.text for token in tokens]
        if "<<<" in texts:
            return self.launch(tokens, texts.index("<<<"), scope, condition)
        if texts[:1] == ["return"] or not tokens:
            return None
        if texts[0] in ("assert", "static_assert"):
            return self.assertion(tokens, scope)
        for name, act in (("cudaMemset", self.fill), ("cudaMemsetAsync", self.fill),
                          ("cudaMalloc", self.allocate)):  # fmt: skip
            if name in texts:
                opening = texts.index("(", texts.index(name))
                return act(split(tokens[opening + 1 : closing(tokens, opening)]), scope, condition)
        return self.define(tokens, scope)

    def launch(self, tokens: list[Token], at: int, scope: Scope, condition: str) -> None:
        name = _name_before(tokens, at)
        inside = split(tokens[name + 2 : at - 1])  # between < and >
        template = ", ".join(self.template_argument(part, scope) for part in inside)
        kernel = tokens[name].text
        if self.only and kernel != self.only:
            return
        end = next(j for j in range(at, len(tokens)) if tokens[j].text == ">>>")
        parts = split(tokens[at + 1 : end])
        opening = end + 1
        given = split(tokens[opening + 1 : closing(tokens, opening)])
        where = f"the launch of {kernel}"
        try:
            grid, block = (geometry(parse(part), scope) for part in parts[:2])
            shared = in_header(parse(parts[2]), scope) if len(parts) > 2 else Text("0", value=0)
        except UnknownName as error:
            self.done.unknown.append((error.name, where))
            grid = block = (Text("1", value=1),)
            shared = Text("0", value=0)
        except LadderError as error:
            raise LadderError(
                f"a header cannot say the grid, block or shared memory of {where}: {error}; say "
                "what a variable of it is, by --arg NAME=VALUE, or give --grid and --block"
            ) from None
        arguments = tuple(in_code(parse(part), scope) for part in given)
        for part in given:
            used = {token.text for token in part if token.kind == "name"}
            self.done.unknown += [(n, where) for n in sorted(used) if n in self.types
                                  and n not in scope.code]  # fmt: skip
        self.launched = True
        self.done.steps.append(
            Launched(kernel, template, grid, block, shared, arguments, condition)
        )

    def template_argument(self, tokens: Sequence[Token], scope: Scope) -> str:
        node = parse(tokens)
        number = self.number(node, scope)
        if number is None or node.kind not in ("name", "binary"):
            return in_code(node, scope).text
        text = in_header(node, scope).text
        return text if text.isidentifier() else str(number)  # a constant of Define stays one

    def assertion(self, tokens: list[Token], scope: Scope) -> None:
        """A condition of the header, where it speaks of what a header knows."""
        parts = split(tokens[2 : closing(tokens, 1)])
        node = parse(parts[0])
        if node.kind == "binary" and node.text == "&&" and node.parts[1].text.startswith('"'):
            node = node.parts[0]
        try:
            text = in_header(node, scope)
        except LadderError:
            return
        if text.value is None:
            self.done.asserts.append(text.text)

    def fill(self, parts: list[list[Token]], scope: Scope, condition: str) -> None:
        if len(parts) < 3:
            return
        buffer, byte, size = (parse(part) for part in parts[:3])
        try:
            value = in_header(byte, scope).value
            count = in_header(size, scope)
        except UnknownName as error:
            return self.done.unknown.append((error.name, "a cudaMemset"))
        except LadderError:
            value = None
        if value is None:
            raise LadderError(
                f"cudaMemset of {in_code(buffer, scope).text} sets bytes to "
                f"{in_code(byte, scope).text}, which is no whole number: name the kernel alone, "
                "and say --fill instead"
            )
        self.done.steps.append(Filled(in_code(buffer, scope), value & 255, count, condition))

    def allocate(self, parts: list[list[Token]], scope: Scope, condition: str) -> None:
        variable = next(token.text for token in reversed(parts[0]) if token.kind == "name")
        if variable in scope.fixed:
            return None
        try:
            size = in_header(parse(parts[1]), scope)
        except UnknownName as error:
            return self.done.unknown.append((error.name, "a cudaMalloc"))
        dtype = self.types.get(variable, "float").replace("const", "").replace("*", "").strip()
        self.done.allocated.append(Allocated(variable, dtype, size))
        scope.code[variable] = Text(variable)

    def define(self, tokens: list[Token], scope: Scope) -> None:
        """A variable that is declared, or gets another value."""
        if (
            len(tokens) > 2
            and tokens[0].kind == "name"
            and tokens[1].text in ("=", "+=", "*=", "/=")
        ):
            value = parse(tokens[2:])
            if tokens[1].text != "=":
                value = Node("binary", tokens[1].text[0], (Node("name", tokens[0].text), value))
            return self.set(tokens[0].text, value, scope)
        start = 0
        while start < len(tokens) and tokens[start].text in _TYPE_WORDS:
            start += 1
        if start and start + 1 < len(tokens) and tokens[start + 1].text == "=":
            start -= 1  # `unsigned x = 1`: the last of these words is the type
        if start + 1 >= len(tokens) or tokens[start].kind != "name":
            return None
        if start == 0 and tokens[1].text in ("(", ".", "->", "::", "["):
            return None  # a call
        at = start + 1
        while at < len(tokens) and tokens[at].text in ("::", "<", "long", "int"):
            at = closing_angle(tokens, at) + 1 if tokens[at].text == "<" else at + 1
            at += tokens[at - 1].text == "::"
        if at >= len(tokens):
            return None
        kind = text_of(tokens[:at])
        for part in split(tokens[at:]):
            stars = 0
            while stars < len(part) and part[stars].text in ("*", "&", "const", "__restrict__"):
                stars += 1
            rest = part[stars:]
            if not rest or rest[0].kind != "name":
                return None
            name = rest[0].text
            self.types[name] = kind
            if len(rest) > 2 and rest[1].text == "=":
                self.set(name, parse(rest[2:]), scope)
            elif len(rest) > 2 and rest[1].text in ("(", "{"):
                inside = split(rest[2 : closing(rest, 1)])
                node = Node("list", "", tuple(parse(one) for one in inside))
                single = kind.split()[-1] != "dim3" and len(inside) == 1
                self.set(name, parse(inside[0]) if single else node, scope)
            elif name not in scope.fixed:
                scope.header.pop(name, None)
                scope.code.pop(name, None)
        return None

    def set(self, name: str, value: Node, scope: Scope) -> None:
        """From here on, `name` stands for this, as its own names stand now."""
        if name in scope.fixed:
            return
        scope.constants.pop(name, None)
        try:
            sizes = geometry(value, scope)
            one = value.kind != "list" and len(sizes) == 1
            scope.header[name] = sizes[0] if one else sizes
            scope.unclear.pop(name, None)
        except LadderError as error:
            scope.header.pop(name, None)
            scope.unclear[name] = error
        if isinstance(found := scope.header.get(name), Text) and value.kind != "list":
            number = self.number(value, scope)
            if number is not None and found.value is None:
                scope.constants[name] = number
            elif found.value is not None:
                scope.code[name] = found
                return
        scope.code[name] = in_code(value, scope)
        if value.kind == "list":  # a dim3
            for axis, part in zip("xyz", value.parts, strict=False):
                scope.code[f"{name}.{axis}"] = in_code(part, scope)


def _both(one: str, other: str) -> str:
    return f"{one} and {other}" if one and other else one or other
