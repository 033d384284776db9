"""Small changes to a rung's code, one at a time, such as a slip of the hand would make.

    for mutation in mutations(source):
        mutation.apply(source)

A scanner splits the code into words, numbers and operators; comments, preprocessor lines, the
file's header and what only guides the compiler (`__launch_bounds__`, `alignas`, `static_assert`)
are left as they are. `OPERATORS` lists the kinds of changes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

TOKEN = re.compile(
    r"""
    (?P<skip>//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*|\s+)
  | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
  | (?P<number>0[xX][0-9a-fA-F]+[uUlL]*|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?[fFuUlL]*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<operator><<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|->|::|[-+*/%&|^]=|.)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
GUIDES = ("__launch_bounds__", "alignas", "__align__", "static_assert", "__cluster_dims__")
BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
SIGNS = {"+": "-", "-": "+"}
BARRIERS = (
    *("__syncthreads", "__syncwarp", "named_barrier", "cluster_barrier", "__threadfence"),
    *("wgmma_fence", "tma_store_fence"),
)
WAITS = (
    *("cp_async_wait", "cp_async_commit", "wgmma_wait", "wgmma_commit"),
    *("tma_store_wait", "tma_store_commit", "mbarrier_wait"),
)
COUNTS = ("mbarrier_init", "mbarrier_expect", "tma_load_2d_multicast", "named_barrier")
ARRIVALS = ("mbarrier_arrive", "mbarrier_arrive_at", "mbarrier_arrive_warp", "mbarrier_expect")
OTHER = {  # the index that is meant, and the one that is written
    **{"x": "y", "y": "x", "i": "j", "j": "i", "row": "column", "column": "row"},
    **{"lane": "warp", "query": "key", "key": "query", "N": "C", "T": "C", "OC": "C", "HS": "NH"},
}
LEAVES = ("return", "break", "continue")


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class Mutation:
    """`source[start:end]` is replaced by `new`. `operator`: the kind of change."""

    operator: str
    start: int
    end: int
    new: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]

    def lines(self, source: str) -> tuple[str, str]:
        """The lines of the source that it changes, before and after, without indentation."""
        first = source.rfind("\n", 0, self.start) + 1
        last = source.find("\n", max(self.start, self.end - 1))
        last = len(source) if last < 0 else max(last, self.end)
        changed = source[first : self.start] + self.new + source[self.end : last]
        return _unindented(source[first:last]), _unindented(changed)


def _unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def scan(source: str) -> list[Token]:
    """The tokens of a rung's code: from its first include on, without what `GUIDES` name."""
    tokens: list[Token] = []
    position = source.find("\n#include")
    for match in TOKEN.finditer(source, max(position, 0)):
        kind = match.lastgroup
        if kind and kind != "skip":
            tokens.append(Token(kind, match.group(), match.start()))
    kept, at = [], 0
    while at < len(tokens):
        if tokens[at].text in GUIDES:
            at = _closing(tokens, at + 1) + 1
        else:
            kept.append(tokens[at])
            at += 1
    return kept


def _closing(tokens: Sequence[Token], opening: int) -> int:
    """The index of the bracket that closes the one at `opening`; `opening` if it is none."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    if opening >= len(tokens) or tokens[opening].text not in pairs:
        return opening
    depth = 0
    for at in range(opening, len(tokens)):
        depth += (tokens[at].text in pairs) - (tokens[at].text in pairs.values())
        if depth == 0:
            return at
    return opening


def mutations(source: str) -> list[Mutation]:
    """All mutations of a rung, in the order of the source; none twice."""
    tokens = scan(source)
    spaced = [
        source[t.start - 1 : t.start].isspace() and source[t.end : t.end + 1].isspace()
        for t in tokens
    ]
    code = Code(source, tokens, spaced)
    once = {
        (mutation.start, mutation.end, mutation.new): mutation
        for operator in OPERATORS
        for at in range(len(tokens))
        for mutation in operator(code, at)
    }
    return sorted(once.values(), key=lambda mutation: (mutation.start, mutation.end, mutation.new))


@dataclass(frozen=True)
class Code:
    source: str
    tokens: Sequence[Token]
    spaced: Sequence[bool]  # by token: white space on both sides, as around a binary operator

    @functools.cached_property
    def words(self) -> set[str]:
        return {token.text for token in self.tokens}

    def text(self, at: int) -> str:
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def statement(self, at: int) -> tuple[int, int] | None:
        """Start and end of the call at `at`, with its semicolon, if it is a whole statement."""
        if self.text(at - 1) not in (";", "{", "}", ")", "else"):
            return None
        end = at + 1
        if self.text(end) == "<":
            while self.text(end) not in (">", ""):
                end += 1
            end += 1
        end = _closing(self.tokens, end) + 1
        if self.text(end) != ";":
            return None
        return self.tokens[at].start, self.tokens[end].end

    def operand(self, at: int, step: int) -> tuple[int, int] | None:
        """Start and end of the word or number next to an operator, with its brackets."""
        if step > 0:
            last = at + 1
            if self.tokens[last].kind not in ("word", "number"):
                return None
            while self.text(last + 1) in ("(", "["):
                last = _closing(self.tokens, last + 1)
            return self.tokens[at + 1].start, self.tokens[last].end
        part = self.text(at - 2) in (".", "->", "::")
        if part or self.tokens[at - 1].kind not in ("word", "number"):
            return None
        return self.tokens[at - 1].start, self.tokens[at - 1].end


Operator = Callable[[Code, int], Iterator[Mutation]]


def bound(code: Code, at: int) -> Iterator[Mutation]:
    """`<` becomes `<=`, and so on."""
    token = code.tokens[at]
    if token.text in BOUNDS and code.spaced[at]:
        yield Mutation("bound", token.start, token.end, BOUNDS[token.text])


def sign(code: Code, at: int) -> Iterator[Mutation]:
    """`+` becomes `-`, and the other way round."""
    token = code.tokens[at]
    if token.text in SIGNS and code.spaced[at]:
        yield Mutation("sign", token.start, token.end, SIGNS[token.text])


def constant(code: Code, at: int) -> Iterator[Mutation]:
    """A number is one more, one less, or twice as large."""
    token = code.tokens[at]
    if token.kind != "number":
        return
    digits = token.text.rstrip("fFuUlL")
    ending = token.text[len(digits) :]
    if digits.isdigit():
        n = int(digits)
        for other in {n + 1, n - 1, 2 * n} - {n, -1}:
            yield Mutation("constant", token.start, token.end, f"{other}{ending}")
    elif not digits.lower().startswith("0x") and float(digits):
        yield Mutation("constant", token.start, token.end, f"{2 * float(digits)!r}{ending}")


def barrier(code: Code, at: int) -> Iterator[Mutation]:
    """A barrier or fence is removed."""
    yield from _removed("barrier", BARRIERS, code, at)


def waiting(code: Code, at: int) -> Iterator[Mutation]:
    """A wait or commit is removed, or lets one group more be pending."""
    yield from _removed("wait", WAITS, code, at)
    if code.text(at) in WAITS and code.text(at + 1) == "<":
        count = [at + 2]
        while code.text(count[-1] + 1) != ">":
            count.append(count[-1] + 1)
        end = code.tokens[count[-1]].end
        yield Mutation("wait", end, end, " + 1")


def parity(code: Code, at: int) -> Iterator[Mutation]:
    """A parity or the turn of a double buffer is not flipped."""
    token, following = code.tokens[at], code.text(at + 1)
    if token.text == "^" and following == "1":
        yield Mutation("parity", token.start, code.tokens[at + 1].end, "")
    if token.text == "^=":
        yield Mutation("parity", token.end, token.end, " 0 &")


def count(code: Code, at: int) -> Iterator[Mutation]:
    """The last argument of what counts arrivals, threads, blocks or bytes is doubled."""
    if code.text(at) in COUNTS and code.statement(at):
        close = code.tokens[_closing(code.tokens, at + 1)]
        yield Mutation("count", close.start, close.start, " * 2")


def arrival(code: Code, at: int) -> Iterator[Mutation]:
    """An arrival is removed, or comes before the statement above it."""
    yield from _removed("arrival", ARRIVALS, code, at)
    if code.text(at) not in ARRIVALS or code.text(at) == "mbarrier_expect":
        return
    first = code.source.rfind("\n", 0, code.tokens[at].start) + 1
    above = code.source.rfind("\n", 0, first - 1) + 1
    last = code.source.find("\n", first) + 1
    line, before = code.source[first:last], code.source[above:first]
    if before.split("//")[0].rstrip().endswith(";") and line.split("//")[0].rstrip().endswith(";"):
        yield Mutation("arrival", above, last, line + before)


def operands(code: Code, at: int) -> Iterator[Mutation]:
    """The operands of `-`, `/` and `%` are exchanged."""
    if code.text(at) not in ("-", "/", "%") or not code.spaced[at]:
        return
    left, right = code.operand(at, -1), code.operand(at, 1)
    if left and right:
        one, two = code.source[slice(*left)], code.source[slice(*right)]
        between = code.source[left[1] : right[0]]
        yield Mutation("operands", left[0], right[1], two + between + one)


def factor(code: Code, at: int) -> Iterator[Mutation]:
    """A factor is left out."""
    if code.text(at) == "*" and code.spaced[at] and (right := code.operand(at, 1)):
        start = code.tokens[at - 1].end
        yield Mutation("factor", start, right[1], "")


def index(code: Code, at: int) -> Iterator[Mutation]:
    """One index or dimension is taken for another that the file uses."""
    token = code.tokens[at]
    other = OTHER.get(token.text)
    declared = code.tokens[at - 1].kind == "word" and code.text(at - 1) != "return"
    if token.kind == "word" and other and other in code.words and not declared:
        yield Mutation("index", token.start, token.end, other)


def atomic(code: Code, at: int) -> Iterator[Mutation]:
    """An atomic addition becomes a plain one."""
    if code.text(at) != "atomicAdd" or not (place := code.statement(at)):
        return
    close = _closing(code.tokens, at + 1)
    depth, comma = 0, at + 2
    while depth or code.text(comma) != ",":
        depth += (code.text(comma) in "([") - (code.text(comma) in ")]")
        comma += 1
    target = code.source[code.tokens[at + 2].start : code.tokens[comma - 1].end]
    value = code.source[code.tokens[comma + 1].start : code.tokens[close].start]
    plain = target[1:] if target.startswith("&") else f"*({target})"
    yield Mutation("atomic", place[0], place[1], f"{plain} += {value};")


def assignment(code: Code, at: int) -> Iterator[Mutation]:
    """`+=` becomes `=`."""
    token = code.tokens[at]
    in_loop_head = code.text(at + 2) == ")"
    if token.text == "+=" and not in_loop_head:
        yield Mutation("assignment", token.start, token.end, "=")


def guard(code: Code, at: int) -> Iterator[Mutation]:
    """A guard is removed: `if (...) return;`, or the last condition of an `&&`."""
    if code.text(at) == "if" and code.text(at + 1) == "(":
        close = _closing(code.tokens, at + 1)
        if code.text(close + 1) in LEAVES and code.text(close + 2) == ";":
            yield Mutation("guard", code.tokens[at].start, code.tokens[close + 2].end, "")
    if code.text(at) == "&&":
        end, depth = at + 1, 0
        while code.text(end) and (depth or code.text(end) not in (")", ";", "?", "||", "&&", ",")):
            depth += (code.text(end) in ("(", "[")) - (code.text(end) in (")", "]"))
            end += 1
        yield Mutation("guard", code.tokens[at - 1].end, code.tokens[end - 1].end, "")


def _removed(operator: str, names: Sequence[str], code: Code, at: int) -> Iterator[Mutation]:
    if code.text(at) in names and (place := code.statement(at)):
        yield Mutation(operator, place[0], place[1], ";")


OPERATORS: tuple[Operator, ...] = (
    *(bound, sign, constant, barrier, waiting, parity, count, arrival, operands, factor, index),
    *(atomic, assignment, guard),
)
