"""From the address of an instruction to the source line that it was compiled from."""

from collections.abc import Iterable
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.rung_file import MOST_BYTES
from ladder.core.emulator.source import without_comments
from ladder.core.emulator.toolchain import INCLUDE, line_tool, name_lines

MISSING = "source lines need addr2line: install binutils or llvm"


class Locator:
    """Source lines of one kernel library, asked for in one go and remembered."""

    def __init__(self, library: Path, source: Path):
        self.library = library
        self.source = str(source)
        self._known: dict[int, tuple[str, int]] = {}

    def text(self) -> str:
        """The kernel's file without its comments; "" where it cannot be read any more."""
        try:
            return without_comments(read_text(self.source, MOST_BYTES))
        except LadderError:
            return ""

    def find(self, addresses: Iterable[int]) -> dict[int, tuple[str, int]]:
        """(file, line) of each return address, relative to the start of the library.

        Where a function was inlined the line that counts is the kernel file's own, else the first
        one outside of the emulator's headers. Line 0: not known.
        """
        wanted = sorted(set(addresses))
        new = [address for address in wanted if address not in self._known]
        if new and line_tool():
            frames = self._ask(new)
            self._known.update(zip(new, map(self._choose, frames), strict=True))
        return {address: self._known.get(address, (self.source, 0)) for address in wanted}

    def _ask(self, addresses: list[int]) -> list[list[tuple[str, int]]]:
        """The frames of each address, innermost first."""
        # A return address is behind the call; one byte less is in it.
        text = "".join(f"{address - 1:#x}\n" for address in addresses)
        frames: list[list[tuple[str, int]]] = []
        for line in name_lines(str(self.library), text).splitlines():
            if line.startswith("0x"):
                frames.append([])
                continue
            file, _, number = line.split(" (")[0].rpartition(":")
            if number.isdigit() and file != "??":
                frames[-1].append((file, int(number)))
        if len(frames) != len(addresses):
            return [[] for _ in addresses]
        return frames

    def _choose(self, frames: list[tuple[str, int]]) -> tuple[str, int]:
        ours = [frame for frame in frames if frame[0] == self.source]
        others = [frame for frame in frames if not frame[0].startswith(str(INCLUDE))]
        return next(iter(ours or others or frames), (self.source, 0))
