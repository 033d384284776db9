"""Which pages have been checked as they are, so that `docs --check` looks only at the others.

A page that is up to date is kept in the user's cache directory with a digest of its text and of
all that it is made from. Where one of these has changed, the page is checked again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ladder.core.common import cache
from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.device_code import INCLUDE
from ladder.core.contract.ladder import PACKAGE, ladders
from ladder.core.measure import results

_REQUEST = re.compile(r"<!-- ladder:begin ([^>]*?) -->")
_FILE = re.compile(r"<!-- from ([^:>]+):|\]\((\S+\.svg)\)")  # that a page cites, or shows
_AFTER = re.compile(r"^// After:(.*)", re.MULTILINE)


class Checked:
    """What has been checked, and the state of the sources when this was made.

    All pages depend on the Python code, the headers and the results. A page depends on the kernels
    of the layers that its blocks name, and on those that these grew from; with a block that names
    none, on all kernels. And it depends on each file that it cites or shows.
    """

    def __init__(self, root: Path):
        self._root = root
        python = (*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "reference").rglob("*.py"))
        measured = (path for path in results.FOLDER.rglob("*") if path.suffix != ".md")
        self._shared = _digest([*python, *INCLUDE.rglob("*"), *measured])
        self._layers: dict[str, str] = {}  # digests of the kernels
        self._named: dict[str, set[str]] = {}  # the layers that their headers grew from
        names = sorted({ladder.op.layer for ladder in ladders().values()})
        self._layer = re.compile(rf"\b({'|'.join(names)})\.")
        for name in names:
            files = sorted((PACKAGE / name).rglob("*"))
            kernels = [path for path in files if path.suffix in (".cu", ".cuh", ".h")]
            solutions = PACKAGE.parent / "doc" / "solutions" / name
            self._layers[name] = _digest([*kernels, *solutions.rglob("*.cu")])
            grown = (line for kernel in kernels for line in _AFTER.findall(read_text(kernel)))
            self._named[name] = {layer for line in grown for layer in self._layer.findall(line)}

    def __contains__(self, page: Path) -> bool:
        """Whether the page was found up to date, and nothing that it depends on has changed."""
        return cache.load("pages", self._name(page)) == self._state(page)

    def add(self, page: Path) -> None:
        """Keep that the page is up to date; where that cannot be kept, it is checked every time."""
        with suppress(LadderError):
            cache.store("pages", self._name(page), self._state(page))

    def _name(self, page: Path) -> str:
        return cache.digest(str(page.resolve()))

    def _state(self, page: Path) -> str:
        text = page.read_text(encoding="utf-8")
        wanted: set[str] = set()
        for request in _REQUEST.findall(text):
            wanted |= set(self._layer.findall(request)) or self._layers.keys()
        while more := {layer for name in wanted for layer in self._named[name]} - wanted:
            wanted |= more
        files = set()
        for cited, shown in _FILE.findall(text):
            files |= {self._root / name for name in cited.split(", ")} if cited else set()
            files |= {page.parent / shown} if shown else set()
        layers = (self._layers[name] for name in sorted(wanted))
        return cache.digest(self._shared, text, *layers, _digest(files))


def _digest(paths: Iterable[Path]) -> str:
    """Of files and their names; what is no file does not count."""
    parts: list[str | bytes] = []
    for path in sorted(path for path in paths if path.is_file()):
        parts += [str(path), path.read_bytes()]
    return cache.digest(*parts)
