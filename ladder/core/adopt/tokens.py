"""C++ as a list of tokens: enough to find where a declaration ends and which names it uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
  | (?P<directive>^[ \t]*\#(?:\\\n|//[^\n]*|/\*.*?\*/|[^\n])*)
  | (?P<string>R"\(.*?\)"|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
  | (?P<name>[A-Za-z_]\w*)
  | (?P<number>(?:0[xX][\da-fA-F']+|\d[\d']*\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)\w*)
  | (?P<operator><<<|>>>|::|->|&&|\|\||[<>=!+\-*/%&|^]=|\+\+|--|<<|>>|[^\s\w])
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
MOST_TEMPLATE_TOKENS = 64  # of a list of template arguments
_CLOSES = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    """A piece of a text: its kind (a group of _TOKEN) and where it stands."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def tokens(text: str) -> list[Token]:
    """The tokens of a text, comments and preprocessor lines among them."""
    return [
        Token(match.lastgroup or "", match.group(), match.start())
        for match in _TOKEN.finditer(text)
    ]


def code(text: str) -> list[Token]:
    """The tokens that a compiler sees after the preprocessor."""
    return [token for token in tokens(text) if token.kind not in ("comment", "directive")]


def names(text: str) -> set[str]:
    """Every name in a piece of code, those of preprocessor lines too."""
    found = set()
    for token in tokens(text):
        if token.kind == "name":
            found.add(token.text)
        elif token.kind == "directive":
            found.update(re.findall(r"[A-Za-z_]\w*", token.text))
    return found


def closing(found: Sequence[Token], opening: int) -> int:
    """The index of the bracket that closes the one at `opening`; the last index if none does."""
    depth = 0
    for i in range(opening, len(found)):
        if found[i].kind == "operator":
            depth += (found[i].text in _CLOSES) - (found[i].text in _CLOSES.values())
        if depth == 0:
            return i
    return len(found) - 1


def closing_angle(found: Sequence[Token], opening: int) -> int:
    """The index of the `>` that closes the `<` at `opening`; `opening` where it is no bracket."""
    depth, i = 0, opening
    while i < min(len(found), opening + MOST_TEMPLATE_TOKENS):
        text = found[i].text
        if text in _CLOSES:
            i = closing(found, i)
        elif text in (";", "{", "}", ")"):
            return opening
        else:
            depth += text == "<"
            depth -= {">": 1, ">>": 2, ">>>": 3}.get(text, 0)
            if depth <= 0:
                return i
        i += 1
    return opening


def split(found: Sequence[Token], at: str = ",") -> list[list[Token]]:
    """What stands between the commas that are in no bracket."""
    parts: list[list[Token]] = [[]]
    i = 0
    while i < len(found):
        token = found[i]
        end = i
        if token.text in _CLOSES:
            end = closing(found, i)
        elif token.text == "<" and i and found[i - 1].kind == "name":
            end = closing_angle(found, i)
        if token.text == at and end == i:
            parts.append([])
        else:
            parts[-1] += found[i : end + 1]
        i = end + 1
    return [part for part in parts if part]


def text_of(found: Sequence[Token]) -> str:
    """Tokens as code on one line, with the spaces that their order needs."""
    result = ""
    for i, token in enumerate(found):
        gap = i and token.start > found[i - 1].end
        result += (" " if gap else "") + token.text
    return result
