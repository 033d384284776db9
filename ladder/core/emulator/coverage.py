"""Which branches and loops of a rung run, and how often: counters that are put into its text.

    device = Emulated(count_branches=True)
    check(ladder, rung, device)
    for spot in device.coverage(rung): print(spot.line, spot.text, spot.counts)

Counted are the statements `if`, `while` and `for` of a rung's own file, not of the headers that it
includes; an `if constexpr`, a `?:`, and the parts of an `&&` are not. Every thread counts. Any C++
compiler will do: the counters are a few lines of C++, and no feature of a compiler.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ladder.core.emulator.source import closing

_SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*',
    re.DOTALL | re.MULTILINE,
)
_UNROLL = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+unroll\b.*$", re.MULTILINE)
_STATEMENT = re.compile(r"\b(if|while|for)\s*\(")
COUNTERS = 5  # of a statement

_PRELUDE = """\
namespace emulator {
static long long spots[%d][5];
static inline bool branch(int spot, bool holds) { spots[spot][holds]++; return holds; }
struct Loop {  // counts the rounds of a loop, from where it is entered to where it is left
    int spot;
    long long rounds = 0;
    ~Loop() {
        long long *counts = spots[spot];
        bool first = counts[0] + counts[1] + counts[2] == 0;
        counts[rounds < 2 ? rounds : 2]++;
        if (first || rounds < counts[3]) counts[3] = rounds;
        if (rounds > counts[4]) counts[4] = rounds;
    }
};
}
extern "C" __attribute__((visibility("default"))) long long *emulator_coverage() {
    return emulator::spots[0];
}
#line 1
"""


@dataclass(frozen=True)
class Spot:
    """A statement that is counted, and how often its ways were taken.

    kind    "if", "while" or "for"
    text    of its condition
    counts  of "if" and "while": how often the condition failed, and held; of "for": how often it
            was left after no round, after one, after more, and the fewest and the most rounds
    """

    kind: str
    line: int
    text: str
    counts: tuple[int, ...] = (0,) * COUNTERS

    @property
    def never(self) -> str:
        """Which way was never taken; "" if all were. A loop need not be left after no round."""
        if not any(self.counts):
            return "never reached"
        if self.kind == "for":
            return "" if self.counts[1] + self.counts[2] else "no round"
        return "" if all(self.counts[:2]) else f"never {'false' if self.counts[1] else 'true'}"

    @property
    def summary(self) -> str:
        """How often its ways were taken, in words."""
        if self.kind != "for":
            return f"false {self.counts[0]:,}, true {self.counts[1]:,}"
        none, one, more, fewest, most = self.counts
        return f"no round {none:,}, one {one:,}, more {more:,}; {fewest:,} to {most:,} rounds"

    def add(self, counts: Sequence[int]) -> Spot:
        """The same statement, with the counts of a run more."""
        a, b = self.counts, tuple(counts)
        if any(a) and any(b):
            sums = tuple(x + y for x, y in zip(a[:3], b[:3], strict=True))
            b = (*sums, min(a[3], b[3]), max(a[4], b[4]))
        return replace(self, counts=b if any(b) else a)


def spots_of(source: str) -> list[Spot]:
    """The statements that are counted, in their order."""
    blank = _blanked(source)
    return [
        Spot(
            statement[1],
            source.count("\n", 0, statement.start()) + 1,
            " ".join(source[statement.end() : closing(blank, statement.end() - 1) - 1].split()),
        )
        for statement in _STATEMENT.finditer(blank)
    ]


def instrument(source: str) -> str:
    """The source with a counter for each of `spots_of`; every line keeps its number."""
    blank = _blanked(source)
    parts: list[tuple[int, int, str]] = []  # (position, order, what to insert there)
    statements = list(_STATEMENT.finditer(blank))
    for number, statement in enumerate(statements):
        opening = statement.end() - 1
        end = closing(blank, opening)
        if statement[1] == "for":
            enter = f"if (emulator::Loop emulator_loop{{{number}}}; false) {{}} else "
            parts.append((statement.start(), 0, enter))
            parts.append((end, 0, " if (emulator_loop.rounds++; false) {} else"))
        else:
            start = _last_part(blank, opening, end - 1)
            parts.append((start, 1, f"emulator::branch({number}, (bool)("))
            parts.append((end - 1, -1, "))"))
    pieces, end = [], 0
    for position, _, text in sorted(parts, key=lambda part: part[:2]):
        pieces += [source[end:position], text]
        end = position
    text = "".join([*pieces, source[end:]])
    return _PRELUDE % max(1, len(statements)) + _UNROLL.sub("", text)


def _blanked(source: str) -> str:
    """The source with spaces for what is no statement: comments, strings, directives."""
    return _SKIPPED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def _last_part(text: str, opening: int, closing: int) -> int:
    """Where the condition of `if (int i = 0; i < n)` begins."""
    depth, start = 0, opening + 1
    for position in range(opening + 1, closing):
        depth += (text[position] in "([{") - (text[position] in ")]}")
        if text[position] == ";" and depth == 0:
            start = position + 1
    return start
