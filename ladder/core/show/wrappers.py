"""Which PTX instructions the functions of ladder/include issue, read out of the headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ladder.core.contract.device_code import INCLUDE

_MACRO = re.compile(r"^#define (\w+)\(([^)]*)\)(.*)$", re.MULTILINE)
_FUNCTION = re.compile(r"__device__ __forceinline__ [^;{}()]*?\b(\w+)\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ASM = re.compile(r"\basm(?: volatile)?\s*\(((?:[^:\"()]|\"(?:[^\"\\]|\\.)*\")*)")


class Wrapper(NamedTuple):
    """A function, the instructions in its `asm`, and the first sentence of its comment."""

    name: str
    instructions: tuple[str, ...]
    meaning: str


def table(link: Callable[[Path], str]) -> str:
    """One row for each function that has inline PTX, header by header."""
    rows = ["| function | PTX | what it does |", "|---|---|---|"]
    for path in sorted(INCLUDE.glob("*.cuh")):
        for wrapper in of_header(path.read_text(encoding="utf-8")):
            ptx = "<br>".join(f"`{instruction}`" for instruction in wrapper.instructions)
            rows.append(f"| [`{wrapper.name}`]({link(path)}) | {ptx} | {wrapper.meaning} |")
    return "\n".join(rows)


def of_header(text: str) -> Iterator[Wrapper]:
    """The wrappers in the text of a header, in its order."""
    code, meaning = _expanded(text), ""
    starts = [*_FUNCTION.finditer(code)]
    stops = [*(start.start() for start in starts), len(code)][1:]
    for start, stop in zip(starts, stops, strict=True):
        found = [i for asm in _ASM.findall(code[start.end() : stop]) for i in _instructions(asm)]
        comment = re.search(
            r"((?:^//.*\n)+)\s*(?:template[^\n]*)?\s*\Z", code[: start.start()], re.M
        )
        if comment:  # a function without one shares that of the function before it
            meaning = _first_sentence(comment[1])
        if found:
            yield Wrapper(start[1], tuple(dict.fromkeys(found)), meaning)


def _instructions(asm: str) -> Iterator[str]:
    """The instructions in the strings of an `asm`, without their operands. What stands between the
    strings is a parameter of a template, in angle brackets."""
    text = re.sub(r"\b([A-Z]\w*)\b(?=(?:[^\"]*\"[^\"]*\")*[^\"]*\Z)", r'"<\1>"', asm)
    for line in re.split(r";|\\n", "".join(_STRING.findall(text))):
        words = line.strip().removeprefix("@done ").lstrip("{ ").split()
        special = re.search(r"%%(\w+)", line)
        if words and "." in words[0] and not words[0].startswith((".", "mov.b64")):
            yield words[0] + (f" %{special[1]}" if special else "")


def _expanded(text: str) -> str:
    """The header without definitions of macros, and with their uses replaced."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    macros = {name: (args.split(", "), body) for name, args, body in _MACRO.findall(joined)}
    lines = []
    for line in joined.splitlines():
        call = re.match(r"\s*(\w+)\(", line)
        if line.startswith("#"):
            continue
        lines.append(_replaced(line, macros) if call and call[1] in macros else line)
    return "\n".join(lines) + "\n"


def _replaced(text: str, macros: dict[str, tuple[list[str], str]]) -> str:
    """A text with the macros that it uses put in, and those that they use."""
    while call := re.search(rf"\b({'|'.join(macros)})\(", text):
        parameters, body = macros[call[1]]
        given, end = _arguments(text, call.end())
        values = dict(zip(parameters, given, strict=False))  # "..." takes the rest: operands
        used = rf"\b({'|'.join(map(re.escape, values))})\b(?:##)?"
        put = re.sub(used, partial(_value, values), body)
        text = text[: call.start()] + put + text[end:]
    return text


def _value(values: dict[str, str], name: re.Match[str]) -> str:
    return values[name[1]]


def _arguments(text: str, start: int) -> tuple[list[str], int]:
    """The arguments of a call from behind its bracket on, and where it ends."""
    depth, quoted, found = 1, False, [""]
    for at in range(start, len(text)):
        letter = text[at]
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter == "(") - (letter == ")")
        if depth == 0:
            return [argument.strip() for argument in found], at + 1
        if letter == "," and depth == 1 and not quoted:
            found.append("")
        else:
            found[-1] += letter
    return found, len(text)


def _first_sentence(comment: str) -> str:
    words = " ".join(line.removeprefix("//").strip() for line in comment.splitlines())
    sentence = re.split(r"(?<=[^.]\.) ", words)[0].rstrip(".")
    meaning = re.sub(r"^(?:`[^`]+`(?:, )?)+: ", "", sentence)
    meaning = re.sub(r"([*<>|])", r"\\\1", meaning)  # is not meant as markup
    return meaning[:1].upper() + meaning[1:]
