"""The command that installs a package for the Python that runs this, and for no other."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path


def pip(words: str) -> str:
    """pip with `words` behind it, as one types it in this folder: a bare `pip` may belong to
    another Python."""
    python = Path(sys.executable)
    with suppress(ValueError, OSError):  # not below this folder, or it is deleted
        python = python.relative_to(Path.cwd())
    return f"{python} -m pip {words}"


def install(extra: str) -> str:
    """The command that installs what an extra of pyproject.toml names, such as "compile"."""
    return pip(f"install -e '.[{extra}]'")
