"""How large the project is: python -m tests.size

Three counts of lines, then a line for each page: its words outside generated blocks and comments,
the share of them that is prose, the rows of its tables, and the line of its first rung.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CODE = [
    f"{top}/*{end}" for top in ("ladder", "reference", "trainer") for end in (".py", ".h", ".cpp")
]
GENERATED = re.compile(r"<!-- ladder:begin .*?<!-- ladder:end -->", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TABLE_ROW = re.compile(r"^\|(?!\s*[-:| ]+\|\s*$).*\|\s*$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


class Page(NamedTuple):
    """What `make size` counts on a page; `first_rung`: the line where it begins, 0 without one."""

    words: int
    prose: float
    rows: int
    first_rung: int


def page_size(text: str) -> Page:
    """The counts of a page's Markdown. Prose is what is neither a table nor a block of code."""
    written = COMMENT.sub("", GENERATED.sub("", text))
    prose = len(TABLE_ROW.sub("", FENCED.sub("", written)).split())
    rung = re.search(r"^#+ .*\brung \d", text, re.MULTILINE | re.IGNORECASE)
    return Page(
        words=len(written.split()),
        prose=prose / len(COMMENT.sub("", text).split() or [""]),
        rows=len(TABLE_ROW.findall(text)),
        first_rung=text.count("\n", 0, rung.start()) + 1 if rung else 0,
    )


def lines_of(*patterns: str) -> int:
    """The lines of all files in git that fit one of the patterns."""
    return sum((ROOT / name).read_bytes().count(b"\n") for name in files_of(*patterns))


def files_of(*patterns: str) -> list[str]:
    """The files in git that fit one of the patterns."""
    command = ["git", "ls-files", *patterns]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()


def main() -> None:
    """Print all counts."""
    code = lines_of(*CODE)
    kernels, tests = lines_of("ladder/*.cu", "ladder/*.cuh"), lines_of("tests/*.py")
    print(f"{code:8,} lines of Python, C++ and headers in ladder, reference, trainer")
    print(f"{kernels:8,} lines of .cu and .cuh in ladder")
    print(f"{tests:8,} lines of Python in tests\n")
    print("   words  prose  table rows  first rung  page")
    total = 0
    for name in files_of("*.md"):
        page = page_size((ROOT / name).read_text(encoding="utf-8"))
        total += page.words
        rung = f"line {page.first_rung}" if page.first_rung else ""
        print(f"{page.words:8,} {page.prose:5.0%}  {page.rows:10}  {rung:>10}  {name}")
    print(f"{total:8,} words written by hand in all")


if __name__ == "__main__":
    main()
