"""The reader's own copies of the notebooks: in my/, which git leaves alone."""

import hashlib
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.files import alone_in, atomic_write, read_bytes, read_json, write_json
from ladder.core.show.pages import ROOT

FOLDER = ROOT / "my"
COPIED = ".copied.json"  # the SHA-256 of each notebook when it was copied


def renew() -> list[str]:
    """Copy every notebook that has no copy yet, or whose copy was never saved since. Returns a line
    for each that has changed since, and whose copy was saved, too: that copy stays as it is.

    Raises LadderError where a file cannot be read or written.
    """
    lines = []
    try:
        with alone_in(FOLDER, wait=True):
            copied = _copied()
            for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
                own, before, now = FOLDER / path.name, copied.get(path.name), _digest(path)
                if not own.exists() or _digest(own) == before != now:
                    with atomic_write(own) as target:
                        target.write(read_bytes(path))
                    copied[path.name] = now
                elif before != now:
                    lines.append(f"{path.name} has changed: rename {own} to get a copy of it")
            write_json(FOLDER / COPIED, copied)
    except OSError as error:  # no folder can be made
        raise LadderError(f"cannot write {FOLDER}: {error.strerror}") from None
    return lines


def _copied() -> dict[str, str]:
    try:
        return dict(read_json(FOLDER / COPIED))
    except (LadderError, TypeError, ValueError):  # none yet, or damaged: then every copy stays
        return {}


def _digest(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()
